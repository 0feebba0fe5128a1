//! Adjusts the heap: for forked processes, which copy each page on the first write to it, and for large messages.

/// Maximum length of a block that is allocated to fill holes, in bytes. The heap of a newly started process has no
/// hole above this length.
const PIECE_MAX: usize = 64 << 10;
/// Length in bytes up to which the allocator has a size class for each multiple of 16 bytes.
const CLASSES_MAX: usize = 1 << 10;

/// Length in bytes of the free memory that [`keep_freed`] keeps at the end of each of the allocator's arenas.
const FREE_MAX: i32 = 2 << 20;

/// Keeps up to 2 MiB of freed memory at the end of the heap, for a process that receives large messages with many small
/// values. Otherwise the allocator returns the memory to the kernel after a message, and the next message needs a page
/// fault for each page. Blocks of 1 MiB or more are still mapped separately.
pub fn keep_freed() {
    // SAFETY: mallopt only changes settings of the allocator.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, FREE_MAX);
        libc::mallopt(libc::M_MMAP_THRESHOLD, FREE_MAX / 2);
    }
}

/// Returns unused heap memory to the kernel. Call this in a shim, which runs as long as its container.
pub fn trim() {
    // SAFETY: malloc_trim has no precondition.
    unsafe { libc::malloc_trim(0) };
}

/// Permanently fills the current holes of the heap. Later allocations are then placed after existing allocations, so
/// forked processes do not write to pages that contain their parent's data, and these pages stay shared.
///
/// The parent's heap grows by up to 0.2 MB of address space. Most of this space is never touched and uses no memory.
pub fn fill_holes() {
    let end = end();
    let mut length = PIECE_MAX;
    while length > 0 {
        loop {
            // SAFETY: malloc has no precondition. The returned block is never used and never freed.
            let piece = unsafe { libc::malloc(length) };
            if piece.is_null() || piece.addr() >= end {
                break;
            }
        }
        length = if length > CLASSES_MAX { length / 2 } else { length - 16 };
    }
}

/// Returns the end of the heap.
fn end() -> usize {
    // SAFETY: sbrk(0) only returns the current end.
    unsafe { libc::sbrk(0) }.addr()
}
