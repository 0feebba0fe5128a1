//! Memory files that carry secrets from process to process by descriptor.
//!
//! A memory file has a fixed size (sealed, so that no peer can make a reader fault by shrinking it) and is
//! read and written in place, so that one wipe reaches what every holder of the descriptor sees. It has no
//! name on any file system. Its pages are locked into memory where the limit on locked memory allows.

use std::ffi::c_void;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mlock, mmap, munmap};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};

/// A memory file.
#[derive(Debug)]
pub struct MemFile {
    fd: OwnedFd,
    len: usize,
}

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

impl MemFile {
    /// A file of `len` zeros. `name` shows in /proc/PID/fd.
    ///
    /// # Errors
    /// Out of descriptors or memory.
    pub fn create(name: &str, len: usize) -> io::Result<Self> {
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, len as u64)?;
        fcntl_add_seals(&fd, SEALS)?;
        Ok(Self { fd, len })
    }

    /// Takes a memory file that a peer passed.
    ///
    /// # Errors
    /// It is none, its size can still change, or it is larger than `max_len`.
    pub fn from_fd(fd: OwnedFd, max_len: u64) -> io::Result<Self> {
        let invalid =
            |why: &str| io::Error::new(io::ErrorKind::InvalidData, format!("a descriptor that was passed {why}"));
        let seals = fcntl_get_seals(&fd).map_err(|_| invalid("is no memory file"))?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(invalid("can change its size"));
        }
        let size = u64::try_from(fstat(&fd)?.st_size).unwrap_or(u64::MAX);
        if size > max_len {
            return Err(invalid(&format!("has {size} bytes; at most {max_len}")));
        }
        Ok(Self { fd, len: size as usize })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// It has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Lets `write` fill the file in place.
    ///
    /// # Errors
    /// Out of memory.
    pub fn fill(&mut self, write: impl FnOnce(&mut [u8])) -> io::Result<()> {
        let Some(mut map) = Map::new(self, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE)? else {
            write(&mut []);
            return Ok(());
        };
        write(map.bytes_mut());
        Ok(())
    }

    /// Lets `read` look at the file in place.
    ///
    /// # Errors
    /// Out of memory.
    pub fn read<R>(&self, read: impl FnOnce(&[u8]) -> R) -> io::Result<R> {
        Ok(match Map::new(self, ProtFlags::PROT_READ)? {
            None => read(&[]),
            Some(map) => read(map.bytes()),
        })
    }

    /// Overwrites the content with zeros, in the page frames where it stands, and reads it back.
    ///
    /// # Errors
    /// A byte that is not zero afterwards.
    pub fn wipe(&self) -> io::Result<()> {
        if cfg!(feature = "residue-control") {
            return Ok(());
        }
        const ZEROS: [u8; 4096] = [0; 4096];
        let file = std::fs::File::from(self.fd.try_clone()?);
        for offset in (0..self.len).step_by(ZEROS.len()) {
            let length = ZEROS.len().min(self.len - offset);
            file.write_all_at(&ZEROS[..length], offset as u64)?;
        }
        if self.read(|bytes| bytes.iter().all(|b| *b == 0))? {
            Ok(())
        } else {
            Err(io::Error::other("a memory file was not zero after it was overwritten"))
        }
    }
}

impl AsFd for MemFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<MemFile> for OwnedFd {
    fn from(file: MemFile) -> Self {
        file.fd
    }
}

/// A shared mapping of a whole file.
struct Map {
    at: NonNull<c_void>,
    len: usize,
}

impl Map {
    fn new(file: &MemFile, protection: ProtFlags) -> io::Result<Option<Self>> {
        let Some(len) = NonZeroUsize::new(file.len) else { return Ok(None) };
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing of ours. The file cannot
        // shrink (it is sealed), so that every byte of the mapping stays backed.
        let at = unsafe { mmap(None, len, protection, MapFlags::MAP_SHARED, &file.fd, 0) }?;
        // SAFETY: `at` and `len` are the mapping just made. Refused where the limit on locked memory is low; the
        // content is short-lived then, and swap is the operator's choice.
        let _ = unsafe { mlock(at, len.get()) };
        Ok(Some(Self { at, len: len.get() }))
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is readable for `len` bytes until `self` is dropped. Peers that hold the descriptor
        // write only before they pass it on and when they wipe it, after the last reader has ended.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().cast(), self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and it is writable; `&mut self` keeps other references of this process away.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr().cast(), self.len) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: `at` and `len` are a mapping of ours; no reference into it outlives `self`.
        let _ = unsafe { munmap(self.at, self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wipe_reaches_every_holder() {
        let mut file = MemFile::create("test", 10_000).unwrap();
        file.fill(|bytes| bytes.fill(7)).unwrap();
        let other = MemFile::from_fd(file.as_fd().try_clone_to_owned().unwrap(), 10_000).unwrap();
        assert!(other.read(|bytes| bytes.len() == 10_000 && bytes.iter().all(|b| *b == 7)).unwrap());
        file.wipe().unwrap();
        assert!(other.read(|bytes| bytes.iter().all(|b| *b == 0)).unwrap());
    }

    #[test]
    fn what_is_not_a_sealed_memory_file_is_refused() {
        let plain = OwnedFd::from(tempfile::tempfile().unwrap());
        assert!(MemFile::from_fd(plain, 10).is_err());
        let unsealed = memfd_create("x", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
        assert!(MemFile::from_fd(unsealed, 10).is_err());
        let large = MemFile::create("x", 11).unwrap();
        assert!(MemFile::from_fd(large.into(), 10).is_err());
        let empty = MemFile::create("x", 0).unwrap();
        assert!(empty.is_empty() && empty.wipe().is_ok());
    }
}
