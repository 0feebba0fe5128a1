//! Provides the types of the original crate's module `common` that libcontainer uses.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix_of_libcontainer::unistd::Pid;
use oci_spec::runtime::LinuxResources;
use thiserror::Error;

/// Directory where the cgroup hierarchies are mounted.
pub const DEFAULT_CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// Magic number of the version 2 file system (`linux/magic.h`).
const CGROUP2_SUPER_MAGIC: i64 = 0x6367_7270;

/// A cgroup manager of libcontainer failed.
#[derive(Debug, Error)]
pub enum AnyManagerError {
    /// The container's process cannot be moved.
    #[error("cannot move process {pid} into {}: {source}", file.display())]
    Join { pid: Pid, file: PathBuf, source: io::Error },
    /// libcontainer called a method whose task the launcher performs itself. Holds the name of the task.
    #[error("libcontainer does not manage cgroups: cannot {0}")]
    Unsupported(&'static str),
}

/// A cgroup manager cannot be created.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct CreateCgroupSetupError(#[from] GetCgroupSetupError);

/// The version of the hierarchies cannot be detected.
#[derive(Debug, Error)]
#[error("cannot read the file system at {DEFAULT_CGROUP_ROOT}: {0}")]
pub struct GetCgroupSetupError(io::Error);

/// Version of the cgroup hierarchies on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupSetup {
    /// Version 1 with a version 2 hierarchy. [`get_cgroup_setup`] returns `Legacy` instead.
    Hybrid,
    /// Version 1 hierarchies.
    Legacy,
    /// Version 2 hierarchy.
    Unified,
}

/// Returns the version of the hierarchies at [`DEFAULT_CGROUP_ROOT`].
///
/// # Errors
/// Returns an error if the directory does not exist.
pub fn get_cgroup_setup() -> Result<CgroupSetup, GetCgroupSetupError> {
    let file_system = rustix::fs::statfs(DEFAULT_CGROUP_ROOT).map_err(|error| GetCgroupSetupError(error.into()))?;
    Ok(if file_system.f_type == CGROUP2_SUPER_MAGIC { CgroupSetup::Unified } else { CgroupSetup::Legacy })
}

/// Parameters that libcontainer passes to [`create_cgroup_manager`].
#[derive(Clone, Debug)]
pub struct CgroupConfig {
    /// Path below the hierarchy's root.
    pub cgroup_path: PathBuf,
    /// True if systemd is to create the cgroup. Ignored.
    pub systemd_cgroup: bool,
    /// Name of the container. Ignored.
    pub container_name: String,
}

/// State of a cgroup's freezer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreezerState {
    Frozen,
    Thawed,
}

/// Limits that libcontainer would apply. The launcher's specifications contain none.
#[derive(Clone, Debug)]
pub struct ControllerOpt<'a> {
    pub resources: &'a LinuxResources,
    pub disable_oom_killer: bool,
    pub oom_score_adj: Option<i32>,
    pub freezer_state: Option<FreezerState>,
}

/// Methods that libcontainer calls on the manager of a container's cgroup.
pub trait CgroupManager {
    type Error;

    /// Moves a process into the cgroup on version 2. Does nothing on version 1, because the process was created in the
    /// cgroup.
    fn add_task(&self, pid: Pid) -> Result<(), Self::Error>;

    /// Returns an error: the launcher sets limits itself.
    fn apply(&self, options: &ControllerOpt<'_>) -> Result<(), Self::Error>;

    /// Does nothing: the launcher removes the cgroup.
    fn remove(&self) -> Result<(), Self::Error>;

    /// Returns an error: the launcher pauses by signals.
    fn freeze(&self, state: FreezerState) -> Result<(), Self::Error>;

    /// Returns an error: the launcher reads usage itself.
    fn stats(&self) -> Result<(), Self::Error>;

    /// Returns an error: the launcher kills processes itself.
    fn get_all_pids(&self) -> Result<Vec<Pid>, Self::Error>;
}

/// The manager of a container's cgroup.
#[derive(Debug)]
pub struct AnyCgroupManager {
    /// Directory of the cgroup on version 2.
    dir: Option<PathBuf>,
}

impl AnyCgroupManager {
    /// Returns the manager unchanged.
    #[must_use]
    pub fn with_rootless(self, _rootless: bool) -> Self {
        self
    }
}

/// Creates a manager for a cgroup that the launcher has created.
///
/// # Errors
/// Returns an error if [`DEFAULT_CGROUP_ROOT`] does not exist.
pub fn create_cgroup_manager(config: CgroupConfig) -> Result<AnyCgroupManager, CreateCgroupSetupError> {
    let CgroupConfig { cgroup_path, .. } = config;
    let is_version_2 = get_cgroup_setup()? == CgroupSetup::Unified;
    let path = cgroup_path.strip_prefix("/").unwrap_or(&cgroup_path);
    Ok(AnyCgroupManager { dir: is_version_2.then(|| Path::new(DEFAULT_CGROUP_ROOT).join(path)) })
}

impl CgroupManager for AnyCgroupManager {
    type Error = AnyManagerError;

    fn add_task(&self, pid: Pid) -> Result<(), Self::Error> {
        let Some(dir) = &self.dir else { return Ok(()) };
        let file = dir.join("cgroup.procs");
        fs::write(&file, pid.to_string()).map_err(|source| AnyManagerError::Join { pid, file, source })
    }

    fn apply(&self, _options: &ControllerOpt<'_>) -> Result<(), Self::Error> {
        Err(AnyManagerError::Unsupported("apply limits"))
    }

    fn remove(&self) -> Result<(), Self::Error> {
        Ok(())
    }

    fn freeze(&self, _state: FreezerState) -> Result<(), Self::Error> {
        Err(AnyManagerError::Unsupported("freeze"))
    }

    fn stats(&self) -> Result<(), Self::Error> {
        Err(AnyManagerError::Unsupported("read usage"))
    }

    fn get_all_pids(&self) -> Result<Vec<Pid>, Self::Error> {
        Err(AnyManagerError::Unsupported("list processes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_joins_the_launchers_cgroup() {
        let dir = tempfile::tempdir().unwrap();
        let version_2 = AnyCgroupManager { dir: Some(dir.path().into()) };
        version_2.add_task(Pid::from_raw(7)).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("cgroup.procs")).unwrap(), "7");
        AnyCgroupManager { dir: None }.add_task(Pid::from_raw(7)).unwrap();
        let missing = AnyCgroupManager { dir: Some(dir.path().join("c1")) };
        let error = missing.add_task(Pid::from_raw(7)).unwrap_err().to_string();
        assert!(error.starts_with("cannot move process 7 into ") && error.contains("/c1/cgroup.procs"), "{error}");
    }
}
