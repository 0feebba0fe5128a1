//! Cases for secrets by reference in annotations and in an inline volume: CRI rules C51 to C55.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};
use executor_residue::{Needles, Place, Search};
use serde_json::{Value, json};

use crate::engines::cluster::kubectl::{Cluster, output};
use crate::engines::cluster::space::{Space, WAIT, extend, pod, same};
use crate::engines::node::{Node, SECRETS, VAULT_PORT};
use crate::engines::site::NAME;

/// Manifest of the CSIDriver in the package.
pub(super) const DRIVER: &str = include_str!("../../../../../packaging/kubernetes/csi-driver.yaml");
/// Configuration that allows the pods of one service account to use all secrets.
const CONFIGURATION: &str = "[cri.csi]\n[[cri.secrets]]\nservice_accounts = [\"app\"]\nnamespaces = [\"secrets\"]\n\
                             provider = \"shelf\"\npaths = [\"/\"]\n";
/// Minimum number of specs of the sanity suite that must pass.
const SANITY_MIN: u32 = 9;
const FIRST: &str = "Yk3vQ8nTz1LwXe7RbJ5mHc2UpGf9AdSo6iKxN4qV";
const SECOND: &str = "p0ZrW6tFhB3yMjD8uEaC1sOgQv7lTnX5kIeH2wPz";
/// Value of a Secret of Kubernetes.
const NATIVE: &str = "d4GqNs9oLxU2bVh7KfTzEw1yRmJc6PiA8kZuXe3v";
/// Value of a file below the kubelet's directory, where other CSI plugins write secrets.
const STORED: &str = "m7HtCy2wQeJb9XoV5sKuRa1nLzGd6FpI3iYxTk8q";
/// Names of the programs that never have a secret value. The shim is not listed, because it writes the files and has
/// the values until the pod is removed.
const PROGRAMS: [&str; 7] =
    ["etcd", "kube-apiserver", "kube-controller", "kubelet", "executor-cri", "executord", "executor-launch"];

/// A pod with the volume reads the values and their changes, including by `subPath`. A pod with another service account
/// does not start, and its description contains the reason. No file, no process of the control plane, the kubelet or
/// the runtime, and no response of the API server contains the values. The controls: the value of a Secret of
/// Kubernetes is found in etcd, in the kubelet's directory, and in the memory of the API server and of the kubelet. A
/// value that is stored below the kubelet's directory, as other CSI plugins do, is found there.
pub(super) fn inline_volume_has_names_only(cluster: &Cluster) -> anyhow::Result<()> {
    enable(cluster, CONFIGURATION, DRIVER)?;
    let node = &cluster.node;
    let space = Space::create(cluster, "secrets")?;
    space.apply("v1", "ServiceAccount", "app", json!({}))?;
    space.apply("v1", "Secret", "native", json!({"stringData": {"key": NATIVE}}))?;
    put(cluster, "password", FIRST)?;
    let mounts = json!({"volumeMounts": [
        {"name": "secrets", "mountPath": "/run/secrets", "readOnly": true},
        {"name": "secrets", "mountPath": "/etc/password", "subPath": "db/password", "readOnly": true},
        {"name": "native", "mountPath": "/native"},
        {"name": "store", "mountPath": "/store"},
    ]});
    let items = "- {file: db/password, path: password, mode: 0440}\n";
    let mut spec = pod(WAIT, mounts);
    let volume = json!({
        "driver": "secrets.executor.v1", "readOnly": true,
        "volumeAttributes": {"provider": "shelf", "items": items},
    });
    let native = json!({"name": "native", "secret": {"secretName": "native"}});
    let store = json!({"name": "store", "emptyDir": {"medium": "Memory"}});
    extend(&mut spec, json!({"volumes": [{"name": "secrets", "csi": volume}, native, store]}));
    let with_account = |account: &str| -> Value {
        let mut spec = spec.clone();
        extend(&mut spec, json!({"serviceAccountName": account}));
        spec
    };
    space.run("a", &with_account("app"))?;
    space.execute("a", &format!("printf {STORED} >/store/key"))?;
    // Digests, because output passes the API server, the kubelet and executor-cri.
    let read = "for file in /run/secrets/db/password /etc/password; do sha256sum <$file; done";
    same("the secret", &space.execute("a", read)?, &digest(cluster)?.repeat(2))?;
    same("the mode", &space.execute("a", "stat -L -c %a /run/secrets/db/password")?, "440\n")?;
    put(cluster, "password", SECOND)?;
    space.until_prints("a", read, &digest(cluster)?.repeat(2))?;

    space.apply("v1", "Pod", "b", json!({"spec": with_account("default")}))?;
    space.until_event("service account \"default\" of namespace \"secrets\" may not use \"password\"")?;
    let described = space.kubectl(&["describe", "pod", "b"])?;
    ensure!(
        described.contains("ask the node's operator"),
        "the description does not contain \"ask the node's operator\": {described}"
    );
    space.kubectl(&["delete", "pod", "b", "--timeout", "60s"])?;

    for kind in ["pods", "events", "csinodes", "volumeattachments"] {
        let answer = space.kubectl(&["get", kind, "--output", "yaml"])?;
        ensure!(![FIRST, SECOND].iter().any(|value| answer.contains(value)), "the {kind} contain the secret: {answer}");
    }
    let of_run = ["etcd", "cri", "executor", "disk/executor", "executord.log", "executor-cri.log", "kubelet.log"];
    let places = ["/var/lib/kubelet", "/var/log/pods"].map(Path::new).map(Path::to_owned);
    let places: Vec<_> = places.into_iter().chain(of_run.map(|name| node.path(name))).collect();
    let search = |pattern: &str| {
        let script = format!("for place; do [ -e \"$place\" ] || exit 1; done; grep -arlE '{pattern}' \"$@\" || true");
        let places = places.iter().filter_map(|path| path.to_str());
        node.output(Path::new("sh"), ["-c", &script, "sh"].into_iter().chain(places))
    };
    let native = search(NATIVE)?;
    let is_in = |place: &Path| native.lines().any(|line| Path::new(line).starts_with(place));
    ensure!(
        is_in(&node.path("etcd")) && is_in(Path::new("/var/lib/kubelet")),
        "control failed: etcd or the kubelet lacks the native Secret, which is only in {native}"
    );
    let stored = search(STORED)?;
    ensure!(
        stored.lines().any(|line| line.starts_with("/var/lib/kubelet/pods/")),
        "control failed: the file of the pod is not in the kubelet's directory, only in {stored}"
    );
    let found = search(&format!("{FIRST}|{SECOND}"))?;
    ensure!(found.is_empty(), "the secret is in {found}");
    let names = search("file: db/password")?;
    ensure!(!names.is_empty(), "control failed: no file contains the reference db/password");
    let listed = "find /var/lib/kubelet/pods/*/volumes/kubernetes.io~csi/secrets/mount -type f -size 0 -name password";
    same("the file on the host", &count(cluster, listed)?, "1")?;

    // The launcher has the tmpfs of the running container open.
    let in_memory = search_programs(node, &PROGRAMS, false)?;
    for program in ["kube-apiserver", "kubelet"] {
        let control = format!("native: {program}:");
        ensure!(
            in_memory.iter().any(|hit| hit.starts_with(&control)),
            "control failed: the memory of {program} lacks the native Secret: {in_memory:?}"
        );
    }
    let held = in_memory.iter().find(|hit| hit.starts_with("value"));
    ensure!(held.is_none(), "the secret is in the memory of a program: {in_memory:?}");

    space.kubectl(&["delete", "pod", "a", "--timeout", "60s"])?;
    cluster.until("the volume is unmounted and its record is removed", || {
        let left = format!("ls {}/volumes; grep executor-csi /proc/mounts", node.path("cri").display());
        Ok((count(cluster, &left)? == "0").then_some(()))
    })?;
    let in_memory = search_programs(node, &[&PROGRAMS[..], &["executor-shim"]].concat(), true)?;
    let held = in_memory.iter().find(|hit| hit.starts_with("value"));
    ensure!(held.is_none(), "the secret is in the memory of a program after the removal of the pod: {in_memory:?}");
    space.delete()
}

/// Searches the memory of programs for the values. If `descriptors` is true, also searches files that are accessible
/// only through descriptors of the programs. Returns `LABEL: PROGRAM: PLACE` for each hit.
fn search_programs(node: &Node, names: &[&str], descriptors: bool) -> anyhow::Result<BTreeSet<String>> {
    let mut needles = Needles::new()?;
    for (label, value) in [("value", FIRST), ("value", SECOND), ("native", NATIVE)] {
        needles.add(label, value.as_bytes());
    }
    let mut found = BTreeSet::new();
    let processes = node.processes(names);
    let missing = names.iter().find(|name| !processes.iter().any(|process| process.name == **name));
    ensure!(missing.is_none(), "the program {missing:?} does not run");
    for process in processes {
        let mut search = Search::new(&needles);
        search.process(&process);
        let report = search.report();
        ensure!(report.unsearched.is_empty(), "cannot search all memory of {}: {:?}", process.name, report.unsearched);
        let hits = report.hits.iter().filter(|hit| descriptors || !matches!(hit.place, Place::Descriptor { .. }));
        found.extend(hits.map(|hit| format!("{}: {}: {}", hit.label, process.name, hit.place)));
    }
    Ok(found)
}

/// Returns the output of sha256sum for the secret.
fn digest(cluster: &Cluster) -> anyhow::Result<String> {
    let script = format!("sha256sum <{}/password", cluster.node.path(SECRETS).display());
    cluster.node.output(Path::new("sh"), ["-c", &script])
}

/// Runs the suite of csi-test, without the specs that need a controller, and without the spec of GetPluginInfo, which
/// requires that a name ends with a letter although the specification allows a digit. As a control, the number of
/// passed specs is checked.
pub(super) fn sanity_suite_passes(cluster: &Cluster) -> anyhow::Result<()> {
    enable(cluster, CONFIGURATION, DRIVER)?;
    let suite = cluster.program().with_file_name("csi-sanity");
    let arguments = [
        "--csi.endpoint=/var/lib/kubelet/plugins/secrets.executor.v1/csi.sock",
        "--csi.mountdir=/var/lib/kubelet/sanity/mount",
        "--csi.stagingdir=/var/lib/kubelet/sanity/staging",
        "--ginkgo.no-color",
        "--ginkgo.skip=Controller Server|should remove target path|GetPluginInfo",
    ];
    cluster.node.output(Path::new("mkdir"), ["-p", "/var/lib/kubelet/sanity"])?;
    let printed = output(cluster.node.command(&suite).args(arguments), "")?;
    let passed = printed.split_once("SUCCESS! -- ").and_then(|(_, rest)| rest.split_once(" Passed"));
    let passed: u32 = passed.with_context(|| format!("csi-sanity printed no result: {printed}"))?.0.trim().parse()?;
    ensure!(passed >= SANITY_MIN, "{passed} specs passed, expected at least {SANITY_MIN}: {printed}");
    Ok(())
}

/// Enables the plugin with a configuration of executor-cri and the manifest of a CSIDriver, and waits until the kubelet
/// has registered the plugin.
pub(super) fn enable(cluster: &Cluster, configuration: &str, driver: &str) -> anyhow::Result<()> {
    let node = &cluster.node;
    fs::write(node.path("executor-cri.toml"), configuration)?;
    node.kill_cri()?;
    node.start_cri()?;
    cluster.apply(driver)?;
    cluster.until("the kubelet has registered the plugin", || {
        let drivers = cluster.get(&["csinode", NAME])?["spec"]["drivers"].take();
        Ok(drivers.as_array().into_iter().flatten().any(|one| one["name"] == "secrets.executor.v1").then_some(()))
    })
}

/// Sets the value of a secret of the provider `shelf`.
pub(super) fn put(cluster: &Cluster, name: &str, value: &str) -> anyhow::Result<()> {
    let path = cluster.node.path(SECRETS).join(name);
    let new = path.with_extension("new");
    fs::write(&new, value)?;
    Ok(fs::rename(new, path)?)
}

/// Returns the number of lines that a shell command on the node prints.
fn count(cluster: &Cluster, command: &str) -> anyhow::Result<String> {
    let lines = cluster.node.output(Path::new("sh"), ["-c", &format!("({command}) | wc -l")])?;
    Ok(lines.trim().to_owned())
}

/// If the annotation of a pod names a secret that the pod may not use, the events of the pod contain the secret, the
/// namespace and the missing rule. The control: a pod without the annotation runs.
pub(super) fn refused_reference_is_an_event(cluster: &Cluster) -> anyhow::Result<()> {
    let space = Space::create(cluster, "denied")?;
    let reference = json!({"secrets.executor.v1/a": "- {file: /run/word, provider: shelf, path: db/word}\n"});
    let template =
        json!({"metadata": {"labels": {"app": "a"}, "annotations": reference}, "spec": pod(WAIT, json!({}))});
    let spec = json!({"replicas": 1, "selector": {"matchLabels": {"app": "a"}}, "template": template});
    space.apply("apps/v1", "Deployment", "refused", json!({"spec": spec}))?;
    space.until_event("no rule of cri.secrets covers the path")?;
    let described = space.kubectl(&["describe", "pods", "--selector", "app=a"])?;
    for word in ["FailedCreatePodSandBox", "pods of namespace \"denied\"", "shelf"] {
        ensure!(described.contains(word), "the description does not contain {word:?}: {described}");
    }
    space.run("control", &pod(WAIT, json!({})))?;
    space.delete()
}

/// Pods whose provider is unreachable do not start, and their events contain the reason. Other pods still start. When
/// the provider is reachable, all pods start without any action.
pub(super) fn unreachable_provider_is_waited_for(cluster: &Cluster) -> anyhow::Result<()> {
    const PODS: usize = 30;
    const VALUE: &str = "the-value-at-the-provider";
    let space = Space::create(cluster, "away")?;
    let reference = "- {file: /run/password, provider: vault, path: secret/app, key: password}\n";
    let labels = json!({"app": "waiting"});
    let metadata = json!({"labels": labels, "annotations": {"secrets.executor.v1/a": reference}});
    let template = json!({"metadata": metadata, "spec": pod(WAIT, json!({}))});
    let spec = json!({"replicas": PODS, "selector": {"matchLabels": labels}, "template": template});
    space.apply("apps/v1", "Deployment", "waiting", json!({"spec": spec}))?;
    let reasons = || {
        let pods = space.pods("waiting")?;
        let waiting = pods.iter().filter(|pod| {
            let reason = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
            reason["message"].as_str().is_some_and(|message| message.contains("vault"))
        });
        Ok((waiting.count() == PODS).then_some(()))
    };
    let done = cluster.until("the status of each pod names the provider", reasons);
    space.described(done)?;
    space.until_event(&format!("http://127.0.0.1:{VAULT_PORT}: "))?;
    space.run("control", &pod(WAIT, json!({})))?;
    let serve = format!(
        "mkdir -p /w/v1/auth/token /w/v1/secret/data; cd /w/v1; echo '{{\"data\":{{\"ttl\":0}}}}' >auth/token/lookup-self; \
         echo '{{\"data\":{{\"data\":{{\"password\":\"{VALUE}\"}},\"metadata\":{{\"version\":1}}}}}}' >secret/data/app; \
         exec httpd -f -p 127.0.0.1:{VAULT_PORT} -h /w"
    );
    let mut vault = pod(&serve, json!({}));
    extend(&mut vault, json!({"hostNetwork": true}));
    space.run("vault", &vault)?;
    space.roll_out("deployment/waiting")?;
    same("the secret", &space.execute("deployment/waiting", "cat /run/password")?, VALUE)?;
    space.delete()
}
