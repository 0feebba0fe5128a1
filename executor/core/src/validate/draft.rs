//! Defines drafts: requests before validation, borrowed from the decoded messages.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::plan::{
    Actions, Checks, Connectivity, Direction, HostOptions, Isolation, Network, PlannedImage, PodRole, Redaction,
    Surroundings, TerminationMessage, Volume,
};

/// A request before validation, borrowed from the message.
#[derive(Default)]
pub struct Draft<'a> {
    /// Container id.
    pub id: &'a str,
    /// Reference of the root file system; `host` if empty.
    pub rootfs: &'a str,
    /// Path or name of the program.
    pub path: &'a str,
    /// Arguments, without the program's name.
    pub args: Vec<&'a str>,
    /// Working directory.
    pub dir: &'a str,
    /// Environment variables as names and values.
    pub env: Vec<(&'a str, &'a [u8])>,
    /// User as `user[:group]`; root if empty.
    pub user: &'a str,
    /// Limit on open files (RLIMIT_NOFILE); the policy's default if unset.
    pub nofile: Option<u64>,
    /// Bytes of memory; 0 = default.
    pub memory_bytes: u64,
    /// Number of processes and threads; 0 = default.
    pub pids: u64,
    /// CPU time in thousandths of a CPU; 0 = no limit.
    pub cpu_millis: u64,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Grace period; the policy's default if unset.
    pub grace: Option<Duration>,
    /// Kind of network.
    pub network: Option<Network>,
    /// Log source of the process's output.
    pub log_source: &'a str,
    /// True if the output is discarded.
    pub suppress_log_output: bool,
    /// Secret variables as names and values.
    pub secret_env: Vec<(&'a str, &'a [u8])>,
    /// Secret arguments: index in `args`, and value.
    pub secret_args: Vec<(u32, &'a str)>,
    /// Secret files of the container.
    pub files: Vec<DraftFile<'a>>,
    /// Directories that hold only secret files.
    pub file_directories: Vec<&'a str>,
    /// Bytes that the process may write to the file system of its secret files; 0 = default. Unset if the files are
    /// read-only.
    pub writable_files: Option<u64>,
    /// Path of the file for the runtime token; no token if empty.
    pub token_path: &'a str,
    /// Masking of the output.
    pub redaction: Redaction,
    /// Outputs to be captured after the process has exited.
    pub outputs: Option<DraftOutputs<'a>>,
    /// Resolved image of the reference.
    pub image: Option<PlannedImage>,
    /// Bytes of disk; 0 = default.
    pub disk_bytes: u64,
    /// Weight for the distribution of CPU time; 0 = the kernel's default.
    pub cpu_weight: u32,
    /// Weight for the distribution of disk bandwidth; 0 = the kernel's default.
    pub io_weight: u32,
    /// Isolation as requested, with names of capabilities in any spelling.
    pub isolation: Isolation,
    /// Network settings as requested.
    pub connectivity: Connectivity,
    /// Mounts, kernel settings and host names as requested; sizes may be 0.
    pub surroundings: Surroundings,
    /// Volumes as requested; sizes may be 0.
    pub volumes: Vec<Volume>,
    /// CPUs, devices and attributes of processes as requested; paths and permissions may be empty.
    pub host_options: HostOptions,
    /// Bytes of swap beyond `memory_bytes`; -1 = no limit.
    pub swap_bytes: Option<i64>,
    /// Bytes of memory that the kernel protects from reclaim; 0 = none.
    pub memory_reservation_bytes: u64,
    /// Resources without a limit.
    pub unlimited: Unlimited,
    /// Period of `cpu_quota_us` in microseconds; 0 = default.
    pub cpu_period_us: u64,
    /// CPU time in each period, in microseconds; -1 = no limit, 0 = unset.
    pub cpu_quota_us: i64,
    /// Weight for the distribution of CPU time in the unit of cgroup v1; 0 = the kernel's default.
    pub cpu_shares: u32,
    /// True if the process gets a terminal.
    pub terminal: bool,
    /// Rows and columns of the terminal; 0 = default.
    pub window: (u32, u32),
    /// True if standard input comes from attached clients.
    pub stdin: bool,
    /// True if the output waits for the first lossless client.
    pub await_reader: bool,
    /// Stop signal; 0 = default.
    pub stop_signal: u32,
    /// True if the container is deleted as soon as it is completed.
    pub remove_when_completed: bool,
    /// True if the completed container is kept until a client deletes the container.
    pub keep_until_deleted: bool,
    /// True if the process starts only after a separate Start request.
    pub hold: bool,
    /// Environment variables of every process. A process that sets a variable with the same name keeps its own value.
    pub shared_env: Vec<(&'a str, &'a [u8])>,
    /// Tree of actions; unset for a single run action. With a tree, the program's fields above are empty.
    pub actions: Option<Actions>,
    /// Processes of the tree, in the order of their indices.
    pub steps: Vec<DraftStep<'a>>,
    /// Downloads and uploads of the tree, in the order of their indices.
    pub transfers: Vec<DraftTransfer<'a>>,
    /// Limits and tags of the log.
    pub logging: DraftLogging,
    /// Checks as requested; zeros mean defaults.
    pub checks: Option<Checks>,
    /// Supplementary groups, by number or name.
    pub extra_groups: Vec<&'a str>,
    /// True if processes have no supplementary groups other than `extra_groups`.
    pub strict_groups: bool,
    /// True if processes get their user's groups from the container's /etc/group even if the user is specified with a
    /// group.
    pub merge_groups: bool,
    /// True if the environment is kept.
    pub keep_environment: bool,
    /// File for the termination message, as requested; empty and 0 mean defaults.
    pub termination_message: Option<TerminationMessage>,
    /// Role in a pod, if any.
    pub pod: Option<PodRole>,
}

impl<'a> Draft<'a> {
    /// Returns true for the draft of a pod.
    pub(super) fn is_pod(&self) -> bool {
        matches!(self.pod, Some(PodRole::Holder { .. }))
    }

    /// Returns the process of a single run action.
    pub(super) fn main(&self) -> DraftStep<'a> {
        DraftStep {
            field: "action.run".to_owned(),
            path: self.path,
            args: self.args.clone(),
            dir: self.dir,
            env: self.env.clone(),
            user: self.user,
            nofile: self.nofile,
            log_source: self.log_source,
            suppress_log_output: self.suppress_log_output,
            secret_env: self.secret_env.clone(),
            secret_args: self.secret_args.clone(),
            files: Vec::new(),
        }
    }
}

/// Resources without a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unlimited {
    /// True if memory has no limit.
    pub memory: bool,
    /// True if the number of processes has no limit.
    pub pids: bool,
}

/// A process of a request, before validation.
#[derive(Clone, Default)]
pub struct DraftStep<'a> {
    /// Field path of the process's run action: `action.serial.actions[0].run`.
    pub field: String,
    /// Path or name of the program.
    pub path: &'a str,
    /// Arguments, without the program's name.
    pub args: Vec<&'a str>,
    /// Working directory.
    pub dir: &'a str,
    /// Environment variables as names and values.
    pub env: Vec<(&'a str, &'a [u8])>,
    /// User as `user[:group]`; root if empty.
    pub user: &'a str,
    /// Limit on open files (RLIMIT_NOFILE); the policy's default if unset.
    pub nofile: Option<u64>,
    /// Log source of the process's output.
    pub log_source: &'a str,
    /// True if the output is discarded.
    pub suppress_log_output: bool,
    /// Secret variables as names and values.
    pub secret_env: Vec<(&'a str, &'a [u8])>,
    /// Secret arguments: index in `args`, and value.
    pub secret_args: Vec<(u32, &'a str)>,
    /// Secret files that exist while the process runs.
    pub files: Vec<DraftFile<'a>>,
}

impl<'a> DraftStep<'a> {
    /// Returns the shared variables that the process does not set itself.
    pub(super) fn inherited<'b>(
        &'b self,
        shared: &'b [(&'a str, &'a [u8])],
    ) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        let sets = |name: &str| self.env.iter().chain(&self.secret_env).any(|(own, _)| *own == name);
        shared.iter().copied().filter(move |(name, _)| !sets(name))
    }
}

/// A download or an upload of a request.
#[derive(Clone)]
pub struct DraftTransfer<'a> {
    /// Path of the transfer's action, which is the id of the transfer.
    pub id: String,
    /// Download into the container, or upload from it.
    pub direction: Direction,
    /// Name of the artifact.
    pub artifact: &'a str,
    /// URL; unset when a plan is checked again, because plans have no URLs.
    pub url: Option<&'a str>,
    /// Path in the container.
    pub path: &'a str,
    /// User as `user[:group]`; root if empty.
    pub user: &'a str,
    /// Log source of the transfer's log lines.
    pub log_source: &'a str,
    /// Algorithm and value of a checksum; both empty if there is none.
    pub checksum: (&'a str, &'a str),
    /// Key in the artifact cache; empty if the download is not cached.
    pub cache_key: &'a str,
}

/// Limits, tags and file of a request's log.
#[derive(Clone, Debug, Default)]
pub struct DraftLogging {
    /// Bytes per second: -1 for no limit; the policy's default if unset.
    pub bytes_per_second: Option<i64>,
    /// Lines per second: -1 for no limit; the policy's default if unset.
    pub lines_per_second: Option<i64>,
    /// Tags by name.
    pub tags: BTreeMap<String, String>,
    /// Path of the log file; empty for none.
    pub file: PathBuf,
}

/// A file of a request, without its content.
#[derive(Clone, Debug)]
pub struct DraftFile<'a> {
    /// Field path of the file in the request.
    pub field: String,
    /// Path as requested, absolute or relative.
    pub path: &'a str,
    /// Size of the content in bytes.
    pub size: u64,
    /// True if the content is not masked in logs.
    pub public: bool,
    /// Permission bits, if the request has any.
    pub mode: Option<u32>,
    /// Name or number of the group, if the request has one.
    pub group: Option<&'a str>,
}

impl<'a> From<(String, &'a str, u64)> for DraftFile<'a> {
    fn from((field, path, size): (String, &'a str, u64)) -> Self {
        Self { field, path, size, public: false, mode: None, group: None }
    }
}

/// The outputs that a request declares.
#[derive(Clone, Debug, Default)]
pub struct DraftOutputs<'a> {
    /// Paths of single files.
    pub files: Vec<&'a str>,
    /// Path of a directory; empty if `files` is used.
    pub directory: &'a str,
    /// Maximum bytes of all outputs; 0 = the policy's limit.
    pub bytes_max: u64,
}
