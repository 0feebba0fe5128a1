//! Cases for the Helm chart of `packaging/kubernetes`.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, bail, ensure};
use serde_json::{Deserializer, Value, json};

use crate::engines::cluster::kubectl::{Cluster, output};
use crate::engines::cluster::space::{Space, WAIT, extend, pod, same};
use crate::engines::site::NAME;
use crate::workspace::Workspace;

const RELEASE: &str = "executor-cri";
/// Manifests that the chart renders with its default values.
const MANIFESTS: [&str; 2] = ["csi-driver.yaml", "runtime-classes.yaml"];
/// Kinds of objects that the chart or Helm creates.
const KINDS: &str = "csidrivers,runtimeclasses,secrets,configmaps";
/// Chart values that the schema refuses, each with a part of the error message.
const REFUSED: [(&str, &str); 4] = [
    ("csiDriver.name=Secrets", "/csiDriver/name"),
    ("csiDriver.serviceAccountTokenInSecrets=true", "/csiDriver/tokenRequests"),
    ("runtimeClasses[0].handler=runc", "/runtimeClasses/0/handler"),
    ("nodeSelectors.runtime=other", "nodeSelectors"),
];

/// The chart renders the manifests of the package, and refuses invalid values. After its installation, the API server
/// has the chart's objects, and a pod with its RuntimeClass runs. An upgrade changes the CSIDriver. After the removal,
/// no object is left.
pub(super) fn chart_is_installed_and_removed(cluster: &Cluster) -> anyhow::Result<()> {
    let manifests = Workspace::find()?.root.join("packaging/kubernetes");
    let helm = Helm { cluster, chart: manifests.join("chart") };
    helm.run(&["lint", "--strict"], &[])?;
    let plain = MANIFESTS.map(|name| fs::read_to_string(manifests.join(name)).context(name));
    let plain = plain.into_iter().collect::<anyhow::Result<Vec<_>>>()?.join("\n---\n");
    let (rendered, plain) = (objects(cluster, &helm.run(&["template", RELEASE], &[])?)?, objects(cluster, &plain)?);
    ensure!(
        plain.len() == 3 && rendered == plain,
        "the chart renders {rendered:#?}, expected the three manifests {plain:#?}"
    );
    for (value, expected) in REFUSED {
        let Err(error) = helm.run(&["template", RELEASE], &["--set", value]) else {
            bail!("the chart accepts the value {value}, expected an error")
        };
        ensure!(error.to_string().contains(expected), "the error for {value} does not contain {expected:?}: {error:#}");
    }

    let names = plain.keys().map(String::as_str);
    for name in names {
        cluster.kubectl(&["delete", name, "--ignore-not-found"])?;
    }
    let before = cluster.kubectl(&["get", KINDS, "--all-namespaces", "--output", "name"])?;
    let printed = helm.run(&["install", RELEASE], &["--namespace", "kube-system"])?;
    ensure!(
        printed.contains("kubectl label node NODE runtime=executor\n"),
        "the notes do not contain the command that labels a node: {printed}"
    );
    for (name, expected) in &plain {
        let found = cluster.get(&[name])?;
        ensure!(contains(&found, expected), "{name}: {found:#}, expected {expected:#}");
    }
    let space = Space::create(cluster, "chart")?;
    let mut spec = pod(WAIT, json!({}));
    extend(&mut spec, json!({"runtimeClassName": "executor"}));
    space.apply("v1", "Pod", "a", json!({"spec": spec}))?;
    space.until_event("didn't match Pod's node affinity/selector")?;
    cluster.kubectl(&["label", "node", NAME, "runtime=executor"])?;
    space.wait("pod/a", "condition=Ready")?;
    cluster.kubectl(&["label", "node", NAME, "runtime-"])?;
    space.delete()?;

    let tokens = ["requiresRepublish=true", "serviceAccountTokenInSecrets=true", "tokenRequests[0].audience=vault"];
    let tokens = tokens.map(|value| format!("csiDriver.{value}"));
    let values: Vec<_> = tokens.iter().flat_map(|value| ["--set", value]).collect();
    helm.run(&["upgrade", RELEASE], &[&["--namespace", "kube-system"], &values[..]].concat())?;
    let upgraded = cluster.get(&["csidriver", "secrets.executor.v1"])?;
    let expected = json!({
        "requiresRepublish": true, "serviceAccountTokenInSecrets": true, "tokenRequests": [{"audience": "vault"}],
        "podInfoOnMount": true,
    });
    ensure!(
        contains(&upgraded["spec"], &expected),
        "the upgraded CSIDriver does not contain {expected:#}: {upgraded:#}"
    );

    output(helm.command().args(["uninstall", RELEASE, "--namespace", "kube-system"]), "")?;
    let after = cluster.kubectl(&["get", KINDS, "--all-namespaces", "--output", "name"])?;
    same("the list of objects after the removal", &after, &before)
}

struct Helm<'a> {
    cluster: &'a Cluster,
    chart: PathBuf,
}

impl Helm<'_> {
    fn command(&self) -> std::process::Command {
        self.cluster.tool("helm")
    }

    /// Runs a command of helm with the chart, and returns its standard output.
    fn run(&self, command: &[&str], options: &[&str]) -> anyhow::Result<String> {
        output(self.command().args(command).arg(&self.chart).args(options), "")
    }
}

/// Returns the objects of YAML documents, by `KIND/NAME`.
fn objects(cluster: &Cluster, yaml: &str) -> anyhow::Result<BTreeMap<String, Value>> {
    let parse = ["create", "--dry-run=client", "--validate=false", "--output", "json", "--filename", "-"];
    let json = output(cluster.command().args(parse), yaml)?;
    let objects = Deserializer::from_str(&json).into_iter::<Value>().map(|object| {
        let object = object.context("cannot parse the JSON of kubectl")?;
        let [kind, name] = [&object["kind"], &object["metadata"]["name"]].map(Value::as_str);
        let kind = kind.context("an object has no kind")?.to_lowercase();
        let name = name.context("an object has no name")?;
        Ok((format!("{kind}/{name}"), object))
    });
    objects.collect()
}

/// Returns true if an object has all fields of another object. The API server adds defaults, and Helm adds labels.
fn contains(object: &Value, fields: &Value) -> bool {
    match fields {
        Value::Object(fields) => fields.iter().all(|(name, field)| contains(&object[name], field)),
        other => object == other,
    }
}
