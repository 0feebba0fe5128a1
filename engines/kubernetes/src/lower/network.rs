//! Lowers the arguments and capabilities for CNI plugins: rule C22.

use executor_client::v1::{CniArgument, CniBandwidth, CniOptions};
use executor_core::quantity::Quantity;
use executor_cri_api::v1::PodSandboxConfig;

use crate::failure::Violations;

/// Annotations for the rates of a pod's traffic, in bits per second.
const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
const EGRESS: &str = "kubernetes.io/egress-bandwidth";
/// Burst size in bits of a direction whose rate is limited, as with containerd.
const BURST: u64 = u32::MAX as u64;
/// Maximum rate in bits per second, as with containerd.
const RATE_MAX: u64 = 1_000_000_000_000_000;

/// Returns the CNI arguments and capabilities for a pod's network.
pub(super) fn options(id: &str, config: &PodSandboxConfig, violations: &mut Violations) -> CniOptions {
    let metadata = config.metadata.clone().unwrap_or_default();
    let arguments = [
        ("K8S_POD_NAMESPACE", metadata.namespace),
        ("K8S_POD_NAME", metadata.name),
        ("K8S_POD_INFRA_CONTAINER_ID", id.to_owned()),
        ("K8S_POD_UID", metadata.uid),
    ];
    let mut rate = |name: &str| {
        let text = config.annotations.get(name)?;
        let rate = rate(text).filter(|&rate| rate > 0);
        if rate.is_none() {
            violations.add(&format!("config.annotations[{name}]"), "must be a rate in bits per second, such as 10M");
        }
        rate
    };
    let (ingress, egress) = (rate(INGRESS), rate(EGRESS));
    let bandwidth = CniBandwidth {
        ingress_rate: ingress.unwrap_or(0),
        ingress_burst: ingress.map_or(0, |_| BURST),
        egress_rate: egress.unwrap_or(0),
        egress_burst: egress.map_or(0, |_| BURST),
    };
    CniOptions {
        arguments: arguments.map(|(name, value)| CniArgument { name: name.to_owned(), value }).to_vec(),
        bandwidth: (ingress.is_some() || egress.is_some()).then_some(bandwidth),
        cgroup_path: config.linux.as_ref().map(|linux| linux.cgroup_parent.clone()).unwrap_or_default(),
        pod_annotations: config.annotations.clone().into_iter().collect(),
    }
}

/// Parses a rate. Returns `None` if the text is not a quantity of Kubernetes, is negative, or exceeds [`RATE_MAX`].
fn rate(text: &str) -> Option<u64> {
    let units = Quantity::parse(text).filter(|quantity| !quantity.is_negative())?.units();
    (units <= RATE_MAX).then_some(units)
}

#[cfg(test)]
mod tests {
    use super::*;
    use executor_cri_api::v1::PodSandboxMetadata;

    /// Rule C22: plugins get the pod's names, rates and annotations.
    #[test]
    fn plugins_get_names_and_rates() {
        let metadata =
            PodSandboxMetadata { name: "web".into(), uid: "u".into(), namespace: "default".into(), attempt: 0 };
        let annotations = [(INGRESS.to_owned(), "10M".to_owned()), ("a".into(), "b".into())].into();
        let config = PodSandboxConfig { metadata: Some(metadata), annotations, ..PodSandboxConfig::default() };
        let mut violations = Violations::default();
        let options = options("id", &config, &mut violations);
        violations.check().unwrap();
        let arguments: Vec<_> = options.arguments.iter().map(|one| format!("{}={}", one.name, one.value)).collect();
        let expected =
            ["K8S_POD_NAMESPACE=default", "K8S_POD_NAME=web", "K8S_POD_INFRA_CONTAINER_ID=id", "K8S_POD_UID=u"];
        assert_eq!(arguments, expected);
        let bandwidth = options.bandwidth.unwrap();
        assert_eq!((bandwidth.ingress_rate, bandwidth.egress_rate, bandwidth.egress_burst), (10_000_000, 0, 0));
        assert_eq!(options.pod_annotations.len(), 2);
    }

    #[test]
    fn rates_are_quantities() {
        for (text, expected) in [
            ("10", Some(10)),
            ("1k", Some(1000)),
            ("2Mi", Some(2 << 20)),
            ("", None),
            ("1.5M", Some(1_500_000)),
            ("1e6", Some(1_000_000)),
            ("1P", Some(RATE_MAX)),
            ("-1", None),
            ("2P", None),
        ] {
            assert_eq!(rate(text), expected, "{text}");
        }
        let annotations = [(EGRESS.to_owned(), "fast".to_owned())].into();
        let mut violations = Violations::default();
        options("id", &PodSandboxConfig { annotations, ..PodSandboxConfig::default() }, &mut violations);
        assert!(violations.check().unwrap_err().message().contains("egress-bandwidth"));
    }
}
