//! Adds context to system errors, and converts them to refusals of a request.

use std::io;
use std::path::Path;

use executor_core::protocol::{Reason, Refused};
use executor_core::shortage::{self, Shortage};

use crate::memfd_exec::{SERVING, STARTING};

/// Minimum number of free descriptors that libcontainer needs.
const DESCRIPTORS_NEEDED: u64 = 32;

/// Returns true if the error means that a disk or quota has no free byte or inode.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Adds the path that an operation failed on to the error.
pub(crate) fn at(path: &Path, error: &io::Error) -> io::Error {
    let reported = format!("{}: {}", path.display(), plain(error));
    match shortage::find(error) {
        Some(shortage) => io::Error::new(error.kind(), shortage.with_message(reported)),
        None => io::Error::new(error.kind(), reported),
    }
}

/// Returns the message of a system error without Rust's `(os error N)`.
pub(crate) fn plain(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(code) => nix::errno::Errno::from_raw(code).desc().to_owned(),
        None => error.to_string(),
    }
}

/// Returns a refusal for a system error, with its context.
pub(crate) fn failed(about: &str, error: &io::Error) -> Refused {
    let words = format!("{about}: {}", plain(error));
    match shortage::find(error) {
        Some(what) => exhausted(what, words),
        None if error.kind() == io::ErrorKind::AlreadyExists => Refused::new(Reason::Exists, words),
        None => Refused::new(Reason::Internal, words),
    }
}

/// Returns a refusal like [`failed`], for an error message of a library or a helper.
pub(crate) fn failed_by(words: String) -> Refused {
    match shortage::named(&words) {
        Some(what) => exhausted(what, words),
        None => Refused::new(Reason::Internal, words),
    }
}

/// Returns a refusal like [`failed`], for an error message of libcontainer. libcontainer reports a file that cannot be
/// opened as missing. Therefore, if this process has almost no free descriptors, the refusal reports the shortage of
/// descriptors instead.
pub(crate) fn failed_by_libcontainer(words: String) -> Refused {
    if shortage::named(&words).is_none() && descriptors_are_short() {
        return exhausted(Shortage::Descriptors, words);
    }
    failed_by(words)
}

fn descriptors_are_short() -> bool {
    let open = std::fs::read_dir("/proc/self/fd").map(|open| open.count() as u64);
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.is_some_and(|limit| open.map_or(true, |open| limit < open + DESCRIPTORS_NEEDED))
}

fn exhausted(what: Shortage, words: String) -> Refused {
    match what {
        Shortage::Descriptors | Shortage::HostDescriptors | Shortage::Processes => {
            Refused::new(Reason::Exhausted, format!("{}: {what}: {words}", own_name()))
        }
        Shortage::Disk | Shortage::Memory => Refused::new(Reason::Exhausted, words),
    }
}

/// Returns the name of this process: the launcher, a shim, or one of their helpers.
fn own_name() -> String {
    match rustix::thread::name() {
        Ok(name) if ![STARTING, SERVING].contains(&name.as_c_str()) => name.to_string_lossy().into_owned(),
        _ => "executor-launcher".to_owned(),
    }
}
