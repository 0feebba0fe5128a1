//! Secret inputs that are no files, kept for the holder of the runtime token, and files read back for it.
//!
//! A process has its own copy of its environment and its arguments, and the memory file that brought them is wiped once
//! it runs. Where a container may ask for its inputs again they are kept here: charged to the
//! container as its files are, wiped with them, reached by whoever holds a handle of the volume. They lie in a directory
//! beside the mount points, root's alone.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use executor_core::payload;
use executor_core::placement::{Content, IN_FORCE, MountPoint};
use executor_core::plan::{FILE_MODE, Layout};
use executor_sys::mount::{clone_tree, set_attributes};
use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::{Access, DIRECTORY as PRIVATE, READ_ONLY, ROOT, Volume, generations, make_dir, write_file};

/// The directory; mount points are numbers.
const DIRECTORY: &str = "inputs";
/// The file in it: a payload.
const VALUES: &str = "values";

impl Volume {
    /// Keeps values, and files as they are now. The pages are charged to the cgroup of the calling process.
    ///
    /// # Errors
    /// No room: in the volume, or in the cgroup's memory limit.
    pub fn keep_inputs(&self, values: &[&[u8]], files: &[&[u8]]) -> io::Result<()> {
        let dir = make_dir(self.handle(), DIRECTORY.as_ref(), ROOT, Access { mode: PRIVATE, gid: ROOT })?;
        let private = Access { mode: FILE_MODE, gid: ROOT };
        for (index, content) in files.iter().enumerate() {
            write_file(dir.as_fd(), index.to_string().as_ref(), content, ROOT, private)?;
        }
        let mut file = write_file(dir.as_fd(), VALUES.as_ref(), &[], ROOT, private)?;
        // Piece by piece, so that they are nowhere else on their way.
        file.write_all(&payload::head(values.len()))?;
        for value in values {
            file.write_all(&payload::prefix(value.len()))?;
            file.write_all(value)?;
        }
        Ok(())
    }

    /// A detached read-only view of the directory of inputs.
    ///
    /// # Errors
    /// As for [`Volume::views`]; there are none.
    pub fn inputs_view(&self) -> io::Result<OwnedFd> {
        let view = clone_tree(self.handle(), Path::new(DIRECTORY), false)?;
        set_attributes(view.as_fd(), READ_ONLY)?;
        Ok(view)
    }

    /// The inputs that are kept: so many bytes of encoded strings (what follows a payload's head).
    ///
    /// # Errors
    /// There are none.
    pub fn inputs(&self) -> io::Result<Stored> {
        let stored = self.open(&Path::new(DIRECTORY).join(VALUES))?;
        let mut head = [0; payload::HEAD];
        (&stored.file).read_exact(&mut head)?;
        let length = stored.length.checked_sub(head.len()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Stored { length, ..stored })
    }

    /// The file of this index as it was kept: what a process may change is not read as the container has it.
    ///
    /// # Errors
    /// It was not.
    pub fn kept_file(&self, index: usize) -> io::Result<Stored> {
        self.open(&Path::new(DIRECTORY).join(index.to_string()))
    }

    /// The file of this index as the container sees it now. One that the process may change can be anything as soon as it runs.
    ///
    /// # Errors
    /// No mount point shows it.
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
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        // The links of the layout are followed; none leads out of it.
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let file = File::from(rustix::fs::openat2(self.handle(), path, flags, Mode::empty(), resolve)?);
        let length = usize::try_from(file.metadata()?.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        Ok(Stored { file, length })
    }
}

/// Inputs in the volume, to be read once, directly into their destination.
#[derive(Debug)]
pub struct Stored {
    file: File,
    length: usize,
}

impl Stored {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Its descriptor, which a process that is to read it inherits.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Tells whether there are no inputs.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Reads all of them into a place of that size: from the volume's pages, with no copy between.
    ///
    /// # Errors
    /// It became shorter.
    ///
    /// # Panics
    /// The place has another size: the caller's own mistake.
    pub fn read_into(&self, place: &mut [u8]) -> io::Result<()> {
        assert_eq!(place.len(), self.length);
        (&self.file).read_exact(place)
    }
}
