//! Cases for a cluster of several nodes: their network, drain, and the power loss of a node.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::engines::cluster::kubectl::{Cluster, condition};
use crate::engines::cluster::space::{STAY, Space, WAIT, extend, pod, same, spread};
use crate::engines::node::Node;

/// Shell script that serves the host name, and the address of the client at `/cgi-bin/peer`, on port 8080.
const SERVE: &str = "mkdir -p /w/cgi-bin; cd /w; hostname >index.html; printf '#!/bin/sh\\necho; echo $REMOTE_ADDR' \
    >cgi-bin/peer; chmod 755 cgi-bin/peer; exec httpd -f -p 8080 -h /w";
/// Command that prints a page.
const GET: &str = "wget -q -T 10 -O -";

pub(super) fn pods_reach_each_other(cluster: &Cluster) -> anyhow::Result<()> {
    let space = Space::create(cluster, "reach")?;
    space.deploy("web", 6, &web(SERVE, serves()))?;
    let pods = space.pods("web")?;
    let counts = by_node(&pods);
    ensure!(
        counts.len() == 3 && counts.values().all(|pods| pods.len() == 2),
        "pods by node: {counts:?}, expected 2 on each of 3 nodes"
    );
    for from in counts.values().filter_map(|pods| pods.first()) {
        let own = address(&pods, from)?;
        for (to, name) in pods.iter().map(|pod| (text(&pod["status"]["podIP"]), text(&pod["metadata"]["name"]))) {
            let script = format!("{GET} http://{to}:8080; {GET} http://{to}:8080/cgi-bin/peer");
            let printed = space.execute(from, &script).with_context(|| format!("{from} cannot reach {name}"))?;
            let (host, peer) = printed.split_once('\n').context("the output has no second line")?;
            same("the host name", host, name)?;
            let peer = peer.trim().trim_start_matches("[::ffff:").trim_end_matches(']');
            same(&format!("the address of {from} for {name}"), peer, own)?;
        }
    }
    space.kubectl(&["expose", "deployment", "web", "--port", "80", "--target-port", "8080", "--type", "NodePort"])?;
    let port = space.get(&["service", "web"])?["spec"]["ports"][0]["nodePort"].to_string();
    for (node, pods) in &counts {
        let from = pods.first().context("the node has no pod")?;
        let script = many(24);
        // The kube-proxy of each node receives the Service independently.
        let answers =
            cluster.until(&format!("the Service responds on {node}"), || Ok(space.execute(from, &script).ok()))?;
        let hosts: BTreeSet<_> = answers.lines().collect();
        ensure!(hosts.len() > 1, "pods of the Service: {hosts:?}, expected more than one");
        let node = cluster
            .nodes()
            .find(|one| one.name() == *node)
            .with_context(|| format!("the cluster has no node {node}"))?;
        for to in cluster.nodes() {
            let served = || Ok(node.http("GET", &format!("http://{}:{port}/", to.address())).ok());
            cluster.until(&format!("{} reaches the port of {}", node.name(), to.name()), served)?;
        }
    }
    space.delete()
}

pub(super) fn daemon_set_is_on_each_node(cluster: &Cluster) -> anyhow::Result<()> {
    let space = Space::create(cluster, "daemon")?;
    let labels = json!({"app": "agent"});
    let mut spec = pod(&format!("echo started on $NODE; {SERVE}"), serves());
    let name = json!([{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]);
    extend(&mut spec["containers"][0], json!({"env": name}));
    let template = json!({"metadata": {"labels": labels}, "spec": spec});
    let spec = json!({"spec": {"selector": {"matchLabels": labels}, "template": template}});
    space.apply("apps/v1", "DaemonSet", "agent", spec)?;
    space.roll_out("daemonset/agent")?;
    let pods = space.pods("agent")?;
    let counts = by_node(&pods);
    for node in cluster.nodes() {
        let [pod] = &counts.get(node.name()).context("the node has no pod")?[..] else {
            anyhow::bail!("pods by node: {counts:?}, expected one on each")
        };
        same("the log", &space.kubectl(&["logs", pod])?, &format!("started on {}\n", node.name()))?;
        same("the host name", &space.execute(pod, "hostname")?, &format!("{pod}\n"))?;
        same("the forwarded page", &space.forward(&format!("pod/{pod}"), "8080")?, &format!("{pod}\n"))?;
        let url = format!("/api/v1/namespaces/daemon/pods/{pod}:8080/proxy/");
        same("the page", &cluster.kubectl(&["get", "--raw", &url])?, &format!("{pod}\n"))?;
    }
    space.delete()
}

pub(super) fn drained_pods_move(cluster: &Cluster) -> anyhow::Result<()> {
    let space = Space::create(cluster, "move")?;
    space.deploy("web", 3, &web(WAIT, json!({})))?;
    let budget = json!({"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}});
    space.apply("policy/v1", "PodDisruptionBudget", "web", json!({"spec": budget}))?;
    let node = other(cluster, 0)?.name();
    ensure!(by_node(&space.pods("web")?).contains_key(node), "no pod of the Deployment is on {node}");
    cluster.kubectl(&["drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout", "120s"])?;
    space.roll_out("deployment/web")?;
    let pods = space.pods("web")?;
    let counts = by_node(&pods);
    ensure!(
        counts.values().flatten().count() == 3 && !counts.contains_key(node),
        "pods by node: {counts:?}, expected 3, none on {node}"
    );
    cluster.kubectl(&["uncordon", node])?;
    space.kubectl(&["rollout", "restart", "deployment/web"])?;
    space.roll_out("deployment/web")?;
    let is_back = || Ok(by_node(&space.pods("web")?).contains_key(node).then_some(()));
    cluster.until("a pod is on the node again", is_back)?;
    space.delete()
}

/// A Deployment's pods are replaced on other nodes. A StatefulSet's pod could still be running, so it is replaced only
/// after an administrator taints the node as out of service.
pub(super) fn dead_node_is_replaced(cluster: &Cluster) -> anyhow::Result<()> {
    let space = Space::create(cluster, "dead")?;
    let dead = other(cluster, 1)?;
    let name = dead.name();
    let tolerations = ["not-ready", "unreachable"].map(|key| {
        json!({"key": format!("node.kubernetes.io/{key}"), "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1})
    });
    let mut spec = web(SERVE, serves());
    extend(&mut spec, json!({"tolerations": tolerations}));
    space.deploy("web", 3, &spec)?;
    space.kubectl(&["expose", "deployment", "web", "--port", "80", "--target-port", "8080"])?;
    let mut spec = pod(STAY, json!({}));
    extend(&mut spec, json!({"tolerations": tolerations, "affinity": {"nodeAffinity": prefer(name)}}));
    let labels = json!({"app": "data"});
    let template = json!({"metadata": {"labels": labels}, "spec": spec});
    let set = json!({"serviceName": "data", "selector": {"matchLabels": labels}, "template": template});
    space.apply("apps/v1", "StatefulSet", "data", json!({"spec": set}))?;
    space.roll_out("statefulset/data")?;
    let data = || space.get(&["pod", "data-0"]);
    same("the node of the StatefulSet's pod", text(&data()?["spec"]["nodeName"]), name)?;
    ensure!(by_node(&space.pods("web")?).contains_key(name), "no pod of the Deployment is on {name}");
    let uid = data()?["metadata"]["uid"].clone();

    let has_pod = || Ok((endpoints(&space, name)? == 1).then_some(()));
    cluster.until("the Service has a pod of the node", has_pod)?;

    dead.cut_power()?;
    let is_lost = || Ok((!condition(&cluster.get(&["node", name])?, "Ready")).then_some(()));
    cluster.until("the node is not ready", is_lost)?;
    let are_replaced = || {
        let pods = space.pods("web")?;
        let ready = pods.iter().filter(|pod| condition(pod, "Ready") && pod["spec"]["nodeName"] != name);
        Ok((ready.count() == 3).then_some(()))
    };
    let done = cluster.until("three pods run on the other nodes", are_replaced);
    space.described(done)?;
    // The Service no longer has the dead node's pod.
    space.run("client", &pod(WAIT, json!({})))?;
    cluster.until("the Service has no pod of the node", || Ok((endpoints(&space, name)? == 0).then_some(())))?;
    // kube-proxy applies the change a little later. If one of four pods is dead, the probability that all 24 requests
    // succeed by chance is 1 in 1000.
    cluster.until("the Service responds to each request", || Ok(space.execute("client", &many(24)).ok()))?;
    space.execute("client", &many(24))?;
    let is_ending = || Ok((!data()?["metadata"]["deletionTimestamp"].is_null()).then_some(()));
    cluster.until("the StatefulSet's pod is being deleted", is_ending)?;
    ensure!(data()?["metadata"]["uid"] == uid, "the StatefulSet's pod was replaced while it could still run");

    cluster.kubectl(&["taint", "node", name, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"])?;
    let is_replaced = || {
        let Ok(pod) = data() else { return Ok(None) };
        Ok((pod["metadata"]["uid"] != uid && condition(&pod, "Ready")).then_some(()))
    };
    let done = cluster.until("the StatefulSet's pod runs on another node", is_replaced);
    space.described(done)?;
    cluster.kubectl(&["delete", "node", name])?;
    space.delete()
}

/// Returns a shell script that requests a page of the Service `web` several times, and fails if one request fails.
fn many(requests: u32) -> String {
    format!("for i in $(seq {requests}); do {GET} http://web || exit; done")
}

/// Returns the number of ready endpoints of the Service `web` on a node.
fn endpoints(space: &Space<'_>, node: &str) -> anyhow::Result<usize> {
    let slices = space.get(&["endpointslices", "--selector", "kubernetes.io/service-name=web"])?;
    let slices = slices["items"].as_array().context("the JSON of kubectl has no list of EndpointSlices")?;
    let endpoints = slices.iter().filter_map(|slice| slice["endpoints"].as_array()).flatten();
    Ok(endpoints.filter(|one| one["nodeName"] == node && one["conditions"]["ready"] != false).count())
}

/// Returns a node by its index among the nodes after the first.
fn other(cluster: &Cluster, index: usize) -> anyhow::Result<&Node> {
    cluster.others.get(index).context("the cluster has too few nodes")
}

/// Returns a node affinity that prefers a node.
fn prefer(node: &str) -> Value {
    let term = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node]});
    json!({"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": {"matchExpressions": [term]}}]})
}

/// Returns the specification of the pods of the Deployment `web`, which are spread over the nodes.
fn web(script: &str, container: Value) -> Value {
    let mut spec = pod(script, container);
    spread(&mut spec, "web");
    spec
}

/// Returns the fields of a container that is ready when port 8080 accepts connections.
fn serves() -> Value {
    json!({"readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1}})
}

/// Returns the names of the pods that are not being deleted, by node.
fn by_node(pods: &[Value]) -> BTreeMap<&str, Vec<&str>> {
    let mut nodes = BTreeMap::<_, Vec<_>>::new();
    for pod in pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()) {
        nodes.entry(text(&pod["spec"]["nodeName"])).or_default().push(text(&pod["metadata"]["name"]));
    }
    nodes
}

fn address<'a>(pods: &'a [Value], name: &str) -> anyhow::Result<&'a str> {
    let pod = pods
        .iter()
        .find(|pod| pod["metadata"]["name"] == name)
        .with_context(|| format!("the pod {name} is missing"))?;
    Ok(text(&pod["status"]["podIP"]))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
