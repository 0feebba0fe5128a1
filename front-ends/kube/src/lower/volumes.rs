//! Lowers the volumes of a pod and their mounts (rules P53 to P59 of `docs/guides/kube-rules.md`).

mod mounts;
mod projected;

use std::collections::BTreeMap;

use executor_client::v1::{CreatePodRequest, EmptyVolume, PodVolume, empty_volume};
use executor_core::quantity::Quantity;
use k8s_openapi::api::core::v1::Volume;
use projected::{MODE, Projected};

use super::{Lowering, set_fields};
use crate::docker;
use crate::names::is_label;

/// Default size of a memory volume, in bytes.
const MEMORY_DEFAULT: u64 = 64 << 20;

/// Lowered form of a volume of the pod.
#[derive(Clone)]
pub(super) enum Kind {
    /// An empty volume of the pod.
    Empty,
    /// Files by path below the mount point.
    Files(BTreeMap<String, Projected>),
    /// A host directory that the operator offers as a volume.
    Host { name: String, sub_path: String, read_only: bool },
    /// A host path below a directory that the operator permits.
    HostPath(String),
    /// The files of an image.
    Image(String),
    /// The volume was refused.
    Refused,
}

/// The pod's volumes after lowering, by name.
pub(super) type Volumes = BTreeMap<String, Kind>;

impl Lowering<'_> {
    pub(super) fn volumes(&mut self, create: &mut CreatePodRequest) -> Volumes {
        let mut volumes = Volumes::new();
        for (index, volume) in self.spec.volumes.iter().flatten().enumerate() {
            let at = format!("spec.volumes[{index}]");
            if !is_label(&volume.name) {
                self.refuse(
                    &format!("{at}.name"),
                    "P6",
                    "is not a DNS label: use at most 63 characters of a-z, 0-9 and `-`",
                );
            }
            let kind = self.volume(&at, volume, create);
            if volumes.insert(volume.name.clone(), kind).is_some() {
                self.refuse(&format!("{at}.name"), "P6", format!("`{}` is the name of another volume", volume.name));
            }
        }
        volumes
    }

    fn volume(&mut self, at: &str, volume: &Volume, create: &mut CreatePodRequest) -> Kind {
        let kinds: Vec<String> = set_fields(volume).into_iter().filter(|kind| kind != "name").collect();
        if kinds.len() > 1 {
            self.refuse(at, "P59", format!("has {}; exactly one is allowed", kinds.join(" and ")));
            return Kind::Refused;
        }
        if let Some(empty) = &volume.empty_dir {
            let size = empty.size_limit.as_ref().map(|limit| Quantity::parse(&limit.0));
            if size.is_some_and(|size| size.is_none_or(Quantity::is_negative)) {
                self.refuse(&format!("{at}.emptyDir.sizeLimit"), "P50", "is not a quantity such as 64Mi");
            }
            let mut size = size.flatten().map_or(0, Quantity::units);
            let medium = match empty.medium.as_deref() {
                None | Some("") => empty_volume::Medium::Disk,
                Some("Memory") => empty_volume::Medium::Memory,
                Some(_) => {
                    self.refuse(
                        &format!("{at}.emptyDir.medium"),
                        "P56",
                        "must be empty or Memory: huge pages are not supported",
                    );
                    empty_volume::Medium::Disk
                }
            };
            if medium == empty_volume::Medium::Memory {
                let limits = self.spec.containers.iter().map(|container| {
                    let limit = container.resources.as_ref()?.limits.as_ref()?.get("memory")?;
                    Quantity::parse(&limit.0).map(Quantity::units)
                });
                let pod: Option<u64> = limits.sum();
                size = match (size, pod) {
                    (0, Some(pod)) if pod > 0 => pod,
                    (0, _) => {
                        let message =
                            format!("has neither a sizeLimit nor memory limits: it gets {} MiB", MEMORY_DEFAULT >> 20);
                        self.warn(&format!("{at}.emptyDir"), "P56", message);
                        MEMORY_DEFAULT
                    }
                    (size, Some(pod)) if pod > 0 => size.min(pod),
                    (size, _) => size,
                };
            }
            let empty = EmptyVolume { medium: medium.into(), size_bytes: size, ..self.empty_volume() };
            create.volumes.push(PodVolume { name: volume.name.clone(), empty: Some(empty) });
            return Kind::Empty;
        }
        if let Some(source) = &volume.config_map {
            let mode = self.mode(&format!("{at}.configMap.defaultMode"), source.default_mode, MODE);
            let files = self.configured(
                &format!("{at}.configMap"),
                false,
                &source.name,
                source.items.as_deref(),
                source.optional,
                mode,
            );
            return Kind::Files(files);
        }
        if let Some(source) = &volume.secret {
            let mode = self.mode(&format!("{at}.secret.defaultMode"), source.default_mode, MODE);
            let name = source.secret_name.clone().unwrap_or_default();
            let files =
                self.configured(&format!("{at}.secret"), true, &name, source.items.as_deref(), source.optional, mode);
            return Kind::Files(files);
        }
        if let Some(source) = &volume.downward_api {
            let mode = self.mode(&format!("{at}.downwardAPI.defaultMode"), source.default_mode, MODE);
            let files = self.downward(&format!("{at}.downwardAPI"), source.items.as_deref().unwrap_or_default(), mode);
            return Kind::Files(files);
        }
        if let Some(source) = &volume.projected {
            return self.projected(&format!("{at}.projected"), source);
        }
        if let Some(source) = &volume.host_path {
            return self.host_path(&format!("{at}.hostPath"), &source.path, source.type_.as_deref());
        }
        if let Some(source) = &volume.image {
            let policy_at = format!("{at}.image.pullPolicy");
            match source.pull_policy.as_deref() {
                None | Some("") => {}
                Some("Always" | "IfNotPresent" | "Never") => {
                    self.warn(&policy_at, "P59", "is ignored: the image is fetched if it is missing");
                }
                Some(_) => self.refuse(&policy_at, "P59", "must be Always, IfNotPresent or Never"),
            }
            let reference = source.reference.clone().unwrap_or_default();
            if !docker::is_image(&reference) {
                self.refuse(&format!("{at}.image.reference"), "P59", "is not a valid image name");
                return Kind::Refused;
            }
            return Kind::Image(
                self.options.images.get(&reference).cloned().unwrap_or(format!("docker://{reference}")),
            );
        }
        match kinds.first() {
            Some(kind) => {
                let message = "is not supported: use an emptyDir, or a hostPath that the operator offers";
                self.refuse(&format!("{at}.{kind}"), "P59", message);
            }
            None => {
                // A volume without a source is an emptyDir, as in the API server.
                let empty = self.empty_volume();
                create.volumes.push(PodVolume { name: volume.name.clone(), empty: Some(empty) });
                return Kind::Empty;
            }
        }
        Kind::Refused
    }

    /// Returns the group and mode of an emptyDir. The volume is writable for all. If there is an fsGroup, the volume
    /// belongs to that group and is setgid (rule P45).
    fn empty_volume(&self) -> EmptyVolume {
        let group = self.spec.security_context.as_ref().and_then(|context| context.fs_group);
        let gid = group.and_then(|group| u32::try_from(group).ok());
        EmptyVolume { mode: Some(if gid.is_some() { 0o2777 } else { 0o777 }), gid, ..EmptyVolume::default() }
    }

    fn host_path(&mut self, at: &str, path: &str, kind: Option<&str>) -> Kind {
        if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
            self.refuse(&format!("{at}.path"), "P57", "must be absolute, without `..`");
            return Kind::Refused;
        }
        if !matches!(kind, None | Some("" | "Directory")) {
            let message =
                "must be empty or Directory: only existing directories that the operator offers can be mounted";
            self.refuse(&format!("{at}.type"), "P57", message);
            return Kind::Refused;
        }
        let path = path.trim_end_matches('/');
        let inside = |volume: &&crate::options::HostVolume| {
            let lent = volume.path.trim_end_matches('/');
            path == lent || path.strip_prefix(lent).is_some_and(|rest| rest.starts_with('/'))
        };
        let Some(volumes) = &self.options.host_volumes else {
            return Kind::Host { name: String::new(), sub_path: String::new(), read_only: false };
        };
        let found = volumes.iter().filter(inside).max_by_key(|volume| volume.path.len());
        let is_lent = self.options.host_paths.iter().any(|lent| std::path::Path::new(path).starts_with(lent));
        match found {
            None if is_lent => Kind::HostPath(path.to_owned()),
            Some(volume) => Kind::Host {
                name: volume.name.clone(),
                sub_path: path[volume.path.trim_end_matches('/').len()..].trim_start_matches('/').to_owned(),
                read_only: volume.read_only,
            },
            None => {
                let message = "is not in a directory that the operator offers (tables `volumes` and policy.host_paths of executord's configuration)";
                self.refuse(&format!("{at}.path"), "P48", message);
                Kind::Refused
            }
        }
    }
}

/// Removes empty components and `.` from a relative path.
fn clean(path: &str) -> String {
    path.split('/').filter(|part| !part.is_empty() && *part != ".").collect::<Vec<_>>().join("/")
}
