//! Secret files that change while a container runs: the observations of a reader, residue of old files, and refused
//! updates.

mod around;
mod change;
mod forged;
mod reader;
mod refused;
mod watched;
mod writable;

use std::fs;
use std::path::PathBuf;

use executor_proto::v1::Container;
use integration::api::pid;

/// Directory of files with relative paths.
const ROOT: &str = "/etc/cf-service-bindings";
/// Directory of the generations of the first mount point. In all these containers, the first mount point is `ROOT`.
const GENERATIONS: &str = "/dev/executor-files/0";

/// Returns the path of a container's file, for access by host root.
fn inside(container: &Container, path: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{}/root{path}", pid(container)))
}

/// Returns the content of a container's file.
fn content(container: &Container, path: &str) -> Option<String> {
    fs::read_to_string(inside(container, path)).ok()
}

/// Returns the sorted names in a directory of a container.
fn names(container: &Container, path: &str) -> Vec<String> {
    let entries = fs::read_dir(inside(container, path)).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Waits until the current generation is the only generation, and returns its name.
fn wait_for_single_generation(container: &Container) -> String {
    integration::wait::until("old generations are gone", || {
        let current = fs::read_link(inside(container, &format!("{GENERATIONS}/..data"))).unwrap();
        let current = current.into_os_string().into_string().unwrap();
        (names(container, GENERATIONS) == ["..data", &current]).then_some(current)
    })
}
