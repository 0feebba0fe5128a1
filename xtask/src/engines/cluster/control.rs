//! The control plane: etcd, the API server, the controller manager and the scheduler.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::json;

use crate::engines::cases::until;
use crate::engines::room::Room;
use crate::engines::site::{ADDRESS, Site};

/// Address range of Services.
const SERVICES: &str = "10.96.0.0/16";
/// Clients of the API server on the first node that have a kubeconfig, in addition to the kubelet.
const CLIENTS: [&str; 3] = ["admin", "controller-manager", "scheduler"];
const ETCD: &str = "http://127.0.0.1:2379";
/// File name of the API server's audit log: requests of kubelets, and of service accounts in kube-system.
pub(super) const AUDIT: &str = "audit.jsonl";
/// Audit policy: logs the requests of kubelets, and of service accounts in kube-system.
const AUDIT_POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, userGroups: [\"system:nodes\", \"system:serviceaccounts:kube-system\"]}
- {level: None}
";
/// Time limit for the start of a program on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Writes `NAME.kubeconfig` for each client.
pub(super) fn write_kubeconfigs(directory: &Path, sites: &[Arc<Site>]) -> anyhow::Result<()> {
    let kubelets = sites.iter().map(|site| (&*site.directory, "kubelet"));
    for (directory, client) in CLIENTS.map(|client| (directory, client)).into_iter().chain(kubelets) {
        let file = |name: String| directory.join("pki").join(name);
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "cluster",
            "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": client}}],
            "clusters": [{"name": "cluster", "cluster": {
                "server": format!("https://{ADDRESS}:6443"), "certificate-authority": file("ca.crt".into()),
            }}],
            "users": [{"name": client, "user": {
                "client-certificate": file(format!("{client}.crt")), "client-key": file(format!("{client}.key")),
            }}],
        });
        fs::write(directory.join(format!("{client}.kubeconfig")), config.to_string())?;
    }
    Ok(())
}

/// Starts all programs of the control plane. Returns the processes of nsenter, which exit when the namespaces of `room`
/// are removed.
pub(super) fn start(room: &Room, programs: &Path, directory: &Path) -> anyhow::Result<Vec<Child>> {
    let pki = |name: &str| directory.join("pki").join(name).display().to_string();
    let start = |name: &str, arguments: &[&str]| -> anyhow::Result<Child> {
        let log = File::create(directory.join(format!("{name}.log")))?;
        let mut command = room.command(programs.join(name));
        command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        command.spawn().context("cannot start nsenter")
    };
    let is_ready = |program: &mut Child, name: &str, url: &str| {
        let log = directory.join(format!("{name}.log"));
        let get = ["--silent", "--fail", "--max-time", "5", "--cacert", &pki("ca.crt"), "--cert", &pki("admin.crt")];
        until(START_TIMEOUT, &format!("{name} is ready"), || {
            ensure!(
                program.try_wait()?.is_none(),
                "{name} has exited:\n{}",
                fs::read_to_string(&log).unwrap_or_default()
            );
            let mut curl = room.command("curl");
            curl.args(get).args(["--key", &pki("admin.key"), url]).stdout(Stdio::null());
            Ok(curl.status()?.success().then_some(()))
        })
    };
    let data = directory.join("etcd").display().to_string();
    // Disable fsync, which would slow the cluster down. The data is deleted after the run.
    let mut etcd = start(
        "etcd",
        &["--data-dir", &data, "--listen-client-urls", ETCD, "--advertise-client-urls", ETCD, "--unsafe-no-fsync"],
    )?;
    is_ready(&mut etcd, "etcd", &format!("{ETCD}/readyz"))?;
    let policy = directory.join("audit.yaml");
    fs::write(&policy, AUDIT_POLICY)?;
    let mut server = start(
        "kube-apiserver",
        &[
            &format!("--etcd-servers={ETCD}"),
            &format!("--bind-address={ADDRESS}"),
            &format!("--advertise-address={ADDRESS}"),
            &format!("--service-cluster-ip-range={SERVICES}"),
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged",
            &format!("--client-ca-file={}", pki("ca.crt")),
            &format!("--tls-cert-file={}", pki("apiserver.crt")),
            &format!("--tls-private-key-file={}", pki("apiserver.key")),
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            &format!("--service-account-key-file={}", pki("accounts.pub")),
            &format!("--service-account-signing-key-file={}", pki("accounts.key")),
            &format!("--kubelet-certificate-authority={}", pki("ca.crt")),
            &format!("--kubelet-client-certificate={}", pki("apiserver-kubelet.crt")),
            &format!("--kubelet-client-key={}", pki("apiserver-kubelet.key")),
            "--kubelet-preferred-address-types=InternalIP",
            &format!("--requestheader-client-ca-file={}", pki("front-proxy-ca.crt")),
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            &format!("--proxy-client-cert-file={}", pki("front-proxy.crt")),
            &format!("--proxy-client-key-file={}", pki("front-proxy.key")),
            &format!("--audit-policy-file={}", policy.display()),
            &format!("--audit-log-path={}", directory.join(AUDIT).display()),
            "--audit-log-maxsize=1000",
            "--audit-log-maxbackup=1",
        ],
    )?;
    is_ready(&mut server, "kube-apiserver", &format!("https://{ADDRESS}:6443/readyz"))?;
    let kubeconfigs = |client: &str| {
        ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"]
            .map(|flag| format!("--{flag}={}", directory.join(format!("{client}.kubeconfig")).display()))
    };
    let [config, authentication, authorization] = kubeconfigs("controller-manager");
    let manager = start(
        "kube-controller-manager",
        &[
            &config,
            &authentication,
            &authorization,
            "--leader-elect=false",
            "--use-service-account-credentials",
            &format!("--service-cluster-ip-range={SERVICES}"),
            &format!("--root-ca-file={}", pki("ca.crt")),
            &format!("--service-account-private-key-file={}", pki("accounts.key")),
            &format!("--cluster-signing-cert-file={}", pki("ca.crt")),
            &format!("--cluster-signing-key-file={}", pki("ca.key")),
            // With the defaults, a case would wait for a minute.
            "--horizontal-pod-autoscaler-sync-period=5s",
            "--horizontal-pod-autoscaler-cpu-initialization-period=1s",
            "--horizontal-pod-autoscaler-initial-readiness-delay=1s",
        ],
    )?;
    let [config, authentication, authorization] = kubeconfigs("scheduler");
    let scheduler = start("kube-scheduler", &[&config, &authentication, &authorization, "--leader-elect=false"])?;
    Ok(vec![etcd, server, manager, scheduler])
}

#[cfg(test)]
mod tests {
    use super::super::certificates::API_SERVICE;
    use super::*;

    #[test]
    fn api_service_is_first_service_address() {
        assert_eq!(SERVICES.replace("0/16", "1"), API_SERVICE);
    }
}
