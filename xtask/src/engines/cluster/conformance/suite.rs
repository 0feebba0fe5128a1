//! Suites of cases: their programs, the selected cases, and the settings that the cases need.

use anyhow::ensure;

use super::Options;
use crate::engines::cluster::kubectl::Cluster;
use crate::engines::site::STATIC_PODS;

/// Label of the cases in conformance.yaml.
const CONFORMANCE: &str = "Conformance";

/// Cases of `e2e_node.test` that do not run, with the reasons.
const EXCLUDED: &[(Excluded, &str)] = &[
    (Excluded::Label(CONFORMANCE), "the suite `cluster` has these cases"),
    // The cluster has no systemd.
    (Excluded::Label("Disruptive"), "systemd stops the kubelet or the runtime"),
    (Excluded::Label("Serial && !NodeConformance"), "systemd restarts the kubelet, or the cases measure performance"),
    (Excluded::Label("Slow"), "each case takes more than two minutes"),
    (Excluded::Name("Containers Lifecycle.*(kubelet restart|node reboot)"), "systemd restarts the kubelet"),
    (Excluded::Name("StaticPod|should not change container status"), "systemd restarts the kubelet"),
    (
        Excluded::Name("OOMKiller|ImageGarbageCollect|reflected in /configz"),
        "systemd restarts the kubelet with other settings",
    ),
    (Excluded::Name("KubletTLS|ReloadKubeletClientCAFile"), "systemd restarts the kubelet with other settings"),
    (Excluded::Label("Feature: containsAny {CriProxy, StandaloneMode}"), "the kubelet needs other settings"),
    (Excluded::Label("Feature: containsAny {KubeletCredentialProviders}"), "the kubelet needs other settings"),
    (Excluded::Label("Feature: containsAny {OffByDefault}"), "the kubelet needs feature gates"),
    (Excluded::Label("Feature: containsAny {KubeletSeparateDiskGC}"), "the node needs a separate disk for images"),
    (Excluded::Label("Feature: containsAny {SCTPConnectivity}"), "the kernel needs SCTP"),
    (Excluded::Label("Feature: containsAny {DynamicResourceAllocation}"), "the node needs devices"),
    (Excluded::Name("Device Plugin|POD Resources API"), "the node needs devices"),
    (Excluded::Label("Feature: containsAny {NodeSwap}"), "the node needs swap"),
    (Excluded::Name("with a configured handler"), "the runtime needs a handler named test-handler"),
    (Excluded::Name("volume failing to unmount"), "the cluster needs an NFS server"),
    (Excluded::Label("Feature: containsAny {ImageID}"), "the image is on the internet"),
    (Excluded::Name("Kubelet Cgroup Manager|PodOverhead"), "kubepods must be below the root cgroup"),
    (Excluded::Name("Summary API"), "the kubelet and the runtime need cgroups below the root cgroup"),
];

/// A group of cases that do not run.
enum Excluded {
    /// Cases with labels, as a filter of ginkgo.
    Label(&'static str),
    /// Cases whose name matches a regular expression.
    Name(&'static str),
}

/// Source of the cases.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Suite {
    /// Cases in conformance.yaml of Kubernetes, with e2e.test
    Cluster,
    /// Cases of the kubelet and its runtime, with e2e_node.test
    Node,
}

impl Suite {
    /// Returns the name of the package with the cases, in `k8s.io/kubernetes/test/`.
    pub(super) fn package(self) -> &'static str {
        match self {
            Self::Cluster => "e2e",
            Self::Node => "e2e_node",
        }
    }

    /// Returns the flags of ginkgo that select the cases, without the leading hyphens.
    pub(super) fn selection(self, options: &Options) -> Vec<String> {
        let (labels, excluded) = match self {
            Self::Cluster => (CONFORMANCE.to_owned(), None),
            Self::Node => (wanted_labels(), Some(unwanted_names())),
        };
        let focus = options.focus.iter().map(|name| format!("focus={name}"));
        let skip = options.skip.iter().chain(&excluded).map(|name| format!("skip={name}"));
        [format!("label-filter={labels}")].into_iter().chain(focus).chain(skip).collect()
    }

    /// Returns arguments of the kubelet.
    pub(super) fn kubelet(self) -> &'static [&'static str] {
        match self {
            Self::Cluster => &[],
            // The cases read statistics at localhost.
            Self::Node => &["--address=0.0.0.0", "--read-only-port=10255", STATIC_PODS],
        }
    }

    /// Returns the flags of the program.
    pub(super) fn arguments(self, cluster: &Cluster) -> anyhow::Result<Vec<String>> {
        let kubectl = format!("--kubectl-path={}", cluster.program().display());
        if self == Self::Cluster {
            let config = format!("--kubeconfig={}", cluster.node.path("admin.kubeconfig").display());
            return Ok(vec!["--provider=skeleton".into(), config, kubectl]);
        }
        Ok(vec![
            kubectl,
            "--start-services=false".into(),
            "--prepull-images=false".into(),
            format!("--host=https://{}:6443", cluster.node.address()),
            format!("--bearer-token={}", token(cluster)?),
            "--dns-domain=cluster.local".into(),
            format!("--node-name={}", cluster.node.name()),
            // Without the flag, the program creates a directory next to itself.
            format!("--config-dir={}", cluster.node.path("home").display()),
            format!("--container-runtime-endpoint=unix://{}", cluster.node.socket().display()),
        ])
    }
}

/// Returns ginkgo's filter of the labels of all cases that are not excluded.
fn wanted_labels() -> String {
    let labels = EXCLUDED.iter().filter_map(|(cases, _)| match cases {
        Excluded::Label(filter) => Some(format!("!({filter})")),
        Excluded::Name(_) => None,
    });
    labels.collect::<Vec<_>>().join(" && ")
}

/// Returns a regular expression that matches the names of excluded cases.
fn unwanted_names() -> String {
    let names = EXCLUDED.iter().filter_map(|(cases, _)| match cases {
        Excluded::Name(name) => Some(*name),
        Excluded::Label(_) => None,
    });
    names.collect::<Vec<_>>().join("|")
}

/// Returns a token of a service account that is an administrator.
fn token(cluster: &Cluster) -> anyhow::Result<String> {
    let account = "e2e-node";
    cluster.kubectl(&["create", "serviceaccount", account])?;
    let user = format!("--serviceaccount=default:{account}");
    cluster.kubectl(&["create", "clusterrolebinding", account, "--clusterrole=cluster-admin", &user])?;
    let token = cluster.kubectl(&["create", "token", account, "--duration=10h"])?;
    ensure!(!token.trim().is_empty(), "kubectl created no token");
    Ok(token.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excluded_cases_are_not_selected() {
        let (labels, names) = (wanted_labels(), unwanted_names());
        assert!(labels.starts_with("!(Conformance) && !(Disruptive) && !(Serial && !NodeConformance) && "), "{labels}");
        assert!(names.contains("|POD Resources API|with a configured handler|"), "{names}");
    }
}
