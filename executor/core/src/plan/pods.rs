//! Defines the role of a container in a pod: a group of containers that share a network, IPC and a host name and, if
//! requested, processes and volumes.
//!
//! A pod is represented by its holder, a container without a program whose first process keeps the namespaces. A member
//! names the pod. The member's plan repeats the pod's settings, so that the member is validated by the same rules as
//! other containers.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Isolation, Network, Plan, Volume};
use crate::ident::ContainerId;

/// Directory of a pod's volumes in its holder's root.
pub const POD_VOLUMES: &str = "/volumes";

/// Role of a container in a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PodRole {
    /// The pod itself: it holds the members' shared resources and runs no program.
    Holder {
        /// True if the members share the holder's PID namespace.
        share_processes: bool,
    },
    /// A member of a pod.
    Member {
        /// Id of the pod, whose holder has the shared resources.
        pod: ContainerId,
        /// True if the members share the holder's PID namespace.
        share_processes: bool,
    },
}

/// Returns the path of a pod's volume in its holder's root.
pub fn pod_volume_path(name: &str) -> PathBuf {
    Path::new(POD_VOLUMES).join(name)
}

/// Returns the name of a pod's volume, from the path of an empty volume in the holder.
pub fn pod_volume_name(volume: &Volume) -> Option<&str> {
    volume.path.strip_prefix(POD_VOLUMES).ok()?.to_str()
}

impl Plan {
    /// Returns true for the plan of a pod.
    pub fn is_pod(&self) -> bool {
        matches!(self.pod, Some(PodRole::Holder { .. }))
    }

    /// Returns the id of the pod that the container is a member of, if there is one.
    pub fn member_of(&self) -> Option<&ContainerId> {
        match &self.pod {
            Some(PodRole::Member { pod, .. }) => Some(pod),
            Some(PodRole::Holder { .. }) | None => None,
        }
    }

    /// Returns true for a pod whose members share one PID namespace, and for its members.
    pub fn shares_processes(&self) -> bool {
        match &self.pod {
            Some(PodRole::Holder { share_processes } | PodRole::Member { share_processes, .. }) => *share_processes,
            None => false,
        }
    }

    /// Returns true if the container's init is the first process of a PID namespace. If not, the kernel kills no
    /// process when init exits, and orphaned processes become children of a process outside of the container.
    pub fn owns_processes(&self) -> bool {
        let Isolation { host_pid, pid_of, .. } = &self.isolation;
        self.is_pod() || !(*host_pid || pid_of.is_some() || self.shares_processes())
    }

    /// Returns the name of the node's network to which this container itself is attached; the name is empty for the
    /// default network. `None` if the container is not attached itself.
    pub fn own_network(&self) -> Option<&str> {
        (self.network == Network::Cni && self.makes_network()).then_some(&*self.connectivity.network_name)
    }

    /// Returns true if a network namespace is created for the container.
    pub fn makes_network(&self) -> bool {
        self.member_of().is_none() && matches!(self.network, Network::None | Network::Cni)
    }

    /// Returns true if the container's network namespace belongs to its user namespace.
    pub fn owns_network(&self) -> bool {
        matches!(self.network, Network::None | Network::Cni)
    }
}
