//! Heap layout for forked processes, which copy each page on the first write to it.

/// Longest block allocated to fill holes, in bytes. The heap of a freshly started process has no longer hole.
const PIECE_MAX: usize = 64 << 10;
/// Up to this length, in bytes, the allocator has a size class for each 16 bytes.
const CLASSES_MAX: usize = 1 << 10;

/// Returns unused heap memory to the kernel. A shim stays around for as long as its container runs.
pub fn trim() {
    // SAFETY: malloc_trim has no precondition.
    unsafe { libc::malloc_trim(0) };
}

/// Permanently fills the present holes of the heap. Later allocations are placed behind the existing ones, so that
/// forked processes do not write to pages with data of their parent, and those pages stay shared.
///
/// The parent's heap grows by up to 0.2 MB of address space. Most of it is never touched and uses no memory.
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
