//! /etc/hostname, /etc/hosts and /etc/resolv.conf of a container, written into its root before it runs.
//!
//! The files are the container's own: whatever the image has at these paths, even a symbolic link to outside, is
//! replaced in the container's writable layer, and the container may change them. The root is untrusted, so that every
//! path is opened as if the root were `/`. /etc itself may be a link within the root, and is followed if it leads to no
//! other mount: a host volume stays unchanged. An entry of the image that cannot be replaced stays, with a warning.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use executor_core::cni::Addresses;
use executor_core::placement::{RootfsEntry, RootfsView};
use executor_core::plan::{Network, Plan};
use executor_core::protocol::Refused;
use executor_core::{names, spec};
use executor_sys::mount::{Follow, open_in_root};
use rustix::fs::{AtFlags, Mode, OFlags, fchmod, fchown, openat, unlinkat};
use rustix::io::Errno;

use crate::errors::{failed, plain};
use crate::rootfs::Tree;
use crate::rootfs::etc::{Contents, NAMES};

const ETC: &str = "/etc";

/// Makes the directory of the files if the root has none.
pub(crate) fn make_dir(tree: &Tree) -> Result<(), Refused> {
    let missing = tree.entry(Path::new(ETC)).map_err(|error| failed("rootfs: /etc", &error))? == RootfsEntry::Missing;
    if !missing {
        return Ok(());
    }
    match tree.make_dir(Path::new(ETC)) {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => Ok(()),
        made => made.map_err(|error| failed("rootfs: /etc", &error)),
    }
}

/// Returns the contents in the order of [`NAMES`], with the addresses that a CNI network has assigned.
///
/// # Errors
/// Returns a refusal if a file of the host is too long.
pub(crate) fn contents(plan: &Plan, addresses: Option<&Addresses>) -> Result<Contents, Refused> {
    let none = Addresses::default();
    let addresses = addresses.unwrap_or(&none);
    let own: Vec<_> = addresses.own.iter().map(|address| address.ip).collect();
    let of_host = |path: &str| of_host(path).map_err(|error| failed(path, &error));
    let (hosts, resolv_conf) = match plan.network {
        Network::Host => (of_host("/etc/hosts")?, of_host("/etc/resolv.conf")?),
        Network::Cni | Network::Path => (String::new(), of_host("/etc/resolv.conf")?),
        Network::None => (String::new(), String::new()),
    };
    let hosts = names::hosts(plan, &own, &hosts);
    Ok([names::hostname(plan) + "\n", hosts, names::resolv_conf(plan, addresses, &resolv_conf)])
}

/// Returns the contents if they are known before there is a network.
///
/// # Errors
/// See [`contents`].
pub(crate) fn contents_ahead(plan: &Plan) -> Result<Option<Contents>, Refused> {
    let known = plan.pod.is_none() && matches!(plan.network, Network::None | Network::Host);
    known.then(|| contents(plan, None)).transpose()
}

/// Writes the files.
///
/// # Errors
/// Returns a refusal if the disk is full.
pub(crate) fn write(tree: &Tree, plan: &Plan, contents: &Contents, warnings: &mut Vec<String>) -> Result<(), Refused> {
    let dir = open_dir(tree, plan);
    for (name, content) in NAMES.iter().zip(contents) {
        let written = match &dir {
            Ok(dir) => replace(dir.as_fd(), name, content.as_bytes()),
            Err(error) => Err(match error.raw_os_error() {
                Some(code) => io::Error::from_raw_os_error(code),
                None => io::Error::new(error.kind(), error.to_string()),
            }),
        };
        match written {
            Err(error) if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => {
                return Err(failed(&format!("rootfs: /etc/{name}"), &error));
            }
            Err(error) => warnings.push(format!("rootfs: /etc/{name} of the image was kept: {}", plain(&error))),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Opens the directory that /etc is or leads to.
fn open_dir(tree: &Tree, plan: &Plan) -> io::Result<OwnedFd> {
    let open =
        |follow| open_in_root(tree.root(), Path::new(ETC), OFlags::PATH | OFlags::DIRECTORY, Mode::empty(), follow);
    let dir = match open(Follow::NoLinks) {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => open(Follow::LinksWithinMount)?,
        dir => return dir,
    };
    // A file system that is mounted later would hide the files.
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

/// Puts a new file in place of any entry with this name except a directory.
fn replace(dir: BorrowedFd<'_>, name: &str, content: &[u8]) -> io::Result<()> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(dir, name, flags, Mode::from_raw_mode(0o644))?;
    fchmod(&file, Mode::from_raw_mode(0o644))?;
    // The owner of the directory is root of the container.
    let owner = rustix::fs::fstat(dir)?;
    fchown(&file, Some(rustix::fs::Uid::from_raw(owner.st_uid)), Some(rustix::fs::Gid::from_raw(owner.st_gid)))?;
    File::from(file).write_all(content)
}

/// Reads a file of the host; empty if it does not exist.
fn of_host(path: &str) -> io::Result<String> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(names::HOST_FILE_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > names::HOST_FILE_MAX {
        return Err(io::Error::other(format!("has more than {} bytes", names::HOST_FILE_MAX)));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
