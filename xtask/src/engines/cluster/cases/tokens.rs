//! Containers log in to OpenBao with the tokens of their pods, which the kubelet sends to the CSI plugin (CRI rules
//! C53, C55 and G19).

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Stdio};

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::secrets::{self, DRIVER};
use crate::engines::cluster::kubectl::{Cluster, output};
use crate::engines::cluster::space::{Space, WAIT, extend, pod, same};
use crate::engines::node::{BAO_PORT, Node};

/// File name of the OpenBao binary, in the directory of the Kubernetes binaries.
pub(in crate::engines::cluster) const PROGRAM: &str = "openbao";
/// Configuration that sends tokens to the provider, and allows all service accounts to use all of its secrets.
const CONFIGURATION: &str = "[cri.csi.tokens]\nbao = \"openbao\"\n[[cri.secrets]]\nservice_accounts = [\"*\"]\n\
                             namespaces = [\"tokens\"]\nprovider = \"bao\"\npaths = [\"/\"]\n";
/// Lines of the CSIDriver in addition to the manifest of the package.
const TOKENS: &str =
    "  tokenRequests: [{audience: openbao}]\n  requiresRepublish: true\n  serviceAccountTokenInSecrets: true\n";
/// Token of the administrator of OpenBao.
const ADMIN: &str = "administrator";

/// OpenBao on the node's loopback. Dropping this value kills the server.
struct Server<'a> {
    node: &'a Node,
    cluster: &'a Cluster,
    child: Child,
}

impl<'a> Server<'a> {
    fn start(cluster: &'a Cluster) -> anyhow::Result<Self> {
        let (node, log) = (&cluster.node, File::create(cluster.node.path("openbao.log"))?);
        let mut command = node.command(&cluster.program().with_file_name(PROGRAM));
        command.args(["server", "-dev", "-dev-no-store-token", &format!("-dev-root-token-id={ADMIN}")]);
        command.arg(format!("-dev-listen-address=127.0.0.1:{BAO_PORT}")).env("HOME", node.path("home"));
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start OpenBao")?;
        let server = Self { node, cluster, child };
        cluster.until("OpenBao serves", || Ok(server.run(&["status"]).ok()))?;
        Ok(server)
    }

    /// Runs OpenBao's command line as administrator.
    fn run(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let mut command = self.node.command(&self.cluster.program().with_file_name(PROGRAM));
        command.env("BAO_ADDR", format!("http://127.0.0.1:{BAO_PORT}")).env("BAO_TOKEN", ADMIN);
        output(command.env("HOME", self.node.path("home")).args(arguments), "")
    }

    fn put(&self, value: &str) -> anyhow::Result<()> {
        self.run(&["kv", "put", "-mount=secret", "app", &format!("password={value}")]).map(drop)
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        for process in self.node.processes(&[PROGRAM]) {
            let pid = Pid::from_raw(process.pid.cast_signed());
            let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
        }
        let _ = self.child.wait(); // nsenter exits with its child
    }
}

/// A pod of the service account that OpenBao's role names reads the secret. A pod of another account does not start,
/// and its status names the login. After a restart of executord, the pod gets new values of the secret again when the
/// kubelet sends the token. No token is in a record or a log of the runtime. The control: tokens of pods are in the
/// kubelet's directory.
pub(super) fn provider_is_asked_as_the_pod(cluster: &Cluster) -> anyhow::Result<()> {
    secrets::enable(cluster, CONFIGURATION, &format!("{DRIVER}{TOKENS}"))?;
    let (node, server) = (&cluster.node, Server::start(cluster)?);
    server.put("first")?;
    let policy = node.path("openbao.hcl");
    fs::write(&policy, "path \"secret/data/app\" { capabilities = [\"read\"] }")?;
    server.run(&["policy", "write", "app", &policy.display().to_string()])?;
    server.run(&["auth", "enable", "jwt"])?;
    let key = node.path("pki/accounts.pub");
    server.run(&["write", "auth/jwt/config", &format!("jwt_validation_pubkeys=@{}", key.display())])?;
    let role = [
        "write",
        "auth/jwt/role/app",
        "role_type=jwt",
        "user_claim=sub",
        "bound_audiences=openbao",
        "bound_subject=system:serviceaccount:tokens:app",
        "token_policies=app",
    ];
    server.run(&role)?;
    let space = Space::create(cluster, "tokens")?;
    for account in ["app", "other"] {
        space.apply("v1", "ServiceAccount", account, json!({}))?;
    }
    let mut spec = pod(WAIT, json!({"volumeMounts": [{"name": "s", "mountPath": "/s", "readOnly": true}]}));
    let attributes = json!({"provider": "bao", "role": "app", "items": "- {file: p, path: secret/app, key: password}"});
    let volume = json!({"driver": "secrets.executor.v1", "readOnly": true, "volumeAttributes": attributes});
    extend(&mut spec, json!({"volumes": [{"name": "s", "csi": volume}]}));
    let with_account = |account: &str| -> Value {
        let mut spec = spec.clone();
        extend(&mut spec, json!({"serviceAccountName": account}));
        spec
    };
    space.run("a", &with_account("app"))?;
    same("the secret", &space.execute("a", "cat /s/p")?, "first")?;

    space.apply("v1", "Pod", "b", json!({"spec": with_account("other")}))?;
    let refused = || {
        let status = space.get(&["pod", "b"])?["status"].take();
        let reason = status["containerStatuses"][0]["state"]["waiting"]["message"].as_str().map(str::to_owned);
        let expected = "rejected the login at auth/jwt with the workload's token and role \"app\"";
        Ok(reason.filter(|reason| reason.contains(expected)))
    };
    let refused = cluster.until("the status names the refused login", refused);
    space.described(refused)?;
    space.kubectl(&["delete", "pod", "b", "--timeout", "60s"])?;

    server.put("second")?;
    space.until_prints("a", "cat /s/p", "second")?;
    let started = space.get(&["pod", "a"])?["status"]["containerStatuses"][0]["containerID"].take();
    node.kill_executord()?;
    node.start_executord()?;
    server.put("third")?;
    // The kubelet publishes the volume again every one to two minutes.
    space.until_prints("a", "cat /s/p", "third")?;
    let same_container = space.get(&["pod", "a"])?["status"]["containerStatuses"][0]["containerID"] == started;
    ensure!(same_container, "the container was replaced instead of updated");

    // Base64 of `{"alg":"ES256`, with which each token of the API server begins.
    let search = |places: &str| {
        let script = format!("grep -arl eyJhbGciOiJFUzI1Ni {places} || true");
        node.output(Path::new("sh"), ["-c", &script])
    };
    ensure!(!search("/var/lib/kubelet/pods")?.is_empty(), "control failed: the kubelet has no tokens of pods");
    let of_run = ["cri", "executor", "disk/executor", "executord.log", "executor-cri.log"];
    let places: Vec<_> = of_run.iter().map(|name| node.path(name).display().to_string()).collect();
    same("the files with tokens", &search(&places.join(" "))?, "")?;
    space.delete()
}
