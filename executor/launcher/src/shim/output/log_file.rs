//! Appends the container's masked output to a file of the host (`RunRequest.log_file`).
//!
//! ```text
//! policy.log_dirs: DIR ──mkdir, openat2 without links──> DIR/a/b ──O_CREAT | O_EXCL, else O_APPEND──> DIR/a/b/0.log
//! ```
//! The file is opened in the host's mount namespace. The program that reads and rotates the file is in the same mount
//! namespace. Users of the host may replace any part of the path below DIR at any time, so no link is followed there.
//!
//! Each complete line is written before the event loop continues. Therefore [`LogFile::reopen`] separates the lines:
//! earlier lines are in the old file, and later lines are in the new file. The whole output is in the file before the
//! exit is recorded. If lines cannot be written, they are lost, and a message in the log and in the file contains the
//! number of lost bytes.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use executor_core::logfile::LogFileLines;
use executor_core::logline::{Entry, Stream};
use executor_core::plan::Plan;
use executor_core::protocol::{Reason, Refused};
use executor_core::validate::{Policy, Violation};
use executor_sys::mount::{open_any_beneath, open_dir};
use executor_sys::open::open_resolved;
use executor_sys::process;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, mkdirat};
use rustix::io::Errno;

use crate::errors::{at, plain};
use crate::finish::now;
use crate::host::Host;

/// Mode of a created file.
const FILE_MODE: u32 = 0o640;
/// Mode of a created directory.
const DIR_MODE: u32 = 0o755;
/// Maximum number of attempts to open or create an entry that other processes create and remove.
const ATTEMPTS: usize = 10;

pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    lines: LogFileLines,
    /// Lines to be written, and the number of output bytes in the lines.
    pending: Vec<u8>,
    pending_bytes: u64,
    /// Number of lost bytes of output that the file does not report yet.
    lost: u64,
    /// True if the last write failed.
    failing: bool,
    /// True if the file ends with a part of a line that could not be removed.
    torn: bool,
}

/// Action for missing directories.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Create,
    Fail,
}

impl LogFile {
    /// Opens or creates the file of a plan, with its directories. Returns `None` if the plan has no file.
    pub(super) fn open(host: &Host, plan: &Plan) -> Result<Option<Self>, Refused> {
        let path = &plan.logging.file;
        if path.as_os_str().is_empty() {
            return Ok(None);
        }
        let file = open(host, path, Missing::Create).map_err(|error| {
            let why = format!("{}: {}", path.display(), plain(&error));
            Refused::from_fields(Reason::Precondition, &[Violation::new("log_file", why)])
        })?;
        Ok(Some(Self::new(path.clone(), file, plan.terminal)))
    }

    fn new(path: PathBuf, file: File, terminal: bool) -> Self {
        let lines = LogFileLines::new(terminal);
        Self { path, file, lines, pending: Vec::new(), pending_bytes: 0, lost: 0, failing: false, torn: false }
    }

    /// Opens the path again. Creates no directories. After an error, the old file stays in use.
    pub(super) fn reopen(&mut self, host: &Host) -> Result<(), Refused> {
        let file = open(host, &self.path, Missing::Fail).map_err(|error| {
            let why = format!("{}: {}; the old file stays in use", self.path.display(), plain(&error));
            Refused::new(Reason::Precondition, why)
        })?;
        let old = self.file.metadata().and_then(|old| Ok((old, file.metadata()?)));
        if old.is_ok_and(|(old, new)| (old.dev(), old.ino()) != (new.dev(), new.ino())) {
            self.torn = false;
        }
        self.file = file;
        Ok(())
    }

    /// Adds an entry to the lines to be written.
    pub(super) fn append(&mut self, entry: &Entry<'_>) {
        self.pending_bytes += self.lines.append(entry, &mut self.pending);
    }

    /// Writes the added lines, after a report of earlier losses. If the lines cannot be written, removes a partly
    /// written line, because that line would corrupt the next line.
    ///
    /// # Errors
    /// Returns the number of lost bytes of output if the write fails. Also returns the error, but only for the first of
    /// successive failures.
    pub(super) fn write(&mut self) -> Result<(), (u64, Option<io::Error>)> {
        let (lines, bytes) = (std::mem::take(&mut self.pending), std::mem::take(&mut self.pending_bytes));
        if lines.is_empty() && self.lost == 0 {
            return Ok(());
        }
        let mut report = Vec::new();
        if self.torn {
            report.push(b'\n');
        }
        if self.lost > 0 {
            let words = format!("{} bytes of output were lost: this file could not be written", self.lost);
            let (time, content) = (now(), words.as_bytes());
            let entry = Entry { time, stream: Stream::Executor, complete: true, source: "", content };
            self.lines.append(&entry, &mut report);
        }
        let written =
            if report.is_empty() { self.write_all(&lines) } else { self.write_all(&[report, lines].concat()) };
        match written {
            Ok(()) => {
                (self.lost, self.failing, self.torn) = (0, false, false);
                Ok(())
            }
            Err(error) => {
                self.lost += bytes;
                Err((bytes, (!std::mem::replace(&mut self.failing, true)).then_some(error)))
            }
        }
    }

    /// Adds incomplete lines to the lines to be written.
    pub(super) fn finish(&mut self) {
        self.pending_bytes += self.lines.finish(now(), &mut self.pending);
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn write_all(&mut self, lines: &[u8]) -> io::Result<()> {
        let mut written = 0;
        while written < lines.len() {
            match self.file.write(&lines[written..]) {
                Ok(0) => return self.take_back(written, io::ErrorKind::WriteZero.into()),
                Ok(length) => written += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.take_back(written, error),
            }
        }
        Ok(())
    }

    /// Removes the last `written` bytes of the file. Only this process writes to the file.
    fn take_back(&mut self, written: usize, error: io::Error) -> io::Result<()> {
        if written > 0 {
            let size = self.file.metadata().map(|meta| meta.len());
            let removed = size.and_then(|size| self.file.set_len(size.saturating_sub(written as u64)));
            self.torn |= removed.is_err();
        }
        Err(error)
    }
}

/// Opens or creates the file for appending.
fn open(host: &Host, path: &Path, missing: Missing) -> io::Result<File> {
    process::within_mounts(host.mounts.as_fd(), || open_below_policy(&host.policy, path, missing))?
}

/// Opens the file below the operator's directory that contains it. The caller is in the host's mount namespace.
fn open_below_policy(policy: &Policy, path: &Path, missing: Missing) -> io::Result<File> {
    let outside =
        || io::Error::new(io::ErrorKind::PermissionDenied, "the path is not below a directory of policy.log_dirs");
    let (root, rest) = policy.log_dir_around(path).ok_or_else(outside)?;
    let mut dir = open_dir(root).map_err(|error| at(root, &error))?;
    for name in rest.parent().into_iter().flatten() {
        dir = enter(&dir, name, missing)?;
    }
    let file = open_file(&dir, rest.file_name().ok_or_else(outside)?)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    if meta.nlink() > 1 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the file has another name (hard link)"));
    }
    Ok(file)
}

/// Opens a directory, and creates the directory if requested.
fn enter(dir: &OwnedFd, name: &OsStr, missing: Missing) -> io::Result<OwnedFd> {
    let name_only = Path::new(name);
    for _ in 0..ATTEMPTS {
        match open_any_beneath(dir.as_fd(), name_only, true) {
            Ok(found) if FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) == FileType::Directory => {
                return Ok(found);
            }
            Ok(_) => return Err(Errno::NOTDIR.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound && missing == Missing::Create => {
                match mkdirat(dir, name, Mode::from_raw_mode(DIR_MODE)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) => return Err(error),
        }
    }
    Err(Errno::BUSY.into())
}

/// Creates a file, or opens an existing file. Does not wait for a reader of a FIFO.
fn open_file(dir: &OwnedFd, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    let open = |more, mode| open_resolved(dir.as_fd(), name, flags | more, Mode::from_raw_mode(mode), resolve);
    for _ in 0..ATTEMPTS {
        match open(OFlags::CREATE | OFlags::EXCL, FILE_MODE) {
            Ok(file) => {
                let file = File::from(file);
                file.set_permissions(std::fs::Permissions::from_mode(FILE_MODE))?; // regardless of default ACLs
                return Ok(file);
            }
            Err(Errno::EXIST) => match open(OFlags::empty(), 0) {
                Err(Errno::NOENT) => {}
                opened => return Ok(File::from(opened?)),
            },
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::BUSY.into())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use executor_core::time::Timestamp;

    use super::*;

    fn policy(home: &Path) -> Policy {
        Policy { log_dirs: vec![home.join("in")], ..Policy::default() }
    }

    fn log_file(path: &Path) -> LogFile {
        LogFile::new(path.to_owned(), fs::OpenOptions::new().append(true).open(path).unwrap(), false)
    }

    /// CRI rule G8: directories are created with 0755 and the file with 0640, and only at the first opening.
    #[test]
    fn opened_file_appends_below_directory() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("in")).unwrap();
        let (policy, path) = (policy(home.path()), home.path().join("in/a/b/0.log"));
        assert_eq!(open_below_policy(&policy, &path, Missing::Fail).unwrap_err().kind(), io::ErrorKind::NotFound);
        for line in ["one", "two"] {
            open_below_policy(&policy, &path, Missing::Create).unwrap().write_all(line.as_bytes()).unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "onetwo");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (FILE_MODE, DIR_MODE));
        fs::rename(&path, path.with_extension("1")).unwrap();
        open_below_policy(&policy, &path, Missing::Fail).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
    }

    /// CRI rule G8: nothing outside of the operator's directory is opened, created or changed.
    #[test]
    fn opened_links_and_special_files_fail() {
        let home = tempfile::tempdir().unwrap();
        let (inside, outside) = (home.path().join("in"), home.path().join("out"));
        fs::create_dir(&inside).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), "kept").unwrap();
        symlink(&outside, inside.join("dir")).unwrap();
        symlink("../out/file", inside.join("link")).unwrap();
        symlink("../out/new", inside.join("dangling")).unwrap();
        symlink("plain", inside.join("within")).unwrap();
        fs::write(inside.join("plain"), "").unwrap();
        fs::hard_link(outside.join("file"), inside.join("hard")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, inside.join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let policy = policy(home.path());
        let open = |path: &str| open_below_policy(&policy, &inside.join(path), Missing::Create);
        open("plain").unwrap();
        for path in ["dir/file", "dir/new/x", "link", "dangling", "within", "hard", "fifo", "plain/x", "."] {
            assert!(open(path).is_err(), "{path}");
        }
        assert!(open_below_policy(&policy, &outside.join("file"), Missing::Create).is_err());
        assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "kept");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    }

    /// A failed write leaves whole lines, and the next write reports the lost bytes.
    #[test]
    fn failed_write_reports_lost_bytes() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("log");
        fs::write(&path, "").unwrap();
        let mut log = log_file(&path);
        let add = |log: &mut LogFile, content: &[u8]| {
            log.append(&Entry { time: Timestamp(1), stream: Stream::Stdout, complete: true, source: "", content });
        };
        add(&mut log, b"first");
        log.write().unwrap();
        let writable = std::mem::replace(&mut log.file, File::open(&path).unwrap());
        add(&mut log, b"second");
        assert!(matches!(log.write(), Err((7, Some(_)))), "the first failure");
        add(&mut log, b"third");
        assert!(matches!(log.write(), Err((6, None))), "reported before");
        log.file = writable;
        add(&mut log, b"4");
        log.write().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[1].ends_with(" stderr F 13 bytes of output were lost: this file could not be written"), "{text}");
        assert!(
            lines[0].ends_with(" stdout F first") && lines[2].ends_with(" stdout F 4") && lines.len() == 3,
            "{text}"
        );
        log.take_back(3, io::ErrorKind::StorageFull.into()).unwrap_err();
        assert_eq!(fs::read_to_string(&path).unwrap().len(), text.len() - 3);
    }
}
