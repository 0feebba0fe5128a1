//! An allocator that overwrites memory when it is freed.
//!
//! Secret types wipe themselves; libraries do not. Protobuf and HTTP libraries grow their buffers, and each growth
//! leaves the old bytes in freed memory. With this allocator no freed heap byte keeps its content, whichever code
//! allocated it. It does not cover memory that is still allocated, such as the buffers of an open connection, which
//! hold no secret (docs/adr/0014), nor stacks, nor the kernel's buffers.

#![allow(unsafe_code)] // a global allocator is an unsafe trait

use std::alloc::{GlobalAlloc, Layout, System};

/// The system allocator; overwrites every block with zeros before freeing it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ZeroOnFree;

// SAFETY: every method passes the caller's arguments on to `System`, whose contract is the same; memory is written only
// between the caller's release and `System`'s, within its layout.
unsafe impl GlobalAlloc for ZeroOnFree {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promised.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller gives up `layout.size()` bytes at `pointer`, and no other reference to them exists.
        unsafe {
            overwrite(pointer, layout.size());
            System.dealloc(pointer, layout);
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // The system's realloc may move the block and free the old one without a wipe, so this copies it instead.
        // SAFETY: the new layout has the caller's alignment and a size that the caller promises to be valid; the copy
        // stays within both blocks, which are distinct; the old one is freed only after the new one is allocated.
        unsafe {
            let new = System.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !new.is_null() {
                std::ptr::copy_nonoverlapping(pointer, new, layout.size().min(size));
                self.dealloc(pointer, layout);
            }
            new
        }
    }
}

/// Writes zeros in a form that the compiler cannot optimize away, although they are never read.
unsafe fn overwrite(pointer: *mut u8, size: usize) {
    if crate::CONTROL {
        return;
    }
    // SAFETY: the caller owns `size` bytes at `pointer`.
    unsafe { std::ptr::write_bytes(pointer, 0, size) };
    // An empty assembly block that might read the memory forces the writes, without the cost of volatile byte writes.
    // SAFETY: the block has no instruction.
    unsafe { std::arch::asm!("/* {0} */", in(reg) pointer, options(nostack, preserves_flags, readonly)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks memory that was just freed. Skips the start of the block, which the system allocator uses for bookkeeping.
    fn zeros_after(free: impl Fn(*mut u8, Layout)) -> bool {
        let layout = Layout::from_size_align(4096, 16).unwrap();
        // SAFETY: the layout is valid; the memory is written and freed once, and read afterwards on purpose while no
        // other thread of this test allocates that size. The block is smaller than the size above which blocks are
        // unmapped.
        unsafe {
            let keep = ZeroOnFree.alloc(layout); // so that the block behind does not merge with the top
            let block = ZeroOnFree.alloc(layout);
            let guard = ZeroOnFree.alloc(layout);
            std::ptr::write_bytes(block, 0xa5, layout.size());
            free(block, layout);
            let left = (64..4000).filter(|i| std::ptr::read_volatile(block.add(*i)) == 0xa5).count();
            ZeroOnFree.dealloc(guard, layout);
            ZeroOnFree.dealloc(keep, layout);
            left == 0
        }
    }

    #[test]
    fn what_is_freed_is_zero_and_the_system_allocator_shows_that_this_would_be_noticed() {
        // SAFETY: `zeros_after` gives up the block.
        assert!(zeros_after(|block, layout| unsafe { ZeroOnFree.dealloc(block, layout) }));
        // SAFETY: as above.
        assert!(!zeros_after(|block, layout| unsafe { System.dealloc(block, layout) }), "the control sees nothing");
        // SAFETY: as above; the block that realloc returns is freed.
        assert!(zeros_after(|block, layout| unsafe {
            let new = ZeroOnFree.realloc(block, layout, 8192);
            assert_eq!(*new.add(4095), 0xa5);
            ZeroOnFree.dealloc(new, Layout::from_size_align_unchecked(8192, 16));
        }));
    }
}
