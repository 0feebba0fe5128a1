//! Secret files that change while a container runs: what a reader in it can see, what is left of the old ones, and
//! what is refused.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails; its helpers do not count as tests to the lint

mod around;
mod change;
mod forged;
mod reader;
mod refused;
mod writable;

use std::fs;
use std::path::PathBuf;

use executor_proto::v1::Container;
use integration::api::pid;

/// Where files with relative paths lie.
const ROOT: &str = "/etc/cf-service-bindings";
/// Where the generations of the first mount point are; ROOT's in all these containers.
const GENERATIONS: &str = "/dev/executor-files/0";

/// A path in a container, as root of the host reaches it.
fn inside(container: &Container, path: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{}/root{path}", pid(container)))
}

/// What a container's file holds.
fn content(container: &Container, path: &str) -> Option<String> {
    fs::read_to_string(inside(container, path)).ok()
}

/// Names in a directory of a container, sorted.
fn names(container: &Container, path: &str) -> Vec<String> {
    let entries = fs::read_dir(inside(container, path)).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Waits until the generation in force is the only one that is there.
fn wait_for_single_generation(container: &Container) -> String {
    integration::wait::until("old generations are gone", || {
        let current = fs::read_link(inside(container, &format!("{GENERATIONS}/..data"))).unwrap();
        let current = current.into_os_string().into_string().unwrap();
        (names(container, GENERATIONS) == ["..data", &current]).then_some(current)
    })
}
