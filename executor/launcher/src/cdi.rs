//! Reads the files of the Container Device Interface (CDI) on the host, and resolves the CDI devices of a plan.
//!
//! The shim of a container with CDI devices reads the files in the configured directories. The shim applies the edits
//! in these files as root, so the shim ignores a file that a user other than root can change.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use executor_core::cdi::{CdiFile, CdiNode, Edit, Edits, HostMount, LocatedCdiFile, Node, resolve};
use executor_core::idmap::IdMap;
use executor_core::plan::{DevicePermissions, Plan, UserNamespace};
use executor_core::protocol::{Reason, Refused};
use executor_core::spec::{DeviceNode, NodeAccess};
use executor_core::validate::ViolationReason::{NotFound, Unsuitable, Unsupported};
use executor_core::validate::{FieldFault, Violation};
use serde::de::DeserializeOwned;

use crate::cgroup::Hierarchies;
use crate::devices;
use crate::errors::plain;
use crate::host::Host;

/// Maximum number of entries of a directory.
const ENTRIES_MAX: usize = 1000;
/// Maximum number of CDI files.
const FILES_MAX: usize = 64;
/// Maximum size of a CDI file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Maximum nesting depth of a YAML file.
const DEPTH_MAX: usize = 16;
/// Maximum number of ignored files that a warning lists.
const FAULTS_SHOWN: usize = 3;

/// CDI edits of a container, with the nodes found on the host.
#[derive(Debug, Default)]
pub(crate) struct DeviceEdits {
    pub nodes: Vec<DeviceNode>,
    pub mounts: Vec<Edit<HostMount>>,
    /// Environment variables, `NAME=VALUE`.
    pub environment: Vec<String>,
    /// Supplementary groups that the container's processes get.
    pub groups: Vec<u32>,
    /// Warnings about ignored files, with reasons.
    pub warnings: Vec<String>,
}

/// Returns the edits for the CDI devices of a plan. Reads no file if the plan has no CDI device.
///
/// # Errors
/// Returns a violation for each device that cannot be provided.
pub(crate) fn edits(host: &Host, plan: &Plan, ids: IdMap) -> Result<DeviceEdits, Refused> {
    if plan.host_options.cdi_devices().next().is_none() {
        return Ok(DeviceEdits::default());
    }
    let (sources, faults) = read_dirs(&host.policy.cdi_spec_dirs);
    let shown = shown(&faults);
    let refused = |mut violations: Vec<Violation>| {
        // A missing device may be defined in an ignored file.
        for violation in violations.iter_mut().filter(|violation| violation.reason == NotFound && shown.is_some()) {
            violation.description += &format!(" ({})", shown.as_deref().unwrap_or_default());
        }
        Refused::from_fields(Reason::Precondition, &violations)
    };
    let Edits { environment, nodes, mounts, groups } = resolve(plan, &sources, ids.highest()).map_err(refused)?;
    let mut violations = Vec::new();
    let mut found = Vec::new();
    for Edit { device, content: Node { node, permissions } } in &nodes {
        match look_up(host, plan, (node, *permissions)) {
            Ok(node) => found.push(node),
            Err(fault) => {
                let name = &plan.host_options.devices[*device].name;
                let fault = fault.within(&format!("`{name}`: {}", node.path.display()));
                violations.push(Violation::new(format!("devices[{device}].name"), fault));
            }
        }
    }
    if !violations.is_empty() {
        return Err(Refused::from_fields(Reason::Precondition, &violations));
    }
    Ok(DeviceEdits { nodes: found, mounts, environment, groups, warnings: shown.into_iter().collect() })
}

fn shown(faults: &[String]) -> Option<String> {
    let more = faults.len().saturating_sub(FAULTS_SHOWN);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    let shown = faults[..faults.len().min(FAULTS_SHOWN)].join("; ");
    (!faults.is_empty()).then(|| format!("CDI files are ignored: {shown}{more}"))
}

/// Looks up the host's node for a device node in a CDI file.
fn look_up(
    host: &Host,
    plan: &Plan,
    (node, permissions): (&CdiNode, DevicePermissions),
) -> Result<DeviceNode, FieldFault> {
    let has_access = [node.file_mode, node.uid, node.gid].iter().any(Option::is_some);
    let access = has_access.then(|| NodeAccess {
        mode: node.file_mode.unwrap_or(0o666),
        uid: node.uid.unwrap_or(0),
        gid: node.gid.unwrap_or(0),
    });
    let reads_and_writes = permissions.read && permissions.write;
    // Cgroup v2 has no device rules, so only the node's mode enforces permissions. The container's root bypasses the
    // mode of a node that a container user owns.
    let by_mode_alone = matches!(host.hierarchies, Hierarchies::V2 { .. });
    let is_roots = access.is_some() || plan.isolation.user_namespace == UserNamespace::Host;
    if by_mode_alone && !reads_and_writes && is_roots {
        let why = "permissions other than \"rw\" cannot be enforced on cgroup v2 if the node sets an owner or a mode, \
                   or the container uses the host's user namespace";
        return Err(Unsupported.because(why));
    }
    let path = node.path.clone();
    let of_file = |block, major| DeviceNode {
        path,
        block,
        major,
        minor: node.minor.unwrap_or(0),
        permissions,
        access,
        is_in_place: false,
    };
    let is_block = match node.kind.as_deref().unwrap_or_default() {
        "" => None,
        "b" => Some(true),
        "c" | "u" => Some(false),
        other => return Err(Unsupported.because(format!("the type {other:?} is not supported; use b, c or u"))),
    };
    if let (Some(block), Some(major)) = (is_block, node.major.filter(|major| *major != 0)) {
        return Ok(of_file(block, major));
    }
    let on_host = node.host_path.as_ref().unwrap_or(&node.path);
    let (block, major, minor) = devices::numbers(on_host).map_err(|(missing, why)| {
        let reason = if missing { NotFound } else { Unsuitable };
        reason.because(format!("{}: {why}", on_host.display()))
    })?;
    if is_block.is_some_and(|asked| asked != block) {
        let kind = if block { "block" } else { "character" };
        return Err(
            Unsuitable.because(format!("{} is a {kind} device, not a device of the requested type", on_host.display()))
        );
    }
    Ok(DeviceNode { minor, ..of_file(block, major) })
}

/// Reads the files of all directories. Returns the usable files, and the reasons for ignoring the other files.
fn read_dirs(dirs: &[PathBuf]) -> (Vec<LocatedCdiFile>, Vec<String>) {
    let (mut sources, mut faults) = (Vec::new(), Vec::new());
    for (directory, dir) in dirs.iter().enumerate() {
        let paths = match list(dir) {
            Ok(paths) => paths,
            Err(why) => {
                faults.push(format!("{}: {why}", dir.display()));
                continue;
            }
        };
        for path in paths {
            if sources.len() + faults.len() >= FILES_MAX {
                faults.push(format!("{}: not read, because there are more than {FILES_MAX} CDI files", path.display()));
                return (sources, faults);
            }
            match read(&path) {
                Ok(file) => sources.push(LocatedCdiFile { path, directory, file }),
                Err(why) => faults.push(format!("{}: {why}", path.display())),
            }
        }
    }
    (sources, faults)
}

/// Returns the paths of the CDI files in a directory, sorted by name. Returns no paths if the directory does not exist.
fn list(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let words = |error: io::Error| plain(&error);
    // /var/run is a symbolic link, so resolve the path.
    let dir = match dir.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        dir => dir.map_err(words)?,
    };
    for above in dir.ancestors() {
        let meta = above.symlink_metadata().map_err(words)?;
        // In a sticky directory, only root can rename root's entries.
        let is_sticky = above != dir && meta.mode() & libc::S_ISVTX != 0;
        if !is_sticky || meta.uid() != 0 {
            check_root_only(&meta).map_err(|why| format!("{} {why}", above.display()))?;
        }
    }
    let entries: Vec<_> = dir.read_dir().and_then(|entries| entries.take(ENTRIES_MAX + 1).collect()).map_err(words)?;
    if entries.len() > ENTRIES_MAX {
        return Err(format!("the directory has more than {ENTRIES_MAX} entries"));
    }
    let is_cdi = |path: &PathBuf| path.extension().is_some_and(|end| end == "json" || end == "yaml");
    let mut paths: Vec<PathBuf> = entries.iter().map(std::fs::DirEntry::path).filter(is_cdi).collect();
    paths.sort_unstable();
    Ok(paths)
}

/// Checks that only root can change a file or a directory. The error message continues a sentence that begins with the
/// path.
fn check_root_only(meta: &Metadata) -> Result<(), String> {
    if meta.uid() != 0 {
        return Err(format!("belongs to user {}; it must belong to root", meta.uid()));
    }
    if meta.mode() & 0o022 != 0 {
        let mode = meta.mode() & 0o7777;
        return Err(format!("has mode {mode:o}; it must not be writable by its group or others"));
    }
    Ok(())
}

fn read(path: &Path) -> Result<CdiFile, String> {
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(path).map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => "the path is a symbolic link, which is not followed".to_owned(),
        _ => plain(&error),
    })?;
    let meta = file.metadata().map_err(|error| plain(&error))?;
    if !meta.is_file() {
        return Err("the path is not a regular file".to_owned());
    }
    check_root_only(&meta).map_err(|why| format!("the file {why}"))?;
    let mut text = String::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| plain(&error))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("the file is longer than {FILE_BYTES_MAX} bytes"));
    }
    let parsed: CdiFile = if path.extension().is_some_and(|end| end == "json") {
        serde_json::from_str(&text).map_err(|error| error.to_string())?
    } else {
        yaml(&text)?
    };
    parsed.check()?;
    Ok(parsed)
}

/// Parses a single YAML document.
fn yaml<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let nodes = 100_000;
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: DEPTH_MAX,
            max_nodes: nodes,
            max_events: 2 * nodes,
            max_total_scalar_bytes: FILE_BYTES_MAX as usize,
            max_aliases: 1000,
            max_anchors: 1000,
            max_documents: 1,
        },
        legacy_octal_numbers: true,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error: serde_saphyr::Error| {
        error.to_string().lines().next().unwrap_or("the file is not valid YAML").chars().take(300).collect()
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    const JSON: &str = r#"{"cdiVersion": "0.6.0", "kind": "vendor.com/class",
        "devices": [{"name": "one", "containerEdits": {"env": ["A=1"]}}]}"#;
    const YAML: &str = "cdiVersion: 1.0.0\nkind: vendor.com/class\nannotations: {a: b}\ndevices:\n- name: one\n  \
        containerEdits:\n    deviceNodes:\n    - {path: /dev/a, fileMode: 0660, uid: 5}\n";

    #[test]
    fn files_of_both_forms_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            fs::write(dir.path().join(name), text).unwrap();
            read(&dir.path().join(name))
        };
        write("a.json", JSON).unwrap();
        write("b.yaml", YAML).unwrap();
        for (name, text, words) in [
            ("c.json", JSON.replace("0.6.0", "2.0.0"), "cdiVersion \"2.0.0\" is not supported"),
            ("d.json", JSON.replace("vendor.com/class", "class"), "kind \"class\" is not valid"),
            ("e.json", JSON.replace("env", "environment"), "unknown field `environment`"),
            ("f.yaml", YAML.replace("uid", "owner"), "unknown field `owner`"),
            ("g.yaml", format!("{YAML}---\n{YAML}"), ""),
            ("h.json", " ".repeat(FILE_BYTES_MAX as usize + 1), "longer than"),
        ] {
            let why = write(name, &text).unwrap_err();
            assert!(why.contains(words), "{name}: {why}");
        }
        let names = |paths: Vec<PathBuf>| -> Vec<String> {
            paths.iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
        };
        fs::write(dir.path().join("x.yml"), YAML).unwrap();
        assert_eq!(names(list(dir.path()).unwrap())[..3], ["a.json", "b.yaml", "c.json"]);
        assert_eq!(list(&dir.path().join("missing")), Ok(Vec::new()));
    }

    #[test]
    fn only_root_owned_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        fs::write(&path, JSON).unwrap();
        read(&path).unwrap();
        for (mode, uid, counts) in [(0o644, 0, true), (0o664, 0, false), (0o646, 0, false), (0o600, 1, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            chown(&path, Some(uid), None).unwrap();
            assert_eq!(read(&path).is_ok(), counts, "{mode:o} {uid}");
        }
        chown(&path, Some(0), None).unwrap();
        symlink(&path, dir.path().join("b.json")).unwrap();
        assert!(read(&dir.path().join("b.json")).unwrap_err().contains("symbolic link"));
        fs::create_dir(dir.path().join("c.json")).unwrap();
        assert!(read(&dir.path().join("c.json")).unwrap_err().contains("not a regular file"));
        assert_eq!(list(dir.path()).unwrap().len(), 3, "the control");
        let below = dir.path().join("below");
        fs::create_dir(&below).unwrap();
        list(&below).unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o770)).unwrap();
        assert!(list(dir.path()).unwrap_err().contains("mode 770"));
        assert!(list(&below).unwrap_err().contains("mode 770"));
    }
}
