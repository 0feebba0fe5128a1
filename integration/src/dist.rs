//! Finds the binaries under test.

use std::path::PathBuf;

/// Returns the directory of the control binaries, which do not wipe secrets.
///
/// # Panics
/// Panics if the binaries are missing; `cargo xtask test` builds them.
pub fn control() -> PathBuf {
    let workspace = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let dir = std::env::var_os("EXECUTOR_CONTROL_DIST");
    let dir = dir.map_or_else(|| workspace.join("target/control"), PathBuf::from);
    assert!(
        dir.join("executord").exists(),
        "{} does not contain the control binaries: run `cargo xtask test`, which builds them",
        dir.display()
    );
    dir
}

/// Returns the path of one of the product's binaries.
///
/// # Panics
/// Panics if the binary is missing; `cargo xtask build --release` builds it.
pub fn binary(name: &str) -> PathBuf {
    let workspace = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let dir = std::env::var_os("EXECUTOR_DIST").map_or_else(|| workspace.join("target/dist"), PathBuf::from);
    let path = dir.join(name);
    assert!(path.exists(), "{} does not exist: run `cargo xtask build --release`", path.display());
    path
}
