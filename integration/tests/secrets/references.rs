//! Secrets by reference: each type of provider in real containers, rotation, stale values, restarts of executord,
//! invalid input, and residue of the values.

mod command;
mod directory;
mod guide;
mod openbao;
mod refused;
mod residue;
mod rules;
mod vault;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use executor_proto::v1::event::Kind;
use executor_proto::v1::{Container, File, SecretReference, WatchEventsRequest};
use integration::api::pid;
use integration::daemon::Daemon;
use integration::wait;

/// Directory of files with relative paths.
const ROOT: &str = "/etc/cf-service-bindings";

/// A directory that only the test uses and that the daemon's user can read.
struct Shelf(tempfile::TempDir);

impl Shelf {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Self(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file atomically.
    fn put(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let (new, path) = (self.path().join(format!("{name}.new")), self.path().join(name));
        fs::write(&new, content).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(&new, &path).unwrap();
        path
    }

    /// Configuration table for this directory.
    fn provider(&self) -> String {
        format!(
            "[[secret_providers]]\nname = \"shelf\"\ntype = \"directory\"\npath = \"{}\"\npoll_seconds = 1\n\
             allow = [{{ uid = 0, paths = [\"/\"] }}]\n",
            self.path().display()
        )
    }
}

fn reference(provider: &str, path: &str, key: &str) -> SecretReference {
    SecretReference { provider: provider.into(), path: path.into(), key: key.into(), version: String::new() }
}

/// A file whose content is a reference.
fn from(target: &str, provider: &str, path: &str, key: &str) -> File {
    File { path: target.into(), from: Some(reference(provider, path, key)), ..File::default() }
}

/// Content of a container's file below [`ROOT`].
fn content(container: &Container, path: &str) -> String {
    fs::read_to_string(format!("/proc/{}/root{ROOT}/{path}", pid(container))).unwrap()
}

fn wait_for_content(container: &Container, path: &str, expected: &str) {
    wait::until(&format!("{path} is {expected}"), || (content(container, path) == expected).then_some(()));
}

/// Events of a container up to the first event of kind `last`: each kind, with the generation of the files.
fn events_until(daemon: &Daemon, id: &str, last: Kind) -> Vec<(Kind, u64)> {
    let request = WatchEventsRequest { container_id: id.into(), ..WatchEventsRequest::default() };
    let responses = daemon
        .api
        .events(request)
        .unwrap()
        .until(|response| response.event.as_ref().is_some_and(|event| event.kind() == last));
    responses.iter().filter_map(|one| one.event.as_ref()).map(|event| (event.kind(), event.files_generation)).collect()
}
