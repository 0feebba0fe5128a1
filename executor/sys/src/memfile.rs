//! Memory files that carry secrets from process to process by descriptor.
//!
//! A memory file has a fixed size (sealed, so that no peer can make a reader fault by shrinking it) and is
//! written once, so that one wipe reaches what every holder of the descriptor sees. It has no name on any file
//! system. Whoever passed it may go on writing into it: so it is read as a copy, which nobody else can change and which
//! is overwritten after use. What is mapped meanwhile is locked into memory where the limit on locked memory allows.

use std::ffi::c_void;
use std::io::{self, IoSlice};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, compiler_fence};

use nix::sys::mman::{MapFlags, ProtFlags, mlock, mmap, mmap_anonymous, munmap};
use rustix::fs::{
    MemfdFlags, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fcntl_getfl, fstat, fstatfs, ftruncate,
    memfd_create,
};

/// A memory file.
#[derive(Debug)]
pub struct MemFile {
    fd: OwnedFd,
    len: usize,
}

/// Most pieces in one system call (IOV_MAX).
const PIECES_MAX: usize = 1024;
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
/// Seals under which nothing can be overwritten.
const UNWRITABLE: SealFlags = SealFlags::WRITE.union(SealFlags::FUTURE_WRITE);
/// Of the file system of memory files, but for those of huge pages: these cannot be written to as a file.
const TMPFS: u64 = 0x0102_1994;

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

    /// A file of these pieces, one after the other. None of them is copied within this process.
    ///
    /// # Errors
    /// Out of descriptors or memory.
    pub fn new(name: &str, pieces: &[&[u8]]) -> io::Result<Self> {
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let mut slices: Vec<IoSlice<'_>> =
            pieces.iter().filter(|piece| !piece.is_empty()).map(|piece| IoSlice::new(piece)).collect();
        let (mut rest, mut len) = (&mut slices[..], 0);
        while !rest.is_empty() {
            match rustix::io::pwritev(&fd, &rest[..rest.len().min(PIECES_MAX)], len as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    len += written;
                    IoSlice::advance_slices(&mut rest, written);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        fcntl_add_seals(&fd, SEALS)?;
        Ok(Self { fd, len })
    }

    /// Takes a memory file that a peer passed, to be read.
    ///
    /// # Errors
    /// Not a memory file, one that can still change its size, or one larger than `max_len`.
    pub fn from_fd(fd: OwnedFd, max_len: u64) -> io::Result<Self> {
        // Before anything else is asked of it: another kind of file could keep the answer back.
        let seals = fcntl_get_seals(&fd).map_err(|_| invalid("is not a memory file"))?;
        if fstatfs(&fd)?.f_type.cast_unsigned() != TMPFS {
            return Err(invalid("is a memory file of huge pages"));
        }
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(invalid("can still change its size"));
        }
        let size = u64::try_from(fstat(&fd)?.st_size).unwrap_or(u64::MAX);
        if size > max_len {
            return Err(invalid(&format!("has {size} bytes; at most {max_len}")));
        }
        Ok(Self { fd, len: size as usize })
    }

    /// Takes a memory file that a peer passed, to be read and to be wiped: nobody can prevent the latter any more.
    ///
    /// # Errors
    /// As for [`MemFile::from_fd`]; it is open for reading only, sealed for writing, or can still be sealed.
    pub fn from_fd_to_wipe(fd: OwnedFd, max_len: u64) -> io::Result<Self> {
        let file = Self::from_fd(fd, max_len)?;
        if fcntl_getfl(&file.fd)? & OFlags::RWMODE != OFlags::RDWR {
            return Err(invalid("cannot be wiped: it is not open for reading and writing"));
        }
        let seals = fcntl_get_seals(&file.fd)?;
        if seals.intersects(UNWRITABLE) {
            return Err(invalid("cannot be wiped: it is sealed for writing"));
        }
        if !seals.contains(SealFlags::SEAL) {
            return Err(invalid("could be kept from being wiped: it is not sealed for further seals"));
        }
        Ok(file)
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Lets `write` fill the file in place.
    ///
    /// # Errors
    /// Out of memory.
    pub fn fill(&mut self, write: impl FnOnce(&mut [u8])) -> io::Result<()> {
        let Some(mut map) = Map::shared(self)? else {
            write(&mut []);
            return Ok(());
        };
        write(map.bytes_mut());
        Ok(())
    }

    /// Lets `read` look at a copy of the file, which is overwritten afterwards. Its pages are charged to the cgroup of the
    /// calling process.
    ///
    /// # Errors
    /// Out of memory.
    pub fn read<R>(&self, read: impl FnOnce(&[u8]) -> R) -> io::Result<R> {
        let Some(mut copy) = Map::private(self.len)? else { return Ok(read(&[])) };
        let copied = self.read_start(copy.bytes_mut());
        let result = copied.map(|()| read(copy.bytes_mut()));
        if !cfg!(feature = "residue-control") {
            copy.bytes_mut().fill(0);
            compiler_fence(Ordering::SeqCst);
        }
        result
    }

    /// Reads the first bytes.
    ///
    /// # Errors
    /// The file has fewer bytes.
    pub fn read_start(&self, into: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < into.len() {
            match rustix::io::pread(&self.fd, &mut into[done..], done as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => done += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
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
        let mut back = [0xff; ZEROS.len()];
        for offset in (0..self.len).step_by(ZEROS.len()) {
            let length = ZEROS.len().min(self.len - offset);
            file.read_exact_at(&mut back[..length], offset as u64)?;
            if back[..length] != ZEROS[..length] {
                return Err(io::Error::other("a memory file was not zero after it was overwritten"));
            }
        }
        Ok(())
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

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a descriptor that was passed {why}"))
}

/// Memory of a fixed size, locked where that is allowed: a whole file that this process made, or of its own.
struct Map {
    at: NonNull<c_void>,
    len: usize,
}

impl Map {
    /// Of a file that is not passed on before this is dropped: nobody else writes there.
    fn shared(file: &MemFile) -> io::Result<Option<Self>> {
        let Some(len) = NonZeroUsize::new(file.len) else { return Ok(None) };
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing. The file cannot
        // shrink (it is sealed), so that every byte of the mapping stays backed.
        let at = unsafe { mmap(None, len, protection, MapFlags::MAP_SHARED, &file.fd, 0) }?;
        Ok(Some(Self::locked(at, len)))
    }

    /// Zeros that are this process' alone.
    fn private(len: usize) -> io::Result<Option<Self>> {
        let Some(len) = NonZeroUsize::new(len) else { return Ok(None) };
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        let at = unsafe { mmap_anonymous(None, len, protection, MapFlags::MAP_PRIVATE) }?;
        Ok(Some(Self::locked(at, len)))
    }

    fn locked(at: NonNull<c_void>, len: NonZeroUsize) -> Self {
        // SAFETY: `at` and `len` are a mapping that was just made. Refused where the limit on locked memory is low; the
        // content is short-lived then, and swap is the operator's choice.
        let _ = unsafe { mlock(at, len.get()) };
        Self { at, len: len.get() }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is readable and writable for `len` bytes until `self` is dropped; no other process writes
        // there (see the constructors), and `&mut self` keeps other references of this process away.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr().cast(), self.len) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: `at` and `len` are a mapping that this value owns; no reference into it outlives `self`.
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

    /// Pieces of all lengths, more of them than one call takes, are written in their order and sealed.
    #[test]
    fn pieces_are_written_one_after_the_other() {
        let bytes: Vec<u8> = (0..=250).cycle().take(100_000).collect();
        let mut pieces: Vec<&[u8]> = bytes.chunks(30).collect();
        pieces.insert(7, b"");
        assert!(pieces.len() > 3 * PIECES_MAX);
        let file = MemFile::new("test", &pieces).unwrap();
        assert_eq!(file.len(), bytes.len());
        let passed = MemFile::from_fd_to_wipe(file.as_fd().try_clone_to_owned().unwrap(), 100_000).unwrap();
        assert!(passed.read(|read| read == bytes).unwrap());
        passed.wipe().unwrap();
        assert!(file.read(|read| read.iter().all(|byte| *byte == 0)).unwrap());
        assert!(MemFile::new("test", &[]).unwrap().is_empty());
    }

    /// What is read does not change under the reader's hands, whoever writes into the file meanwhile.
    #[test]
    fn a_reader_has_a_copy() {
        let mut file = MemFile::create("test", 10_000).unwrap();
        file.fill(|bytes| bytes.fill(7)).unwrap();
        let other = std::fs::File::from(file.as_fd().try_clone_to_owned().unwrap());
        let read = file.read(|bytes| {
            other.write_all_at(&[9; 10_000], 0).unwrap();
            bytes.iter().all(|byte| *byte == 7)
        });
        assert!(read.unwrap());
        assert!(file.read(|bytes| bytes.iter().all(|byte| *byte == 9)).unwrap(), "the control: it has changed");
    }

    #[test]
    fn what_could_not_be_wiped_is_refused() {
        let with = |seals| {
            let fd = memfd_create("x", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
            fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | seals).unwrap();
            fd
        };
        let read_only = || {
            use std::os::fd::AsRawFd;
            let fd = with(SealFlags::SEAL);
            OwnedFd::from(std::fs::File::open(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap())
        };
        let files = [
            ("sealed for writing", with(SealFlags::SEAL | SealFlags::WRITE)),
            ("sealed for writing", with(SealFlags::SEAL | SealFlags::FUTURE_WRITE)),
            ("further seals", with(SealFlags::empty())),
            ("not open for reading and writing", read_only()),
        ];
        for (why, fd) in files {
            MemFile::from_fd(fd.try_clone().unwrap(), 10).unwrap();
            let error = MemFile::from_fd_to_wipe(fd, 10).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        MemFile::from_fd_to_wipe(with(SealFlags::SEAL), 10).unwrap();
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
