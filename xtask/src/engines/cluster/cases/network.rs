//! Cases for Services, DNS names, and access of pods to the API server.

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::engines::cluster::kubectl::Cluster;
use crate::engines::cluster::space::{SERVE, Space, WAIT, extend, pod, same};
use crate::engines::site::ADDRESS;

const KUBECTL: &str = "registry.k8s.io/kubectl:v1.37.0";

pub(super) fn services_have_addresses_and_names(cluster: &Cluster) -> anyhow::Result<()> {
    let space = Space::create(cluster, "services")?;
    space.deploy("web", 2, &pod(SERVE, json!({"readinessProbe": {"httpGet": {"port": 8080, "path": "/"}}})))?;
    let spec = json!({"type": "NodePort", "selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]});
    space.apply("v1", "Service", "web", json!({"spec": spec}))?;
    let service = space.get(&["service", "web"])?["spec"].take();
    let address = service["clusterIP"].as_str().context("the Service has no cluster IP")?.to_owned();
    space.run("client", &pod(WAIT, json!({})))?;
    let mut names: Vec<String> =
        space.pods("web")?.iter().filter_map(|pod| Some(format!("{}\n", pod["metadata"]["name"].as_str()?))).collect();
    names.sort();
    // Both pods respond within 40 calls.
    for host in [&address, "web", "web.services.svc.cluster.local"] {
        for name in &names {
            let script =
                format!("for i in $(seq 40); do wget -q -T 5 -O - http://{host}/ | grep {} && exit; done", name.trim());
            space.until_prints("client", &script, name)?;
        }
    }
    let variables = space.execute("client", "echo $WEB_SERVICE_HOST")?;
    same("the variable", &variables, &format!("{address}\n"))?;
    let port = &service["ports"][0]["nodePort"];
    let served = || Ok(cluster.node.http("GET", &format!("http://{ADDRESS}:{port}/")).ok());
    let served = cluster.until("the node's port is served", served)?;
    ensure!(
        names.contains(&served),
        "response of the node port: {served:?}, expected the name of one of the pods {names:?}"
    );
    // A Service without ready pods refuses connections.
    space.kubectl(&["scale", "deployment/web", "--replicas", "0"])?;
    let script = format!("wget -q -T 2 -O - http://{address}/ 2>&1 | grep -o refused");
    space.until_prints("client", &script, "refused\n")?;
    space.delete()
}

pub(super) fn policies_of_names_are_applied(cluster: &Cluster) -> anyhow::Result<()> {
    let space = Space::create(cluster, "names")?;
    let mut spec = pod(WAIT, json!({}));
    let dns = json!({"nameservers": ["192.0.2.9"], "searches": ["example.org"], "options": [{"name": "ndots", "value": "2"}]});
    let alias = json!([{"ip": "192.0.2.8", "hostnames": ["alias.example.org"]}]);
    extend(&mut spec, json!({"dnsPolicy": "None", "dnsConfig": dns, "hostAliases": alias}));
    extend(&mut spec, json!({"hostname": "named", "subdomain": "group"}));
    space.run("a", &spec)?;
    let resolver = space.execute("a", "cat /etc/resolv.conf")?;
    for line in ["nameserver 192.0.2.9", "search example.org", "options ndots:2"] {
        ensure!(resolver.lines().any(|found| found == line), "resolv.conf has no line {line:?}:\n{resolver}");
    }
    let hosts = space.execute("a", "cat /etc/hosts")?;
    ensure!(hosts.contains("192.0.2.8\talias.example.org"), "/etc/hosts has no entry for alias.example.org:\n{hosts}");
    ensure!(
        hosts.contains("named.group.names.svc.cluster.local\tnamed"),
        "/etc/hosts has no entry for named.group.names.svc.cluster.local:\n{hosts}"
    );
    same("the host name", &space.execute("a", "hostname")?, "named\n")?;
    space.run("b", &pod(WAIT, json!({})))?;
    let resolver = space.execute("b", "cat /etc/resolv.conf")?;
    ensure!(
        resolver.contains("search names.svc.cluster.local svc.cluster.local"),
        "resolv.conf has no search list of the cluster:\n{resolver}"
    );
    space.delete()
}

pub(super) fn service_account_reaches_the_api_server(cluster: &Cluster) -> anyhow::Result<()> {
    let space = Space::create(cluster, "account")?;
    space.kubectl(&["create", "serviceaccount", "reader"])?;
    space.kubectl(&["create", "role", "reader", "--verb", "get,list", "--resource", "pods"])?;
    space.kubectl(&["create", "rolebinding", "reader", "--role", "reader", "--serviceaccount", "account:reader"])?;
    // The allowed client uses the name of the API server, and the denied client its cluster IP.
    let client = |arguments: &[&str], variables: Value| {
        let mut pod = json!({"containers": [{"name": "a", "image": KUBECTL, "args": arguments, "env": variables}]});
        extend(&mut pod, json!({"serviceAccountName": "reader", "restartPolicy": "Never"}));
        pod
    };
    let name = json!([{"name": "KUBERNETES_SERVICE_HOST", "value": "kubernetes.default.svc"}]);
    space.apply("v1", "Pod", "allowed", json!({"spec": client(&["get", "pods", "--output", "name"], name)}))?;
    space.wait("pod/allowed", "jsonpath={.status.phase}=Succeeded")?;
    let log = space.kubectl(&["logs", "allowed"])?;
    ensure!(log.contains("pod/allowed\n"), "output of kubectl in the pod: {log:?}, expected pod/allowed");
    space.apply("v1", "Pod", "denied", json!({"spec": client(&["get", "secrets"], json!([]))}))?;
    space.wait("pod/denied", "jsonpath={.status.phase}=Failed")?;
    let log = space.kubectl(&["logs", "denied"])?;
    ensure!(
        log.contains("system:serviceaccount:account:reader\" cannot list"),
        "output of kubectl in the pod: {log:?}, expected a refusal of list"
    );
    space.delete()
}
