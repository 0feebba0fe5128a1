//! Cases for Deployments, Jobs, CronJobs, StatefulSets, DaemonSets, and the autoscaler of Deployments.

use std::fs;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::engines::Kind;
use crate::engines::cluster::kubectl::Cluster;
use crate::engines::cluster::space::{IMAGE, SERVE, Space, WAIT, extend, pod, same};
use crate::engines::site::{ADDRESS, NAME};

const REPLICAS: u32 = 30;

pub(super) fn deployment_is_updated(cluster: &Cluster) -> anyhow::Result<()> {
    let space = Space::create(cluster, "deployment")?;
    let version = json!({"env": [{"name": "V", "value": "1"}]});
    space.deploy("web", REPLICAS, &pod(WAIT, version))?;
    let check = |expected: &str| -> anyhow::Result<()> {
        let pods = space.pods("web")?;
        let running = pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        ensure!(
            running.count() == REPLICAS as usize,
            "pods of the Deployment: {}, expected {REPLICAS} that run",
            pods.len()
        );
        same("the version", &space.execute("deployment/web", "echo $V")?, expected)
    };
    check("1\n")?;
    space.kubectl(&["set", "env", "deployment/web", "V=2"])?;
    space.roll_out("deployment/web")?;
    check("2\n")?;
    space.kubectl(&["rollout", "undo", "deployment/web"])?;
    space.roll_out("deployment/web")?;
    check("1\n")?;
    space.delete()
}

pub(super) fn jobs_complete_and_fail(cluster: &Cluster) -> anyhow::Result<()> {
    let space = Space::create(cluster, "job")?;
    let job = |name: &str, script: &str, fields: Value| {
        let mut pod = pod(script, json!({}));
        extend(&mut pod, json!({"restartPolicy": "Never"}));
        let mut spec = json!({"template": {"spec": pod}});
        extend(&mut spec, fields);
        space.apply("batch/v1", "Job", name, json!({"spec": spec}))
    };
    let indexed = json!({"completions": 4, "parallelism": 2, "completionMode": "Indexed"});
    job("count", "echo $JOB_COMPLETION_INDEX", indexed)?;
    job("fail", "exit 3", json!({"backoffLimit": 1}))?;
    let rules = json!({"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]});
    job("policy", "exit 42", json!({"backoffLimit": 5, "podFailurePolicy": rules}))?;
    job("deadline", WAIT, json!({"activeDeadlineSeconds": 1}))?;
    space.wait("job/count", "condition=Complete")?;
    let log = space.kubectl(&["logs", "--selector", "job-name=count"])?;
    let mut lines: Vec<&str> = log.lines().collect();
    lines.sort_unstable();
    same("the output", &lines.join(" "), "0 1 2 3")?;
    for (name, reason, failed) in
        [("fail", "BackoffLimitExceeded", 2), ("policy", "PodFailurePolicy", 1), ("deadline", "DeadlineExceeded", 1)]
    {
        space.wait(&format!("job/{name}"), "condition=Failed")?;
        let status = space.get(&["job", name])?["status"].take();
        let conditions = status["conditions"].as_array().context("the Job has no conditions")?;
        let has_reason = conditions.iter().any(|one| one["type"] == "Failed" && one["reason"] == reason);
        ensure!(
            has_reason && status["failed"] == failed,
            "Job {name}: {status}, expected {reason} and {failed} failures"
        );
    }
    space.delete()
}

pub(super) fn cron_job_is_scheduled(cluster: &Cluster) -> anyhow::Result<()> {
    let space = Space::create(cluster, "cronjob")?;
    let mut pod = pod("echo done", json!({}));
    extend(&mut pod, json!({"restartPolicy": "Never"}));
    let template = json!({"spec": {"template": {"spec": pod}}});
    space.apply("batch/v1", "CronJob", "clock", json!({"spec": {"schedule": "* * * * *", "jobTemplate": template}}))?;
    space.kubectl(&["create", "job", "by-hand", "--from", "cronjob/clock"])?;
    space.wait("job/by-hand", "condition=Complete")?;
    space.wait("cronjob/clock", "jsonpath={.status.lastSuccessfulTime}")?;
    space.delete()
}

pub(super) fn stateful_set_keeps_its_volumes(cluster: &Cluster) -> anyhow::Result<()> {
    let space = Space::create(cluster, "stateful")?;
    for number in 0..2 {
        let path = cluster.node.path(&format!("root/paths/volume{number}"));
        fs::create_dir_all(&path)?;
        let term = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [NAME]});
        let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}});
        let spec = json!({
            "capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "stateful",
            "local": {"path": path}, "nodeAffinity": affinity, "persistentVolumeReclaimPolicy": "Retain",
        });
        space.apply("v1", "PersistentVolume", &format!("stateful-{number}"), json!({"spec": spec}))?;
    }
    let service = json!({"spec": {"clusterIP": "None", "selector": {"app": "db"}}});
    space.apply("v1", "Service", "db", service)?;
    let script = format!("hostname >>/v/names; {WAIT}");
    let pod = pod(&script, json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}));
    let claim = json!({
        "accessModes": ["ReadWriteOnce"], "storageClassName": "stateful",
        "resources": {"requests": {"storage": "1Mi"}},
    });
    let labels = json!({"app": "db"});
    let spec = json!({
        "replicas": 2, "serviceName": "db", "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
        "volumeClaimTemplates": [{"metadata": {"name": "v"}, "spec": claim}],
    });
    space.apply("apps/v1", "StatefulSet", "db", json!({"spec": spec}))?;
    space.roll_out("statefulset/db")?;
    space.kubectl(&["delete", "pod", "db-0"])?;
    space.roll_out("statefulset/db")?;
    space.until_prints("db-0", "cat /v/names", "db-0\ndb-0\n")?;
    space.until_prints("db-1", "cat /v/names", "db-1\n")?;
    // Resolve the name of a pod in a headless Service.
    let address = space.get(&["pod", "db-1"])?["status"]["podIP"].as_str().unwrap_or_default().to_owned();
    let script = "nslookup db-1.db.stateful.svc.cluster.local | awk '/^Address/ {a = $2} END {print a}'";
    space.until_prints("db-0", script, &format!("{address}\n"))?;
    space.delete()?;
    cluster.kubectl(&["delete", "persistentvolume", "stateful-0", "stateful-1", "--timeout", "60s"]).map(drop)
}

pub(super) fn daemon_set_is_on_the_host(cluster: &Cluster) -> anyhow::Result<()> {
    let space = Space::create(cluster, "daemon")?;
    let path = cluster.node.path("root/paths/daemon");
    fs::create_dir_all(&path)?;
    let script = format!("ip -o address show dev node0 >/v/address; {WAIT}");
    let mut pod = pod(&script, json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}));
    let volume = json!({"name": "v", "hostPath": {"path": path, "type": "Directory"}});
    extend(&mut pod, json!({"hostNetwork": true, "hostPID": true, "volumes": [volume]}));
    let labels = json!({"app": "agent"});
    let template = json!({"metadata": {"labels": labels}, "spec": pod});
    let spec = json!({"selector": {"matchLabels": labels}, "template": template});
    space.apply("apps/v1", "DaemonSet", "agent", json!({"spec": spec}))?;
    space.roll_out("daemonset/agent")?;
    let pods = space.pods("agent")?;
    ensure!(
        pods.len() == 1 && pods[0]["status"]["podIP"] == ADDRESS,
        "pods {pods:?}, expected one with the address {ADDRESS}"
    );
    let written = || Ok(fs::read_to_string(path.join("address")).ok().filter(|text| text.contains(ADDRESS)));
    cluster.until("the agent writes the address of the node", written)?;
    let processes = space.execute("daemonset/agent", "ps")?;
    ensure!(
        processes.contains("kube-apiserver"),
        "ps in the pod does not list kube-apiserver of the host:\n{processes}"
    );
    space.kubectl(&["rollout", "restart", "daemonset/agent"])?;
    space.roll_out("daemonset/agent")?;
    space.delete()
}

pub(super) fn autoscaler_adds_a_pod(cluster: &Cluster) -> anyhow::Result<()> {
    let space = Space::create(cluster, "autoscaler")?;
    let busy = "while [ ! -e /idle ]; do :; done; exec sleep 1000";
    let requests = json!({"resources": {"requests": {"cpu": "20m"}, "limits": {"cpu": "100m"}}});
    space.deploy("busy", 1, &pod(busy, requests))?;
    space.kubectl(&["autoscale", "deployment", "busy", "--min", "1", "--max", "2", "--cpu", "50%"])?;
    let is_scaled = || {
        let replicas = &space.get(&["deployment", "busy"])?["status"]["readyReplicas"];
        Ok((*replicas == 2).then_some(()))
    };
    let scaled = cluster.until("the autoscaler adds a pod", is_scaled);
    space.described(scaled)?;
    // On a busy machine metrics-server is not ready for some seconds.
    let pods = || Ok(space.kubectl(&["top", "pod"]).ok().filter(|top| top.contains("busy-")));
    cluster.until("kubectl top has the pod", pods)?;
    let nodes = || Ok(cluster.kubectl(&["top", "node"]).ok().filter(|top| top.contains(NAME)));
    cluster.until("kubectl top has the node", nodes)?;
    space.delete()
}

pub(super) fn pod_is_resized_in_place(cluster: &Cluster) -> anyhow::Result<()> {
    let space = Space::create(cluster, "resize")?;
    let limits = |cpu: &str, memory: &str| {
        let list = json!({"cpu": cpu, "memory": memory});
        json!({"limits": list, "requests": list})
    };
    space.run("a", &pod(WAIT, json!({"resources": limits("100m", "32Mi")})))?;
    let patch = json!({"spec": {"containers": [{"name": "a", "resources": limits("200m", "64Mi")}]}}).to_string();
    space.kubectl(&["patch", "pod", "a", "--subresource", "resize", "--patch", &patch])?;
    let is_resized = || {
        let status = space.get(&["pod", "a"])?["status"]["containerStatuses"][0].take();
        let limits = &status["resources"]["limits"];
        ensure!(status["restartCount"] == 0, "the resize restarted the container: {status}");
        Ok((limits["cpu"] == "200m" && limits["memory"] == "64Mi").then_some(()))
    };
    let resized = cluster.until("the status has the new limits", is_resized);
    space.described(resized)?;
    let file = match std::path::Path::new("/sys/fs/cgroup/cgroup.procs").exists() {
        true => "/sys/fs/cgroup/memory.max",
        false => "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    };
    space.until_prints("a", &format!("cat {file}"), "67108864\n")?;
    space.delete()
}

pub(super) fn runtime_class_selects_a_handler(cluster: &Cluster) -> anyhow::Result<()> {
    let space = Space::create(cluster, "runtimeclass")?;
    let (handler, refusal) = match cluster.node.runtime() {
        Kind::Executor => ("executor", "runtime_handler"),
        Kind::Containerd => ("runc", "missing"),
    };
    for (name, handler) in [("isolated", handler), ("absent", "missing")] {
        space.apply("node.k8s.io/v1", "RuntimeClass", name, json!({"handler": handler}))?;
    }
    let with_class = |class: &str| {
        let mut pod = pod(WAIT, json!({}));
        extend(&mut pod, json!({"runtimeClassName": class}));
        pod
    };
    space.run("a", &with_class("isolated"))?;
    space.apply("v1", "Pod", "b", json!({"spec": with_class("absent")}))?;
    until_message(&space, "b", "FailedCreatePodSandBox", |message| message.contains(refusal))?;
    space.delete()?;
    cluster.kubectl(&["delete", "runtimeclass", "isolated", "absent"]).map(drop)
}

pub(super) fn images_of_two_pods_are_pulled(cluster: &Cluster) -> anyhow::Result<()> {
    let space = Space::create(cluster, "images")?;
    let image = |name: &str, policy: &str| json!({"image": name, "imagePullPolicy": policy});
    space.run("always", &pod(WAIT, image(IMAGE, "Always")))?;
    // The message differs if the kubelet uses an image that is present.
    until_message(&space, "always", "Pulled", |message| message.starts_with("Successfully pulled image"))?;
    space.apply("v1", "Pod", "never", json!({"spec": pod(SERVE, image("registry.k8s.io/none:1", "Never"))}))?;
    space.until_event("ErrImageNeverPull")?;
    let images = cluster.get(&["node", NAME])?["status"]["images"].take().to_string();
    ensure!(images.contains(IMAGE), "images of the node {images}, expected {IMAGE}");
    space.delete()
}

/// Waits until an event of a pod has this reason and a message that `accepts` returns true for.
fn until_message(space: &Space<'_>, pod: &str, reason: &str, accepts: impl Fn(&str) -> bool) -> anyhow::Result<()> {
    let selector = format!("involvedObject.name={pod},reason={reason}");
    let mut messages: Vec<String> = Vec::new();
    let poll = || {
        let list = space.get(&["events", "--field-selector", &selector])?;
        let events = list["items"].as_array().context("the JSON of kubectl has no list of events")?;
        messages = events.iter().filter_map(|event| event["message"].as_str().map(str::to_owned)).collect();
        Ok(messages.iter().any(|message| accepts(message)).then_some(()))
    };
    let done = space.cluster.until(&format!("{pod} has the expected event {reason}"), poll);
    done.with_context(|| format!("the messages are {messages:?}"))
}
