//! Secrets by reference: each type of provider in real containers, rotation, stale values, restarts of executord,
//! invalid input, and residue of the values.

mod command;
mod directory;
mod guide;
mod kubernetes;
mod openbao;
mod refused;
mod residue;
mod rules;
mod vault;
mod workload;

use std::fs;

use executor_proto::v1::event::Kind;
use executor_proto::v1::{Container, File, SecretReference, WatchEventsRequest};
use integration::api::pid;
use integration::daemon::Daemon;
use integration::shelf::Shelf;
use integration::wait;

/// Default of `policy.files_root`: directory in the container for files with relative paths.
const ROOT: &str = "/etc/cf-service-bindings";

fn reference(provider: &str, path: &str, key: &str) -> SecretReference {
    SecretReference { provider: provider.into(), path: path.into(), key: key.into(), version: String::new() }
}

/// Returns a file whose content is a reference.
fn from(target: &str, provider: &str, path: &str, key: &str) -> File {
    File { path: target.into(), from: Some(reference(provider, path, key)), ..File::default() }
}

/// Returns the content of a container's file below [`ROOT`].
fn content(container: &Container, path: &str) -> String {
    fs::read_to_string(format!("/proc/{}/root{ROOT}/{path}", pid(container))).unwrap()
}

fn wait_for_content(container: &Container, path: &str, expected: &str) {
    wait::until(&format!("{path} is {expected}"), || (content(container, path) == expected).then_some(()));
}

/// Returns the events of a container up to the first event of kind `last`: each kind, with the generation of the files.
fn events_until(daemon: &Daemon, id: &str, last: Kind) -> Vec<(Kind, u64)> {
    let request = WatchEventsRequest { container_id: id.into(), ..WatchEventsRequest::default() };
    let responses = daemon
        .api
        .events(request)
        .unwrap()
        .until(|response| response.event.as_ref().is_some_and(|event| event.kind() == last));
    responses.iter().filter_map(|one| one.event.as_ref()).map(|event| (event.kind(), event.files_generation)).collect()
}
