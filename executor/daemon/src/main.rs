//! The binary; see [`executord::program`].

#![forbid(unsafe_code)]

use std::process::ExitCode;

/// Overwrites freed memory: requests hold secrets, and libraries do not overwrite the memory that they free.
#[global_allocator]
static ALLOCATOR: executor_secrets::ZeroOnFree = executor_secrets::ZeroOnFree;

fn main() -> ExitCode {
    executord::program::main()
}
