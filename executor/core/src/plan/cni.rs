//! Defines the settings of a pod for the CNI plugins of its network.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Settings for CNI plugins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CniOptions {
    /// Arguments in CNI_ARGS, in this order.
    pub arguments: Vec<CniArgument>,
    /// Traffic limits for the capability `bandwidth`.
    pub bandwidth: Option<CniBandwidth>,
    /// Capability `cgroupPath`; unset if empty.
    pub cgroup_path: String,
    /// Capability `io.kubernetes.cri.pod-annotations`; unset if empty.
    pub pod_annotations: BTreeMap<String, String>,
}

/// Argument for CNI plugins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CniArgument {
    /// Name: letters, digits and `_`.
    pub name: String,
    /// Value: visible ASCII characters without `;` and `=`.
    pub value: String,
}

/// Limits on the traffic of a pod; 0 is unset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CniBandwidth {
    /// Bits per second to the pod.
    pub ingress_rate: u64,
    /// Burst of the traffic to the pod, in bits.
    pub ingress_burst: u64,
    /// Bits per second from the pod.
    pub egress_rate: u64,
    /// Burst of the traffic from the pod, in bits.
    pub egress_burst: u64,
}
