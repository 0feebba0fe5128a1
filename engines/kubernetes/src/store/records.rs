//! Records of sandboxes and containers on disk.

use std::collections::BTreeMap;

use executor_cri_api::v1::{ContainerConfig, LinuxContainerResources, PodSandboxConfig};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::secrets::ContainerSecrets;

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct SandboxRecord {
    pub(crate) id: String,
    pub(crate) config: PodSandboxConfig,
    pub(crate) runtime_handler: String,
    /// References to secrets by the names of containers, from the annotations of the request.
    pub(crate) secrets: BTreeMap<String, ContainerSecrets>,
    /// Time of the request, in nanoseconds since 1970.
    pub(crate) created_at: i64,
    /// Ids and processor times, in nanoseconds, of the containers that were removed most recently or are about to be
    /// removed.
    pub(crate) removed_containers: Vec<(String, u64)>,
    /// Processor time of all other removed containers, in nanoseconds.
    pub(crate) removed_cpu_ns: u64,
    /// True after executord has created the pod.
    pub(crate) is_created: bool,
}

/// Maximum number of containers in [`SandboxRecord::removed_containers`]. At most this many containers of a pod are
/// removed during one call for statistics.
const REMOVED_MAX: usize = 16;

impl SandboxRecord {
    /// Records the processor time of a container that is about to be removed. Returns true if the record changed.
    ///
    /// The container and its time are stored by one write, so a kill can neither lose the time nor count it twice.
    pub(crate) fn record_removal(&mut self, id: &str, cpu_ns: u64) -> bool {
        match self.removed_containers.iter_mut().find(|(removed, _)| removed == id) {
            // An earlier attempt to remove the container failed.
            Some((_, recorded)) => cpu_ns > std::mem::replace(recorded, cpu_ns.max(*recorded)),
            None if cpu_ns == 0 => false,
            None => {
                self.removed_containers.push((id.to_owned(), cpu_ns));
                if self.removed_containers.len() > REMOVED_MAX {
                    self.removed_cpu_ns = self.removed_cpu_ns.saturating_add(self.removed_containers.remove(0).1);
                }
                true
            }
        }
    }

    /// Returns the processor time of removed containers, except containers that the caller counts itself.
    pub(crate) fn removed_cpu_ns(&self, is_counted: impl Fn(&str) -> bool) -> u64 {
        let removed = self.removed_containers.iter().filter(|(id, _)| !is_counted(id));
        removed.fold(self.removed_cpu_ns, |sum, (_, cpu_ns)| sum.saturating_add(*cpu_ns))
    }
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct ContainerRecord {
    pub(crate) id: String,
    pub(crate) sandbox: String,
    /// Request, without values of the environment.
    pub(crate) config: ContainerConfig,
    /// Absolute path of the log file. Empty if the container has no log.
    pub(crate) log: String,
    /// Id of the image: the digest of its configuration.
    pub(crate) image_id: String,
    /// Name of the image with the digest of its manifest.
    pub(crate) image_ref: String,
    /// Resources of the container that are in force.
    pub(crate) resources: LinuxContainerResources,
    /// Ids of the volumes of secrets that the container mounts.
    pub(crate) secret_volumes: Vec<String>,
    /// Time of the request, in nanoseconds since 1970.
    pub(crate) created_at: i64,
    /// True after executord has created the container.
    pub(crate) is_created: bool,
}

impl ContainerRecord {
    /// Removes the environment, which is in no record (rule C43).
    pub(crate) fn without_environment(mut self) -> Self {
        self.config.envs.clear();
        self
    }
}

/// A record that is stored on disk.
pub(crate) trait Record: Clone + Serialize + DeserializeOwned {
    /// Returns the name, which is unique among objects of one kind.
    fn name(&self) -> String;
    fn id(&self) -> &str;
    /// Returns the maximum size of the object in a list of the kubelet, in bytes.
    fn listed_bytes(&self) -> usize;
    /// Returns true after executord has created the object.
    fn is_created(&self) -> bool;
    fn set_created(&mut self);
}

impl Record for SandboxRecord {
    fn name(&self) -> String {
        let metadata = self.config.metadata.clone().unwrap_or_default();
        [metadata.namespace, metadata.name, metadata.uid, metadata.attempt.to_string()].join("\0")
    }

    fn listed_bytes(&self) -> usize {
        let PodSandboxConfig { metadata, labels, annotations, .. } = &self.config;
        LISTED_MORE + encoded(metadata.as_ref()) + texts_bytes(labels) + texts_bytes(annotations)
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn is_created(&self) -> bool {
        self.is_created
    }

    fn set_created(&mut self) {
        self.is_created = true;
    }
}

impl Record for ContainerRecord {
    fn name(&self) -> String {
        let metadata = self.config.metadata.clone().unwrap_or_default();
        [&*self.sandbox, &metadata.name, &metadata.attempt.to_string()].join("\0")
    }

    fn listed_bytes(&self) -> usize {
        let ContainerConfig { metadata, image, labels, annotations, .. } = &self.config;
        let names = encoded(metadata.as_ref()) + encoded(image.as_ref()) + self.image_ref.len() + self.image_id.len();
        LISTED_MORE + names + texts_bytes(labels) + texts_bytes(annotations)
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn is_created(&self) -> bool {
        self.is_created
    }

    fn set_created(&mut self) {
        self.is_created = true;
    }
}

/// Size of the ids, states and counters of an object in a list, in bytes.
const LISTED_MORE: usize = 1024;
/// Size of the tags and lengths of a label or annotation in a list, in bytes.
const TEXT_MORE: usize = 16;

fn encoded(message: Option<&impl prost::Message>) -> usize {
    message.map_or(0, prost::Message::encoded_len)
}

fn texts_bytes(texts: &BTreeMap<String, String>) -> usize {
    texts.iter().map(|(name, value)| name.len() + value.len() + TEXT_MORE).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule C41: the processor time of a removed container is counted once. Times beyond [`REMOVED_MAX`] are summed.
    #[test]
    fn removed_processor_time_is_kept() {
        let mut sandbox = SandboxRecord::default();
        assert!(sandbox.record_removal("0", 5) && sandbox.record_removal("0", 6) && !sandbox.record_removal("0", 0));
        assert!(!sandbox.record_removal("1", 0));
        assert_eq!([sandbox.removed_cpu_ns(|_| false), sandbox.removed_cpu_ns(|id| id == "0")], [6, 0]);
        (1..40).for_each(|id| assert!(sandbox.record_removal(&id.to_string(), 1)));
        assert_eq!((sandbox.removed_cpu_ns(|_| false), sandbox.removed_containers.len()), (45, REMOVED_MAX));
    }
}
