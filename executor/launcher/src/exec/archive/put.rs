//! Copies files into a container: unpacks an archive below a directory.
//!
//! Each entry except a directory is created under a temporary name and then renamed, so that no partial file is visible
//! under the entry's name. No symbolic link below the directory is followed, whether it comes from the archive or from
//! the container. Existing directories are kept, and other existing entries are replaced. Replacing a directory by
//! another entry, or another entry by a directory, is an error.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use executor_core::protocol::ArchiveDone;
use executor_sys::mount::{Follow, open_in_root};
use executor_tar::{Entry, Kind, Limits, Reader, TarError, Time};
use prost::Message as _;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, chmodat, fchmod, futimens, linkat, makedev, mkdirat,
    mknodat, openat, renameat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::{ArchiveFailure, SkippedEntries, own, shown};

/// Maximum size of a write, in bytes.
const PIECE: usize = 64 << 10;
/// Prefix of the name of an incomplete entry.
const PARTIAL: &str = ".executor-archive-";
/// Permissions of a directory that has no entry in the archive.
const DIR_MODE: u32 = 0o755;

/// The open directory below which an archive is unpacked.
pub(super) struct UnpackTarget {
    root: OwnedFd,
    path: PathBuf,
    /// True if the archive is a download: device nodes are rejected.
    download: bool,
    /// New directories, each below the previous directory. The directories' permissions and times are set after their
    /// contents are created.
    new_directories: Vec<(PathBuf, u32, Time)>,
    done: ArchiveDone,
    skipped: SkippedEntries,
}

impl AsFd for UnpackTarget {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
}

impl UnpackTarget {
    /// Opens the directory. For a download, creates the directory if it does not exist.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be opened or created.
    pub(super) fn open(root: BorrowedFd<'_>, path: &Path, download: bool) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let open = || open_in_root(root, path, flags, Mode::empty(), Follow::LinksWithinRoot);
        let root = match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound && download => {
                make(root, path)?;
                open()?
            }
            opened => opened?,
        };
        Ok(Self {
            root,
            path: path.to_owned(),
            download,
            new_directories: Vec::new(),
            done: ArchiveDone::default(),
            skipped: SkippedEntries::default(),
        })
    }

    /// Unpacks standard input, and reports the number of entries and bytes.
    pub(super) fn unpack(mut self) -> Result<(), ArchiveFailure> {
        let input = own(rustix::stdio::stdin()).map_err(|error| ArchiveFailure::new(&self.path, error))?;
        let mut reader = Reader::new(input, Limits::default().without_total());
        let damaged = |error: TarError| ArchiveFailure(error.to_string());
        while let Some(entry) = reader.next_entry().map_err(damaged)? {
            let path = names(&entry.path).ok_or_else(|| outside(&entry.path))?;
            self.set_metadata_except_above(&path);
            match self.entry(&path, &entry, &mut reader) {
                Ok(()) => {
                    self.done.entries += 1;
                    self.done.bytes += entry.size;
                }
                Err(Err(error)) => return Err(damaged(error)),
                Err(Ok(error)) if is_fatal(&error) => return Err(ArchiveFailure::new(&self.path.join(&path), error)),
                Err(Ok(error)) => self.skipped.add(&self.path.join(&path), error),
            }
        }
        self.set_metadata_except_above(Path::new(""));
        self.skipped.into_result()?;
        let reported = own(rustix::stdio::stdout())
            .and_then(|mut stdout| io::Write::write_all(&mut stdout, &self.done.encode_to_vec()));
        reported.map_err(|error| ArchiveFailure::new(&self.path, error))
    }

    /// Creates an entry. Returns `Err(Ok(_))` if the entry cannot be created, and `Err(Err(_))` if the archive is
    /// invalid.
    fn entry(
        &mut self,
        path: &Path,
        entry: &Entry,
        reader: &mut Reader<File>,
    ) -> Result<(), Result<io::Error, TarError>> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) }; // the target itself
        let parent = self.parent(parent).map_err(Ok)?;
        if entry.kind != Kind::Directory {
            return self.replace(&parent, Path::new(name), entry, reader);
        }
        if self.directory(&parent, Path::new(name)).map_err(Ok)? {
            self.new_directories.push((path.to_owned(), entry.mode, entry.mtime));
        }
        Ok(())
    }

    /// Returns the parent directory of an entry. Creates missing directories.
    fn parent(&self, path: &Path) -> io::Result<OwnedFd> {
        let open = |path: &Path| {
            open_in_root(self.root.as_fd(), path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty(), Follow::NoLinks)
        };
        match open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened.map_err(explain_path_error),
        }
        let mut above: Vec<&Path> = path.ancestors().filter(|path| path.file_name().is_some()).collect();
        above.reverse();
        for path in above {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { continue };
            match mkdirat(open(parent).map_err(explain_path_error)?, name, Mode::from_raw_mode(DIR_MODE)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        open(path).map_err(explain_path_error)
    }

    /// Creates a directory that only its owner may enter until its permissions are set. Returns false if the directory
    /// exists.
    fn directory(&self, parent: &OwnedFd, name: &Path) -> io::Result<bool> {
        match mkdirat(parent, name, Mode::RWXU) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => {
                let there = FileType::from_raw_mode(statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode);
                match there {
                    FileType::Directory => Ok(false),
                    _ => Err(io::Error::other("exists and is not a directory")),
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Creates an entry that is not a directory, and replaces an existing entry. Errors are nested as in `entry`.
    fn replace(
        &self,
        parent: &OwnedFd,
        name: &Path,
        entry: &Entry,
        reader: &mut Reader<File>,
    ) -> Result<(), Result<io::Error, TarError>> {
        let partial = format!("{PARTIAL}{}", std::process::id());
        let _ = unlinkat(parent, &*partial, AtFlags::empty()); // leftover of a killed process
        let made = self.make(parent, &partial, entry, reader).and_then(|()| {
            renameat(parent, &*partial, parent, name).map_err(|error| match error {
                Errno::ISDIR => Ok(io::Error::other("exists and is a directory")),
                error => Ok(error.into()),
            })
        });
        // If both names are hard links to the same file, the rename does nothing, so remove the temporary name.
        if made.is_err() || entry.kind == Kind::HardLink {
            let _ = unlinkat(parent, &*partial, AtFlags::empty());
        }
        made
    }

    fn make(
        &self,
        parent: &OwnedFd,
        name: &str,
        entry: &Entry,
        reader: &mut Reader<File>,
    ) -> Result<(), Result<io::Error, TarError>> {
        let failed = |error: Errno| Ok(error.into());
        let mode = Mode::from_raw_mode(entry.mode);
        match entry.kind {
            Kind::File => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = File::from(openat(parent, name, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?);
                let mut buffer = vec![0; PIECE];
                while let Some((at, length)) = reader.content(&mut buffer).map_err(Err)? {
                    let piece = &buffer[..length];
                    // Skip zeros: this leaves a hole, so that sparse files stay sparse.
                    if piece.iter().any(|byte| *byte != 0) {
                        file.write_all_at(piece, at).map_err(Ok)?;
                    }
                }
                file.set_len(entry.size).map_err(Ok)?;
                fchmod(&file, mode).map_err(failed)?;
                return futimens(&file, &times(entry.mtime)).map_err(failed);
            }
            Kind::HardLink => {
                let target =
                    names(&entry.link).ok_or_else(|| Ok(io::Error::other("the hard link escapes the directory")))?;
                let (Some(above), Some(of)) = (target.parent(), target.file_name()) else {
                    return Err(Ok(io::Error::other("hard links to directories are not supported")));
                };
                let flags = OFlags::PATH | OFlags::DIRECTORY;
                let above = open_in_root(self.root.as_fd(), above, flags, Mode::empty(), Follow::NoLinks);
                let above = above.map_err(|error| Ok(explain_path_error(error)))?;
                return linkat(&above, of, parent, name, AtFlags::empty()).map_err(failed);
            }
            Kind::CharDevice(..) | Kind::BlockDevice(..) if self.download => {
                return Err(Err(TarError::entry(&entry.path, "is a device; devices are not allowed in a download")));
            }
            Kind::Symlink => symlinkat(entry.link.as_slice(), parent, name).map_err(failed)?,
            Kind::Fifo => mknodat(parent, name, FileType::Fifo, mode, 0).map_err(failed)?,
            Kind::CharDevice(major, minor) => {
                mknodat(parent, name, FileType::CharacterDevice, mode, makedev(major, minor)).map_err(failed)?;
            }
            Kind::BlockDevice(major, minor) => {
                mknodat(parent, name, FileType::BlockDevice, mode, makedev(major, minor)).map_err(failed)?;
            }
            Kind::Directory => return Err(Ok(io::ErrorKind::InvalidInput.into())), // created by `directory`
        }
        if entry.kind != Kind::Symlink {
            chmodat(parent, name, mode, AtFlags::empty()).map_err(failed)?;
        }
        utimensat(parent, name, &times(entry.mtime), AtFlags::SYMLINK_NOFOLLOW).map_err(failed)
    }

    /// Sets the permissions and times of new directories, the deepest first. Skips directories that contain `path`.
    fn set_metadata_except_above(&mut self, path: &Path) {
        while let Some((made, mode, mtime)) = self.new_directories.pop_if(|(made, ..)| !path.starts_with(made)) {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let marked =
                open_in_root(self.root.as_fd(), &made, flags, Mode::empty(), Follow::NoLinks).and_then(|dir| {
                    futimens(&dir, &times(mtime))?;
                    Ok(fchmod(&dir, Mode::from_raw_mode(mode))?)
                });
            if let Err(error) = marked {
                self.skipped.add(&self.path.join(&made), error);
            }
        }
    }
}

/// Creates the missing directories of a path. Follows links within the root.
fn make(root: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let mut above: Vec<&Path> = path.ancestors().filter(|path| path.file_name().is_some()).collect();
    above.reverse();
    for path in above {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { continue };
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let parent = open_in_root(root, parent, flags, Mode::empty(), Follow::LinksWithinRoot)?;
        match mkdirat(parent, name, Mode::from_raw_mode(DIR_MODE)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Returns true if the error would occur for all further entries, too.
fn is_fatal(error: &io::Error) -> bool {
    use io::ErrorKind::{OutOfMemory, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), OutOfMemory | QuotaExceeded | ReadOnlyFilesystem | StorageFull)
        || error.raw_os_error() == Some(libc::EIO)
}

fn times(Time { seconds, nanoseconds }: Time) -> Timestamps {
    let at = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
    Timestamps { last_access: at, last_modification: at }
}

/// Returns the path of an archive entry, relative to the directory. The path of the directory itself is empty. Returns
/// `None` if the path escapes the directory.
fn names(path: &[u8]) -> Option<PathBuf> {
    let mut names = PathBuf::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => return None,
            name => names.push(std::ffi::OsStr::from_bytes(name)),
        }
    }
    Some(names)
}

fn outside(path: &[u8]) -> ArchiveFailure {
    ArchiveFailure(format!("{}: the path escapes the directory", shown(Path::new(std::ffi::OsStr::from_bytes(path)))))
}

/// Explains an error caused by a link or a non-directory in the path.
fn explain_path_error(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ELOOP) => io::Error::other("the path contains a symbolic link"),
        Some(libc::ENOTDIR) => io::Error::other("a component of the path is not a directory"),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_outside_directory_is_refused() {
        let name = |path: &str| names(path.as_bytes());
        for (path, expected) in [("a/b", "a/b"), ("/a//b/.", "a/b"), ("./", ""), ("", ""), ("...", "...")] {
            assert_eq!(name(path), Some(expected.into()), "{path}");
        }
        for path in ["..", "a/..", "/../a", "a/../../b"] {
            assert_eq!(name(path), None, "{path}");
        }
    }
}
