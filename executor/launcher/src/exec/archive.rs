//! Files out of a container that runs and into it, as a tar archive.
//!
//! ```text
//!  get   stdout: what the path is, and then it and what is below it as an archive             (archive/get.rs)
//!  put   stdin: an archive, which is unpacked below a directory; stdout: how much it was      (archive/put.rs)
//! ```
//! A process does it that came into the container like one that is executed there, and that executes nothing: it is
//! this program, so that no program and no library of the image has a part in it (CVE-2019-14271). It has the container's
//! root, mounts, user, capabilities, filter and limits from its first step on, so that no link and no rename while it works
//! leads to anything of the host's (CVE-2018-15664), and it reads and writes what the container's own user may. Nobody in
//! the container may look into it.
//!
//! A failure at the beginning is told like that of a program that cannot be executed, a later one on standard error, in one
//! line, with the exit status 1. Files of the secret volume and of the kernel's file systems are left out.

mod get;
mod put;

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

/// Longest account of a failure, in bytes.
const TOLD_MAX: usize = 4096;

/// A request to copy files.
pub(super) struct ArchiveRequest {
    work: ArchiveWork,
    path: PathBuf,
    /// A link at the end of the path is followed.
    follow: bool,
    /// Set where only the kind of the path is asked for.
    stat: bool,
    /// The directory is made where it is missing, and device nodes are refused.
    download: bool,
}

/// Why it was given up, in one line.
struct Failed(String);

impl Failed {
    fn new(path: &Path, error: impl Into<io::Error>) -> Self {
        Self(format!("{}: {}", shown(path), plain(&error.into())))
    }
}

/// Entries that are not copied, each with the reason.
#[derive(Default)]
struct LeftOut {
    reported: Vec<String>,
    count: usize,
}

impl LeftOut {
    /// Entries that are told, and bytes of them.
    const MAX: (usize, usize) = (50, TOLD_MAX - 128);

    fn add(&mut self, path: &Path, error: impl Into<io::Error>) {
        self.count += 1;
        let Failed(line) = Failed::new(path, error);
        let bytes: usize = self.reported.iter().map(|line| line.len() + 2).sum();
        if self.reported.len() < Self::MAX.0 && bytes + line.len() < Self::MAX.1 {
            self.reported.push(line);
        }
    }

    /// Returns all entries in one line, as an error, if there are any.
    fn end(self) -> Result<(), Failed> {
        let more = self.count - self.reported.len();
        match (self.count, more) {
            (0, _) => Ok(()),
            (_, 0) => Err(Failed(format!("everything was copied except {}", self.reported.join("; ")))),
            _ => Err(Failed(format!("everything was copied except {}; and {more} more", self.reported.join("; ")))),
        }
    }
}

/// A path in a message: whatever is in it, one line.
fn shown(path: &Path) -> String {
    path.as_os_str().as_encoded_bytes().iter().take(1024).copied().collect::<Vec<u8>>().escape_ascii().to_string()
}

impl ArchiveRequest {
    /// Reads a payload: the path, and flags as arguments.
    ///
    /// # Errors
    /// A malformed payload.
    pub(super) fn read(work: ArchiveWork, payload: &MemFile) -> Result<Self, StartFailure> {
        let asked = payload.read(|bytes| {
            let payload = ProcessPayload::decode(bytes)
                .map_err(|error| StartFailure::new("read what to copy", io::Error::other(error.to_string())))?;
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
        asked.map_err(|error| StartFailure::new("map what to copy", error))?
    }

    /// Does it. Comes back only with why it did not begin; what is told on `socket` ends when it has begun.
    pub(super) fn execute(
        &self,
        socket: &Seqpacket,
        confinement: Confinement<'_>,
        secret_devices: &[u64],
    ) -> Result<Infallible, StartFailure> {
        rustix::process::umask(Mode::from_raw_mode(0o022));
        process::close_all_but(&[socket.as_fd()]).map_err(|error| StartFailure::new("close descriptors", error))?;
        confine(confinement)?;
        let failed = |error: io::Error| StartFailure::new(shown(&self.path), error);
        let root = open_dir(Path::new("/")).map_err(failed)?;
        let done = match self.work {
            ArchiveWork::Put => {
                // Whoever sent the archive is gone: its input ends then, and it takes away what is not whole.
                let mut hangup = SigSet::empty();
                hangup.add(Signal::SIGHUP);
                hangup.thread_block().map_err(|error| StartFailure::new("block SIGHUP", io::Error::from(error)))?;
                let target = put::Target::open(root.as_fd(), &self.path, self.download).map_err(failed)?;
                begun(&[target.as_fd()])?;
                target.unpack()
            }
            ArchiveWork::Get => {
                let source = get::Source::open(root.as_fd(), self, secret_devices).map_err(failed)?;
                let kept: Vec<_> = std::iter::once(root.as_fd()).chain(source.kept()).collect();
                begun(&kept)?;
                source.send(self.stat)
            }
            ArchiveWork::Nothing => Err(Failed("neither get nor put is named".into())), // the server refuses it
        };
        let Err(Failed(mut why)) = done else { process::exit_now(0) };
        why.truncate(why.floor_char_boundary(TOLD_MAX));
        let _ = own(rustix::stdio::stderr()).and_then(|mut stderr| stderr.write_all(why.as_bytes())); // nobody listens
        process::exit_now(1)
    }
}

/// Closes the socket, which says that it has begun.
fn begun(kept: &[BorrowedFd<'_>]) -> Result<(), StartFailure> {
    process::close_all_but(kept).map_err(|error| StartFailure::new("close descriptors", error))
}

/// Returns a standard descriptor, to be read or written.
fn own(standard: BorrowedFd<'_>) -> io::Result<File> {
    let fd: OwnedFd = standard.try_clone_to_owned()?;
    Ok(fd.into())
}
