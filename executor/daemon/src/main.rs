//! The binary; see [`executord::program`].

#![forbid(unsafe_code)]

use std::process::ExitCode;

/// Overwrites memory when it is freed: requests hold secrets, and libraries do not overwrite their memory.
#[global_allocator]
static ALLOCATOR: executor_secrets::ZeroOnFree = executor_secrets::ZeroOnFree;

fn main() -> ExitCode {
    executord::program::main()
}
