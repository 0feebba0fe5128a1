//! Obtains handles on the secret files of a container whose shim and launcher have exited, through the container's
//! mounts.
//!
//! The file system of the secret files exists as long as the container's mount namespace. A helper enters the namespace
//! and clones each mount of secret files or their generations. The helper makes the clone writable and returns it. The
//! container's own mounts are not changed. Files wiped through the clone are wiped for the container, too, because the
//! file system is the same.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use executor_core::record::{ContainerRecord, PreparedContainer, VolumeKind};
use executor_secrets::volume::{SOURCE, Volume};
use executor_sys::identity;
use executor_sys::mount::{self, Follow, clone_tree, open_dir, open_in_root, set_writable};
use executor_sys::mountinfo::{self, Mount};
use executor_sys::process::{self, Fork};
use executor_sys::seqpacket::{FDS_MAX, Seqpacket};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, statx};

use crate::host::Host;
use crate::log::{self, Level};

/// Maximum number of attempts to open the container's mounts, in case the container moves them during an attempt.
const ATTEMPTS: u32 = 100;

/// Time limit for opening the mounts. The container's root may be on a server that does not respond.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns handles on the secret files of a container whose init is still running. Returns no handles if there are no
/// secret files or they cannot be accessed. The kernel then frees their memory with the container's mount namespace
/// without overwriting it, and the exit record has no receipt.
pub(super) fn volumes(host: &Host, record: &ContainerRecord) -> Vec<Volume> {
    let has_files = |prepared: &&PreparedContainer| !prepared.mounts.is_empty() || record.plan.has_hidden_secrets();
    let Some(prepared) = record.prepared.as_ref().filter(has_files) else {
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
                format_args!("the secret files cannot be accessed: {error}"),
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
    let deadline = Instant::now() + OPEN_TIMEOUT;
    let received = loop {
        match ours.recv_by(&mut [0; 8], deadline) {
            Ok(Some((_, fds))) => handles.extend(fds),
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    if let Err(error) = received {
        super::kill_all(&[helper], &BTreeSet::from([helper])); // a blocked helper is reaped later, with the orphans
        return Err(error);
    }
    match process::wait_for(helper)? {
        process::ChildExit::Code(0) => Ok(handles),
        ended => Err(io::Error::other(format!("the helper exited with {ended}"))),
    }
}

/// Opens the mounts and sends the handles. Runs in the helper. The paths are read from the kernel's mount table and not
/// from the record, because the container may have renamed the parents of a single mounted file.
fn send_handles(init: i32, socket: &Seqpacket) -> io::Result<()> {
    // Open the file before entering the namespace, which has its own /proc or none.
    let mut table = File::open(format!("/proc/{init}/mountinfo"))?;
    process::enter_namespaces(process::pidfd(init)?.as_fd(), true, false)?;
    let root = open_dir(Path::new("/"))?;
    let mut attempts = 0..ATTEMPTS;
    loop {
        let mut text = Vec::new();
        table.rewind()?;
        table.read_to_end(&mut text)?;
        let places = mountinfo::parse(&text).into_iter().filter(|mount| mount.source == SOURCE);
        match places.map(|place| open(&place, root.as_fd())).collect::<io::Result<Vec<_>>>() {
            Ok(shown) => return shown.iter().try_for_each(|shown| send(shown.as_fd(), socket)),
            // A mount was moved or covered. A covering mount has been removed, so read the table again.
            Err(error) if attempts.next().is_none() => return Err(error),
            Err(_) => {}
        }
    }
}

/// Opens a mount of secret files, their generations, or inputs that the container may request. If another mount, such
/// as the runtime socket's directory, covers this mount, unmounts the covering mount.
///
/// # Errors
/// Returns an error if the mount no longer exists or was covered.
fn open(place: &Mount, root: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let shown = open_in_root(root, &place.point, OFlags::PATH, Mode::empty(), Follow::NoLinks)?;
    // Comparing devices is not sufficient: the mount that covers the secrets of steps belongs to the same file system.
    let seen = statx(&shown, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    if seen.stx_mnt_id == place.id {
        return Ok(shown);
    }
    mount::detach(&place.point)?;
    Err(io::Error::other(format!("another mount covered {}, and was removed", place.point.display())))
}

/// Sends a writable clone of a mount.
fn send(shown: BorrowedFd<'_>, socket: &Seqpacket) -> io::Result<()> {
    const { assert!(FDS_MAX > 0) };
    let handle = clone_tree(shown, Path::new(""), false)?;
    set_writable(handle.as_fd())?;
    socket.send(b"handle", &[handle.as_fd()])
}
