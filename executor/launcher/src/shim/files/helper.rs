//! Executes work in a forked helper process, because the work needs another cgroup or other namespaces than the shim's.
//!
//! The result is success, or the failed step with its error. The helper sends the open secret files to the shim, which
//! wipes them. The kernel kills the helper if the shim exits, because no process would then wipe the helper's files.

use crate::errors::plain;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use executor_core::protocol::{Reason, Refused};
use executor_secrets::volume::Pass;
use executor_sys::process::{self, ChildExit, Fork};
use executor_sys::seqpacket::Seqpacket;

/// Maximum size of a failure report, in bytes.
const REPORTED_MAX: usize = 8192;
/// Message that accompanies the descriptor of a secret file.
const PASSED: &[u8] = b"file";

/// The failed step and its error.
pub(crate) struct HelperFailure(pub(crate) String, pub(crate) io::Error);

/// Reason why a helper did not complete its work.
pub(crate) enum HelperError {
    Failed {
        /// errno, or 0 if there is none.
        errno: i32,
        /// The complete error message, in one line.
        words: String,
    },
    /// The helper was killed, for example by the OOM killer because the cgroup's memory is exhausted.
    Killed,
}

/// Runs `act` in a helper and returns its result, which may be empty.
pub(crate) fn run(act: impl FnOnce() -> Result<Vec<u8>, HelperFailure>) -> Result<Vec<u8>, HelperError> {
    run_passing(|_| act(), drop)
}

/// Runs `act` like [`run`], and calls `take` for each file that the helper sends.
pub(crate) fn run_passing(
    act: impl FnOnce(&mut Pass<'_>) -> Result<Vec<u8>, HelperFailure>,
    take: impl FnMut(OwnedFd),
) -> Result<Vec<u8>, HelperError> {
    let failed = |what: &str, error: &io::Error| HelperError::Failed {
        errno: error.raw_os_error().unwrap_or(0),
        words: format!("{what}: {}", plain(error)),
    };
    let (ours, theirs) = Seqpacket::pair().map_err(|error| failed("cannot create a socket", &error))?;
    let parent = std::process::id();
    let helper = match process::fork().map_err(|error| failed("cannot fork", &error))? {
        Fork::Parent(pid) => pid,
        Fork::Child => {
            drop(ours);
            let mut pass = |file: OwnedFd| theirs.send(PASSED, &[file.as_fd()]);
            let done = process::die_with(parent)
                .map_err(|error| HelperFailure("cannot set up the helper".into(), error))
                .and_then(|()| act(&mut pass));
            process::exit_now(match done {
                Ok(reported) if reported.is_empty() => 0,
                Ok(reported) => i32::from(theirs.send(&reported, &[]).is_err()),
                Err(HelperFailure(what, error)) => {
                    let errno = error.raw_os_error().unwrap_or(0).to_le_bytes();
                    let mut reported = [&errno, format!("{what}: {}", plain(&error)).as_bytes()].concat();
                    reported.truncate(REPORTED_MAX);
                    let _ = theirs.send(&reported, &[]);
                    1
                }
            })
        }
    };
    drop(theirs);
    let mut reported = vec![0; REPORTED_MAX];
    let mut take = take;
    let received = loop {
        match ours.recv(&mut reported) {
            Ok(Some((_, files))) if !files.is_empty() => files.into_iter().for_each(&mut take),
            received => break received,
        }
    };
    drop(ours); // unblocks a helper that still passes a file
    match (process::wait_for(helper).map_err(|error| failed("cannot wait for the helper", &error))?, received) {
        (ChildExit::Signal(libc::SIGKILL), _) => Err(HelperError::Killed),
        (_, Err(error)) => Err(failed("cannot receive files from the helper", &error)),
        (ChildExit::Code(0), Ok(received)) => {
            reported.truncate(received.map_or(0, |(length, _)| length));
            Ok(reported)
        }
        (_, Ok(Some((length, _)))) if length > 4 => {
            let (errno, words) = reported[..length].split_first_chunk::<4>().unwrap_or((&[0; 4], b""));
            let words = String::from_utf8_lossy(words).into_owned();
            Err(HelperError::Failed { errno: i32::from_le_bytes(*errno), words })
        }
        (ended, _) => {
            Err(HelperError::Failed { errno: 0, words: format!("a helper process exited unexpectedly ({ended})") })
        }
    }
}

impl HelperError {
    /// Returns true if the helper failed because the cgroup to which its pages are charged is out of memory.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Killed | Self::Failed { errno: libc::ENOMEM, .. })
    }
}

impl From<HelperError> for Refused {
    fn from(error: HelperError) -> Self {
        match error {
            HelperError::Killed => Self::new(
                Reason::Internal,
                "a helper process was killed: the container or the host may be out of memory",
            ),
            HelperError::Failed { errno: libc::ENOSPC | libc::ENOMEM, words } => Self::new(Reason::Exhausted, words),
            HelperError::Failed { words, .. } => crate::errors::failed_by(words),
        }
    }
}
