//! The plan of a container: a validated request without its secrets.
//!
//! It is what the launcher gets to see, what records hold and what `inspect` shows. Arguments, values of
//! environment variables and contents of files travel beside it (see [`crate::payload`]) and are in no plan;
//! only [`crate::validate`] makes one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ident::ContainerId;

mod connectivity;
mod image;
mod isolation;
mod surroundings;

pub use connectivity::{Connectivity, Network, Protocol, PublishedPort};
pub use image::PlannedImage;
pub use isolation::{Isolation, UserNamespace};
pub use surroundings::{ExtraHost, SHM_BYTES_DEFAULT, Surroundings, TMPFS_MODE_DEFAULT, Tmpfs};

/// Where a container's root file system comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rootfs {
    /// A read-only view of the host's programs with a minimal `/etc` of our own.
    Host,
    /// A prepared directory, never written to: the container's changes go to an upper layer.
    Dir(PathBuf),
    /// The layers of an image, shared with its other containers, never written to.
    Image(PlannedImage),
}

impl std::fmt::Display for Rootfs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Dir(path) => write!(f, "dir:{}", path.display()),
            Self::Image(image) => f.write_str(&image.reference),
        }
    }
}

/// Limits in force: defaults are filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes, swap included.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Thousandths of a processor; 0 = no limit.
    pub cpu_millis: u64,
    /// Open files of a process.
    pub nofile: u64,
    /// Bytes that it may add to its root file system; 0 = no limit.
    #[serde(default)]
    pub disk_bytes: u64,
    /// Share of the processors, 1 to 10000; 0 = as the kernel has it.
    #[serde(default)]
    pub cpu_weight: u32,
    /// Share of the disks likewise.
    #[serde(default)]
    pub io_weight: u32,
}

/// A user or group as the request names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Principal {
    /// By number.
    Id(u32),
    /// By name, to be looked up in the rootfs.
    Name(String),
}

/// `user[:group]`; root when the request says nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserRef {
    /// The user.
    pub user: Principal,
    /// The group; the user's own where none is named.
    pub group: Option<Principal>,
}

impl std::fmt::Display for Principal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl std::fmt::Display for UserRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.user.fmt(f)?;
        self.group.as_ref().map_or(Ok(()), |group| write!(f, ":{group}"))
    }
}

/// A volume mounted file, without its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedFile {
    /// Absolute, in the container; each component was checked.
    pub path: PathBuf,
    /// Bytes of content.
    pub size: u64,
    /// The request's own name of the entry, for errors: `volume_mounted_files[2].path`.
    pub field: String,
    /// Not masked in logs.
    #[serde(default)]
    pub public: bool,
    /// It holds the container's runtime token, which the shim makes: no content of it comes with the request.
    #[serde(default)]
    pub token: bool,
    /// Permission bits.
    #[serde(default = "file_mode")]
    pub mode: u32,
    /// Its group; the one of the process's user where none is named.
    #[serde(default)]
    pub group: Option<Principal>,
}

/// Permission bits of a secret file where nobody says otherwise: its owner's alone.
pub const FILE_MODE: u32 = 0o600;

fn file_mode() -> u32 {
    FILE_MODE
}

impl PlannedFile {
    /// A secret file, as private as it is where nobody says otherwise.
    pub fn private(path: impl Into<PathBuf>, size: u64, field: impl Into<String>) -> Self {
        let (path, field) = (path.into(), field.into());
        Self { path, size, field, public: false, token: false, mode: FILE_MODE, group: None }
    }

    /// The request's own name of its path.
    pub fn path_field(&self) -> String {
        if self.token { self.field.clone() } else { format!("{}.path", self.field) }
    }
}

/// Which secret values are masked in a container's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Redaction {
    /// Values of 8 bytes or more.
    #[default]
    Auto,
    /// Values of 4 bytes or more.
    All,
    /// Nothing.
    None,
}

/// What is captured at the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedOutputs {
    /// Which files.
    pub source: OutputSource,
    /// Bytes over all of them.
    pub bytes_max: u64,
}

/// Which files are captured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OutputSource {
    /// These, by their absolute paths.
    Files(Vec<PathBuf>),
    /// All below this directory.
    Directory(PathBuf),
}

/// Secret files that the process may change, with what it writes beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WritableFiles {
    /// Bytes that it may write beyond the files of the request.
    pub bytes_max: u64,
}

/// How secret files lie in their file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// In generations, for the process to read: a later one replaces an earlier one by one rename.
    Generations,
    /// Each at its place, for the process to change, with a second name where the process cannot take it away.
    Writable,
}

/// A process to run in the container. This version plans one, called `main`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedProcess {
    /// Unique within the container.
    pub id: String,
    /// The program as requested.
    pub path: String,
    /// How many arguments there are, the program's name not counted.
    pub argument_count: u32,
    /// Working directory.
    pub dir: String,
    /// Names of its environment variables, but for the secret ones.
    pub environment_names: Vec<String>,
    /// Names of its secret environment variables.
    #[serde(default)]
    pub secret_environment_names: Vec<String>,
    /// Which arguments are secret, in ascending order.
    #[serde(default)]
    pub secret_arguments: Vec<u32>,
    /// Marks its log lines.
    pub log_source: String,
    /// Its output is discarded.
    pub suppress_log_output: bool,
}

/// Id of the one process that a RunAction makes.
pub const MAIN_PROCESS: &str = "main";

/// Everything about a container that may be known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Its id.
    pub id: ContainerId,
    /// Where its root comes from.
    pub rootfs: Rootfs,
    /// As whom its process runs.
    pub user: UserRef,
    /// What it may use.
    pub limits: Limits,
    /// What it can reach.
    pub network: Network,
    /// Between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// The control plane's own marks.
    pub labels: BTreeMap<String, String>,
    /// Its secret files. The runtime token's is the last one, where there is one.
    pub files: Vec<PlannedFile>,
    /// Directories that hold such files alone, and are mounted as a whole where the root file system lacks them.
    #[serde(default)]
    pub file_directories: Vec<PathBuf>,
    /// Its secret files are the process's to change; they are read-only without.
    #[serde(default)]
    pub writable_files: Option<WritableFiles>,
    /// What is masked in its output.
    #[serde(default)]
    pub redaction: Redaction,
    /// What is captured of it at the end.
    #[serde(default)]
    pub outputs: Option<PlannedOutputs>,
    /// How far it is kept from the host.
    #[serde(default)]
    pub isolation: Isolation,
    /// What it can reach and is reached by.
    #[serde(default)]
    pub connectivity: Connectivity,
    /// What it finds around it.
    #[serde(default = "surroundings::before")]
    pub surroundings: Surroundings,
    /// Its process has a terminal.
    #[serde(default)]
    pub terminal: bool,
    /// Its process's standard input is what attached clients send.
    #[serde(default)]
    pub stdin: bool,
    /// What its process writes waits for the first lossless client.
    #[serde(default)]
    pub await_reader: bool,
    /// What Stop sends first.
    #[serde(default = "sigterm")]
    pub stop_signal: u32,
    /// It is deleted as soon as it is completed.
    #[serde(default)]
    pub remove_when_completed: bool,
    /// Its processes.
    pub processes: Vec<PlannedProcess>,
}

/// What Stop sends first where nobody says otherwise: SIGTERM.
pub const SIGTERM: u32 = 15;

fn sigterm() -> u32 {
    SIGTERM
}

impl Plan {
    /// The process that the container's end follows.
    pub fn main(&self) -> Option<&PlannedProcess> {
        self.processes.iter().find(|process| process.id == MAIN_PROCESS)
    }

    /// The file that holds its runtime token.
    pub fn token_file(&self) -> Option<&PlannedFile> {
        self.files.last().filter(|file| file.token)
    }

    /// How its secret files lie in their file system.
    pub fn layout(&self) -> Layout {
        if self.writable_files.is_some() { Layout::Writable } else { Layout::Generations }
    }

    /// The files whose content comes with the request, in the order of the files payload.
    pub fn given_files(&self) -> &[PlannedFile] {
        &self.files[..self.files.len() - usize::from(self.token_file().is_some())]
    }
}
