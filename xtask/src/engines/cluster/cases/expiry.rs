//! Cases for certificates that expire: the kubelet's client certificate, and the certificate of a provider of secrets.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use super::secrets;
use crate::engines::cases::until;
use crate::engines::cluster::certificates;
use crate::engines::cluster::kubectl::{Cluster, condition};
use crate::engines::cluster::space::{Space, WAIT, extend, pod, same};
use crate::engines::node::TLS_VAULT_PORT;
use crate::engines::site::NAME;

/// Remaining validity of the certificate that expires: long enough for the start of a kubelet on a busy machine.
const SHORT: &str = "+60 seconds";
const LONG: &str = "+30 days";
/// Time limit until the kubelet has loaded a new certificate: the kubelet checks the file every five minutes.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(330);
const FIRST: &str = "the-value-before-the-expiry";
const SECOND: &str = "the-value-after-the-expiry";
const READ: [&str; 3] = ["cat", "/run/secret", "/native/key"];

/// The kubelet's certificate expires. The node becomes NotReady, the description of the node contains the reason, and
/// the API server's log names the expired certificate. The containers keep running with their secrets, and a changed
/// secret reaches them. After the certificate was replaced, the node is Ready without a restart of the kubelet or a
/// container.
pub(super) fn kubelet_certificate_expires(cluster: &Cluster) -> anyhow::Result<()> {
    let node = &cluster.node;
    let space = Space::create(cluster, "kubelet-expiry")?;
    secrets::put(cluster, "lasting", FIRST)?;
    space.apply("v1", "Secret", "native", json!({"stringData": {"key": "native"}}))?;
    let mut spec = pod(WAIT, json!({"volumeMounts": [{"name": "native", "mountPath": "/native"}]}));
    extend(&mut spec, json!({"volumes": [{"name": "native", "secret": {"secretName": "native"}}]}));
    deploy(&space, "web", 3, "{file: /run/secret, provider: shelf, path: lasting}", &spec)?;
    space.roll_out("deployment/web")?;
    let containers = || -> anyhow::Result<(String, Vec<String>)> {
        let one = |pod: &Value| {
            let status = &pod["status"]["containerStatuses"][0];
            format!("{} {} {}", pod["metadata"]["uid"], status["containerID"], status["restartCount"])
        };
        let mut all: Vec<String> = space.pods("web")?.iter().map(one).collect();
        all.sort();
        Ok((all.join("\n"), cluster.running("kubelet-expiry", "web-")?))
    };
    let before = containers()?;
    ensure!(before.1.len() == 3, "the runtime runs the containers {:?}, expected 3", before.1);

    // Existing connections keep the certificate of their start.
    renew(cluster, SHORT)?;
    node.kill_kubelet()?;
    node.start_kubelet()?;
    let status = || -> anyhow::Result<Value> {
        let mut node = cluster.get(&["node", NAME])?;
        let conditions = node["status"]["conditions"].take();
        let ready = conditions.as_array().into_iter().flatten().find(|condition| condition["type"] == "Ready");
        ready.cloned().context("the node has no condition Ready")
    };
    cluster.until("the node is no longer ready", || Ok((status()?["status"] == "Unknown").then_some(())))?;
    let mut described = String::new();
    let has_reason = || {
        described = cluster.kubectl(&["describe", "node", NAME])?;
        let words = ["NodeStatusUnknown", "Kubelet stopped posting node status", "NodeNotReady"];
        Ok(words.iter().all(|word| described.contains(word)).then_some(()))
    };
    let done = cluster.until("the description of the node has the reason and the event", has_reason);
    done.with_context(|| format!("the description is {described}"))?;
    for (log, reason) in [("kube-apiserver.log", "x509: certificate has expired"), ("kubelet.log", "Unauthorized")] {
        let text = fs::read_to_string(node.path(log))?;
        ensure!(text.contains(reason), "the log {log} does not contain {reason:?}");
    }
    ensure!(!node.kubelet_has_exited()?, "the kubelet has exited after its certificate expired");
    let running = cluster.running("kubelet-expiry", "web-")?;
    ensure!(running == before.1, "containers were replaced: before {:?}, after {running:?}", before.1);
    let ids = ["ps", "--quiet", "--label", "io.kubernetes.pod.namespace=kubelet-expiry"];
    let ids = node.crictl(&ids)?;
    let read = |id: &str| node.crictl(&[&["exec", id][..], &READ].concat());
    for id in ids.lines() {
        same("what a container reads", &read(id)?, &format!("{FIRST}native"))?;
    }
    secrets::put(cluster, "lasting", SECOND)?;
    for id in ids.lines() {
        let has_new = || Ok((read(id)? == format!("{SECOND}native")).then_some(()));
        cluster.until("a container has the new value", has_new)?;
    }

    renew(cluster, LONG)?;
    let is_ready = || Ok(condition(&cluster.get(&["node", NAME])?, "Ready").then_some(()));
    until(RELOAD_TIMEOUT, "the node is ready", is_ready)?;
    space.roll_out("deployment/web")?;
    same("what a pod reads", &space.execute("deployment/web", &READ.join(" "))?, &format!("{SECOND}native"))?;
    space.run("next", &pod(WAIT, json!({})))?;
    let after = containers()?;
    ensure!(before == after, "containers were replaced. Before:\n{before:?}\nafter:\n{after:?}");
    space.delete()
}

/// The certificate of a provider has expired. The status of a pod and an event name the provider and the reason. The
/// pod starts after the certificate was replaced.
pub(super) fn provider_certificate_expires(cluster: &Cluster) -> anyhow::Result<()> {
    let space = Space::create(cluster, "vault-expiry")?;
    serve(&space, "vault", "-10 minutes")?;
    let reference = "{file: /run/secret, provider: vault-tls, path: secret/app, key: password}";
    deploy(&space, "waiting", 1, reference, &pod(WAIT, json!({})))?;
    let mut last = String::new();
    let has_reason = || {
        let pods = space.pods("waiting")?;
        let waiting = pods.first().map(|pod| &pod["status"]["containerStatuses"][0]["state"]["waiting"]);
        last = waiting.and_then(|waiting| waiting["message"].as_str()).unwrap_or_default().to_owned();
        let address = format!("https://127.0.0.1:{TLS_VAULT_PORT}: ");
        Ok(["vault-tls:secret/app", &address, "certificate expired"]
            .iter()
            .all(|part| last.contains(part))
            .then_some(()))
    };
    let done = cluster.until("the status of the pod names the provider and the expired certificate", has_reason);
    space.described(done.with_context(|| format!("the message is {last:?}")))?;
    space.until_event("certificate expired")?;
    space.run("control", &pod(WAIT, json!({})))?;

    space.kubectl(&["delete", "pod", "vault"])?;
    serve(&space, "vault", LONG)?;
    space.roll_out("deployment/waiting")?;
    same("the secret", &space.execute("deployment/waiting", "cat /run/secret")?, FIRST)?;
    space.delete()
}

/// Replaces the kubelet's client certificate, as kubeadm does.
fn renew(cluster: &Cluster, end: &str) -> anyhow::Result<()> {
    let subject = format!("/O=system:nodes/CN=system:node:{NAME}");
    certificates::issue(&cluster.node.path("pki"), "kubelet", &subject, "extendedKeyUsage = clientAuth", end)
}

/// Creates a Deployment whose container has a secret by reference.
fn deploy(space: &Space<'_>, name: &str, replicas: u32, reference: &str, spec: &Value) -> anyhow::Result<()> {
    let labels = json!({"app": name});
    let metadata = json!({"labels": labels, "annotations": {"secrets.executor.v1/a": format!("[{reference}]")}});
    let template = json!({"metadata": metadata, "spec": spec});
    let spec = json!({"replicas": replicas, "selector": {"matchLabels": labels}, "template": template});
    space.apply("apps/v1", "Deployment", name, json!({"spec": spec}))
}

/// Runs a server that responds like Vault, with a new certificate.
fn serve(space: &Space<'_>, name: &str, end: &str) -> anyhow::Result<()> {
    let pki = space.cluster.node.path("pki");
    let extensions = "extendedKeyUsage = serverAuth\nsubjectAltName = IP:127.0.0.1";
    certificates::issue(&pki, "vault", "/CN=vault", extensions, end)?;
    let read = |name: &str| fs::read_to_string(pki.join(Path::new(name)));
    let configuration = format!(
        "user www-data; daemon off; error_log /dev/stderr; pid /var/run/nginx.pid; events {{}}
http {{
  access_log off;
  server {{
    listen 127.0.0.1:{TLS_VAULT_PORT} ssl;
    ssl_certificate /vault/vault.crt;
    ssl_certificate_key /vault/vault.key;
    location = /v1/auth/token/lookup-self {{ return 200 '{{\"data\":{{\"ttl\":0}}}}'; }}
    location = /v1/secret/data/app {{
      return 200 '{{\"data\":{{\"data\":{{\"password\":\"{FIRST}\"}},\"metadata\":{{\"version\":1}}}}}}';
    }}
  }}
}}
"
    );
    let files = json!({"nginx.conf": configuration, "vault.crt": read("vault.crt")?, "vault.key": read("vault.key")?});
    space.apply("v1", "Secret", name, json!({"stringData": files}))?;
    let container = json!({
        "image": "registry.k8s.io/e2e-test-images/nginx:1.14-2",
        "volumeMounts": [{"name": "vault", "mountPath": "/vault"}],
        "readinessProbe": {"exec": {"command": ["nc", "-z", "127.0.0.1", TLS_VAULT_PORT.to_string()]}, "periodSeconds": 1},
    });
    let mut spec = pod("exec nginx -c /vault/nginx.conf", container);
    extend(&mut spec, json!({"hostNetwork": true, "volumes": [{"name": "vault", "secret": {"secretName": name}}]}));
    space.run(name, &spec)
}
