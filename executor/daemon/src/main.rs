//! The binary; see [`executord::program`].

#![forbid(unsafe_code)]

use std::process::ExitCode;

/// Requests hold secrets, and libraries free memory without overwriting it.
#[global_allocator]
static ALLOCATOR: executor_secrets::ZeroOnFree = executor_secrets::ZeroOnFree;

fn main() -> ExitCode {
    executord::program::main()
}
