//! User namespaces that are made before anything runs in them.
//!
//! A namespace needs a process to be made in, and its ids are written by whoever has privilege outside: a child is cloned
//! into it, the caller writes its ids and takes a descriptor, and the child ends without having done anything. The
//! descriptor keeps the namespace, serves as the mapping of mounts ([`crate::mount::map_ids`]) and is what a container's
//! processes enter later.

use std::io::{self, Read};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::pipe::PipeFlags;

use crate::privileges;
use crate::process::{self, Fork, OneThread};

/// Makes a user namespace whose ids 0 to `size` - 1, of users and of groups, are the caller's `start` and up. It belongs
/// to `start`, its own root: a namespace's owner has every capability over it, also one that holds none itself, and the
/// host's root without privilege (a service, a container with the host's ids) shall be no more to it than a stranger.
/// The child is not waited for: it becomes a zombie of the caller, who takes its children anyway.
///
/// # Errors
/// The kernel makes none (`user.max_user_namespaces`, or it was built without); the caller has no privilege over these
/// ids, or more than one thread.
pub fn create(start: u32, size: u32) -> io::Result<OwnedFd> {
    let (wait, go) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    // The child ends within: it could not become again who it was.
    let child = |go: OwnedFd, wait: OwnedFd| -> ! {
        drop(go);
        let _ = std::fs::File::from(wait).read(&mut [0]); // until the caller is done, or gone
        process::exit_now(0)
    };
    let one_thread = OneThread::check()?;
    let (pid, go) = privileges::acting_as(start, || match process::clone(libc::CLONE_NEWUSER, &one_thread)? {
        Fork::Parent(pid) => Ok((pid, go)),
        Fork::Child => child(go, wait),
    })?;
    // The child need not have run for this: nobody waits for a processor.
    let taken = map(pid, start, size).and_then(|()| open(pid));
    drop(go);
    taken
}

/// Writes the ids of the user namespace that a process is in, which has none yet.
fn map(pid: i32, start: u32, size: u32) -> io::Result<()> {
    let mapping = format!("0 {start} {size}");
    std::fs::write(format!("/proc/{pid}/uid_map"), &mapping)?;
    std::fs::write(format!("/proc/{pid}/gid_map"), &mapping)
}

/// The user namespace of a process.
///
/// # Errors
/// The process has ended; no privilege.
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

    /// A view of a directory shows its owners mapped, the directory itself stays as it is, and what is made through the
    /// view is owned by whom the mapping says. The namespace is made by a program here, because the threads of the test
    /// keep this process from forking.
    #[test]
    #[ignore = "needs root"]
    fn a_view_shows_mapped_owners_and_the_files_keep_theirs() {
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
        assert!(twice.is_err(), "a view is mapped once");
    }
}
