//! Recovers the secret files of a container that has lost its shim and its launcher, through the container's mounts.
//!
//! The file system exists as long as the container's mount namespace. A helper enters the namespace, makes a second
//! mount of each mount point of the files or their generations, makes this mount writable (the container's own mounts
//! stay unchanged), and returns it. Wiping through it wipes the same file system.

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

/// Most attempts to read the container's mounts, if the container moves them meanwhile.
const ATTEMPTS: u32 = 100;

/// Time limit for opening the mounts: the container's root may be on a server that does not answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns handles on the volume of a container whose init is still running. Empty if there is none or it cannot be
/// reached: the memory is then freed with the container's namespace without being overwritten, and the exit record has
/// no receipt.
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
                format_args!("the secret files cannot be reached: {error}"),
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
        super::kill_all(&[helper], &BTreeSet::from([helper])); // reaped with the orphans if the kernel blocks it
        return Err(error);
    }
    match process::wait_for(helper)? {
        process::ChildExit::Code(0) => Ok(handles),
        ended => Err(io::Error::other(format!("the helper ended with {ended:?}"))),
    }
}

/// Sends the handles from the helper. The paths come from the kernel's mount table and not from the record: the
/// container may have renamed parents of a single mounted file.
fn send_handles(init: i32, socket: &Seqpacket) -> io::Result<()> {
    // Open before entering: the container's namespace has its own /proc, or none.
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
            // It was moved or covered meanwhile: the covering mount is removed and the table is read again.
            Err(error) if attempts.next().is_none() => return Err(error),
            Err(_) => {}
        }
    }
}

/// Opens a mount point of secret files, of their generations or of the inputs that the container may ask for. Unmounts
/// mounts on top of it, such as the runtime socket's directory.
///
/// # Errors
/// Returns an error if it does not exist any more or was covered.
fn open(place: &Mount, root: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let shown = open_in_root(root, &place.point, OFlags::PATH, Mode::empty(), Follow::NoLinks)?;
    // The device is not enough: the mount that covers the secrets of steps is of the same file system.
    let seen = statx(&shown, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    if seen.stx_mnt_id == place.id {
        return Ok(shown);
    }
    mount::detach(&place.point)?;
    Err(io::Error::other(format!("{} is covered", place.point.display())))
}

/// Sends a second, writable mount of a shown one.
fn send(shown: BorrowedFd<'_>, socket: &Seqpacket) -> io::Result<()> {
    const { assert!(FDS_MAX > 0) };
    let handle = clone_tree(shown, Path::new(""), false)?;
    set_writable(handle.as_fd())?;
    socket.send(b"handle", &[handle.as_fd()])
}
