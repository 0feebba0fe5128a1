//! Measures untrusted directory trees without following links.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, openat, statat};
use rustix::io::Errno;

/// Maximum number of nested directories. The walk holds a descriptor for each.
const DEPTH_MAX: usize = 100;
/// Maximum number of remembered inodes with several links.
const LINKED_MAX: usize = 65_536;
/// Size of a block in `st_blocks`, in bytes.
const BLOCK: u64 = 512;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeSize {
    /// Bytes of the tree on the disk.
    pub bytes: u64,
    /// Number of inodes of the tree.
    pub inodes: u64,
}

impl TreeSize {
    fn add(&mut self, stat: &Stat) {
        self.bytes = self.bytes.saturating_add(u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(BLOCK));
        self.inodes += 1;
    }
}

/// Measures a directory with its content; see [`TreeWalk`].
///
/// # Errors
/// Returns an error if an I/O operation fails.
pub fn measure(dir: OwnedFd) -> io::Result<TreeSize> {
    let mut walk = TreeWalk::start(dir)?;
    while !walk.step()? {}
    Ok(walk.size())
}

/// A walk through a directory and its content. An inode with several links counts once, as long as there are at most
/// 65,536 such inodes. Does not enter mounts, or directories that are nested more than 100 deep. The result is
/// approximate if other processes change the tree.
#[derive(Debug)]
pub struct TreeWalk {
    device: u64,
    size: TreeSize,
    linked: HashSet<u64>,
    /// Directories from the top to the current directory.
    way: Vec<Dir>,
}

impl TreeWalk {
    /// Starts a walk.
    ///
    /// # Errors
    /// Returns an error if an I/O operation fails.
    pub fn start(dir: OwnedFd) -> io::Result<Self> {
        let top = fstat(&dir)?;
        let mut size = TreeSize::default();
        size.add(&top);
        Ok(Self { device: top.st_dev, size, linked: HashSet::new(), way: vec![Dir::new(dir)?] })
    }

    /// Returns the size of the visited entries.
    pub fn size(&self) -> TreeSize {
        self.size
    }

    /// Visits the next entry. Returns true at the end of the walk.
    ///
    /// # Errors
    /// Returns an error if an I/O operation fails.
    pub fn step(&mut self) -> io::Result<bool> {
        let Some(current) = self.way.last_mut() else { return Ok(true) };
        let Some(entry) = current.read() else {
            self.way.pop();
            return Ok(self.way.is_empty());
        };
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            return Ok(false);
        }
        let parent = current.fd()?;
        let stat = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if stat.st_dev == self.device => stat,
            Ok(_) | Err(Errno::NOENT) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            if stat.st_nlink <= 1 || self.linked.len() >= LINKED_MAX || self.linked.insert(stat.st_ino) {
                self.size.add(&stat);
            }
            return Ok(false);
        }
        self.size.add(&stat);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let next = match openat(parent, name, flags, Mode::empty()) {
            Ok(next) => next,
            // Another process has removed or replaced the directory.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        if self.way.len() < DEPTH_MAX {
            self.way.push(Dir::new(next)?);
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    fn size(path: &std::path::Path) -> TreeSize {
        measure(fs::File::open(path).unwrap().into()).unwrap()
    }

    #[test]
    fn links_count_once_and_lead_nowhere() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("large"), vec![1; 1 << 20]).unwrap();
        let empty = size(dir.path());
        assert_eq!(empty.inodes, 1);
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(dir.path().join("a/file"), vec![1; 1 << 16]).unwrap();
        let before = size(dir.path());
        assert!(before.bytes >= empty.bytes + (1 << 16) && before.bytes < 1 << 20, "{before:?}");
        assert_eq!(before.inodes, 3);
        fs::hard_link(dir.path().join("a/file"), dir.path().join("again")).unwrap();
        assert_eq!(size(dir.path()).inodes, 3);
        std::os::unix::fs::symlink(outside.path(), dir.path().join("link")).unwrap();
        let after = size(dir.path());
        assert_eq!(after.inodes, 4);
        assert!(after.bytes < 1 << 20, "{after:?}");
    }

    #[test]
    fn depth_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let deep = PathBuf::from_iter(std::iter::repeat_n("d", DEPTH_MAX + 50));
        fs::create_dir_all(dir.path().join(deep)).unwrap();
        assert_eq!(size(dir.path()).inodes, DEPTH_MAX as u64 + 1);
    }
}
