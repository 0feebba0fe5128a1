//! Resolves requested devices of the Container Device Interface (CDI) to container edits.
//!
//! A vendor's file describes devices of one kind. The input is the parsed files and the names in a request; the output
//! is the merged edits of all named devices, or a violation for each device that is missing, ambiguous, or needs an
//! unsupported edit. The launcher reads the files and applies the edits.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::cdi_name::{QualifiedName, check_kind};
use crate::limits::DEVICE_ENTRIES_MAX;
use crate::plan::{Device, DevicePermissions, Plan};
use crate::validate::ViolationReason::{Conflict, InvalidFormat, NotFound, OutOfRange, TooMany, Unsupported};
use crate::validate::{FieldFault, Violation, check_device_mount, check_device_path, is_nested};

/// Supported versions of the CDI specification.
pub const VERSIONS: [&str; 8] = ["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"];
/// Maximum number of mounts in the merged edits of a container.
const MOUNTS_MAX: usize = 256;
/// Maximum size of the environment variables in the merged edits of a container, in bytes.
const ENVIRONMENT_MAX: usize = 32 << 10;
/// Maximum number of supplementary groups in the merged edits of a container.
const GROUPS_MAX: usize = 64;
/// Mount options that are accepted and ignored: nosuid and nodev always apply, and a mount is always private and
/// without submounts.
const NEUTRAL_OPTIONS: [&str; 9] = ["rw", "bind", "rbind", "private", "rprivate", "slave", "rslave", "nosuid", "nodev"];

/// A CDI file.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CdiFile {
    cdi_version: String,
    kind: String,
    #[serde(default, rename = "annotations")]
    _annotations: Option<IgnoredAny>,
    devices: Vec<CdiDevice>,
    /// Edits that apply to each device of the file.
    #[serde(default)]
    container_edits: ContainerEdits,
}

/// A device in a CDI file.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CdiDevice {
    name: String,
    #[serde(default, rename = "annotations")]
    _annotations: Option<IgnoredAny>,
    container_edits: ContainerEdits,
}

/// Changes to a container that a CDI file requests.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct ContainerEdits {
    env: Vec<String>,
    device_nodes: Vec<CdiNode>,
    mounts: Vec<CdiMount>,
    #[serde(alias = "additionalGIDs")]
    additional_gids: Vec<u32>,
    hooks: Vec<IgnoredAny>,
    net_devices: Vec<IgnoredAny>,
    intel_rdt: Option<IgnoredAny>,
}

/// A device node in the edits of a CDI file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CdiNode {
    /// Path in the container.
    pub path: PathBuf,
    /// Path on the host; `path` if unset.
    pub host_path: Option<PathBuf>,
    /// `b`, `c` or `u`; the type of the host's node if unset.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Major number; if unset, the major number of the host's node.
    pub major: Option<u32>,
    /// Minor number; if unset, the minor number of the host's node.
    pub minor: Option<u32>,
    /// Permission bits.
    pub file_mode: Option<u32>,
    /// Permissions of the container in the device cgroup, such as `rw`.
    #[serde(default)]
    permissions: Option<String>,
    /// Owner, as an id in the container.
    pub uid: Option<u32>,
    /// Group, as an id in the container.
    pub gid: Option<u32>,
}

/// A mount in the edits of a CDI file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CdiMount {
    host_path: PathBuf,
    container_path: PathBuf,
    #[serde(default, rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    options: Vec<String>,
}

impl CdiFile {
    /// Checks the fields that apply to the whole file.
    ///
    /// # Errors
    /// Returns the field and the reason if a field is invalid.
    pub fn check(&self) -> Result<(), String> {
        if !VERSIONS.contains(&&*self.cdi_version) {
            let versions = VERSIONS.join(", ");
            return Err(format!("cdiVersion {:?} is not supported; use one of {versions}", self.cdi_version));
        }
        check_kind(&self.kind).map_err(|why| format!("kind {:?} is not valid: {why}", self.kind))
    }
}

/// A CDI file on the host.
#[derive(Clone, Debug)]
pub struct LocatedCdiFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Index of the file's directory; later directories take precedence.
    pub directory: usize,
    /// Parsed content of the file.
    pub file: CdiFile,
}

/// An edit, with the index of the requested device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit<T> {
    /// Index of the device in the request.
    pub device: usize,
    /// Content of the edit.
    pub content: T,
}

/// A device node and the permissions of the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The node as the CDI file describes it.
    pub node: CdiNode,
    /// Permissions in the device cgroup.
    pub permissions: DevicePermissions,
}

/// A host directory or file to mount into a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostMount {
    /// Path on the host.
    pub host_path: PathBuf,
    /// Path in the container.
    pub path: PathBuf,
    /// True if the container cannot write to the mount.
    pub read_only: bool,
    /// True if programs on the mount cannot be executed.
    pub no_exec: bool,
}

/// Merged edits of all devices of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    /// Variables, `NAME=VALUE`, each name once.
    pub environment: Vec<String>,
    /// Device nodes, each path once.
    pub nodes: Vec<Edit<Node>>,
    /// Mounts, each path in the container once.
    pub mounts: Vec<Edit<HostMount>>,
    /// Supplementary groups that the container's processes get.
    pub groups: Vec<u32>,
}

/// Merges the edits of a plan's CDI devices. `highest` is the highest id of the container.
///
/// # Errors
/// Returns a violation for each missing or ambiguous device, each invalid, unsupported or conflicting edit, and each
/// exceeded maximum.
pub fn resolve(plan: &Plan, sources: &[LocatedCdiFile], highest: u32) -> Result<Edits, Vec<Violation>> {
    let mut merge =
        Merge { plan, highest, edits: Edits::default(), variables: BTreeMap::new(), violations: Vec::new() };
    let mut applied: Vec<&Path> = Vec::new();
    for (index, device) in plan.host_options.cdi_devices() {
        match find(&device.name, sources) {
            Err(fault) => merge.refuse(index, fault),
            Ok((source, device)) => {
                // The edits for all devices of a file are applied once.
                if !applied.contains(&&*source.path) {
                    applied.push(&source.path);
                    merge.add(index, source, "containerEdits", &source.file.container_edits);
                }
                let place = format!("devices[{}].containerEdits", device.name);
                merge.add(index, source, &place, &device.container_edits);
            }
        }
    }
    merge.finish()
}

/// Finds the device in the last directory that describes it.
fn find<'a>(name: &str, sources: &'a [LocatedCdiFile]) -> Result<(&'a LocatedCdiFile, &'a CdiDevice), FieldFault> {
    let qualified = QualifiedName::parse(name).map_err(|why| InvalidFormat.because(why.to_owned()))?;
    let of_kind = sources.iter().filter(|source| source.file.kind == qualified.kind);
    let named = of_kind.flat_map(|source| source.file.devices.iter().map(move |device| (source, device)));
    let found: Vec<_> = named.filter(|(_, device)| device.name == qualified.device).collect();
    let last = found.iter().map(|(source, _)| source.directory).max();
    let mut found = found.into_iter().filter(|(source, _)| Some(source.directory) == last);
    let Some((source, device)) = found.next() else {
        return Err(NotFound.because(format!("no CDI file describes `{name}`")));
    };
    if let Some((other, _)) = found.next() {
        let (one, other) = (source.path.display(), other.path.display());
        let why = format!("two CDI files in the same directory describe `{name}`: {one} and {other}");
        return Err(Conflict.because(why));
    }
    Ok((source, device))
}

struct Merge<'a> {
    plan: &'a Plan,
    highest: u32,
    edits: Edits,
    /// Index of each variable in `edits.environment`, by name.
    variables: BTreeMap<String, usize>,
    violations: Vec<Violation>,
}

impl Merge<'_> {
    fn refuse(&mut self, device: usize, fault: FieldFault) {
        self.violations.push(Violation::new(format!("devices[{device}].name"), fault));
    }

    fn add(&mut self, device: usize, source: &LocatedCdiFile, place: &str, edits: &ContainerEdits) {
        let about = format!("`{}`: {}: {place}", self.plan.host_options.devices[device].name, source.path.display());
        for (field, is_used) in [
            ("hooks", !edits.hooks.is_empty()),
            ("netDevices", !edits.net_devices.is_empty()),
            ("intelRdt", edits.intel_rdt.is_some()),
        ] {
            if is_used {
                self.refuse(device, Unsupported.because(format!("{about}.{field} is not supported")));
            }
        }
        for pair in &edits.env {
            if let Err(why) = self.variable(pair) {
                self.refuse(device, why.within(&format!("{about}.env")));
            }
        }
        for node in &edits.device_nodes {
            if let Err(why) = self.node(device, node) {
                self.refuse(device, why.within(&format!("{about}.deviceNodes: `{}`", node.path.display())));
            }
        }
        for mount in &edits.mounts {
            if let Err(why) = self.mount(device, mount) {
                self.refuse(device, why.within(&format!("{about}.mounts: `{}`", mount.container_path.display())));
            }
        }
        for gid in &edits.additional_gids {
            if *gid > self.highest {
                let why = format!("is {gid}; the container's highest id is {}", self.highest);
                self.refuse(device, OutOfRange.because(why).within(&format!("{about}.additionalGids")));
            } else if !self.edits.groups.contains(gid) {
                self.edits.groups.push(*gid);
            }
        }
    }

    /// Adds a variable, `NAME=VALUE`. The last value of a name wins.
    fn variable(&mut self, pair: &str) -> Result<(), FieldFault> {
        let name = pair.split_once('=').map(|(name, _)| name).filter(|name| !name.is_empty() && !pair.contains('\0'));
        let name = name.ok_or_else(|| InvalidFormat.because("has an entry that is not NAME=VALUE"))?;
        match self.variables.get(name) {
            Some(index) => pair.clone_into(&mut self.edits.environment[*index]),
            None => {
                self.variables.insert(name.to_owned(), self.edits.environment.len());
                self.edits.environment.push(pair.to_owned());
            }
        }
        Ok(())
    }

    fn node(&mut self, device: usize, node: &CdiNode) -> Result<(), FieldFault> {
        check_device_path(&node.path)?;
        let permissions = node.permissions.as_deref().filter(|text| !text.is_empty()).unwrap_or("rw");
        let permissions = permissions
            .parse()
            .map_err(|why| InvalidFormat.because(format!("permissions {permissions:?} are not valid: {why}")))?;
        if let Some(id) = [node.uid, node.gid].into_iter().flatten().find(|id| *id > self.highest) {
            let why = format!("has the uid or gid {id}; the container's highest id is {}", self.highest);
            return Err(OutOfRange.because(why));
        }
        let new = Edit { device, content: Node { node: node.clone(), permissions } };
        let is_listed = |device: &&Device| !device.is_cdi() && !device.is_whole_dev();
        let listed = self.plan.host_options.devices.iter().filter(is_listed);
        if let Some(Device { path, .. }) = listed.into_iter().find(|listed| is_nested(&listed.path, &node.path)) {
            return Err(Conflict.because(format!("conflicts with the device at `{}`", path.display())));
        }
        match self.edits.nodes.iter().find(|other| is_nested(&other.content.node.path, &node.path)) {
            None => self.edits.nodes.push(new),
            Some(other) if other.content == new.content => {}
            Some(other) => {
                let name = &self.plan.host_options.devices[other.device].name;
                return Err(Conflict.because(format!("conflicts with a node of the device `{name}`")));
            }
        }
        Ok(())
    }

    fn mount(&mut self, device: usize, mount: &CdiMount) -> Result<(), FieldFault> {
        if let Some(kind) = mount.kind.as_deref().filter(|kind| !["", "bind", "none"].contains(kind)) {
            return Err(Unsupported.because(format!("the type {kind:?} is not supported; use bind")));
        }
        let (mut read_only, mut no_exec) = (false, false);
        for option in &mount.options {
            match &**option {
                "ro" => read_only = true,
                "noexec" => no_exec = true,
                neutral if NEUTRAL_OPTIONS.contains(&neutral) => {}
                other => return Err(Unsupported.because(format!("the option {other:?} is not supported"))),
            }
        }
        check_device_mount(&mount.host_path, &mount.container_path, self.plan)?;
        let (host_path, path) = (mount.host_path.clone(), mount.container_path.clone());
        let new = HostMount { host_path, path, read_only, no_exec };
        match self.edits.mounts.iter().find(|other| other.content.path == new.path) {
            None => self.edits.mounts.push(Edit { device, content: new }),
            Some(other) if other.content == new => {}
            Some(other) => {
                let name = &self.plan.host_options.devices[other.device].name;
                return Err(Conflict.because(format!("conflicts with a mount of the device `{name}`")));
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Edits, Vec<Violation>> {
        let Edits { environment, nodes, mounts, groups } = &self.edits;
        let listed =
            self.plan.host_options.devices.iter().filter(|device| !device.is_cdi()).map(|device| &*device.path);
        let paths = listed.chain(nodes.iter().map(|node| &*node.content.node.path));
        let entries: std::collections::BTreeSet<&Path> = paths.flat_map(Path::ancestors).collect();
        let bytes: usize = environment.iter().map(|pair| pair.len() + 1).sum();
        let mut faults = Vec::new();
        for (what, count, most) in [
            ("device nodes and parent directories", entries.len().saturating_sub(2), DEVICE_ENTRIES_MAX),
            ("mounts", mounts.len(), MOUNTS_MAX),
            ("bytes of environment variables", bytes, ENVIRONMENT_MAX),
            ("groups", groups.len(), GROUPS_MAX),
        ] {
            if count > most {
                faults.push(TooMany.because(format!("have {count} {what}; at most {most} are allowed")));
            }
        }
        self.violations.extend(faults.into_iter().map(|fault| Violation::new("devices", fault)));
        if self.violations.is_empty() { Ok(self.edits) } else { Err(self.violations) }
    }
}

#[cfg(test)]
mod tests;
