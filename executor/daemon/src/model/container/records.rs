//! Reads the records that shims write: a container's record while the shim runs, and the exit record afterwards.
//!
//! The files are read whole at each report of a shim. The files are small, in memory or in the page cache, and replaced
//! by rename, so that reads are never torn. Records come from a process with more privilege than the daemon, so they
//! are checked only for a newer version, another container's id, and disk corruption.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use executor_core::ident::ContainerId;
use executor_core::record::{ContainerRecord, ExitRecord, PlanId, RECORD_MAX, RECORD_VERSION};
use serde::de::DeserializeOwned;

use crate::model::status::ContainerStatus;
use crate::paths::Paths;

/// An error from reading a record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file cannot be read.
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] std::io::Error),
    /// The file is larger than any record.
    #[error("{} is larger than the maximum of {RECORD_MAX} bytes for a record", .0.display())]
    TooLarge(PathBuf),
    /// The file is malformed.
    #[error("{} is not a valid record", .0.display())]
    Form(PathBuf, #[source] serde_json::Error),
    /// A newer version wrote the record.
    #[error("{} has version {}; this executord reads versions up to {RECORD_VERSION}", .0.display(), .1)]
    Newer(PathBuf, u32),
    /// The record belongs to another container.
    #[error("{} is the record of another container, {}", .0.display(), .1)]
    Other(PathBuf, ContainerId),
}

/// Reads the record of a container with a shim; `None` if there is no record.
///
/// # Errors
/// Returns [`RecordError`] if the record cannot be used.
pub fn live(paths: &Paths, id: &ContainerId) -> Result<Option<ContainerRecord>, RecordError> {
    container(&paths.live_record(id), id)
}

/// Reads the record that the shim wrote before it created the container; `None` if there is no such file.
///
/// # Errors
/// Returns [`RecordError`] if the record cannot be used.
pub fn first(paths: &Paths, id: &ContainerId) -> Result<Option<ContainerRecord>, RecordError> {
    container(&paths.first_record(id), id)
}

fn container(path: &Path, id: &ContainerId) -> Result<Option<ContainerRecord>, RecordError> {
    let Some(bytes) = read(path)? else { return Ok(None) };
    let record: ContainerRecord = parse(path, &bytes)?;
    check(path, id, record.version, &record.plan.id)?;
    Ok(Some(record))
}

/// Reads the exit record of a container; `None` if there is no exit record yet. Exit records are not synced: a record
/// that a power failure truncated is ignored and logged.
///
/// # Errors
/// Returns [`RecordError`] if the record cannot be used.
pub fn exit(paths: &Paths, id: &ContainerId) -> Result<Option<ExitRecord>, RecordError> {
    let path = paths.exit_record(id);
    let Some(bytes) = read(&path)? else { return Ok(None) };
    let Some(record): Option<ExitRecord> = parse_whole(&path, id, &bytes)? else { return Ok(None) };
    check(&path, id, record.container.version, &record.container.plan.id)?;
    Ok(Some(record))
}

/// Applies the record of a container with a shim to its status; returns false if there is no record. The plan, which is
/// most of the record, is parsed only if it has changed.
///
/// # Errors
/// Returns [`RecordError`] if the record cannot be used. In that case the status is unchanged.
pub fn progress(paths: &Paths, facts: &mut ContainerStatus) -> Result<bool, RecordError> {
    let path = paths.live_record(&facts.plan.id);
    let Some(bytes) = read(&path)? else { return Ok(false) };
    let record: ContainerRecord<PlanId> = parse(&path, &bytes)?;
    check(&path, &facts.plan.id, record.version, &record.plan.id)?;
    if facts.is_replanned(&record) {
        facts.replan(parse::<ContainerRecord>(&path, &bytes)?.plan);
    }
    facts.progress(record);
    Ok(true)
}

/// Applies the exit record of a container to its status, as [`progress`] does; returns false if there is none yet.
///
/// # Errors
/// Returns [`RecordError`] if the record cannot be used. In that case the status is unchanged.
pub fn conclude(paths: &Paths, facts: &mut ContainerStatus) -> Result<bool, RecordError> {
    let path = paths.exit_record(&facts.plan.id);
    let Some(bytes) = read(&path)? else { return Ok(false) };
    let Some(record): Option<ExitRecord<PlanId>> = parse_whole(&path, &facts.plan.id, &bytes)? else {
        return Ok(false);
    };
    check(&path, &facts.plan.id, record.container.version, &record.container.plan.id)?;
    if facts.is_replanned(&record.container) {
        facts.replan(parse::<ExitRecord>(&path, &bytes)?.container.plan);
    }
    facts.conclude(record);
    Ok(true)
}

fn check(path: &Path, id: &ContainerId, version: u32, of: &ContainerId) -> Result<(), RecordError> {
    if version > RECORD_VERSION {
        return Err(RecordError::Newer(path.to_owned(), version));
    }
    if of != id {
        return Err(RecordError::Other(path.to_owned(), of.clone()));
    }
    Ok(())
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, RecordError> {
    let unreadable = |error| RecordError::Read(path.to_owned(), error);
    let mut file = match File::open(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        other => other.map_err(unreadable)?,
    };
    let size = file.metadata().map_err(unreadable)?.len();
    if size > RECORD_MAX {
        return Err(RecordError::TooLarge(path.to_owned()));
    }
    let mut bytes = vec![0; size as usize];
    file.read_exact(&mut bytes).map_err(unreadable)?;
    Ok(Some(bytes))
}

fn parse<T: DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T, RecordError> {
    serde_json::from_slice(bytes).map_err(|error| RecordError::Form(path.to_owned(), error))
}

/// Parses an exit record; `None` if it is truncated.
fn parse_whole<T: DeserializeOwned>(path: &Path, id: &ContainerId, bytes: &[u8]) -> Result<Option<T>, RecordError> {
    match parse(path, bytes) {
        Err(error @ RecordError::Form(..)) => {
            let error = executor_core::errors::chain(&error);
            tracing::error!(container = %id, error, "ignoring the exit record");
            Ok(None)
        }
        record => record.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use executor_core::lifecycle::State;
    use executor_core::plan::Plan;
    use executor_core::validate::{Draft, Policy, validate};
    use serde_json::{Value, json};

    use super::*;

    fn facts(id: &str, remove_when_completed: bool) -> ContainerStatus {
        let draft = Draft { id, path: "/bin/true", ..Draft::default() };
        let plan = Plan { remove_when_completed, ..validate(&draft, &Policy::default()).unwrap() };
        ContainerStatus::admitted(plan, "tag".into(), crate::now(), "boot".into())
    }

    /// Returns the record of a running container whose plan differs from the status in one field.
    fn record(id: &str, files_generation: u64) -> Value {
        let plan = serde_json::to_value(&*facts(id, true).plan).unwrap();
        json!({
            "version": RECORD_VERSION, "plan": plan, "request_tag": "tag", "created_at": 1, "begun_at": 2,
            "state": State::Running, "shim": {"pid": 1, "start_time": 1, "boot_id": "boot"}, "cgroup": "/c",
            "prepared": null, "started_at": 3, "stopped": false, "files_generation": files_generation,
        })
    }

    fn paths(dir: &Path, record: &Value) -> Paths {
        let paths = Paths { run_dir: dir.join("run"), state_dir: dir.join("state") };
        let path = paths.live_record(&"a".parse().unwrap());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, serde_json::to_vec(record).unwrap()).unwrap();
        paths
    }

    /// A plan is applied only if files were replaced, and not for unchanged files or the first files.
    #[test]
    fn plan_is_parsed_only_after_change() {
        let dir = tempfile::tempdir().unwrap();
        for (before, now, expected) in [(0, 1, false), (1, 1, false), (1, 2, true), (0, 2, true)] {
            let mut facts = facts("a", false);
            facts.files_generation = before;
            assert!(progress(&paths(dir.path(), &record("a", now)), &mut facts).unwrap());
            assert_eq!(facts.plan.remove_when_completed, expected, "{before} {now}");
            assert_eq!((facts.files_generation, facts.started_at.map(|at| at.0)), (now, Some(3)));
        }
    }

    /// If a record cannot be used, the status stays unchanged.
    #[test]
    fn unusable_record_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (mut newer, mut torn) = (record("a", 2), record("a", 2));
        newer["version"] = json!(RECORD_VERSION + 1);
        torn["plan"] = json!({"id": "a"});
        for bad in [record("b", 2), newer, torn, json!({})] {
            let before = facts("a", false);
            let mut after = before.clone();
            assert!(progress(&paths(dir.path(), &bad), &mut after).is_err());
            assert_eq!(after, before);
        }
        let none = Paths { run_dir: dir.path().join("none"), state_dir: dir.path().join("none") };
        let mut facts = facts("a", false);
        assert!(!progress(&none, &mut facts).unwrap() && !conclude(&none, &mut facts).unwrap());
    }
}
