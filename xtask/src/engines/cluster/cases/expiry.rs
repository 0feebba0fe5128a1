//! A provider of secrets whose certificate has expired.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::engines::cluster::certificates;
use crate::engines::cluster::kubectl::Cluster;
use crate::engines::cluster::space::{Space, WAIT, extend, pod, same};
use crate::engines::node::TLS_VAULT_PORT;

const LONG: &str = "+30 days";
const VALUE: &str = "the-value-at-the-provider";

/// The certificate of a provider has expired. The status of a pod and an event name the provider and the reason. The pod
/// starts after the certificate was replaced.
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
    same("the secret", &space.execute("deployment/waiting", "cat /run/secret")?, VALUE)?;
    space.delete()
}

/// Creates a Deployment whose container has a secret by reference.
fn deploy(space: &Space<'_>, name: &str, replicas: u32, reference: &str, spec: &Value) -> anyhow::Result<()> {
    let labels = json!({"app": name});
    let metadata = json!({"labels": labels, "annotations": {"secrets.executor.v1/a": format!("[{reference}]")}});
    let template = json!({"metadata": metadata, "spec": spec});
    let spec = json!({"replicas": replicas, "selector": {"matchLabels": labels}, "template": template});
    space.apply("apps/v1", "Deployment", name, json!({"spec": spec}))
}

/// Runs a server that answers like Vault, with a new certificate.
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
      return 200 '{{\"data\":{{\"data\":{{\"password\":\"{VALUE}\"}},\"metadata\":{{\"version\":1}}}}}}';
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
