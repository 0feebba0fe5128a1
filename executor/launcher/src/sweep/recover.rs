//! The secret files of a container that lost its shim and its launcher: a way to them through the container.
//!
//! The file system lives as long as the container's mount namespace. A helper enters it, takes a second mount of
//! each place where the files or their generations show, makes that writable (it is another mount; the container's own
//! stay as they are), and hands it back. What is wiped through it is the very same file system.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use executor_core::placement::{self, Content, GENERATIONS_DIR};
use executor_core::record::{ContainerRecord, VolumeKind};
use executor_core::token::RUNTIME_DIR;
use executor_secrets::volume::Volume;
use executor_sys::identity;
use executor_sys::mount::{self, Follow, clone_tree, open_dir, open_in_root, set_writable};
use executor_sys::process::{self, Fork};
use executor_sys::seqpacket::{FDS_MAX, Seqpacket};
use rustix::fs::{Mode, OFlags, fstat};

use crate::host::Host;
use crate::log::{self, Level};
use crate::shim::keeps_inputs;

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
    match handles(record, prepared.init.pid) {
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

fn handles(record: &ContainerRecord, init: i32) -> io::Result<Vec<OwnedFd>> {
    let (ours, theirs) = Seqpacket::pair()?;
    let helper = match process::fork()? {
        Fork::Parent(pid) => pid,
        Fork::Child => {
            drop(ours);
            process::exit_now(i32::from(send_handles(record, init, &theirs).is_err()))
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

/// In the helper: as the container's mount namespace shows it.
fn send_handles(record: &ContainerRecord, init: i32, socket: &Seqpacket) -> io::Result<()> {
    process::enter_namespaces(process::pidfd(init)?.as_fd(), true, false)?;
    let root = open_dir(Path::new("/"))?;
    let mounts = record.prepared.as_ref().map_or(&[][..], |prepared| &prepared.mounts);
    let open =
        |path: &Path, kind| open_in_root(root.as_fd(), path, OFlags::PATH | kind, Mode::empty(), Follow::NoLinks);
    let mut devices = Vec::new();
    for mount in mounts {
        let kind = if matches!(mount.content, Content::Directory(_)) { OFlags::DIRECTORY } else { OFlags::empty() };
        let shown = open(&mount.target, kind)?;
        devices.push(fstat(&shown)?.st_dev);
        send(shown.as_fd(), socket)?;
    }
    // What is handed back is wiped: it must be of the volume, whatever the container did to the way there.
    let send_beside = |path: &str, what: &str| {
        let shown = open(Path::new(path), OFlags::DIRECTORY)?;
        if !devices.contains(&fstat(&shown)?.st_dev) {
            return Err(io::Error::other(format!("{path} does not lead to the {what}")));
        }
        send(shown.as_fd(), socket)
    };
    if placement::has_generations(mounts) {
        send_beside(GENERATIONS_DIR, "secret files")?;
    }
    if keeps_inputs(&record.plan) {
        // They lie below the runtime directory, which the container needs no more.
        mount::detach(Path::new(RUNTIME_DIR))?;
        send_beside(RUNTIME_DIR, "inputs")?;
    }
    Ok(())
}

/// A second mount of what is shown, writable.
fn send(shown: BorrowedFd<'_>, socket: &Seqpacket) -> io::Result<()> {
    const { assert!(FDS_MAX > 0) };
    let handle = clone_tree(shown, Path::new(""), false)?;
    set_writable(handle.as_fd())?;
    socket.send(b"handle", &[handle.as_fd()])
}
