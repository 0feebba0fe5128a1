//! Drafts: requests before validation.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::plan::{
    Actions, Checks, Connectivity, Direction, HostOptions, Isolation, Network, PlannedImage, PodRole, Redaction,
    Surroundings, TerminationMessage, Volume,
};

/// A request as it came, borrowed.
#[derive(Default)]
pub struct Draft<'a> {
    /// Container id.
    pub id: &'a str,
    /// Reference of the root file system; `host` when empty.
    pub rootfs: &'a str,
    /// The program.
    pub path: &'a str,
    /// Arguments.
    pub args: Vec<&'a str>,
    /// Working directory.
    pub dir: &'a str,
    /// Environment: names and values.
    pub env: Vec<(&'a str, &'a str)>,
    /// `user[:group]`.
    pub user: &'a str,
    /// RLIMIT_NOFILE.
    pub nofile: Option<u64>,
    /// Bytes of memory; 0 = default.
    pub memory_bytes: u64,
    /// 0 = default.
    pub pids: u64,
    /// 0 = no limit.
    pub cpu_millis: u64,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Grace period.
    pub grace: Option<Duration>,
    /// Network.
    pub network: Option<Network>,
    /// Mark of the log lines.
    pub log_source: &'a str,
    /// Discard the output.
    pub suppress_log_output: bool,
    /// Secret variables: name and value.
    pub secret_env: Vec<(&'a str, &'a str)>,
    /// Secret arguments: which of `args`, and the value.
    pub secret_args: Vec<(u32, &'a str)>,
    /// Files.
    pub files: Vec<DraftFile<'a>>,
    /// Directories that hold such files alone.
    pub file_directories: Vec<&'a str>,
    /// Bytes that the process may write among its files, if they are writable; 0 = default.
    pub writable_files: Option<u64>,
    /// Path of the file that gets the runtime token; none when empty.
    pub token_path: &'a str,
    /// Masking of the output.
    pub redaction: Redaction,
    /// Outputs to be captured at the end.
    pub outputs: Option<DraftOutputs<'a>>,
    /// Image that the reference was resolved to.
    pub image: Option<PlannedImage>,
    /// Bytes of disk; 0 = default.
    pub disk_bytes: u64,
    /// 0 = as the kernel has it.
    pub cpu_weight: u32,
    /// 0 = as the kernel has it.
    pub io_weight: u32,
    /// Isolation as requested, with names of capabilities in any spelling.
    pub isolation: Isolation,
    /// Network settings as requested.
    pub connectivity: Connectivity,
    /// Mounts, kernel settings and host names as requested; sizes may be 0.
    pub surroundings: Surroundings,
    /// Volumes as requested; sizes may be 0.
    pub volumes: Vec<Volume>,
    /// Processors, devices and attributes of processes as requested; paths and permissions may be empty.
    pub host_options: HostOptions,
    /// Bytes of swap beyond the memory; -1 = no limit.
    pub swap_bytes: Option<i64>,
    /// 0 = none.
    pub memory_reservation_bytes: u64,
    /// A terminal.
    pub terminal: bool,
    /// Rows and columns of the terminal; 0 = default.
    pub window: (u32, u32),
    /// Input from attached clients.
    pub stdin: bool,
    /// Output waits for its reader.
    pub await_reader: bool,
    /// 0 = default.
    pub stop_signal: u32,
    /// Deleted at its end.
    pub remove_when_completed: bool,
    /// Variables of every process that does not set them itself.
    pub shared_env: Vec<(&'a str, &'a str)>,
    /// Tree of actions, where there is more than a single run action; the fields of the program above are empty then.
    pub actions: Option<Actions>,
    /// Processes of the tree, in the order of their indices.
    pub steps: Vec<DraftStep<'a>>,
    /// Downloads and uploads of the tree, in the order of their indices.
    pub transfers: Vec<DraftTransfer<'a>>,
    /// Limits and tags of the log.
    pub logging: DraftLogging,
    /// Checks as requested; zeros for defaults.
    pub checks: Option<Checks>,
    /// Supplementary groups, by number or name.
    pub extra_groups: Vec<&'a str>,
    /// Keep the environment.
    pub keep_environment: bool,
    /// File for a message about the end, as requested; empty and 0 for defaults.
    pub termination_message: Option<TerminationMessage>,
    /// Part in a pod.
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

/// A process of a request.
#[derive(Clone, Default)]
pub struct DraftStep<'a> {
    /// The field of its run action: `action.serial.actions[0].run`.
    pub field: String,
    /// The program.
    pub path: &'a str,
    /// Arguments.
    pub args: Vec<&'a str>,
    /// Working directory.
    pub dir: &'a str,
    /// Environment: names and values.
    pub env: Vec<(&'a str, &'a str)>,
    /// `user[:group]`.
    pub user: &'a str,
    /// RLIMIT_NOFILE.
    pub nofile: Option<u64>,
    /// Mark of the log lines.
    pub log_source: &'a str,
    /// Discard the output.
    pub suppress_log_output: bool,
    /// Secret variables: name and value.
    pub secret_env: Vec<(&'a str, &'a str)>,
    /// Secret arguments: which of `args`, and the value.
    pub secret_args: Vec<(u32, &'a str)>,
    /// Files that are there while it runs.
    pub files: Vec<DraftFile<'a>>,
}

impl<'a> DraftStep<'a> {
    /// Returns the shared variables that it does not set itself.
    pub(super) fn inherited<'b>(
        &'b self,
        shared: &'b [(&'a str, &'a str)],
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        let sets = |name: &str| self.env.iter().chain(&self.secret_env).any(|(own, _)| *own == name);
        shared.iter().copied().filter(move |(name, _)| !sets(name))
    }
}

/// A download or an upload of a request.
#[derive(Clone)]
pub struct DraftTransfer<'a> {
    /// Path of its action.
    pub id: String,
    /// Direction.
    pub direction: Direction,
    /// Name of what is transferred.
    pub artifact: &'a str,
    /// URL; unset where a plan is checked again, which has none.
    pub url: Option<&'a str>,
    /// Path in the container.
    pub path: &'a str,
    /// `user[:group]`; root when empty.
    pub user: &'a str,
    /// Mark of the log lines.
    pub log_source: &'a str,
    /// Algorithm and value of a checksum; both are empty where there is none.
    pub checksum: (&'a str, &'a str),
    /// Key in the cache; empty where the download is not cached.
    pub cache_key: &'a str,
}

/// Limits and tags of a request's log.
#[derive(Clone, Debug, Default)]
pub struct DraftLogging {
    /// Bytes per second: -1 for no limit, the policy's default where unset.
    pub bytes_per_second: Option<i64>,
    /// Lines per second likewise.
    pub lines_per_second: Option<i64>,
    /// Tags.
    pub tags: BTreeMap<String, String>,
}

/// A file of a request, without its content.
#[derive(Clone, Debug)]
pub struct DraftFile<'a> {
    /// The field that names it.
    pub field: String,
    /// Path.
    pub path: &'a str,
    /// Size of the content in bytes.
    pub size: u64,
    /// True when the content is not masked in logs.
    pub public: bool,
    /// Permission bits, where the request names any.
    pub mode: Option<u32>,
    /// Name or number of its group, where the request names one.
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
    /// Files.
    pub files: Vec<&'a str>,
    /// Or one directory.
    pub directory: &'a str,
    /// Maximum bytes of all outputs; 0 = the policy's limit.
    pub bytes_max: u64,
}
