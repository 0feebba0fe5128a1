//! Copies files out of and into a running container, as a tar archive.
//!
//! ```text
//!  get   stdout: the file type of the path, then the path and everything below it as an archive   (archive/get.rs)
//!  put   stdin: an archive, which is unpacked below a directory; stdout: entries and bytes        (archive/put.rs)
//! ```
//! The copying process enters the container like an exec process but executes only the executor's code, so that no
//! program or library of the image is involved (CVE-2019-14271). From the start the process has the container's root,
//! mounts, user, capabilities, filter and limits. Therefore no link or rename leads to a file of the host
//! (CVE-2018-15664). The copying process has access to the same files as the container's user. No process in the
//! container may inspect the copying process.
//!
//! A failure before copying is reported like the failure to execute a program. A later failure is reported as one line
//! on standard error, with exit status 1. Files of secret volumes and of pseudo file systems are not copied.

mod get;
mod put;

use executor_core::text::printable;
use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use executor_core::payload::ProcessPayload;
use executor_core::protocol::{ARCHIVE_DOWNLOAD, ARCHIVE_FOLLOW, ARCHIVE_STAT, ArchiveWork};
use executor_sys::memfile::MemFile;
use executor_sys::mount::open_dir;
use executor_sys::process;
use executor_sys::seqpacket::Seqpacket;
use nix::sys::signal::{SigSet, Signal};
use rustix::fs::Mode;

use crate::errors::plain;
use crate::program::{Confinement, StartFailure, confine};

/// Maximum length of a failure report, in bytes.
const REPORTED_MAX: usize = 4096;

/// A request to copy files.
pub(super) struct ArchiveRequest {
    work: ArchiveWork,
    path: PathBuf,
    /// True if a symbolic link is followed if it is the last component of the path.
    follow: bool,
    /// True if only the file type of the path is requested.
    stat: bool,
    /// True if the archive is a download: a missing directory is created, and device nodes are rejected.
    download: bool,
}

/// Error message, in one line.
struct ArchiveFailure(String);

impl ArchiveFailure {
    fn new(path: &Path, error: impl Into<io::Error>) -> Self {
        Self(format!("{}: {}", shown(path), plain(&error.into())))
    }
}

/// Entries that are not copied, with reasons.
#[derive(Default)]
struct SkippedEntries {
    reported: Vec<String>,
    count: usize,
}

impl SkippedEntries {
    /// Maximum number of reported entries, and maximum length of the report in bytes.
    const MAX: (usize, usize) = (50, REPORTED_MAX - 128);

    fn add(&mut self, path: &Path, error: impl Into<io::Error>) {
        self.count += 1;
        let ArchiveFailure(line) = ArchiveFailure::new(path, error);
        let bytes: usize = self.reported.iter().map(|line| line.len() + 2).sum();
        if self.reported.len() < Self::MAX.0 && bytes + line.len() < Self::MAX.1 {
            self.reported.push(line);
        }
    }

    /// Returns an error that lists the first entries in one line, if there are any entries.
    fn into_result(self) -> Result<(), ArchiveFailure> {
        let more = self.count - self.reported.len();
        match (self.count, more) {
            (0, _) => Ok(()),
            (_, 0) => Err(ArchiveFailure(format!("everything was copied except {}", self.reported.join("; ")))),
            _ => Err(ArchiveFailure(format!(
                "everything was copied except {}; and {more} more",
                self.reported.join("; ")
            ))),
        }
    }
}

/// Returns a path for an error message, escaped to one line.
fn shown(path: &Path) -> String {
    printable(path.as_os_str().as_encoded_bytes(), 1024)
}

impl ArchiveRequest {
    /// Reads a copy request from a payload: the path, and flags as arguments.
    ///
    /// # Errors
    /// Returns an error if the payload is malformed.
    pub(super) fn read(work: ArchiveWork, payload: &MemFile) -> Result<Self, StartFailure> {
        let asked = payload.read(|bytes| {
            let payload = ProcessPayload::decode(bytes).map_err(|error| {
                StartFailure::new("cannot read the copy request", io::Error::other(error.to_string()))
            })?;
            let has = |flag: &str| payload.args.contains(&flag.as_bytes());
            let path = String::from_utf8_lossy(payload.path).into_owned().into();
            Ok(Self {
                work,
                path,
                follow: has(ARCHIVE_FOLLOW),
                stat: has(ARCHIVE_STAT),
                download: has(ARCHIVE_DOWNLOAD),
            })
        });
        asked.map_err(|error| StartFailure::new("cannot map the copy request", error))?
    }

    /// Copies the files and exits. Returns only if copying could not start. `socket` is closed when copying starts.
    pub(super) fn execute(
        &self,
        socket: &Seqpacket,
        confinement: Confinement<'_>,
        secret_devices: &[u64],
    ) -> Result<Infallible, StartFailure> {
        rustix::process::umask(Mode::from_raw_mode(0o022));
        process::close_all_but(&[socket.as_fd()])
            .map_err(|error| StartFailure::new("cannot close descriptors", error))?;
        confine(confinement)?;
        let failed = |error: io::Error| StartFailure::new(shown(&self.path), error);
        let root = open_dir(Path::new("/")).map_err(failed)?;
        let done = match self.work {
            ArchiveWork::Put => {
                // Block SIGHUP, which is sent when the client disconnects. The input then reaches end of file, and the
                // partial entry must be removed.
                let mut hangup = SigSet::empty();
                hangup.add(Signal::SIGHUP);
                hangup
                    .thread_block()
                    .map_err(|error| StartFailure::new("cannot block SIGHUP", io::Error::from(error)))?;
                let target = put::UnpackTarget::open(root.as_fd(), &self.path, self.download).map_err(failed)?;
                report_start(&[target.as_fd()])?;
                target.unpack()
            }
            ArchiveWork::Get => {
                let source = get::ArchiveSource::open(root.as_fd(), self, secret_devices).map_err(failed)?;
                let kept: Vec<_> = std::iter::once(root.as_fd()).chain(source.kept()).collect();
                report_start(&kept)?;
                source.send(self.stat)
            }
            // The launcher refuses such a request before it forks this process.
            ArchiveWork::Nothing => Err(ArchiveFailure("the copy request is neither `get` nor `put`".into())),
        };
        let Err(ArchiveFailure(mut why)) = done else { process::exit_now(0) };
        why.truncate(why.floor_char_boundary(REPORTED_MAX));
        let _ = own(rustix::stdio::stderr()).and_then(|mut stderr| stderr.write_all(why.as_bytes())); // best effort
        process::exit_now(1)
    }
}

/// Closes all descriptors except `kept`. The closed socket reports that copying has started.
fn report_start(kept: &[BorrowedFd<'_>]) -> Result<(), StartFailure> {
    process::close_all_but(kept).map_err(|error| StartFailure::new("cannot close descriptors", error))
}

/// Duplicates a standard descriptor as a file.
fn own(standard: BorrowedFd<'_>) -> io::Result<File> {
    let fd: OwnedFd = standard.try_clone_to_owned()?;
    Ok(fd.into())
}
