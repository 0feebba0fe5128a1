//! The heap as forked processes see it: each page that one of them writes to is copied for it, and stays its own.

/// Longest piece that is taken to fill holes. The heap of a process that has just started has none that is longer.
const PIECE_MAX: usize = 64 << 10;
/// Pieces up to this length have a size class for each 16 bytes.
const CLASSES_MAX: usize = 1 << 10;

/// Gives memory that the allocator holds but does not use back to the kernel: a shim waits for as long as its
/// container lives.
pub fn trim() {
    // SAFETY: malloc_trim has no precondition.
    unsafe { libc::malloc_trim(0) };
}

/// Fills the holes that the heap has now, for good. What is allocated from now on lies behind what is there already, so that
/// forked processes do not write between things that only their parent made, and those pages stay one for all of them.
///
/// The heap of the parent grows by up to 0.2 MB of address space. Most of it is never touched, and takes no memory.
pub fn fill_holes() {
    let end = end();
    let mut length = PIECE_MAX;
    while length > 0 {
        loop {
            // SAFETY: malloc has no precondition. What it gives is never used and never freed.
            let piece = unsafe { libc::malloc(length) };
            if piece.is_null() || piece.addr() >= end {
                break;
            }
        }
        length = if length > CLASSES_MAX { length / 2 } else { length - 16 };
    }
}

/// Returns where the heap ends.
fn end() -> usize {
    // SAFETY: nothing is asked for but where the end is.
    unsafe { libc::sbrk(0) }.addr()
}
