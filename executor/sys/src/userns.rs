//! Creates user namespaces before any process runs in them.
//!
//! A namespace can only be created with a process in it, and a privileged process outside must write its id maps.
//! Therefore, the caller clones a child into the namespace, writes the maps and opens a descriptor, and the child exits
//! without doing anything. The descriptor keeps the namespace alive, serves as the id mapping of mounts
//! ([`crate::mount::map_ids`]), and is later used by the container's processes to enter the namespace.

use std::io::{self, Read};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::pipe::PipeFlags;

use crate::privileges;
use crate::process::{self, Fork, OneThread};

/// Creates a user namespace whose user and group ids 0 to `size` - 1 map to the host ids from `start` on. The owner of
/// the namespace is the host id `start`, which is also its root. The owner of a namespace has every capability over it,
/// even if the owner is unprivileged. The host's root is not the owner: an unprivileged process of the host's root (a
/// service, a container with host ids) must not get these capabilities. The process that creates the namespace is a
/// child of the caller, and becomes a zombie, which the caller must reap.
///
/// # Errors
/// Returns an error if the kernel creates no user namespace (`user.max_user_namespaces`, or a kernel without them), if
/// the caller has no privilege over these ids, or if the caller has more than one thread.
pub fn create(start: u32, size: u32) -> io::Result<OwnedFd> {
    let (wait, go) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    // The child must exit within this closure, because the child cannot restore its credentials.
    let child = |go: OwnedFd, wait: OwnedFd| -> ! {
        drop(go);
        let _ = std::fs::File::from(wait).read(&mut [0]); // until the caller is done or has exited
        process::exit_now(0)
    };
    let one_thread = OneThread::check()?;
    let (pid, go) =
        privileges::with_effective_ids(start, || match process::clone(libc::CLONE_NEWUSER, &one_thread)? {
            Fork::Parent(pid) => Ok((pid, go)),
            Fork::Child => child(go, wait),
        })?;
    // The maps can be written even if the child has not been scheduled yet.
    let taken = map(pid, start, size).and_then(|()| open(pid));
    drop(go);
    taken
}

/// Writes the id maps of the user namespace of a process. The maps must not have been written before.
fn map(pid: i32, start: u32, size: u32) -> io::Result<()> {
    let mapping = format!("0 {start} {size}");
    std::fs::write(format!("/proc/{pid}/uid_map"), &mapping)?;
    std::fs::write(format!("/proc/{pid}/gid_map"), &mapping)
}

/// Opens the user namespace of a process.
///
/// # Errors
/// Returns an error if the process has exited or the caller lacks privilege.
pub fn open(pid: i32) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(format!("/proc/{pid}/ns/user"), flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::mount::{clone_tree, map_ids, open_dir, open_in_root};

    /// An idmapped view shows mapped owners, the directory itself is unchanged, and files created through the view have
    /// the mapped owner. A separate program creates the namespace here, because a test process with several threads
    /// cannot fork.
    #[test]
    #[ignore = "needs root"]
    fn idmapped_view_maps_owners_without_changing_files() {
        let mut child = std::process::Command::new("unshare").args(["--user", "sleep", "1000"]).spawn().unwrap();
        let pid = child.id() as i32;
        let name = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/user")).unwrap();
        while name(&pid.to_string()) == name("self") {
            std::thread::yield_now();
        }
        map(pid, 200_000, 65_536).unwrap();
        let namespace = open(pid).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();

        let dir = tempfile::tempdir_in(std::env::current_dir().unwrap()).unwrap();
        std::fs::write(dir.path().join("file"), "x").unwrap();
        std::os::unix::fs::chown(dir.path().join("file"), Some(5), Some(6)).unwrap();
        let view = clone_tree(open_dir(dir.path()).unwrap().as_fd(), std::path::Path::new(""), false).unwrap();
        map_ids(view.as_fd(), namespace.as_fd(), false).unwrap();
        let at = |name: &str, flags| {
            let follow = crate::mount::Follow::NoLinks;
            open_in_root(view.as_fd(), std::path::Path::new(name), flags, Mode::empty(), follow).unwrap()
        };
        let shown = rustix::fs::fstat(at("file", OFlags::PATH)).unwrap();
        assert_eq!((shown.st_uid, shown.st_gid), (200_005, 200_006));
        let kept = std::fs::metadata(dir.path().join("file")).unwrap();
        assert_eq!((kept.uid(), kept.gid()), (5, 6), "the control: nothing was changed");
        let twice = map_ids(view.as_fd(), namespace.as_fd(), false);
        assert!(twice.is_err(), "a view can be mapped only once");
    }
}
