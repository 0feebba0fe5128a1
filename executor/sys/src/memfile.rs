//! Implements memory files, which pass secrets between processes by descriptor.
//!
//! A memory file has no name on any file system. The size is fixed by seals, because a peer that shrinks the file could
//! crash a reader with SIGBUS. All processes that have the descriptor share one copy of the content, so that one wipe
//! is sufficient. The sender may continue to write to the file, so readers work on a private copy that is overwritten
//! after use. Mapped memory is locked if the limit on locked memory allows it.

use std::ffi::c_void;
use std::io::{self, IoSlice};
use std::num::NonZeroUsize;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, compiler_fence};

use executor_core::payload;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mlock, mmap, mmap_anonymous, munmap};
use rustix::fs::{
    MemfdFlags, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fcntl_getfl, fstat, fstatfs, ftruncate,
    memfd_create,
};

#[derive(Debug)]
pub struct MemFile {
    fd: OwnedFd,
    len: usize,
}

/// Maximum number of buffers in one system call (IOV_MAX).
const PIECES_MAX: usize = 1024;
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
/// Seals that prevent overwriting.
const UNWRITABLE: SealFlags = SealFlags::WRITE.union(SealFlags::FUTURE_WRITE);
/// File system magic number of memory files, except those in huge pages, which cannot be written with write(2).
const TMPFS: u64 = 0x0102_1994;

impl MemFile {
    /// Creates a file of `len` zeros. `name` appears in /proc/PID/fd.
    ///
    /// # Errors
    /// Returns an error if descriptors or memory run out.
    pub fn create(name: &str, len: usize) -> io::Result<Self> {
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, len as u64)?;
        fcntl_add_seals(&fd, SEALS)?;
        Ok(Self { fd, len })
    }

    /// Creates a file with the concatenated `pieces`, without another copy of them in this process.
    ///
    /// # Errors
    /// Returns an error if descriptors or memory run out.
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

    /// Creates a file with a payload ([`payload`]) of `strings`.
    ///
    /// # Errors
    /// Returns an error if descriptors or memory run out.
    pub fn with_strings(name: &str, strings: &[&[u8]]) -> io::Result<Self> {
        let head = payload::head(strings.len());
        let prefixes: Vec<[u8; 4]> = strings.iter().map(|string| payload::prefix(string.len())).collect();
        let parts = prefixes.iter().zip(strings).flat_map(|(prefix, string)| [&prefix[..], string]);
        Self::new(name, &std::iter::once(&head[..]).chain(parts).collect::<Vec<_>>())
    }

    /// Wraps a memory file that a peer passed, for reading.
    ///
    /// # Errors
    /// Returns an error if the descriptor is not a memory file, its size is not sealed, or it is larger than `max_len`.
    pub fn from_fd(fd: OwnedFd, max_len: u64) -> io::Result<Self> {
        // Get the seals before any other call on the descriptor, because other calls could block on another type of
        // file.
        let seals = fcntl_get_seals(&fd).map_err(|_| invalid("is not a memfd"))?;
        if fstatfs(&fd)?.f_type.cast_unsigned() != TMPFS {
            return Err(invalid("is a memfd of huge pages, which is not supported"));
        }
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(invalid("is a memfd whose size is not sealed"));
        }
        let size = u64::try_from(fstat(&fd)?.st_size).unwrap_or(u64::MAX);
        if size > max_len {
            return Err(invalid(&format!("is a memfd of {size} bytes; the maximum is {max_len}")));
        }
        Ok(Self { fd, len: size as usize })
    }

    /// Wraps a memory file that a peer passed, for reading and wiping. The peer can no longer prevent the wipe.
    ///
    /// # Errors
    /// Returns the same errors as [`MemFile::from_fd`], and an error if the file is read-only, sealed against writes,
    /// or can still be sealed.
    pub fn from_fd_to_wipe(fd: OwnedFd, max_len: u64) -> io::Result<Self> {
        let file = Self::from_fd(fd, max_len)?;
        if fcntl_getfl(&file.fd)? & OFlags::RWMODE != OFlags::RDWR {
            return Err(invalid("cannot be wiped: the memfd is not open for reading and writing"));
        }
        let seals = fcntl_get_seals(&file.fd)?;
        if seals.intersects(UNWRITABLE) {
            return Err(invalid("cannot be wiped: the memfd is sealed for writing"));
        }
        if !seals.contains(SealFlags::SEAL) {
            return Err(invalid("cannot be wiped reliably: further seals can be added to the memfd"));
        }
        Ok(file)
    }

    /// Returns the size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the size is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Calls `write` with the content of the file, to fill it in place.
    ///
    /// # Errors
    /// Returns an error if memory runs out.
    pub fn fill(&mut self, write: impl FnOnce(&mut [u8])) -> io::Result<()> {
        let Some(mut map) = Map::shared(self)? else {
            write(&mut []);
            return Ok(());
        };
        write(map.bytes_mut());
        Ok(())
    }

    /// Calls `read` with a copy of the content, and then overwrites the copy. The copy's pages are charged to the
    /// cgroup of the calling process.
    ///
    /// # Errors
    /// Returns an error if memory runs out.
    pub fn read<R>(&self, read: impl FnOnce(&[u8]) -> R) -> io::Result<R> {
        Ok(read(&self.copy()?))
    }

    /// Copies the content. The copy's pages are charged to the cgroup of the calling process.
    ///
    /// # Errors
    /// Returns an error if memory runs out.
    pub fn copy(&self) -> io::Result<PrivateCopy> {
        let mut copy = PrivateCopy(Map::private(self.len)?);
        if let Some(map) = &mut copy.0 {
            self.read_start(map.bytes_mut())?;
        }
        Ok(copy)
    }

    /// Reads the first `into.len()` bytes.
    ///
    /// # Errors
    /// Returns an error if the file is shorter than `into`.
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

    /// Overwrites the content with zeros in place, in the same page frames, and reads it back.
    ///
    /// # Errors
    /// Returns an error if a byte is not zero afterwards.
    pub fn wipe(&self) -> io::Result<()> {
        if cfg!(feature = "residue-control") {
            return Ok(());
        }
        const ZEROS: &[u8] = &[0; 64 << 10];
        let file = std::fs::File::from(self.fd.try_clone()?);
        for offset in (0..self.len).step_by(ZEROS.len()) {
            let length = ZEROS.len().min(self.len - offset);
            file.write_all_at(&ZEROS[..length], offset as u64)?;
        }
        let mut back = vec![0xff; ZEROS.len().min(self.len)];
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
    io::Error::new(io::ErrorKind::InvalidData, format!("the passed descriptor {why}"))
}

/// A copy of a memory file's content, which no other process can change. The copy is overwritten when it is dropped,
/// and processes that are forked from this process see zeros.
pub struct PrivateCopy(Option<Map>);

impl Deref for PrivateCopy {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], Map::bytes)
    }
}

impl Drop for PrivateCopy {
    fn drop(&mut self) {
        if !cfg!(feature = "residue-control")
            && let Some(map) = &mut self.0
        {
            map.bytes_mut().fill(0);
            compiler_fence(Ordering::SeqCst);
        }
    }
}

/// A memory mapping of fixed size, locked if permitted. The mapped memory is either a whole file that this process
/// created, or private memory.
struct Map {
    at: NonNull<c_void>,
    len: usize,
}

impl Map {
    /// Maps a file. The caller must not pass the file on before the mapping is dropped, so that no other process writes
    /// to the file.
    fn shared(file: &MemFile) -> io::Result<Option<Self>> {
        let Some(len) = NonZeroUsize::new(file.len) else { return Ok(None) };
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses aliases nothing. The file is sealed and cannot
        // shrink, so every byte of the mapping stays valid.
        let at = unsafe { mmap(None, len, protection, MapFlags::MAP_SHARED, &file.fd, 0) }?;
        Ok(Some(Self::locked(at, len)))
    }

    /// Maps private zeroed memory, which is zero again in forked processes.
    fn private(len: usize) -> io::Result<Option<Self>> {
        let Some(len) = NonZeroUsize::new(len) else { return Ok(None) };
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses aliases nothing.
        let at = unsafe { mmap_anonymous(None, len, protection, MapFlags::MAP_PRIVATE) }?;
        let map = Self::locked(at, len);
        // SAFETY: `at` and `len` are a mapping that was just created. The advice changes only what a fork copies.
        unsafe { madvise(map.at, map.len, MmapAdvise::MADV_WIPEONFORK) }?;
        Ok(Some(map))
    }

    fn locked(at: NonNull<c_void>, len: NonZeroUsize) -> Self {
        // SAFETY: `at` and `len` are a mapping that was just created. If the limit on locked memory is too low, mlock
        // fails. The failure is ignored: a process that keeps content for long locks all its memory, and warns.
        let _ = unsafe { mlock(at, len.get()) };
        Self { at, len: len.get() }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is readable for `len` bytes until `self` is dropped. No other process writes to it (see
        // the constructors), and only `&mut self` permits a write in this process.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().cast(), self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is readable and writable for `len` bytes until `self` is dropped. No other process writes
        // to it (see the constructors), and `&mut self` excludes other references in this process.
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

    /// If there are more buffers than one system call accepts, all are written in order, and the file is sealed.
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

    /// If another process writes to the file during a read, the reader's copy does not change.
    #[test]
    fn reader_has_unchanging_copy() {
        let mut file = MemFile::create("test", 10_000).unwrap();
        file.fill(|bytes| bytes.fill(7)).unwrap();
        let other = std::fs::File::from(file.as_fd().try_clone_to_owned().unwrap());
        let read = file.read(|bytes| {
            other.write_all_at(&[9; 10_000], 0).unwrap();
            bytes.iter().all(|byte| *byte == 7)
        });
        assert!(read.unwrap());
        assert!(
            file.read(|bytes| bytes.iter().all(|byte| *byte == 9)).unwrap(),
            "the control: the content has changed"
        );
    }

    #[test]
    fn forked_process_has_no_copy() {
        let file = MemFile::new("test", &[&[7; 10_000]]).unwrap();
        let (copy, control) = (file.copy().unwrap(), vec![7; 10_000]);
        // SAFETY: the child only reads memory and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let found = i32::from(copy.iter().any(|byte| *byte != 0)) + 2 * i32::from(control.contains(&7));
            // SAFETY: the function has no precondition.
            unsafe { libc::_exit(found) };
        }
        let ended = crate::process::wait_for(child).unwrap();
        assert_eq!(ended, crate::process::ChildExit::Code(2), "only the control is in the child's memory");
        assert!(copy.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn unwipeable_file_is_refused() {
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
    fn unsealed_or_ordinary_file_is_refused() {
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
