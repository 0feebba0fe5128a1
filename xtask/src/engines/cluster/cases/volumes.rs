//! Cases for ConfigMaps, Secrets and projected volumes.

use anyhow::ensure;
use serde_json::json;

use crate::engines::cluster::kubectl::Cluster;
use crate::engines::cluster::space::{STAY, Space, WAIT, extend, pod, same};

pub(super) fn changes_are_seen(cluster: &Cluster) -> anyhow::Result<()> {
    let space = Space::create(cluster, "configuration")?;
    let objects = |value: &str| -> anyhow::Result<()> {
        space.apply("v1", "ConfigMap", "settings", json!({"data": {"key": value}}))?;
        space.apply("v1", "Secret", "password", json!({"stringData": {"key": value}}))
    };
    objects("one")?;
    let from = |kind: &str, name: &str| json!({"name": kind, "valueFrom": {kind: {"name": name, "key": "key"}}});
    let mounts = json!([
        {"name": "settings", "mountPath": "/settings"}, {"name": "password", "mountPath": "/password"},
        {"name": "all", "mountPath": "/all"}, {"name": "settings", "mountPath": "/file", "subPath": "key"},
    ]);
    let fields = json!({
        "env": [from("configMapKeyRef", "settings"), from("secretKeyRef", "password")], "volumeMounts": mounts,
        "securityContext": {"runAsUser": 1001, "runAsGroup": 1000},
    });
    let mut spec = pod(WAIT, fields);
    let label = json!({"path": "app", "fieldRef": {"fieldPath": "metadata.labels['app']"}});
    let sources = json!([
        {"configMap": {"name": "settings", "items": [{"key": "key", "path": "c"}]}},
        {"secret": {"name": "password", "items": [{"key": "key", "path": "s", "mode": 0o400}]}},
        {"downwardAPI": {"items": [label]}},
        {"serviceAccountToken": {"path": "token", "audience": "vault", "expirationSeconds": 600}},
    ]);
    extend(
        &mut spec,
        json!({"securityContext": {"fsGroup": 2000}, "volumes": [
            {"name": "settings", "configMap": {"name": "settings"}},
            {"name": "password", "secret": {"secretName": "password", "defaultMode": 0o440}},
            {"name": "all", "projected": {"sources": sources}},
        ]}),
    );
    space.run("a", &spec)?;
    same("the environment", &space.execute("a", "printenv configMapKeyRef secretKeyRef")?, "one\none\n")?;
    let read = "cat /settings/key /password/key /all/c /all/s /all/app";
    space.until_prints("a", read, "oneoneoneonea")?;
    let mode = space.execute("a", "stat -L -c '%a %g' /password/key; id -G; wc -c </all/token")?;
    let mut lines = mode.lines();
    same("the mode of the secret", lines.next().unwrap_or_default(), "440 2000")?;
    same("the groups", lines.next().unwrap_or_default(), "1000 2000")?;
    ensure!(lines.next().is_some_and(|count| count != "0"), "the service account token in the volume is empty");
    objects("two")?;
    space.kubectl(&["label", "pod", "a", "--overwrite", "app=b"])?;
    space.until_prints("a", read, "twotwotwotwob")?;
    // As documented: a file mounted by subPath and the environment do not change.
    same("the file", &space.execute("a", "cat /file; printenv secretKeyRef")?, "oneone\n")?;
    space.delete()
}

pub(super) fn exceeded_volume_is_evicted(cluster: &Cluster) -> anyhow::Result<()> {
    let space = Space::create(cluster, "limits")?;
    let fill = format!("dd if=/dev/zero of=/v/x bs=1M count=8; {STAY}");
    let mut limited = pod(&fill, json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}));
    extend(&mut limited, json!({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "4Mi"}}]}));
    space.apply("v1", "Pod", "volume", json!({"spec": limited}))?;
    // Exceed the limit of the container's writable layer.
    let limits = json!({"resources": {"limits": {"ephemeral-storage": "4Mi"}}});
    let limited = pod(&format!("mkdir /v; {fill}"), limits);
    space.apply("v1", "Pod", "layer", json!({"spec": limited}))?;
    for (name, kind) in [("volume", "EmptyDir"), ("layer", "ephemeral")] {
        space.wait(&format!("pod/{name}"), "jsonpath={.status.reason}=Evicted")?;
        let status = space.get(&["pod", name])?["status"].take();
        // The message of an eviction by DiskPressure has no "limit".
        let message = status["message"].as_str().unwrap_or_default();
        ensure!(
            message.contains(kind) && message.contains("limit"),
            "{name} was evicted with the message {message:?}, expected {kind} and limit"
        );
    }
    space.delete()
}
