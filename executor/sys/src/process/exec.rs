//! Executes a program, and closes descriptors and frees stack pages before that.

use std::ffi::{CStr, CString};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Exits immediately, without running destructors and without flushing buffers.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` has no precondition.
    unsafe { libc::_exit(code) }
}

/// Returns the value of a call that restores the state of this process. If the call failed, exits with status 1,
/// because the process must not continue with the namespace or the ids of another.
pub(crate) fn require_restored<T, E: std::fmt::Display>(what: &str, restored: Result<T, E>) -> T {
    restored.unwrap_or_else(|error| {
        let pid = std::process::id();
        let _ = writeln!(io::stderr(), "cannot restore the {what} of process {pid}: {error}; the process exits");
        exit_now(1)
    })
}

/// A null-terminated array of strings, as execve requires.
pub struct StringArray {
    // Owns the strings that `pointers` refers to.
    _strings: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
}

impl StringArray {
    /// Builds the pointer array for the strings.
    pub fn new(strings: Vec<CString>) -> Self {
        let pointers = strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect();
        Self { _strings: strings, pointers }
    }
}

/// Executes another program. Does not allocate. Returns only on error.
pub fn execve(path: &CStr, args: &StringArray, env: &StringArray) -> io::Error {
    // SAFETY: `path` is NUL-terminated; both arrays end with a null pointer and point to NUL-terminated strings that
    // `args` and `env` own.
    unsafe { libc::execve(path.as_ptr(), args.pointers.as_ptr(), env.pointers.as_ptr()) };
    io::Error::last_os_error()
}

/// Returns unused stack pages to the kernel, with leftover data of earlier, deeper calls.
///
/// # Errors
/// Returns an error if /proc cannot be read.
pub fn trim_stack() -> io::Result<()> {
    // Space for this call, for the madvise call, and for the red zone of the ABI.
    const KEPT: usize = 4 << 10;
    let marker = 0u8;
    let top = (std::ptr::from_ref(&marker).addr() - KEPT) & !0xfff;
    let maps = crate::kernel_file::read_to_string("/proc/self/maps")?;
    let bottom = maps.lines().find(|line| line.ends_with("[stack]")).and_then(|line| {
        let start = line.split('-').next()?;
        usize::from_str_radix(start, 16).ok()
    });
    if let Some(bottom) = bottom.filter(|bottom| *bottom < top) {
        // SAFETY: the range lies within the main thread's stack and ends well below the stack pointer of this function
        // and of the madvise call; nothing refers to memory there.
        let result =
            unsafe { libc::madvise(std::ptr::with_exposed_provenance_mut(bottom), top - bottom, libc::MADV_DONTNEED) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Sets close-on-exec on every descriptor from `first` on.
///
/// # Errors
/// Returns an error if the kernel is older than 5.11.
pub fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: a plain system call on integers. The call closes no descriptor yet, so no owned descriptor becomes
    // invalid.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Closes every descriptor except the standard descriptors and `kept`, regardless of its owner. Call this only in a
/// process that is about to execute a program or exit. Close-on-exec is not enough: until execve has looked up the
/// program, a path through /proc/self/fd leads to open descriptors (CVE-2024-21626).
///
/// # Errors
/// Returns an error if the kernel is older than 5.9.
pub fn close_all_but(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut kept: Vec<u32> = kept.iter().map(|fd| fd.as_raw_fd().cast_unsigned()).collect();
    kept.sort_unstable();
    let mut first = 3;
    for end in kept.into_iter().chain([u32::MAX]) {
        if first < end {
            let last = if end == u32::MAX { end } else { end - 1 };
            // SAFETY: a plain system call on integers. Owners of the closed descriptors never run again: the caller
            // executes another program or exits without destructors.
            if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        first = first.max(end.saturating_add(1));
    }
    Ok(())
}
