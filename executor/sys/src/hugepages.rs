//! Moves a memory file into huge pages.
//!
//! A mapping of such a file needs one page fault and one page-table entry per 2 MiB. The difference matters for a
//! program that is forked for every container, because each process has its own page faults for the code.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// Size of a huge page in bytes, on x86-64, and on aarch64 with 4 KiB pages.
pub const HUGE_PAGE: usize = 2 << 20;
/// The advice MADV_COLLAPSE, available since Linux 6.1.
const COLLAPSE: i32 = 25;

/// Moves `file`, a memory file of `len` bytes that no process writes to, into huge pages. `len` must be a multiple of
/// [`HUGE_PAGE`].
///
/// # Errors
/// Returns an error if the kernel has no huge pages or no MADV_COLLAPSE, or memory runs out. The file remains usable.
pub fn collapse(file: impl AsFd, len: usize) -> io::Result<()> {
    let len = NonZeroUsize::new(len).ok_or(io::ErrorKind::InvalidInput)?;
    let room = len.saturating_add(HUGE_PAGE);
    // SAFETY: a new mapping at an address that the kernel chooses; nothing refers to it.
    let reserved = unsafe { mmap_anonymous(None, room, ProtFlags::PROT_NONE, MapFlags::MAP_PRIVATE)? };
    let start = NonZeroUsize::new(reserved.as_ptr().addr().next_multiple_of(HUGE_PAGE));
    // SAFETY: within the range reserved above, which is one huge page longer than `len`.
    let mapped = unsafe { mmap(start, len, ProtFlags::PROT_READ, MapFlags::MAP_SHARED | MapFlags::MAP_FIXED, file, 0) };
    let collapsed = mapped.map_err(io::Error::from).and_then(|mapped| {
        // SAFETY: exactly the mapped range; the content of its pages does not change.
        match unsafe { libc::madvise(mapped.as_ptr(), len.get(), COLLAPSE) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    });
    // SAFETY: the whole range reserved above; nothing refers to it.
    unsafe { munmap(reserved, room.get()) }?;
    collapsed
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    #[test]
    fn a_file_keeps_its_bytes() {
        let mut file = File::from(memfd_create("x", MemfdFlags::CLOEXEC).unwrap());
        let bytes: Vec<u8> = (0..HUGE_PAGE + 5).map(|at| (at % 251) as u8).collect();
        file.write_all(&bytes).unwrap();
        file.set_len(2 * HUGE_PAGE as u64).unwrap();
        // The kernel may refuse. The content must be the same in both cases.
        let _ = collapse(&file, 2 * HUGE_PAGE);
        let mut read = vec![0; bytes.len()];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut read, 0).unwrap();
        assert_eq!(read, bytes);
    }

    #[test]
    fn no_length_is_refused() {
        let file = File::from(memfd_create("x", MemfdFlags::CLOEXEC).unwrap());
        collapse(&file, 0).unwrap_err();
    }
}
