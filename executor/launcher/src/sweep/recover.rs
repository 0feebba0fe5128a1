//! The secret files of a container that lost its shim and its launcher: a way to them through the container.
//!
//! The file system lives as long as the container's mount namespace. A helper enters it, takes a second mount of
//! each place where the files or their generations show, makes that writable (it is another mount; the container's own
//! stay as they are), and hands it back. What is wiped through it is the very same file system.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use executor_core::record::{ContainerRecord, VolumeKind};
use executor_secrets::volume::{SOURCE, Volume};
use executor_sys::identity;
use executor_sys::mount::{self, Follow, clone_tree, open_dir, open_in_root, set_writable};
use executor_sys::process::{self, Fork};
use executor_sys::seqpacket::{FDS_MAX, Seqpacket};
use rustix::fs::{Mode, OFlags, fstat, makedev};

use crate::host::Host;
use crate::log::{self, Level};

/// Looks at the container's mounts, where it moves them while they are looked at.
const ATTEMPTS: u32 = 100;

/// How long the way through the container may take: its root may be on a server that does not answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Handles on the volume of a container whose init still lives. Empty where there is none, or it cannot be reached:
/// then the memory goes, unwritten, with the container's namespace, and the exit record has no receipt.
pub(super) fn volumes(host: &Host, record: &ContainerRecord) -> Vec<Volume> {
    let Some(prepared) = record.prepared.as_ref().filter(|prepared| !prepared.mounts.is_empty()) else {
        return Vec::new();
    };
    if !identity::alive(&prepared.init) {
        return Vec::new();
    }
    let kind = if host.noswap { VolumeKind::TmpfsNoswap } else { VolumeKind::Ramfs };
    match handles(prepared.init.pid) {
        Ok(handles) => handles.into_iter().map(|handle| Volume::from_handle(handle, kind)).collect(),
        Err(error) => {
            log::line(
                Level::Error,
                record.plan.id.as_str(),
                format_args!("its secret files cannot be reached: {error}"),
            );
            Vec::new()
        }
    }
}

fn handles(init: i32) -> io::Result<Vec<OwnedFd>> {
    let (ours, theirs) = Seqpacket::pair()?;
    let helper = match process::fork()? {
        Fork::Parent(pid) => pid,
        Fork::Child => {
            drop(ours);
            process::exit_now(i32::from(send_handles(init, &theirs).is_err()))
        }
    };
    drop(theirs);
    let mut handles = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    let received = loop {
        match ours.recv_by(&mut [0; 8], deadline) {
            Ok(Some((_, fds))) => handles.extend(fds),
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    if let Err(error) = received {
        super::kill_all(&[helper]); // it is taken with the orphans, if the kernel holds it
        return Err(error);
    }
    match process::wait_for(helper)? {
        process::Ended::Code(0) => Ok(handles),
        ended => Err(io::Error::other(format!("the helper ended with {ended:?}"))),
    }
}

/// In the helper: as the container's mount namespace shows it. The places are the kernel's word and not the record's: the
/// container may have renamed the directories on the way to a file that is mounted by itself.
fn send_handles(init: i32, socket: &Seqpacket) -> io::Result<()> {
    // Opened before: the namespace that is entered has a /proc of its own, or none.
    let mut table = File::open(format!("/proc/{init}/mountinfo"))?;
    process::enter_namespaces(process::pidfd(init)?.as_fd(), true, false)?;
    let root = open_dir(Path::new("/"))?;
    let mut attempts = 0..ATTEMPTS;
    loop {
        let mut text = String::new();
        table.rewind()?;
        table.read_to_string(&mut text)?;
        match text
            .lines()
            .filter_map(Place::parse)
            .map(|place| place.open(root.as_fd()))
            .collect::<io::Result<Vec<_>>>()
        {
            Ok(shown) => return shown.iter().try_for_each(|shown| send(shown.as_fd(), socket)),
            // It was moved or covered meanwhile: what covers it is taken away, and the table is read again.
            Err(error) if attempts.next().is_none() => return Err(error),
            Err(_) => {}
        }
    }
}

/// A place where secret files, their generations or what the container may ask for again are mounted.
struct Place {
    path: PathBuf,
    device: u64,
}

impl Place {
    /// Reads a line of mountinfo (proc_pid_mountinfo(5)); nothing where it is another file system's.
    fn parse(line: &str) -> Option<Self> {
        let (mount, filesystem) = line.split_once(" - ")?;
        if filesystem.split(' ').nth(1)? != SOURCE {
            return None;
        }
        let mut fields = mount.split(' ');
        let (major, minor) = fields.nth(2)?.split_once(':')?;
        let device = makedev(major.parse().ok()?, minor.parse().ok()?);
        Some(Self { path: unescaped(fields.nth(1)?), device })
    }

    /// Opens it. Takes away what is mounted over it, as the runtime socket's directory is.
    ///
    /// # Errors
    /// It is not there any more, or was covered.
    fn open(&self, root: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let shown = open_in_root(root, &self.path, OFlags::PATH, Mode::empty(), Follow::NoLinks)?;
        if fstat(&shown)?.st_dev == self.device {
            return Ok(shown);
        }
        mount::detach(&self.path)?;
        Err(io::Error::other(format!("{} is covered", self.path.display())))
    }
}

/// A path as mountinfo writes it: a space, a tab, a line break and a backslash as a backslash and three octal digits.
fn unescaped(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, more)) = rest.split_first() {
        let escaped = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok();
        match more.get(..3).filter(|_| first == b'\\').and_then(escaped) {
            Some(byte) => {
                bytes.push(byte);
                rest = &more[3..];
            }
            None => {
                bytes.push(first);
                rest = more;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// A second mount of what is shown, writable.
fn send(shown: BorrowedFd<'_>, socket: &Seqpacket) -> io::Result<()> {
    const { assert!(FDS_MAX > 0) };
    let handle = clone_tree(shown, Path::new(""), false)?;
    set_writable(handle.as_fd())?;
    socket.send(b"handle", &[handle.as_fd()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_the_kernel_writes_them() {
        let line = "131 90 0:52 /files /root/a\\040b\\134c ro,nosuid - tmpfs executor-secrets rw,size=12k";
        let place = Place::parse(line).unwrap();
        assert_eq!((place.path, place.device), (PathBuf::from("/root/a b\\c"), makedev(0, 52)));
        for other in [line.replace("executor-secrets", "tmpfs"), line.replace("0:52", "0"), String::new()] {
            assert!(Place::parse(&other).is_none(), "{other}");
        }
        assert_eq!(unescaped("/a\\04"), PathBuf::from("/a\\04"), "not an escape");
    }
}
