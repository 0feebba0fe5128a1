//! Drafts: requests before validation.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::plan::{Checks, Connectivity, Isolation, Network, PlannedImage, Redaction, Surroundings};

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
    /// A terminal.
    pub terminal: bool,
    /// Input from attached clients.
    pub stdin: bool,
    /// Output waits for its reader.
    pub await_reader: bool,
    /// 0 = default.
    pub stop_signal: u32,
    /// Deleted at its end.
    pub remove_when_completed: bool,
    /// Checks as requested; zeros for defaults.
    pub checks: Option<Checks>,
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
