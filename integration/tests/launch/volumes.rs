//! Volumes: their initial content, their content after an exit, their limits, and attempts to escape from them.

mod attacks;
mod command_line;
mod configuration;
mod empty;
mod host;
mod host_paths;
mod images;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use executor_proto::v1::volume_mount::Source;
use executor_proto::v1::{EmptyVolume, HostPath, NamedVolume, RunRequest, VolumeMount};
use integration::api::exit;
use integration::daemon::{Daemon, Setup};
use tempfile::TempDir;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// Host directories that a daemon offers to containers: `shared`, and the read-only directory `deps`.
struct Lent {
    home: TempDir,
}

impl Lent {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        // Host users must not access a volume that containers write to.
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o700)).unwrap();
        for name in ["shared", "deps"] {
            fs::create_dir(home.path().join(name)).unwrap();
            fs::set_permissions(home.path().join(name), fs::Permissions::from_mode(0o777)).unwrap();
        }
        Self { home }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Returns the configuration tables that offer the directories.
    fn tables(&self) -> String {
        let (shared, deps) = (self.path("shared"), self.path("deps"));
        format!(
            "[[volumes]]\nname = 'shared'\npath = '{}'\n[[volumes]]\nname = 'deps'\npath = '{}'\nread_only = true\n",
            shared.display(),
            deps.display()
        )
    }

    /// Starts a daemon that offers the directories. `more` is configuration before the tables.
    fn daemon(&self, more: &str) -> Daemon {
        Setup::default().config(&format!("{more}{}", self.tables())).start()
    }
}

fn at(path: &str, source: Source) -> VolumeMount {
    VolumeMount { path: path.into(), source: Some(source), ..VolumeMount::default() }
}

fn named(name: &str, path: &str) -> VolumeMount {
    at(path, Source::Host(NamedVolume { name: name.into() }))
}

fn of_path(host: &Path, path: &str) -> VolumeMount {
    at(path, Source::HostPath(HostPath { path: host.display().to_string(), ..HostPath::default() }))
}

fn below(sub_path: &str, volume: VolumeMount) -> VolumeMount {
    VolumeMount { sub_path: sub_path.into(), ..volume }
}

fn read_only(volume: VolumeMount) -> VolumeMount {
    VolumeMount { read_only: true, ..volume }
}

fn new(path: &str, medium: i32, size_bytes: u64) -> VolumeMount {
    at(path, Source::Empty(EmptyVolume { medium, size_bytes, ..EmptyVolume::default() }))
}

fn with(volumes: &[VolumeMount], request: RunRequest) -> RunRequest {
    RunRequest { volumes: volumes.to_vec(), ..request }
}

/// Runs a container, which must exit with 0, and returns its output.
fn said(daemon: &Daemon, request: RunRequest) -> String {
    let container = daemon.api.run_to_end(request);
    let text = daemon.api.output(&container.id).text();
    assert_eq!(exit(&container), Ok(0), "{text}");
    daemon.api.delete(&container.id, false).unwrap();
    text
}

/// Returns the code and the violations of a refusal.
fn refused(daemon: &Daemon, request: RunRequest) -> (Code, Vec<(String, String)>) {
    let status: Status = daemon.api.run(request).unwrap_err();
    let violations = status.get_details_bad_request().map(|bad| bad.field_violations).unwrap_or_default();
    (status.code(), violations.into_iter().map(|one| (one.field, one.description)).collect())
}

/// Returns the sorted names in a host directory.
fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
