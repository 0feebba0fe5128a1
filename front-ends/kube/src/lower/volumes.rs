//! Volumes of a pod, and their mounts (P53 to P59).

use std::collections::{BTreeMap, BTreeSet};

use executor_client::v1::volume_mount::Source;
use executor_client::v1::{
    CreatePodRequest, EmptyVolume, File, HostPath, ImageVolume, NamedVolume, PodVolume, PodVolumeName, VolumeMount,
    empty_volume,
};
use k8s_openapi::api::core::v1::{
    Container, DownwardAPIVolumeFile, KeyToPath, ObjectFieldSelector, Volume, VolumeMount as Written,
};
use zeroize::Zeroizing;

use super::{Lowering, kinds_of};
use crate::docker;
use crate::names::{is_below, is_item_path, is_label};
use crate::quantity::Quantity;

/// Default size of a memory volume, in bytes.
const MEMORY_DEFAULT: u64 = 64 << 20;
/// Default mode of files.
const MODE: i32 = 0o644;

/// Message for an invalid file path in a volume.
const NOT_ITEM: &str = "must be relative, without `..`, and not begin with `..`";

/// A file of a volume.
#[derive(Clone)]
pub(super) struct Projected {
    content: Zeroizing<Vec<u8>>,
    mode: u32,
    secret: bool,
}

/// Meaning of a volume on this host.
#[derive(Clone)]
pub(super) enum Kind {
    /// An empty volume of the pod.
    Empty,
    /// Files by their path below the mount.
    Files(BTreeMap<String, Projected>),
    /// A directory that the operator offers as a volume.
    Host { name: String, sub_path: String, read_only: bool },
    /// A host path below a directory whose paths may be mounted.
    HostPath(String),
    /// Files of an image.
    Image(String),
    /// The volume was refused.
    Refused,
}

/// Volumes by name.
pub(super) type Volumes = BTreeMap<String, Kind>;

/// Result of lowering a container's mounts.
#[derive(Default)]
pub(super) struct Mounted {
    pub(super) files: Vec<File>,
    /// Directories of files.
    pub(super) directories: Vec<String>,
    /// Directories whose files follow changes.
    pub(super) rotating: Vec<String>,
    pub(super) volumes: Vec<VolumeMount>,
}

impl Lowering<'_> {
    pub(super) fn volumes(&mut self, create: &mut CreatePodRequest) -> Volumes {
        let mut volumes = Volumes::new();
        for (index, volume) in self.spec.volumes.iter().flatten().enumerate() {
            let at = format!("spec.volumes[{index}]");
            if !is_label(&volume.name) {
                self.refuse(&format!("{at}.name"), "P6", "is not a DNS label: use a-z, 0-9 and `-`, at most 63");
            }
            let kind = self.volume(&at, volume, create);
            if volumes.insert(volume.name.clone(), kind).is_some() {
                self.refuse(&format!("{at}.name"), "P6", format!("`{}` is the name of another volume", volume.name));
            }
        }
        volumes
    }

    fn volume(&mut self, at: &str, volume: &Volume, create: &mut CreatePodRequest) -> Kind {
        let kinds: Vec<String> = kinds_of(volume).into_iter().filter(|kind| kind != "name").collect();
        if kinds.len() > 1 {
            self.refuse(at, "P59", format!("is {}; a volume is one of them", kinds.join(" and ")));
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
                self.refuse(&format!("{at}.image.reference"), "P59", "is not the name of an image");
                return Kind::Refused;
            }
            return Kind::Image(
                self.options.images.get(&reference).cloned().unwrap_or(format!("docker://{reference}")),
            );
        }
        match kinds.first() {
            Some(kind) => {
                let message = "is not supported: use an emptyDir, or a hostPath that the operator lends";
                self.refuse(&format!("{at}.{kind}"), "P59", message);
            }
            None => {
                // The API server treats such a volume as an emptyDir.
                let empty = self.empty_volume();
                create.volumes.push(PodVolume { name: volume.name.clone(), empty: Some(empty) });
                return Kind::Empty;
            }
        }
        Kind::Refused
    }

    /// Returns the owner and mode of an emptyDir: root, writable for all; with an fsGroup, owned by that group and
    /// setgid (P45).
    fn empty_volume(&self) -> EmptyVolume {
        let group = self.spec.security_context.as_ref().and_then(|context| context.fs_group);
        let gid = group.and_then(|group| u32::try_from(group).ok());
        EmptyVolume { mode: Some(if gid.is_some() { 0o2777 } else { 0o777 }), gid, ..EmptyVolume::default() }
    }

    fn mode(&mut self, at: &str, mode: Option<i32>, default: i32) -> u32 {
        let mode = mode.unwrap_or(default);
        if !(0..=0o777).contains(&mode) {
            self.refuse(at, "P2", format!("is {mode}, which is 0{mode:o} in octal; it must be 0 to 0777"));
        }
        mode.unsigned_abs() & 0o777
    }

    /// Returns the files of a ConfigMap or Secret (P53).
    fn configured(
        &mut self,
        at: &str,
        secret: bool,
        name: &str,
        items: Option<&[KeyToPath]>,
        optional: Option<bool>,
        mode: u32,
    ) -> BTreeMap<String, Projected> {
        let what = if secret { "Secret" } else { "ConfigMap" };
        let optional = optional == Some(true);
        let Some(config) = self.config(secret, name) else {
            if !optional {
                let message =
                    format!("there is no {what} `{name}` in the namespace {} among the files", self.workload.namespace);
                self.refuse(at, "P19", message);
            }
            return BTreeMap::new();
        };
        let mut files = BTreeMap::new();
        let projected = |content: &[u8], mode| Projected { content: Zeroizing::new(content.to_vec()), mode, secret };
        let Some(items) = items.filter(|items| !items.is_empty()) else {
            for (key, value) in &config.data {
                files.insert(key.clone(), projected(value.bytes(), mode));
            }
            return files;
        };
        for (index, item) in items.iter().enumerate() {
            let at = format!("{at}.items[{index}]");
            if !is_item_path(&item.path) {
                self.refuse(&format!("{at}.path"), "P53", NOT_ITEM);
                continue;
            }
            let mode = self.mode(&format!("{at}.mode"), item.mode, i32::try_from(mode).unwrap_or(MODE));
            match config.data.get(&item.key) {
                Some(value) => {
                    files.insert(clean(&item.path), projected(value.bytes(), mode));
                }
                None if optional => {}
                None => {
                    self.refuse(&format!("{at}.key"), "P53", format!("the {what} `{name}` has no key `{}`", item.key));
                }
            }
        }
        files
    }

    /// Returns the files of the downward API (P20).
    fn downward(&mut self, at: &str, items: &[DownwardAPIVolumeFile], mode: u32) -> BTreeMap<String, Projected> {
        let mut files = BTreeMap::new();
        for (index, item) in items.iter().enumerate() {
            let at = format!("{at}.items[{index}]");
            if !is_item_path(&item.path) {
                self.refuse(&format!("{at}.path"), "P53", NOT_ITEM);
                continue;
            }
            let mode = self.mode(&format!("{at}.mode"), item.mode, i32::try_from(mode).unwrap_or(MODE));
            if item.field_ref.is_some() && item.resource_field_ref.is_some() {
                self.refuse(&at, "P20", "has both fieldRef and resourceFieldRef");
                continue;
            }
            let value = if let Some(field) = &item.field_ref {
                self.volume_field(&format!("{at}.fieldRef"), field)
            } else if let Some(resource) = &item.resource_field_ref {
                match self.container_of(resource.container_name.as_deref().unwrap_or_default()) {
                    Some(container) => self.resource_field(&format!("{at}.resourceFieldRef"), resource, container),
                    None => {
                        self.refuse(
                            &format!("{at}.resourceFieldRef.containerName"),
                            "P21",
                            "is not a container of the pod",
                        );
                        None
                    }
                }
            } else {
                self.refuse(&at, "P20", "must have fieldRef or resourceFieldRef");
                None
            };
            if let Some(value) = value {
                let content = Zeroizing::new(value.into_bytes());
                files.insert(clean(&item.path), Projected { content, mode, secret: false });
            }
        }
        files
    }

    fn volume_field(&mut self, at: &str, field: &ObjectFieldSelector) -> Option<String> {
        let lines = |all: &BTreeMap<String, String>| {
            all.iter().map(|(key, value)| format!("{key}={}", quoted(value))).collect::<Vec<_>>().join("\n")
        };
        match &*field.field_path {
            "metadata.labels" => Some(lines(&self.metadata.labels.clone().unwrap_or_default())),
            "metadata.annotations" => Some(lines(&self.metadata.annotations.clone().unwrap_or_default())),
            path if path.starts_with("metadata.") => self.field(at, field),
            _ => {
                self.refuse(&format!("{at}.fieldPath"), "P20", "must be one of metadata.* in a volume");
                None
            }
        }
    }

    fn projected(&mut self, at: &str, source: &k8s_openapi::api::core::v1::ProjectedVolumeSource) -> Kind {
        let mode = self.mode(&format!("{at}.defaultMode"), source.default_mode, MODE);
        let mut files = BTreeMap::new();
        let mut paths = BTreeSet::new();
        for (index, source) in source.sources.iter().flatten().enumerate() {
            let at = format!("{at}.sources[{index}]");
            let kinds = kinds_of(source);
            if kinds.len() > 1 {
                self.refuse(&at, "P54", format!("is {}; a source is one of them", kinds.join(" and ")));
                continue;
            }
            let items = [
                &source.config_map.as_ref().and_then(|one| one.items.as_ref()),
                &source.secret.as_ref().and_then(|one| one.items.as_ref()),
            ];
            let items = items.into_iter().copied().flatten().flatten().map(|item| &item.path);
            let downward = source.downward_api.iter().flat_map(|one| one.items.iter().flatten()).map(|item| &item.path);
            for path in items.chain(downward) {
                if !paths.insert(clean(path)) {
                    self.refuse(&at, "P54", format!("has the path `{path}` of another item"));
                }
            }
            // Later sources overwrite earlier ones (P54).
            if let Some(source) = &source.config_map {
                files.extend(self.configured(
                    &format!("{at}.configMap"),
                    false,
                    &source.name,
                    source.items.as_deref(),
                    source.optional,
                    mode,
                ));
            }
            if let Some(source) = &source.secret {
                files.extend(self.configured(
                    &format!("{at}.secret"),
                    true,
                    &source.name,
                    source.items.as_deref(),
                    source.optional,
                    mode,
                ));
            }
            if let Some(source) = &source.downward_api {
                files.extend(self.downward(
                    &format!("{at}.downwardAPI"),
                    source.items.as_deref().unwrap_or_default(),
                    mode,
                ));
            }
            for (field, set) in [
                ("serviceAccountToken", source.service_account_token.is_some()),
                ("clusterTrustBundle", source.cluster_trust_bundle.is_some()),
                ("podCertificate", source.pod_certificate.is_some()),
            ] {
                if set {
                    self.refuse(
                        &format!("{at}.{field}"),
                        "P54",
                        "is not supported: there is no API server that gives one",
                    );
                }
            }
        }
        Kind::Files(files)
    }

    fn host_path(&mut self, at: &str, path: &str, kind: Option<&str>) -> Kind {
        if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
            self.refuse(&format!("{at}.path"), "P57", "must be absolute, without `..`");
            return Kind::Refused;
        }
        if !matches!(kind, None | Some("" | "Directory")) {
            let message = "must be empty or Directory: a volume is what the operator lends and what is there";
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
                let message = "does not lie in a directory that the operator lends (tables `volumes` and policy.host_paths of executord's configuration)";
                self.refuse(&format!("{at}.path"), "P48", message);
                Kind::Refused
            }
        }
    }

    /// Lowers the mounts of a container.
    pub(super) fn mounts(
        &mut self,
        at: &str,
        container: &Container,
        volumes: &Volumes,
        expand: &dyn Fn(&str) -> crate::environment::Expanded,
        fs_group: Option<&str>,
    ) -> Mounted {
        let mut mounted = Mounted::default();
        let mut paths = BTreeSet::new();
        if container.volume_devices.as_ref().is_some_and(|devices| !devices.is_empty()) {
            self.refuse(&format!("{at}.volumeDevices"), "P59", "is not supported: there are no block devices");
        }
        for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
            let at = format!("{at}.volumeMounts[{index}]");
            let path = clean_absolute(&mount.mount_path);
            if !mount.mount_path.starts_with('/')
                || mount.mount_path.contains(':')
                || mount.mount_path.split('/').any(|part| part == "..")
            {
                self.refuse(&format!("{at}.mountPath"), "P58", "must be absolute, without `..` and `:`");
                continue;
            }
            if !paths.insert(path.clone()) {
                self.refuse(&format!("{at}.mountPath"), "P58", format!("`{path}` is that of another mount"));
                continue;
            }
            let recursive = format!("{at}.recursiveReadOnly");
            match mount.recursive_read_only.as_deref() {
                None | Some("" | "Disabled") => {}
                Some("Enabled" | "IfPossible") if mount.read_only != Some(true) => {
                    self.refuse(&recursive, "P58", "requires readOnly: true");
                }
                // Mounts below the volume stay writable.
                Some("IfPossible") => {}
                Some("Enabled") => self.refuse(&recursive, "P58", "is not supported: use IfPossible"),
                Some(_) => self.refuse(&recursive, "P58", "must be Disabled, IfPossible or Enabled"),
            }
            let Some(sub_path) = self.sub_path(&at, mount, expand) else { continue };
            if mount.mount_propagation.as_deref().is_some_and(|propagation| propagation != "None") {
                self.refuse(&format!("{at}.mountPropagation"), "P58", "must be None: mounts are not passed on");
            }
            let Some(kind) = volumes.get(&mount.name) else {
                self.refuse(&format!("{at}.name"), "P58", format!("`{}` is not a volume of the pod", mount.name));
                continue;
            };
            let read_only = mount.read_only == Some(true);
            let source = match kind {
                Kind::Refused => continue,
                Kind::Empty => Some((Source::Pod(PodVolumeName { name: mount.name.clone() }), sub_path, read_only)),
                Kind::Image(reference) => {
                    Some((Source::Image(ImageVolume { reference: reference.clone() }), sub_path, true))
                }
                Kind::Host { name, sub_path: inner, read_only: lent } => {
                    let joined = [inner.as_str(), sub_path.as_str()]
                        .into_iter()
                        .filter(|part| !part.is_empty())
                        .collect::<Vec<_>>()
                        .join("/");
                    Some((Source::Host(NamedVolume { name: name.clone() }), joined, read_only || *lent))
                }
                Kind::HostPath(host) => Some((Source::HostPath(HostPath { path: host.clone() }), sub_path, read_only)),
                Kind::Files(files) => {
                    self.file_mount(&at, &path, &sub_path, files, fs_group, &mut mounted);
                    None
                }
            };
            if let Some((source, sub_path, read_only)) = source {
                mounted.volumes.push(VolumeMount { path, source: Some(source), sub_path, read_only });
            }
        }
        mounted
    }

    fn sub_path(
        &mut self,
        at: &str,
        mount: &Written,
        expand: &dyn Fn(&str) -> crate::environment::Expanded,
    ) -> Option<String> {
        let plain = mount.sub_path.clone().unwrap_or_default();
        let expression = mount.sub_path_expr.clone().unwrap_or_default();
        if !plain.is_empty() && !expression.is_empty() {
            self.refuse(&format!("{at}.subPathExpr"), "P58", "is set together with subPath");
            return None;
        }
        let (field, path) = if expression.is_empty() {
            ("subPath", plain)
        } else {
            let expanded = expand(&expression);
            if expanded.secret {
                self.refuse(
                    &format!("{at}.subPathExpr"),
                    "P13",
                    "would contain a value of a Secret, and paths are recorded",
                );
                return None;
            }
            if let Some(unknown) = expanded.unknown.first() {
                self.refuse(&format!("{at}.subPathExpr"), "P58", format!("the variable `{unknown}` is not set"));
                return None;
            }
            ("subPathExpr", expanded.text.to_string())
        };
        if !path.is_empty() && !is_below(&path) {
            self.refuse(&format!("{at}.{field}"), "P58", "must be relative, without `..`");
            return None;
        }
        Some(clean(&path))
    }

    /// Lowers a mount of a volume's files. A mount of a single file is not updated later (P55).
    fn file_mount(
        &mut self,
        at: &str,
        path: &str,
        sub_path: &str,
        files: &BTreeMap<String, Projected>,
        fs_group: Option<&str>,
        mounted: &mut Mounted,
    ) {
        let file = |path: String, projected: &Projected| File {
            path,
            content: projected.content.to_vec(),
            public: !projected.secret,
            // The group gets the owner's read permission (P45).
            mode: Some(if fs_group.is_some() {
                projected.mode | (projected.mode & 0o400) >> 3
            } else {
                projected.mode
            }),
            group: fs_group.map(str::to_owned),
            ..File::default()
        };
        if sub_path.is_empty() {
            mounted.directories.push(path.to_owned());
            mounted.rotating.push(path.to_owned());
            mounted.files.extend(files.iter().map(|(name, projected)| file(format!("{path}/{name}"), projected)));
            return;
        }
        if let Some(projected) = files.get(sub_path) {
            mounted.files.push(file(path.to_owned(), projected));
            return;
        }
        let below = format!("{sub_path}/");
        let inner: Vec<_> = files.iter().filter_map(|(name, one)| Some((name.strip_prefix(&below)?, one))).collect();
        if inner.is_empty() {
            self.refuse(&format!("{at}.subPath"), "P58", format!("the volume has no file `{sub_path}`"));
            return;
        }
        mounted.directories.push(path.to_owned());
        mounted.files.extend(inner.into_iter().map(|(name, one)| file(format!("{path}/{name}"), one)));
    }
}

/// Returns a relative path without empty parts and `.`.
fn clean(path: &str) -> String {
    path.split('/').filter(|part| !part.is_empty() && *part != ".").collect::<Vec<_>>().join("/")
}

/// Quotes a text like Go's `%q`, as the downward API writes values (P20).
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{b}' => quoted.push_str("\\v"),
            '\u{c}' => quoted.push_str("\\f"),
            '\0'..='\u{1f}' | '\u{7f}' => quoted.push_str(&format!("\\x{:02x}", u32::from(c))),
            '\u{80}'..='\u{a0}' | '\u{ad}' => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

fn clean_absolute(path: &str) -> String {
    format!("/{}", clean(path))
}
