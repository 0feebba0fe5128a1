//! Assembles the root `host`: a read-only view of the host's programs, for local debugging without an image.
//!
//! The root is a tmpfs with read-only binds of `/usr` and related directories, and a minimal `/etc` for running
//! programs. The root does not contain the host's host name, password file or configuration.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::Path;

use executor_sys::mount::{Attributes, attach, clone_tree, detached, open_dir, set_attributes};
use rustix::mount::MountAttrFlags;

use crate::ids::Ids;

/// Directories of programs and libraries. If one is a symbolic link (`/bin -> usr/bin`), the root gets the same link.
const PROGRAMS: [&str; 7] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// Entries of `/etc` that programs need: alternatives, the linker's cache and configuration, and certificates. Missing
/// entries are skipped.
const ETC: [&str; 4] = ["alternatives", "ld.so.cache", "ld.so.conf.d", "ssl/certs"];
/// Empty directories and their modes.
const EMPTY: [(&str, u32); 11] = [
    ("dev", 0o755),
    ("etc", 0o755),
    ("etc/ssl", 0o755),
    ("home", 0o755),
    ("home/vcap", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("var", 0o755),
];
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nvcap:x:1000:1000:Diego's user:/home/vcap:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";
const GROUP: &str = "root:x:0:\ntty:x:5:\nvcap:x:1000:\nnogroup:x:65534:\n";
const NSSWITCH: &str = "passwd: files\ngroup: files\nhosts: files dns\n";
const FILES: [(&str, &str); 3] = [("etc/passwd", PASSWD), ("etc/group", GROUP), ("etc/nsswitch.conf", NSSWITCH)];
const LINKS: [(&str, &str); 3] = [("/proc/mounts", "etc/mtab"), ("/tmp", "var/tmp"), ("/run", "var/run")];

/// Assembles the root at `at`.
pub(super) fn assemble(at: &Path, ids: &Ids) -> io::Result<()> {
    let own = |path: &Path, id: u32| lchown(path, Some(ids.map().to_host(id)), Some(ids.map().to_host(id)));
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let options = [("mode", Some("0755")), ("size", Some("1m")), ("nr_inodes", Some("512"))];
    let tree = detached("tmpfs", "executor-host", &options, flags)?;
    attach(tree.as_fd(), open_dir(at)?.as_fd())?;
    own(at, 0)?;
    for (name, mode) in EMPTY {
        fs::create_dir(at.join(name))?;
        fs::set_permissions(at.join(name), fs::Permissions::from_mode(mode))?;
        own(&at.join(name), 0)?;
    }
    own(&at.join("home/vcap"), 1000)?;
    for (name, content) in FILES {
        fs::write(at.join(name), content)?;
        fs::set_permissions(at.join(name), fs::Permissions::from_mode(0o644))?;
        own(&at.join(name), 0)?;
    }
    for (target, name) in LINKS {
        symlink(target, at.join(name))?;
        own(&at.join(name), 0)?;
    }
    for name in PROGRAMS {
        show(&Path::new("/").join(name), &at.join(name), ids)?;
    }
    for name in ETC {
        show(&Path::new("/etc").join(name), &at.join("etc").join(name), ids)?;
    }
    Ok(())
}

/// Shows a host path read-only: a symbolic link as a copy of the link, a file or directory as a bind mount.
fn show(source: &Path, target: &Path, ids: &Ids) -> io::Result<()> {
    let meta = match fs::symlink_metadata(source) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        meta => meta?,
    };
    if meta.is_symlink() {
        symlink(fs::read_link(source)?, target)?;
        return lchown(target, Some(ids.map().to_host(0)), Some(ids.map().to_host(0)));
    }
    if meta.is_dir() {
        fs::create_dir(target)?;
    } else {
        fs::write(target, "")?;
    }
    let root = open_dir(Path::new("/"))?;
    let view = clone_tree(root.as_fd(), source.strip_prefix("/").unwrap_or(source), true)?;
    // If the file system does not support id maps, all owners are shown as 65534 (the overflow id), and only
    // world-readable files can be read.
    let _ = ids.map_mount(view.as_fd(), true);
    let read_only = Attributes { read_only: true, no_suid: true, no_dev: true, no_exec: false, recursive: true };
    set_attributes(view.as_fd(), read_only)?;
    attach(view.as_fd(), path_of(target)?.as_fd())
}

fn path_of(path: &Path) -> io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path.as_os_str().as_bytes(), flags, Mode::empty())?)
}
