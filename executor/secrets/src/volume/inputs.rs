//! Stores secret inputs other than files for the holder of the runtime token, and reads files back.
//!
//! A process has its own copy of its environment and arguments, and the memory file that carried them is wiped once the
//! process runs. If the container may request its inputs again, this module stores them in the volume. The inputs are
//! charged to the container, wiped with its files, and accessible through any handle of the volume. The inputs are next
//! to the mount points, in a directory that only root can access.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use executor_core::payload;
use executor_core::placement::{Content, IN_FORCE, MountPoint};
use executor_core::plan::{FILE_MODE, Layout};
use executor_sys::mount::{clone_tree, set_attributes};
use executor_sys::open::open_resolved;
use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::{Access, DIRECTORY as PRIVATE, READ_ONLY, ROOT, Volume, generations, make_dir, write_file};

/// Directory of the inputs. The names of mount points are numbers, so this name differs from them.
const DIRECTORY: &str = "inputs";
/// File of values in this directory, in the payload format.
const VALUES: &str = "values";

impl Volume {
    /// Stores values and the original content of files. The pages are charged to the cgroup of the calling process.
    ///
    /// # Errors
    /// Returns an error if the volume is full or the cgroup's memory limit is reached.
    pub fn keep_inputs(&self, values: &[&[u8]], files: &[&[u8]]) -> io::Result<()> {
        let dir = make_dir(self.handle(), DIRECTORY.as_ref(), ROOT, Access { mode: PRIVATE, gid: ROOT })?;
        let private = Access { mode: FILE_MODE, gid: ROOT };
        for (index, content) in files.iter().enumerate() {
            write_file(dir.as_fd(), index.to_string().as_ref(), content, ROOT, private)?;
        }
        let mut file = write_file(dir.as_fd(), VALUES.as_ref(), &[], ROOT, private)?;
        // Each value is written separately, so that there is no intermediate copy.
        file.write_all(&payload::head(values.len()))?;
        for value in values {
            file.write_all(&payload::prefix(value.len()))?;
            file.write_all(value)?;
        }
        Ok(())
    }

    /// Creates a detached read-only view of the directory of inputs.
    ///
    /// # Errors
    /// Returns the same errors as [`Volume::views`], and an error if there are no inputs.
    pub fn inputs_view(&self) -> io::Result<OwnedFd> {
        let view = clone_tree(self.handle(), Path::new(DIRECTORY), false)?;
        set_attributes(view.as_fd(), READ_ONLY)?;
        Ok(view)
    }

    /// Opens the stored inputs and skips the head of the payload, so that only the encoded strings remain.
    ///
    /// # Errors
    /// Returns an error if no inputs are stored.
    pub fn inputs(&self) -> io::Result<Stored> {
        let stored = self.open(&Path::new(DIRECTORY).join(VALUES))?;
        let mut head = [0; payload::HEAD];
        (&stored.file).read_exact(&mut head)?;
        let length = stored.length.checked_sub(head.len()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Stored { length, ..stored })
    }

    /// Opens the stored original of the file with this index. For writable files, the original is used instead of the
    /// file that the process may have changed.
    ///
    /// # Errors
    /// Returns an error if no original of the file is stored.
    pub fn kept_file(&self, index: usize) -> io::Result<Stored> {
        self.open(&Path::new(DIRECTORY).join(index.to_string()))
    }

    /// Opens the file with this index as the container currently sees it. A writable file can have any content after
    /// the process has started.
    ///
    /// # Errors
    /// Returns an error if no mount point has the file.
    pub fn current(&self, mounts: &[MountPoint], index: usize, layout: Layout) -> io::Result<Stored> {
        let place = mounts.iter().enumerate().find_map(|(number, mount)| match &mount.content {
            Content::File(file) => (*file == index).then(|| PathBuf::from(number.to_string())),
            Content::Directory(files) => {
                let (_, below) = files.iter().find(|(file, _)| *file == index)?;
                Some(match layout {
                    Layout::Generations => generations(number).join(IN_FORCE).join(below),
                    Layout::Writable => Path::new(&number.to_string()).join(below),
                })
            }
        });
        self.open(&place.ok_or(io::ErrorKind::NotFound)?)
    }

    pub(super) fn open(&self, path: &Path) -> io::Result<Stored> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        // Follow the links of the layout; none of them escapes the volume.
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let file = File::from(open_resolved(self.handle(), path, flags, Mode::empty(), resolve)?);
        let length = usize::try_from(file.metadata()?.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        Ok(Stored { file, length })
    }
}

/// An input in the volume, to be read once, directly into its destination.
#[derive(Debug)]
pub struct Stored {
    file: File,
    length: usize,
}

impl Stored {
    /// Returns the size in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns the descriptor, for a child process that inherits and reads it.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns true if the size is 0.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Reads everything into a buffer of the stored size, from the volume's pages without an intermediate copy.
    ///
    /// # Errors
    /// Returns an error if the file was truncated after it was opened.
    ///
    /// # Panics
    /// Panics if the buffer has another size.
    pub fn read_into(&self, place: &mut [u8]) -> io::Result<()> {
        assert_eq!(place.len(), self.length);
        (&self.file).read_exact(place)
    }
}
