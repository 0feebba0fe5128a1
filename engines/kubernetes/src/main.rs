//! Runs [`executor_cri::program`].

#![forbid(unsafe_code)]

use std::process::ExitCode;

/// Overwrites memory when it is freed: requests hold environments and passwords, and libraries do not overwrite their
/// memory.
#[global_allocator]
static ALLOCATOR: executor_secrets::ZeroOnFree = executor_secrets::ZeroOnFree;

fn main() -> ExitCode {
    executor_cri::program::main()
}
