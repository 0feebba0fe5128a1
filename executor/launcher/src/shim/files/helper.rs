//! Work that needs another cgroup or other namespaces than the shim's: done by a forked process, which ends with it.
//!
//! Out comes that it was done, or what failed and on what. A helper does not outlive its shim: what it would still
//! write then nobody would wipe. The secret files that it writes it passes to the shim while they are open.

use crate::errors::plain;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use executor_core::protocol::{Reason, Refused};
use executor_secrets::volume::Pass;
use executor_sys::process::{self, Ended, Fork};
use executor_sys::seqpacket::Seqpacket;

/// Longest account of a failure, in bytes.
const TOLD_MAX: usize = 8192;
/// Comes with a file.
const PASSED: &[u8] = b"file";

/// A step that failed, on what.
pub(crate) struct Failed(pub(crate) String, pub(crate) io::Error);

/// Why something was not done.
pub(crate) enum NotDone {
    /// A step failed.
    Failed {
        /// The system's error number; 0 where there is none.
        errno: i32,
        /// The whole failure in one line.
        words: String,
    },
    /// The kernel killed the helper, which it does when the cgroup's memory is used up.
    Killed,
}

/// Does something in a helper, and gives what it has to tell: a few bytes, or none.
pub(crate) fn run(act: impl FnOnce() -> Result<Vec<u8>, Failed>) -> Result<Vec<u8>, NotDone> {
    run_passing(|_| act(), drop)
}

/// As [`run`]; what the helper passes is taken while it works.
pub(crate) fn run_passing(
    act: impl FnOnce(&mut Pass<'_>) -> Result<Vec<u8>, Failed>,
    take: impl FnMut(OwnedFd),
) -> Result<Vec<u8>, NotDone> {
    let failed = |what: &str, error: &io::Error| NotDone::Failed {
        errno: error.raw_os_error().unwrap_or(0),
        words: format!("{what}: {}", plain(error)),
    };
    let (ours, theirs) = Seqpacket::pair().map_err(|error| failed("socket", &error))?;
    let parent = std::process::id();
    let helper = match process::fork().map_err(|error| failed("fork", &error))? {
        Fork::Parent(pid) => pid,
        Fork::Child => {
            drop(ours);
            let mut pass = |file: BorrowedFd<'_>| theirs.send(PASSED, &[file]);
            let done =
                process::die_with(parent).map_err(|error| Failed("helper".into(), error)).and_then(|()| act(&mut pass));
            process::exit_now(match done {
                Ok(reported) if reported.is_empty() => 0,
                Ok(reported) => i32::from(theirs.send(&reported, &[]).is_err()),
                Err(Failed(what, error)) => {
                    let errno = error.raw_os_error().unwrap_or(0).to_le_bytes();
                    let mut reported = [&errno, format!("{what}: {}", plain(&error)).as_bytes()].concat();
                    reported.truncate(TOLD_MAX);
                    let _ = theirs.send(&reported, &[]);
                    1
                }
            })
        }
    };
    drop(theirs);
    let mut reported = vec![0; TOLD_MAX];
    let mut take = take;
    let received = loop {
        match ours.recv(&mut reported) {
            Ok(Some((_, files))) if !files.is_empty() => files.into_iter().for_each(&mut take),
            received => break received,
        }
    };
    drop(ours); // a helper that still passes something waits for nobody
    match (process::wait_for(helper).map_err(|error| failed("helper", &error))?, received) {
        (Ended::Signal(libc::SIGKILL), _) => Err(NotDone::Killed),
        (_, Err(error)) => Err(failed("what a helper passed", &error)),
        (Ended::Code(0), Ok(received)) => {
            reported.truncate(received.map_or(0, |(length, _)| length));
            Ok(reported)
        }
        (_, Ok(Some((length, _)))) if length > 4 => {
            let (errno, words) = reported[..length].split_first_chunk::<4>().unwrap_or((&[0; 4], b""));
            let words = String::from_utf8_lossy(words).into_owned();
            Err(NotDone::Failed { errno: i32::from_le_bytes(*errno), words })
        }
        (ended, _) => {
            Err(NotDone::Failed { errno: 0, words: format!("a helper process ended unexpectedly ({ended:?})") })
        }
    }
}

impl NotDone {
    /// The memory that the helper's pages are charged to is used up.
    pub(crate) fn is_for_want_of_memory(&self) -> bool {
        matches!(self, Self::Killed | Self::Failed { errno: libc::ENOMEM, .. })
    }
}

impl From<NotDone> for Refused {
    fn from(not_done: NotDone) -> Self {
        match not_done {
            NotDone::Killed => Self::new(Reason::Internal, "a helper was killed"),
            NotDone::Failed { errno: libc::ENOSPC | libc::ENOMEM, words } => Self::new(Reason::Exhausted, words),
            NotDone::Failed { words, .. } => crate::errors::failed_by(words),
        }
    }
}
