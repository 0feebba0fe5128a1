//! Provides host devices to a container.
//!
//! A device is looked up once in the operator's list, without following links. After that, the device is identified by
//! its numbers. The container gets a new node with these numbers. The node belongs to the host's root, which a user
//! namespace does not map: every process in the container can open the node with the requested permissions, but no
//! process can change the node.
//! The node of a CDI device ([`crate::cdi`]) can belong to a container user instead. Each node is mounted individually
//! from a tmpfs of the host, because the kernel opens no device on a tmpfs that was mounted in a user namespace.
//!
//! A privileged container with the host's ids can have all devices of the host. These nodes have the owner and the
//! permission bits of the host's nodes. The nodes are created in the container's /dev itself: a mount for each of up to
//! a thousand nodes would slow down the host.

mod directory;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use executor_core::idmap::IdMap;
use executor_core::limits::DEVICE_ENTRIES_MAX;
use executor_core::plan::{DEV, Device, DevicePermissions, Plan, UserNamespace};
use executor_core::protocol::{Reason, Refused};
use executor_core::spec::{DeviceNode, NodeAccess};
use executor_core::validate::ViolationReason::{Conflict, NotAllowed, NotFound, TooMany, Unsuitable, Unsupported};
use executor_core::validate::{FieldFault, Violation, is_nested};
use executor_sys::mount::{
    Attributes, Follow, attach, clone_tree, detach, detached, open_dir, open_in_root, set_attributes, set_private,
};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid, chmodat, chownat, fstat, major, makedev, minor, mkdirat, mknodat,
};
use rustix::mount::MountAttrFlags;

use crate::cgroup::Hierarchies;
use crate::errors::plain;
use crate::host::Host;

/// Looks up the devices of a plan on the host.
///
/// # Errors
/// Returns a violation for each device that cannot be provided.
pub(crate) fn find(host: &Host, plan: &Plan) -> Result<Vec<DeviceNode>, Vec<Violation>> {
    let mut violations = Vec::new();
    let mut nodes = Vec::new();
    // CDI devices are looked up by `crate::cdi`, and all devices of the host by `add_all_of_host`.
    let is_found_here = |device: &Device| !device.is_cdi() && !device.is_whole_dev();
    let listed = plan.host_options.devices.iter().enumerate().filter(|(_, device)| is_found_here(device));
    for (index, device) in listed {
        let violation = |(name, fault): (&str, FieldFault)| Violation::new(format!("devices[{index}].{name}"), fault);
        match look_up(host, plan, device).map_err(violation) {
            Ok(found) => nodes.extend(found),
            Err(violation) => violations.push(violation),
        }
    }
    if violations.is_empty() { Ok(nodes) } else { Err(violations) }
}

/// Returns the node of a device, or all nodes of a directory.
fn look_up(host: &Host, plan: &Plan, device: &Device) -> Result<Vec<DeviceNode>, (&'static str, FieldFault)> {
    let permissions: DevicePermissions = device.permissions.parse().unwrap_or_default();
    let reads_and_writes = permissions.read && permissions.write;
    // In the host's user namespace, a process with CAP_DAC_OVERRIDE bypasses the mode of a node. Cgroup v2 has no
    // device rules, so there is no other check.
    let by_mode_alone = matches!(host.hierarchies, Hierarchies::V2 { .. });
    if by_mode_alone && !reads_and_writes && plan.isolation.user_namespace == UserNamespace::Host {
        let why = "only \"rw\" can be enforced with the host's user namespace on cgroup v2";
        return Err(("permissions", Unsupported.because(why)));
    }
    let node = |path, (block, major, minor)| DeviceNode {
        path,
        block,
        major,
        minor,
        permissions,
        access: None,
        is_in_place: false,
    };
    if let Some(path) = &device.host_path {
        let all = directory::nodes(path, &device.path).map_err(|why| ("host_path", why))?;
        return Ok(all.into_iter().map(|(path, numbers)| node(path, numbers)).collect());
    }
    let name = &device.name;
    let listed = host.policy.devices.iter().find(|known| known.name == *name);
    let listed = listed.ok_or_else(|| ("name", NotAllowed.because(format!("{name:?} is not in the configuration"))))?;
    let numbers = numbers(&listed.path).map_err(|(missing, why)| {
        let reason = if missing { NotFound } else { Unsuitable };
        ("name", reason.because(format!("`{name}`: {}: {why}", listed.path.display())))
    })?;
    Ok(vec![node(device.path.clone(), numbers)])
}

/// Adds all devices of the host if the plan requests /dev, each with its owner and its permission bits. Nodes that
/// conflict with another device or with a mount of the container are left out.
///
/// # Errors
/// Returns a violation if there are too many nodes.
pub(crate) fn add_all_of_host(plan: &Plan, nodes: &mut Vec<DeviceNode>) -> Result<(), Refused> {
    let Some(index) = plan.host_options.devices.iter().position(Device::is_whole_dev) else { return Ok(()) };
    let refused = |fault| {
        Refused::from_fields(Reason::Precondition, &[Violation::new(format!("devices[{index}].host_path"), fault)])
    };
    let all = directory::all_nodes(Path::new(DEV)).map_err(refused)?;
    let volumes = plan.volumes.iter().map(|volume| &volume.path);
    let tmpfs = plan.surroundings.tmpfs.iter().map(|tmpfs| &tmpfs.path);
    let files = plan.files.iter().map(|file| &file.path).chain(&plan.file_directories);
    let message = plan.termination_message.iter().map(|message| &message.path);
    let taken = volumes.chain(tmpfs).chain(files).chain(message).chain(nodes.iter().map(|node| &node.path));
    let taken: Vec<PathBuf> = taken.filter(|path| path.starts_with(DEV)).cloned().collect();
    nodes.extend(all.into_iter().filter(|node| !taken.iter().any(|path| is_nested(path, &node.path))));
    Ok(())
}

/// Checks that the nodes of all devices can exist together in a container's /dev.
///
/// # Errors
/// Returns a violation of `devices` if two nodes conflict or there are too many nodes.
pub(crate) fn check_entries(nodes: &[DeviceNode]) -> Result<(), Refused> {
    let refused =
        |fault: FieldFault| Err(Refused::from_fields(Reason::Precondition, &[Violation::new("devices", fault)]));
    let mut paths = BTreeSet::new();
    if let Some(twice) = nodes.iter().find(|node| !paths.insert(&*node.path)) {
        return refused(Conflict.because(format!("two devices have the node `{}`", twice.path.display())));
    }
    let entries = paths.iter().flat_map(|path| path.ancestors()).collect::<BTreeSet<&Path>>().len();
    if entries.saturating_sub(2) > DEVICE_ENTRIES_MAX {
        let why = format!("have {} nodes and directories; at most {DEVICE_ENTRIES_MAX} are allowed", entries - 2);
        return refused(TooMany.because(why));
    }
    Ok(())
}

/// Kind of a device node (true for a block device), and its major and minor numbers.
type Numbers = (bool, u32, u32);

/// Returns the kind and the numbers of a device node.
///
/// # Errors
/// Returns true if the path does not exist, and an explanation.
pub(crate) fn numbers(path: &Path) -> Result<Numbers, (bool, String)> {
    let opened = open_dir(Path::new("/"))
        .and_then(|root| open_in_root(root.as_fd(), path, OFlags::PATH, Mode::empty(), Follow::NoLinks));
    let stat = opened
        .and_then(|node| Ok(fstat(node)?))
        .map_err(|error| (error.kind() == io::ErrorKind::NotFound, explain(&error)))?;
    numbers_of(&stat).ok_or_else(|| {
        (false, format!("the path is not a device node; its type is {:?}", FileType::from_raw_mode(stat.st_mode)))
    })
}

/// Returns the kind and the numbers of a device node. Returns `None` for another type of file.
fn numbers_of(stat: &Stat) -> Option<Numbers> {
    match FileType::from_raw_mode(stat.st_mode) {
        kind @ (FileType::BlockDevice | FileType::CharacterDevice) => {
            Some((kind == FileType::BlockDevice, major(stat.st_rdev), minor(stat.st_rdev)))
        }
        _ => None,
    }
}

fn explain(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ELOOP) => "the path contains a symbolic link, which is not followed".to_owned(),
        _ => plain(error),
    }
}

/// Creates a node. `ids` maps container ids to host ids.
fn make_node(dir: BorrowedFd<'_>, name: &Path, node: &DeviceNode, ids: IdMap) -> io::Result<()> {
    let kind = if node.block { FileType::BlockDevice } else { FileType::CharacterDevice };
    mknodat(dir, name, kind, Mode::empty(), makedev(node.major, node.minor))?;
    chmodat(dir, name, Mode::from_raw_mode(node.mode()), AtFlags::empty())?;
    if let Some(NodeAccess { uid, gid, .. }) = node.access {
        let (uid, gid) = (Uid::from_raw(ids.to_host(uid)), Gid::from_raw(ids.to_host(gid)));
        chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}

/// Creates a detached mount of each node that is not created in place. `ids` maps container ids to host ids. `staging`
/// is a directory in the caller's mount namespace.
pub(crate) fn make(nodes: &[DeviceNode], ids: IdMap, staging: &Path) -> io::Result<Vec<OwnedFd>> {
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let tmpfs = detached("tmpfs", "devices", &[("size", Some("64k")), ("mode", Some("700"))], flags)?;
    let mounted = || nodes.iter().filter(|node| !node.is_in_place).enumerate();
    for (index, node) in mounted() {
        make_node(tmpfs.as_fd(), Path::new(&index.to_string()), node, ids)?;
    }
    let views = || -> io::Result<Vec<OwnedFd>> {
        let view = |index: usize| clone_tree(tmpfs.as_fd(), Path::new(&index.to_string()), false);
        mounted().map(|(index, _)| view(index)).collect()
    };
    let views = match views() {
        // Kernels before 6.15 clone only attached mounts.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            attach(tmpfs.as_fd(), open_dir(staging)?.as_fd())?;
            let views = views();
            detach(staging)?;
            views
        }
        views => views,
    }?;
    for view in &views {
        // The attribute makes the node read-only, not the device.
        let fixed = Attributes { read_only: true, no_suid: true, no_exec: true, ..Attributes::default() };
        set_attributes(view.as_fd(), fixed)?;
        set_private(view.as_fd())?;
    }
    Ok(views)
}

/// Creates the directories above a path in the container's /dev.
pub(crate) fn make_parents(dev: BorrowedFd<'_>, below: &Path) -> io::Result<()> {
    let mut above: Vec<&Path> = below.ancestors().skip(1).filter(|path| !path.as_os_str().is_empty()).collect();
    above.reverse();
    for dir in above {
        match mkdirat(dev, dir, Mode::from_raw_mode(0o755)) {
            Err(error) if error != rustix::io::Errno::EXIST => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

/// Creates nodes in the container's /dev. The caller is in the container. `views` contains the mounts of [`make`].
///
/// # Errors
/// Returns the path and the error if a node cannot be created.
pub(crate) fn place_all(
    dev: BorrowedFd<'_>,
    nodes: &[DeviceNode],
    views: &[OwnedFd],
    ids: IdMap,
) -> Result<(), (PathBuf, io::Error)> {
    let mut views = views.iter();
    for node in nodes {
        let placed = match if node.is_in_place { None } else { views.next() } {
            Some(view) => place(dev, node, view.as_fd()),
            None => place_itself(dev, node, ids),
        };
        placed.map_err(|error| (node.path.clone(), error))?;
    }
    Ok(())
}

fn place_itself(dev: BorrowedFd<'_>, node: &DeviceNode, ids: IdMap) -> io::Result<()> {
    let below = node.path.strip_prefix(DEV).map_err(io::Error::other)?;
    make_parents(dev, below)?;
    make_node(dev, below, node, ids)
}

/// Mounts a node in the container's /dev.
fn place(dev: BorrowedFd<'_>, node: &DeviceNode, view: BorrowedFd<'_>) -> io::Result<()> {
    let below = node.path.strip_prefix(DEV).map_err(io::Error::other)?;
    make_parents(dev, below)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let target = open_in_root(dev, below, flags, Mode::from_raw_mode(0o600), Follow::NoLinks)?;
    attach(view, target.as_fd())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_device_nodes_and_no_links() {
        assert_eq!(numbers(Path::new("/dev/null")), Ok((false, 1, 3)));
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        symlink("/dev/null", &link).unwrap();
        let (missing, why) = numbers(&link).unwrap_err();
        assert!(!missing && why.contains("symbolic link"), "{why}");
        symlink("/dev", dir.path().join("dev")).unwrap();
        assert!(numbers(&dir.path().join("dev/null")).unwrap_err().1.contains("symbolic link"));
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        for (path, absent, words) in [
            (&*file, false, "RegularFile"),
            (dir.path(), false, "Directory"),
            (Path::new("/dev/none"), true, "No such"),
        ] {
            let (missing, why) = numbers(path).unwrap_err();
            assert!(missing == absent && why.contains(words), "{why}");
        }
    }
}
