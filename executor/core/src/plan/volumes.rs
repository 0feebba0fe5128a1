//! Defines the volumes of a container: directories that are mounted into its root file system.

use std::path::PathBuf;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::{Plan, Rootfs};

/// Default permission bits of an empty volume's root.
pub const VOLUME_MODE_DEFAULT: u32 = 0o1777;

/// A directory that is mounted into a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Mount point of the volume in the container.
    pub path: PathBuf,
    /// Source of the volume's content.
    pub source: VolumeSource,
    /// Mounted directory of the volume, relative to its root; empty for the whole volume.
    pub sub_path: PathBuf,
    /// True if the container cannot write to the volume.
    pub read_only: bool,
}

/// Source of a volume's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeSource {
    /// A new directory, which is removed with the container.
    Empty(EmptyVolume),
    /// The operator's volume with this name.
    Host(String),
    /// The files of an image.
    Image(VolumeImage),
    /// A volume of the pod that the container is a member of, by name.
    Pod(String),
    /// A path of the host, below one of the policy's `host_paths`.
    HostPath(HostPath),
}

/// A path of the host with its mount options.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPath {
    /// Absolute path on the host.
    pub path: PathBuf,
    /// Propagation of later mounts below the path.
    pub propagation: Propagation,
    /// True if the mounts below the path are included.
    pub recursive: bool,
    /// True if the included mounts are also read-only.
    pub recursive_read_only: bool,
    /// True if set-user-id bits are honoured.
    pub suid: bool,
    /// True if device nodes can be opened.
    pub dev: bool,
    /// True if symbolic links in the path are followed.
    pub follow_links: bool,
}

/// Propagation of mounts between the host and a container. Later values permit more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Propagation {
    /// No mount propagates.
    #[default]
    Private,
    /// Mounts of the host appear in the container.
    HostToContainer,
    /// Mounts of the container also appear on the host.
    Bidirectional,
}

/// A new directory that is mounted as a volume and removed with the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmptyVolume {
    /// Medium of the directory: disk or memory.
    pub medium: Medium,
    /// Maximum size in bytes. On disk, 0 means that the volume shares the limit of the writable layer. In memory, 0 in
    /// a draft means the container's memory limit.
    pub bytes: u64,
    /// Permission bits of the root directory, which belongs to the process's user.
    pub mode: u32,
    /// Group of the root directory, as an id in the container; the group of the process's user if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

/// Medium of an empty volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Medium {
    /// The disk of the executor's state directory.
    #[default]
    Disk,
    /// Memory of the container, on a tmpfs.
    Memory,
}

/// An image whose files are the content of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeImage {
    /// Reference of the image in the request.
    pub reference: String,
    /// Digest of the manifest, `sha256:HEX`.
    pub digest: String,
    /// diffIDs of its layers, the lowest first, each `sha256:HEX`.
    pub layers: Vec<String>,
}

/// A host directory that containers may use: an entry of the table `volumes` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostVolume {
    /// Name of the volume in requests.
    pub name: String,
    /// Directory on the host.
    pub path: PathBuf,
    /// True if containers cannot write to the directory.
    #[serde(default)]
    pub read_only: bool,
}

/// Host directory below which containers may mount any path, or host file that containers may mount: an entry of
/// `policy.host_paths`. In the configuration file, an entry is a table or only the path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostPathRule {
    /// Directory on the host.
    pub path: PathBuf,
    /// True if containers cannot write to the path or below.
    pub read_only: bool,
    /// Most permissive propagation that a request can set.
    pub propagation: Propagation,
    /// True if a request may use set-user-id programs. Users of the host may then be able to execute set-user-id
    /// programs that a container leaves behind.
    pub suid: bool,
    /// True if a request may use device nodes.
    pub dev: bool,
}

impl From<PathBuf> for HostPathRule {
    fn from(path: PathBuf) -> Self {
        Self { path, ..Self::default() }
    }
}

impl<'de> Deserialize<'de> for HostPathRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RuleVisitor)
    }
}

struct RuleVisitor;

impl<'de> Visitor<'de> for RuleVisitor {
    type Value = HostPathRule;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a path, or a table with a path")
    }

    fn visit_str<E: serde::de::Error>(self, path: &str) -> Result<HostPathRule, E> {
        Ok(PathBuf::from(path).into())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<HostPathRule, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            path: PathBuf,
            #[serde(default)]
            read_only: bool,
            #[serde(default)]
            propagation: Propagation,
            #[serde(default)]
            suid: bool,
            #[serde(default)]
            dev: bool,
        }
        let Table { path, read_only, propagation, suid, dev } = Table::deserialize(MapAccessDeserializer::new(map))?;
        Ok(HostPathRule { path, read_only, propagation, suid, dev })
    }
}

impl From<PathBuf> for HostPath {
    fn from(path: PathBuf) -> Self {
        Self { path, ..Self::default() }
    }
}

impl Volume {
    /// Returns the propagation of later mounts.
    pub fn propagation(&self) -> Propagation {
        match &self.source {
            VolumeSource::HostPath(asked) => asked.propagation,
            _ => Propagation::Private,
        }
    }

    /// Returns true if the volume is mounted after the container's own /dev, into the existing mount namespace. A new
    /// mount namespace would get copies of the mounts, which do not propagate to the host.
    pub fn is_mounted_late(&self) -> bool {
        self.path.starts_with("/dev") || self.propagation() == Propagation::Bidirectional
    }

    /// Returns the empty volume; `None` if the volume has another source.
    pub fn empty(&self) -> Option<&EmptyVolume> {
        match &self.source {
            VolumeSource::Empty(empty) => Some(empty),
            VolumeSource::Host(_) | VolumeSource::HostPath(_) | VolumeSource::Image(_) | VolumeSource::Pod(_) => None,
        }
    }

    /// Returns true for a volume of the container's pod. Other members can change its content at any time.
    pub fn is_of_pod(&self) -> bool {
        matches!(self.source, VolumeSource::Pod(_))
    }

    /// Returns the image; `None` if the volume has another source.
    pub fn image(&self) -> Option<&VolumeImage> {
        match &self.source {
            VolumeSource::Image(image) => Some(image),
            VolumeSource::Empty(_) | VolumeSource::Host(_) | VolumeSource::HostPath(_) | VolumeSource::Pod(_) => None,
        }
    }
}

impl EmptyVolume {
    /// Returns the bytes of disk that are reserved for this volume.
    pub fn disk_bytes(&self) -> u64 {
        if self.medium == Medium::Disk { self.bytes } else { 0 }
    }
}

impl Plan {
    /// Returns true if the shim mounts volumes and tmpfs file systems together, outer mounts first. Containers with
    /// volumes or CDI devices require this order, because CDI devices can add mounts.
    pub fn has_ordered_mounts(&self) -> bool {
        !self.volumes.is_empty() || self.host_options.cdi_devices().next().is_some()
    }

    /// Returns the manifest digest and the layers of each image of the container: of its root and of its volumes.
    pub fn images(&self) -> impl Iterator<Item = (&str, &[String])> {
        let root = match &self.rootfs {
            Rootfs::Image(image) => Some((&*image.digest, &*image.layers)),
            Rootfs::Host | Rootfs::Dir(_) | Rootfs::Pod => None,
        };
        let volumes = self.volumes.iter().filter_map(Volume::image);
        root.into_iter().chain(volumes.map(|image| (&*image.digest, &*image.layers)))
    }
}
