//! Tests with and without shells.
//!
//! EXECUTOR_WARM_POOL is the number that wait (`[warm_pool] size`); where it is unset, daemons are configured as shipped.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::host;

/// Returns whether containers begin as shells.
pub fn are_on() -> bool {
    std::env::var("EXECUTOR_WARM_POOL").map_or(true, |ready| ready != "0")
}

/// Returns a configuration with the number of shells that the tests are run with, where it does not say one.
pub fn configured(toml: &str) -> String {
    match std::env::var("EXECUTOR_WARM_POOL") {
        Ok(ready) if !toml.contains("[warm_pool]") => format!("{toml}\n[warm_pool]\nsize = {ready}\n"),
        _ => toml.to_owned(),
    }
}

/// Writes such a configuration into a directory, and returns the arguments that name it; none where nothing is configured.
///
/// # Panics
/// The file cannot be written.
pub fn arguments(dir: &Path, toml: &str) -> Vec<String> {
    let toml = configured(toml);
    if toml.is_empty() {
        return Vec::new();
    }
    let path = dir.join("node.toml");
    fs::write(&path, toml).expect("write");
    vec!["--config".to_owned(), path.display().to_string()]
}

/// Returns the names of the shells that wait, or are being made, by their directories in a run directory or a state directory.
pub fn waiting(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory(dir)).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Returns the processes of shells among these: their own and those that they made.
pub fn processes(among: &BTreeSet<i32>) -> BTreeSet<i32> {
    let is_shell =
        |pid: &&i32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "executor-warm\n");
    let warm_pool: Vec<i32> = among.iter().filter(is_shell).copied().collect();
    warm_pool.iter().flat_map(|pid| host::descendants(*pid)).chain(warm_pool.iter().copied()).collect()
}

/// Returns whether a path is the cgroup of a shell that waits, or below it.
pub fn is_cgroup_of(path: &Path, waiting: &BTreeSet<String>) -> bool {
    path.ancestors()
        .filter_map(Path::file_name)
        .filter_map(|name| name.to_str()?.strip_prefix(".shell-"))
        .any(|name| waiting.contains(name))
}

/// Returns the directory of shells in a run directory or a state directory.
pub fn directory(dir: &Path) -> PathBuf {
    dir.join("shells")
}
