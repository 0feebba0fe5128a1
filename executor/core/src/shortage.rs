//! Recognizes system errors that report a shortage of host resources. Callers get RESOURCE_EXHAUSTED for a shortage.

use std::error::Error;
use std::fmt;
use std::io;

/// EMFILE: the process's limit on descriptors is reached. The number is the same on all architectures.
const OWN_DESCRIPTORS: i32 = 24;
/// ENFILE: the host's limit on open files is reached.
const HOSTS_DESCRIPTORS: i32 = 23;

/// Message of an error from [`from_fork`]. [`named`] recognizes the error by this message.
const NO_PROCESS: &str = "cannot create another process";

/// An exhausted resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// The process's limit on descriptors is reached.
    Descriptors,
    /// The host's limit on open files is reached (`fs.file-max`).
    HostDescriptors,
    /// A disk or a disk quota is full.
    Disk,
    /// Memory is exhausted.
    Memory,
    /// No further process can be created, because of the cgroup's, the user's or the host's limit.
    Processes,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Descriptors => "out of file descriptors (the limit of the process, LimitNOFILE)",
            Self::HostDescriptors => "out of file descriptors (the limit of the host, fs.file-max)",
            Self::Disk => "no space left on the disk",
            Self::Memory => "out of memory",
            Self::Processes => {
                "out of processes (TasksMax of the unit or another pids.max, RLIMIT_NPROC, or the host's kernel.pid_max)"
            }
        })
    }
}

impl Shortage {
    /// Creates an error with another message that [`find`] still recognizes as this shortage.
    pub fn with_message(self, words: String) -> impl Error + Send + Sync + 'static {
        ShortageError { shortage: self, words }
    }
}

/// A system error with another message.
#[derive(Debug)]
struct ShortageError {
    shortage: Shortage,
    words: String,
}

impl fmt::Display for ShortageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl Error for ShortageError {}

/// Returns the shortage that an error or one of its causes reports.
pub fn find(error: &(dyn Error + 'static)) -> Option<Shortage> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(reported) = error.downcast_ref::<ShortageError>() {
            return Some(reported.shortage);
        }
        if let Some(system) = error.downcast_ref::<io::Error>() {
            match (system.raw_os_error(), system.kind()) {
                (Some(OWN_DESCRIPTORS), _) => return Some(Shortage::Descriptors),
                (Some(HOSTS_DESCRIPTORS), _) => return Some(Shortage::HostDescriptors),
                (_, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => return Some(Shortage::Disk),
                (_, io::ErrorKind::OutOfMemory) => return Some(Shortage::Memory),
                _ => {}
            }
            // `source` of an `io::Error` skips the wrapped error itself.
            if let Some(found) = system.get_ref().and_then(|inner| find(inner)) {
                return Some(found);
            }
        }
        next = error.source();
    }
    None
}

/// Converts EAGAIN of fork(2) or clone(2) into a shortage of processes, and returns every other error unchanged. Other
/// system calls return EAGAIN with another meaning, so [`find`] cannot recognize the shortage by its number.
pub fn from_fork(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::other(Shortage::Processes.with_message(NO_PROCESS.to_owned())),
        _ => error,
    }
}

/// Returns the shortage that an error message names. Use this function for libraries and helpers that return only
/// messages.
pub fn named(words: &str) -> Option<Shortage> {
    let is = |names: [&str; 2]| names.iter().any(|name| words.contains(name));
    match () {
        () if is(["Too many open files in system", "ENFILE"]) => Some(Shortage::HostDescriptors),
        () if is(["Too many open files", "EMFILE"]) => Some(Shortage::Descriptors),
        () if is(["No space left on device", "ENOSPC"]) => Some(Shortage::Disk),
        () if is(["Cannot allocate memory", "ENOMEM"]) => Some(Shortage::Memory),
        () if is([NO_PROCESS, "failed to clone process: EAGAIN"]) => Some(Shortage::Processes),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_found_below_other_errors() {
        let system = |number| io::Error::from_raw_os_error(number);
        for (number, shortage) in [
            (24, Some(Shortage::Descriptors)),
            (23, Some(Shortage::HostDescriptors)),
            (28, Some(Shortage::Disk)),
            (122, Some(Shortage::Disk)),
            (12, Some(Shortage::Memory)),
            (11, None),
            (2, None),
        ] {
            assert_eq!(find(&system(number)), shortage, "{number}");
            assert_eq!(find(&io::Error::other(system(number))), shortage, "{number}");
            if number != 122 {
                assert_eq!(named(&format!("create: {}", system(number))), shortage, "{number}");
            }
            if let Some(shortage) = shortage {
                let reported = io::Error::other(shortage.with_message("a/b: no".into()));
                assert_eq!((find(&reported), reported.to_string()), (Some(shortage), "a/b: no".to_owned()));
            }
        }
    }

    #[test]
    fn fork_eagain_is_process_shortage() {
        let forked = from_fork(io::Error::from_raw_os_error(11));
        assert_eq!((find(&forked), named(&forked.to_string())), (Some(Shortage::Processes), Some(Shortage::Processes)));
        assert_eq!(find(&from_fork(io::Error::from_raw_os_error(12))), Some(Shortage::Memory));
        assert_eq!(find(&from_fork(io::Error::from_raw_os_error(1))), None);
    }
}
