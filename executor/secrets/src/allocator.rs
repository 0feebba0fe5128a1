//! Provides an allocator that overwrites memory when it is freed.
//!
//! Secret types wipe themselves; libraries do not. Protobuf and HTTP libraries grow their buffers, and each growth
//! leaves the old bytes in freed memory. With this allocator no freed heap byte keeps its content, regardless of the
//! code that allocated it. The allocator does not cover stacks, the kernel's buffers, or memory that is still
//! allocated, such as the buffers of an open connection (these hold no secret, see docs/adr/0014).

#![allow(unsafe_code)] // a global allocator is an unsafe trait

use std::alloc::{GlobalAlloc, Layout, System};

/// The system allocator; overwrites every block with zeros before freeing it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ZeroOnFree;

// SAFETY: every method passes the caller's arguments on to `System`, which has the same contract. `overwrite` writes
// only within the layout of a block that the caller has released and `System` has not freed yet.
unsafe impl GlobalAlloc for ZeroOnFree {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract.
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
        // The system's realloc may move the block and free the old block without a wipe, so this copies the block
        // instead. SAFETY: the new layout has the caller's alignment and a size that the caller promises to be valid.
        // The copy stays within both blocks, which are distinct. The old block is freed only after the new block is
        // allocated.
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

/// Writes zeros so that the compiler cannot optimize the writes away, although the zeros are never read.
unsafe fn overwrite(pointer: *mut u8, size: usize) {
    if crate::CONTROL {
        return;
    }
    // SAFETY: the caller owns `size` bytes at `pointer`.
    unsafe { std::ptr::write_bytes(pointer, 0, size) };
    // The compiler must assume that this empty assembly block reads the memory, so it keeps the writes. Volatile
    // writes of single bytes would be slower.
    // SAFETY: the block has no instruction.
    unsafe { std::arch::asm!("/* {0} */", in(reg) pointer, options(nostack, preserves_flags, readonly)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns true if `free` overwrote the block. Skips the start of the block, where the system allocator keeps its
    /// own data after the release.
    fn zeros_after(free: impl Fn(*mut u8, Layout)) -> bool {
        let layout = Layout::from_size_align(4096, 16).unwrap();
        // SAFETY: the layout is valid, and the memory is written and freed once. The memory is read after the release
        // on purpose: no other thread of this test allocates this size, and the block is too small to be unmapped.
        unsafe {
            let keep = ZeroOnFree.alloc(layout); // separates the next block from free memory before it
            let block = ZeroOnFree.alloc(layout);
            let guard = ZeroOnFree.alloc(layout);
            std::ptr::write_bytes(block, 0xa5, layout.size());
            free(std::hint::black_box(block), layout);
            // The compiler knows that the block is released, and could assume any content: hide the pointer's origin.
            let block = std::hint::black_box(block);
            let left = (64..4000).filter(|i| std::ptr::read_volatile(block.add(*i)) == 0xa5).count();
            ZeroOnFree.dealloc(guard, layout);
            ZeroOnFree.dealloc(keep, layout);
            left == 0
        }
    }

    #[test]
    fn freed_memory_is_zeroed() {
        // SAFETY: `zeros_after` gives up the block.
        assert!(zeros_after(|block, layout| unsafe { ZeroOnFree.dealloc(block, layout) }));
        // SAFETY: as above.
        assert!(!zeros_after(|block, layout| unsafe { System.dealloc(block, layout) }), "control failed");
        // SAFETY: as above; the block that realloc returns is freed.
        assert!(zeros_after(|block, layout| unsafe {
            let new = ZeroOnFree.realloc(block, layout, 8192);
            assert_eq!(*new.add(4095), 0xa5);
            ZeroOnFree.dealloc(new, Layout::from_size_align_unchecked(8192, 16));
        }));
    }
}
