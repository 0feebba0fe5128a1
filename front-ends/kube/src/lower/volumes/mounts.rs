//! Lowers the mounts of volumes in a container (rules P55 and P58 of `docs/guides/kube-rules.md`).

use std::collections::{BTreeMap, BTreeSet};

use executor_client::v1::host_path::Propagation;
use executor_client::v1::volume_mount::Source;
use executor_client::v1::{File, HostPath, ImageVolume, NamedVolume, PodVolumeName, VolumeMount};
use k8s_openapi::api::core::v1::{Container, VolumeMount as KubeVolumeMount};

use super::projected::Projected;
use super::{Kind, Volumes, clean};
use crate::environment::Expanded;
use crate::lower::Lowering;
use crate::names::is_below;

/// Result of lowering a container's mounts.
#[derive(Default)]
pub(in crate::lower) struct Mounted {
    pub(in crate::lower) files: Vec<File>,
    /// Directories whose files are part of the request.
    pub(in crate::lower) directories: Vec<String>,
    /// Directories whose files are updated when their Secrets or ConfigMaps change.
    pub(in crate::lower) rotating: Vec<String>,
    pub(in crate::lower) volumes: Vec<VolumeMount>,
}

impl Lowering<'_> {
    pub(in crate::lower) fn mounts(
        &mut self,
        at: &str,
        container: &Container,
        volumes: &Volumes,
        expand: &dyn Fn(&str) -> Expanded,
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
                self.refuse(&format!("{at}.mountPath"), "P58", format!("`{path}` is also the path of another mount"));
                continue;
            }
            let propagation = match mount.mount_propagation.as_deref() {
                None | Some("" | "None") => Some(Propagation::Private),
                Some("HostToContainer") => Some(Propagation::HostToContainer),
                Some("Bidirectional") => Some(Propagation::Bidirectional),
                Some(_) => None,
            };
            let is_private = propagation == Some(Propagation::Private);
            let recursive = format!("{at}.recursiveReadOnly");
            match mount.recursive_read_only.as_deref() {
                None | Some("" | "Disabled") => {}
                Some("Enabled" | "IfPossible") if mount.read_only != Some(true) => {
                    self.refuse(&recursive, "P58", "requires readOnly: true");
                }
                Some("Enabled") if !is_private => {
                    self.refuse(&recursive, "P58", "requires mountPropagation: None");
                }
                Some("Enabled" | "IfPossible") => {}
                Some(_) => self.refuse(&recursive, "P58", "must be Disabled, IfPossible or Enabled"),
            }
            let Some(sub_path) = self.sub_path(&at, mount, expand) else { continue };
            let Some(kind) = volumes.get(&mount.name) else {
                self.refuse(&format!("{at}.name"), "P58", format!("`{}` is not a volume of the pod", mount.name));
                continue;
            };
            let propagates = format!("{at}.mountPropagation");
            match (propagation, kind) {
                (None, _) => self.refuse(&propagates, "P58", "must be None, HostToContainer or Bidirectional"),
                (Some(Propagation::Private), _) | (_, Kind::HostPath(_) | Kind::Refused) => {}
                (Some(_), _) => {
                    let message = "must be None: only a hostPath in policy.host_paths of executord's configuration has \
                                   mount propagation";
                    self.refuse(&propagates, "P58", message);
                }
            }
            let read_only = mount.read_only == Some(true);
            let recursive_read_only =
                is_private && matches!(mount.recursive_read_only.as_deref(), Some("Enabled" | "IfPossible"));
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
                Kind::HostPath(host) => {
                    // Mounts below a read-only path would be writable, so they are included only if requested.
                    let recursive = !read_only || !is_private || recursive_read_only;
                    let propagation = propagation.unwrap_or_default().into();
                    let path = host.clone();
                    let path = HostPath { path, propagation, recursive, recursive_read_only, ..HostPath::default() };
                    Some((Source::HostPath(path), sub_path, read_only))
                }
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

    fn sub_path(&mut self, at: &str, mount: &KubeVolumeMount, expand: &dyn Fn(&str) -> Expanded) -> Option<String> {
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

    /// Lowers a mount of a volume's files. If a single file is mounted, the file is not updated later (rule P55).
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
            // If there is an fsGroup, files readable for the owner are also readable for the group (rule P45).
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

fn clean_absolute(path: &str) -> String {
    format!("/{}", clean(path))
}
