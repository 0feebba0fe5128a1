//! Runs tests with or without a warm pool.
//!
//! EXECUTOR_WARM_POOL is the size of the pool (`[warm_pool] size`). If it is unset, daemons use the shipped
//! configuration.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::host;

/// Returns true if containers start from the warm pool.
pub fn is_enabled() -> bool {
    std::env::var("EXECUTOR_WARM_POOL").map_or(true, |ready| ready != "0")
}

/// Adds the pool size of this test run to a configuration that does not set a pool size.
pub fn configured(toml: &str) -> String {
    match std::env::var("EXECUTOR_WARM_POOL") {
        Ok(ready) if !toml.contains("[warm_pool]") => format!("{toml}\n[warm_pool]\nsize = {ready}\n"),
        _ => toml.to_owned(),
    }
}

/// Writes the configuration file into a directory, and returns the arguments that pass it to the daemon. Returns no
/// arguments if nothing is configured.
///
/// # Panics
/// Panics if the file cannot be written.
pub fn arguments(dir: &Path, toml: &str) -> Vec<String> {
    let toml = configured(toml);
    if toml.is_empty() {
        return Vec::new();
    }
    let path = dir.join("node.toml");
    fs::write(&path, toml).expect("write");
    vec!["--config".to_owned(), path.display().to_string()]
}

/// Returns the names of the warm containers, including those being created, from their directories in a run directory
/// or state directory.
pub fn waiting(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory(dir)).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Returns the processes in `among` that belong to warm containers: their shims and all descendants of the shims.
pub fn processes(among: &BTreeSet<i32>) -> BTreeSet<i32> {
    let is_shell =
        |pid: &&i32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "executor-warm\n");
    let warm_pool: Vec<i32> = among.iter().filter(is_shell).copied().collect();
    warm_pool.iter().flat_map(|pid| host::descendants(*pid)).chain(warm_pool.iter().copied()).collect()
}

/// Returns true if a path is the cgroup of a warm container, or is below such a cgroup.
pub fn is_cgroup_of(path: &Path, waiting: &BTreeSet<String>) -> bool {
    path.ancestors()
        .filter_map(Path::file_name)
        .filter_map(|name| name.to_str()?.strip_prefix(".shell-"))
        .any(|name| waiting.contains(name))
}

/// Returns true if a path is a warm container's network record or its address lease.
pub fn is_network_record(path: &Path) -> bool {
    let owner = fs::read_link(path).ok();
    let name = owner.as_deref().unwrap_or(path).file_name().unwrap_or_default();
    name.to_string_lossy().starts_with(".warm-")
}

/// Returns the directory of warm containers in a run directory or state directory.
pub fn directory(dir: &Path) -> PathBuf {
    dir.join("shells")
}
