//! Implements the locking rules of the CNI specification, 1.1.0, section 3: operations on one attachment must not run
//! in parallel, and GC must not run in parallel with ADD or DEL of any attachment.
//!
//! The locks are byte locks on RUN_DIR/cni/lock. The first byte is for GC. A container uses the byte at the hash of its
//! id. The kernel releases the locks when the process exits.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::{Duration, Instant};

use executor_core::ident::ContainerId;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use sha2::{Digest, Sha256};

use crate::host::Host;

/// Interval between attempts. Locks are polled because the kernel has no locks with a time limit.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// Offset of the byte in the lock file that GC locks for writing, and ADD and DEL for reading.
const COLLECTION: i64 = 0;

#[derive(Debug)]
pub(super) struct OperationLock {
    _file: File,
}

impl OperationLock {
    /// Locks a container for ADD or DEL. Waits until `until` at the latest. Calls `before_attempt` before each attempt
    /// to lock the container. An error of `before_attempt` ends the wait.
    ///
    /// # Errors
    /// Returns `TimedOut` if another operation does not complete in time, or the error of `before_attempt`.
    pub(super) fn for_container(
        host: &Host,
        id: &ContainerId,
        until: Instant,
        mut before_attempt: impl FnMut() -> io::Result<()>,
    ) -> io::Result<Self> {
        let file = open(host)?;
        before_attempt()?;
        lock(&file, (byte(id), libc::F_WRLCK), until, &mut before_attempt)?;
        lock(&file, (COLLECTION, libc::F_RDLCK), until, || Ok(()))?;
        Ok(Self { _file: file })
    }

    /// Locks a container for DEL. Does not wait.
    ///
    /// # Errors
    /// Returns `TimedOut` if another operation is in progress.
    pub(super) fn try_for_container(host: &Host, id: &ContainerId) -> io::Result<Self> {
        let file = open(host)?;
        lock(&file, (byte(id), libc::F_WRLCK), Instant::now(), || Ok(()))?;
        lock(&file, (COLLECTION, libc::F_RDLCK), Instant::now(), || Ok(()))?;
        Ok(Self { _file: file })
    }

    /// Locks a container for CHECK. Does not wait.
    ///
    /// # Errors
    /// Returns `TimedOut` if the container is locked.
    pub(super) fn for_check(host: &Host, id: &ContainerId) -> io::Result<Self> {
        let file = open(host)?;
        lock(&file, (byte(id), libc::F_WRLCK), Instant::now(), || Ok(()))?;
        Ok(Self { _file: file })
    }

    /// Locks all networks for GC. Waits until `until` at the latest.
    ///
    /// # Errors
    /// Returns `TimedOut` if other operations do not complete in time.
    pub(super) fn for_collection(host: &Host, until: Instant) -> io::Result<Self> {
        let file = open(host)?;
        lock(&file, (COLLECTION, libc::F_WRLCK), until, || Ok(()))?;
        Ok(Self { _file: file })
    }
}

/// Opens the lock file. Creates the file if it does not exist.
pub(super) fn open(host: &Host) -> io::Result<File> {
    let path = super::dir(host).join("lock");
    File::options().create(true).truncate(false).read(true).write(true).mode(0o600).open(path)
}

/// Returns the position of a container's byte.
fn byte(id: &ContainerId) -> i64 {
    let digest = Sha256::digest(id.as_str());
    let mut number = [0; 8];
    number[1..].copy_from_slice(&digest[..7]); // positive, and less than the largest offset
    i64::from_be_bytes(number).max(COLLECTION + 1)
}

fn lock(
    file: &File,
    (byte, kind): (i64, i32),
    until: Instant,
    mut attempt: impl FnMut() -> io::Result<()>,
) -> io::Result<()> {
    let range = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: byte,
        l_len: 1,
        l_pid: 0,
    };
    loop {
        match fcntl(file, FcntlArg::F_OFD_SETLK(&range)) {
            Ok(_) => return Ok(()),
            Err(Errno::EAGAIN | Errno::EACCES) if Instant::now() < until => std::thread::sleep(RETRY_INTERVAL),
            Err(Errno::EAGAIN | Errno::EACCES) => return Err(io::ErrorKind::TimedOut.into()),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        attempt()?;
    }
}
