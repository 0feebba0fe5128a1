//! Writes /etc/hostname, /etc/hosts and /etc/resolv.conf into the root of a container before it runs.
//!
//! The files belong to the container, which may change them. If the image has an entry at one of these paths, even a
//! symbolic link out of the root, the entry is replaced in the container's writable layer. The root is untrusted, so
//! every path is opened as if the root were `/`. If /etc is a link within the root, the link is followed unless it
//! leads to another mount, so that host volumes are not changed. An entry that cannot be replaced is kept, with a
//! warning.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use executor_core::cni::Addresses;
use executor_core::placement::{RootfsEntry, RootfsView};
use executor_core::plan::{Network, Plan};
use executor_core::protocol::Refused;
use executor_core::{names, spec};
use executor_sys::mount::{Follow, open_in_root};
use executor_sys::open::read_whole;
use rustix::fs::{AtFlags, Mode, OFlags, fchmod, fchown, openat, unlinkat};
use rustix::io::Errno;

use crate::errors::{failed, plain};
use crate::rootfs::Tree;
use crate::rootfs::etc::{Contents, NAMES};

const ETC: &str = "/etc";

/// Creates /etc if the root does not contain it. Does nothing if the root is read-only.
pub(crate) fn make_dir(tree: &Tree) -> Result<(), Refused> {
    let missing = tree.entry(Path::new(ETC)).map_err(|error| failed("rootfs: cannot inspect /etc", &error))?
        == RootfsEntry::Missing;
    if !missing {
        return Ok(());
    }
    match tree.make_dir(Path::new(ETC)) {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => Ok(()),
        made => made.map_err(|error| failed("rootfs: cannot create /etc", &error)),
    }
}

/// Prepares the mount points of volumes that replace one of these files: if the image has a symbolic link or a special
/// file there, replaces it with an empty file, on which the volume is then mounted.
///
/// # Errors
/// Returns a refusal if a mount point cannot be inspected or replaced.
pub(crate) fn make_targets(tree: &Tree, plan: &Plan) -> Result<(), Refused> {
    for name in NAMES.iter().filter(|name| is_volume(plan, name)) {
        let path = Path::new(ETC).join(name);
        let entry =
            tree.entry(&path).map_err(|error| failed(&format!("rootfs: cannot inspect {}", path.display()), &error))?;
        if matches!(entry, RootfsEntry::Symlink | RootfsEntry::Special) {
            let dir = open_in_root(
                tree.root(),
                Path::new(ETC),
                OFlags::PATH | OFlags::DIRECTORY,
                Mode::empty(),
                Follow::NoLinks,
            );
            let replaced = dir.and_then(|dir| replace(dir.as_fd(), name, b""));
            replaced.map_err(|error| failed(&format!("rootfs: cannot create {}", path.display()), &error))?;
        }
    }
    Ok(())
}

/// Returns true if a volume is mounted at the file.
fn is_volume(plan: &Plan, name: &str) -> bool {
    plan.volumes.iter().any(|volume| volume.path == Path::new(ETC).join(name))
}

/// Returns the contents in the order of [`NAMES`]. `addresses` contains the addresses that a CNI network has assigned.
///
/// # Errors
/// Returns a refusal if a host file cannot be read or is too long.
pub(crate) fn contents(plan: &Plan, addresses: Option<&Addresses>) -> Result<Contents, Refused> {
    let none = Addresses::default();
    let addresses = addresses.unwrap_or(&none);
    let own: Vec<_> = addresses.own.iter().map(|address| address.ip).collect();
    let host_file = |path: &str| read_host_file(path).map_err(|error| failed(path, &error));
    let (hosts, resolv_conf) = match plan.network {
        Network::Host => (host_file("/etc/hosts")?, host_file("/etc/resolv.conf")?),
        Network::Cni | Network::Path => (String::new(), host_file("/etc/resolv.conf")?),
        Network::None => (String::new(), String::new()),
    };
    let hosts = names::hosts(plan, &own, &hosts);
    Ok([names::hostname(plan) + "\n", hosts, names::resolv_conf(plan, addresses, &resolv_conf)])
}

/// Returns the contents. Returns `None` if they depend on the container's pod or on the network's addresses.
///
/// # Errors
/// Returns the same errors as [`contents`].
pub(crate) fn contents_ahead(plan: &Plan) -> Result<Option<Contents>, Refused> {
    let known = plan.pod.is_none() && matches!(plan.network, Network::None | Network::Host);
    known.then(|| contents(plan, None)).transpose()
}

/// Writes the files into the root, except files that a volume replaces.
///
/// # Errors
/// Returns a refusal if the disk is full.
pub(crate) fn write(tree: &Tree, plan: &Plan, contents: &Contents, warnings: &mut Vec<String>) -> Result<(), Refused> {
    let dir = open_dir(tree, plan);
    for (name, content) in NAMES.iter().zip(contents).filter(|(name, _)| !is_volume(plan, name)) {
        let written = match &dir {
            Ok(dir) => replace(dir.as_fd(), name, content.as_bytes()),
            Err(error) => Err(match error.raw_os_error() {
                Some(code) => io::Error::from_raw_os_error(code),
                None => io::Error::new(error.kind(), error.to_string()),
            }),
        };
        match written {
            Err(error) if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => {
                return Err(failed(&format!("rootfs: cannot write /etc/{name}"), &error));
            }
            Err(error) => warnings.push(format!("rootfs: /etc/{name} of the image was kept: {}", plain(&error))),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Opens /etc, following a link within the mount.
fn open_dir(tree: &Tree, plan: &Plan) -> io::Result<OwnedFd> {
    let open =
        |follow| open_in_root(tree.root(), Path::new(ETC), OFlags::PATH | OFlags::DIRECTORY, Mode::empty(), follow);
    let dir = match open(Follow::NoLinks) {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => open(Follow::LinksWithinMount)?,
        dir => return dir,
    };
    // Reject a directory that a later mount would hide.
    let path = |fd: BorrowedFd<'_>| std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    let (root, target) = (path(tree.root())?, path(dir.as_fd())?);
    let inside = Path::new("/").join(target.strip_prefix(&root).map_err(io::Error::other)?);
    match spec::fresh_mounts(plan).iter().find(|mount| inside.starts_with(mount)) {
        Some(mount) => {
            let why = format!("/etc is a symbolic link into {}, where a new file system is mounted", mount.display());
            Err(io::Error::other(why))
        }
        None => Ok(dir),
    }
}

/// Replaces any entry with this name with a new file. Fails if the entry is a directory.
fn replace(dir: BorrowedFd<'_>, name: &str, content: &[u8]) -> io::Result<()> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(dir, name, flags, Mode::from_raw_mode(0o644))?;
    fchmod(&file, Mode::from_raw_mode(0o644))?;
    // The file gets the owner of the directory.
    let owner = rustix::fs::fstat(dir)?;
    fchown(&file, Some(rustix::fs::Uid::from_raw(owner.st_uid)), Some(rustix::fs::Gid::from_raw(owner.st_gid)))?;
    File::from(file).write_all(content)
}

/// Reads a host file. Returns an empty string if the file does not exist.
fn read_host_file(path: &str) -> io::Result<String> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        file => file?,
    };
    let bytes = read_whole(file, names::HOST_FILE_MAX)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
