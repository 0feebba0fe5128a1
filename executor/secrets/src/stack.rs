//! Overwrites the stack below the current call.
//!
//! Hash states, arguments of calls and moved values leave copies of secrets on the stack. The stack is not freed, so
//! the allocator cannot wipe it, and a copy remains until another call reaches the same depth.

/// Number of bytes to overwrite: more than receiving a request needs, and much less than the stacks of the executor's
/// processes.
const DEPTH: usize = 96 << 10;

/// Overwrites the stack below the caller. Call this right after a function that read secrets.
#[inline(never)]
pub fn scrub_stack() {
    if crate::CONTROL {
        return;
    }
    let mut below = [0_u8; DEPTH];
    // The compiler must assume that black_box reads the array, so it keeps the writes.
    std::hint::black_box(&mut below);
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::hint::black_box;
    use std::os::unix::fs::FileExt;

    use super::*;

    const MARK: u8 = 0xa7;

    /// Fills a stack frame with `MARK` after `depth` nested calls, and returns the frame's address.
    #[inline(never)]
    fn leave(depth: usize) -> u64 {
        let mut frame = [0_u8; 1024];
        if depth > 0 {
            let at = leave(depth - 1);
            black_box(&mut frame);
            return at;
        }
        frame.fill(MARK);
        black_box(&mut frame);
        std::ptr::from_ref(&frame).addr() as u64
    }

    fn marks(at: u64) -> usize {
        let mut bytes = [0; 1024];
        File::open("/proc/self/mem").unwrap().read_exact_at(&mut bytes, at).unwrap();
        bytes.iter().filter(|byte| **byte == MARK).count()
    }

    #[test]
    fn scrub_stack_overwrites_earlier_frames() {
        let memory = File::open("/proc/self/mem").unwrap();
        for depth in [16, 64] {
            let mut bytes = vec![0; 1024];
            let at = leave(depth);
            memory.read_exact_at(&mut bytes, at).unwrap();
            assert!(bytes.iter().filter(|byte| **byte == MARK).count() > 900, "control failed: the bytes were wiped");
            let at = leave(depth);
            scrub_stack();
            assert_eq!(marks(at), 0);
        }
    }
}
