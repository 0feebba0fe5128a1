//! Defines limits that apply regardless of the policy: limits of the kernel, and the executor's own limits on external
//! input.

use std::time::Duration;

/// Maximum length of a path, in bytes, NUL included (the kernel's PATH_MAX).
pub const PATH_MAX: usize = 4096;
/// Maximum length of a path component, in bytes.
pub const NAME_MAX: usize = 255;
/// Maximum length of a `NAME=VALUE` string, in bytes, including its NUL (the kernel's MAX_ARG_STRLEN).
pub const ARG_STRING_MAX: usize = 131_072;
/// Maximum total size of arguments and environment, in bytes, including 8 bytes for each pointer. This is less than a
/// quarter of an 8 MiB stack.
pub const ARG_TOTAL_MAX: usize = 2_000_000;
/// Maximum total length of the paths of all files, in bytes.
pub const FILE_PATHS_MAX: usize = 1 << 20;
/// Maximum number of arguments. Variables and files have the same limit.
pub const LIST_MAX: usize = 10_000;
/// Permission bits that a secret file can have: no setuid, setgid or sticky bit.
pub const MODE_MAX: u32 = 0o777;
/// Maximum number of directories that a request declares to hold only secret files.
pub const DIRECTORIES_MAX: usize = 100;
/// Minimum limit on the bytes that a process may write to the file system of its secret files: one page.
pub const WRITABLE_MIN: u64 = 4096;
/// Default limit on the bytes that a process may write to the file system of its secret files. The default is lower if
/// the memory limit divided by [`WRITABLE_SHARE`] is lower.
pub const WRITABLE_DEFAULT: u64 = 64 << 20;
/// Divisor of the container's memory limit. The quotient is an upper limit for [`WRITABLE_DEFAULT`].
pub const WRITABLE_SHARE: u64 = 4;
/// Maximum number of files, directories and links that a process may create in the file system of its secret files.
/// Each entry costs kernel memory and wipe time.
pub const WRITABLE_ENTRIES: u64 = 65_536;
/// Returns the CPU time limit (RLIMIT_CPU), in seconds, of a worker that reads this many bytes from outside, with at
/// most a million archive entries. The limit is 60 s plus the time at 32 MiB and 10,000 entries per second, which is
/// slow for TLS, digests and decompression.
pub const fn processor_seconds(bytes: u64) -> u64 {
    60 + 100 + bytes / (32 << 20)
}
/// Limit on core files of a container's processes, in bytes: no core file is written. The limit is 1 and not 0 because
/// the kernel ignores 0 if the host's core_pattern is a pipe, and would pass the program's memory to a program on the
/// host; with 1 the kernel does not pipe the core (core(5)).
pub const CORE_FILE_MAX: u64 = 1;
/// Maximum number of labels of a container.
pub const LABELS_MAX: usize = 64;
/// Maximum number of tags of a log.
pub const LOG_TAGS_MAX: usize = 32;
/// Maximum number of devices of a container, which all fit in its /dev.
pub const DEVICES_MAX: usize = 24;
/// Maximum number of path components of a device node below /dev.
pub const DEVICE_DEPTH_MAX: usize = 4;
/// Maximum number of device nodes and their parent directories in a container's /dev.
pub const DEVICE_ENTRIES_MAX: usize = DEVICES_MAX * DEVICE_DEPTH_MAX;
/// Maximum number of device nodes in a privileged container with all host devices. Directories have the same limit.
pub const HOST_DEVICES_MAX: usize = 4096;
/// Maximum number of masked paths in a container. Read-only paths have the same limit.
pub const SYSTEM_PATHS_MAX: usize = 100;
/// Maximum length of the name of an AppArmor profile, in bytes.
pub const APPARMOR_PROFILE_MAX: usize = 1024;
/// Maximum OOM score adjustment; the minimum is the negative of this value.
pub const OOM_SCORE_MAX: i32 = 1000;
/// Maximum limit of a log's bytes or lines per second.
pub const LOG_RATE_MAX: i64 = 1 << 50;
/// Maximum number of egress rules of a container.
pub const EGRESS_RULES_MAX: usize = 1000;
/// Maximum number of combinations of destination and ports in a container's egress rules.
pub const EGRESS_ELEMENTS_MAX: usize = 10_000;
/// Maximum grace period, and maximum time limit of an executed process: 7 days. Some Kubernetes pods have a grace
/// period of a day.
pub const GRACE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// Minimum memory limit, in bytes. Even an empty container needs this amount to start.
pub const MEMORY_MIN: u64 = 2 << 20;
/// Minimum limit on processes: while a container is created, a helper process runs next to its init.
pub const PIDS_MIN: u64 = 2;
/// Maximum limit on processes: the kernel's own limit on pids.
pub const PIDS_MAX: u64 = 4_194_304;
/// Maximum limit on memory or disk, in bytes; more than any machine has.
pub const SIZE_MAX: u64 = 1 << 50;
/// Minimum and maximum period of a CPU quota, in microseconds.
pub const CPU_PERIOD_US: (u64, u64) = (1000, 1_000_000);
/// Default period of a CPU quota, in microseconds.
pub const CPU_PERIOD_US_DEFAULT: u64 = 100_000;
/// Minimum CPU quota in each period, in microseconds.
pub const CPU_QUOTA_US_MIN: u64 = 1000;
/// Maximum number of CPUs that a quota allows.
pub const CPUS_MAX: u64 = 4096;
/// Lowest and highest CPU shares of cgroup v1.
pub const CPU_SHARES: (u32, u32) = (2, 262_144);
/// Maximum length of a parent cgroup's path, in bytes.
pub const CGROUP_PARENT_MAX: usize = 1024;
/// Maximum number of names in the path of a parent cgroup.
pub const CGROUP_DEPTH_MAX: usize = 16;
/// Minimum limit on open files. The container's init needs about 30 open files before the execve.
pub const NOFILE_MIN: u64 = 64;
/// Minimum disk limit, in bytes: the size of the smallest separate file system.
pub const DISK_MIN: u64 = 1 << 20;
/// Minimum size of a tmpfs, in bytes: one page.
pub const TMPFS_MIN: u64 = 4096;
/// Maximum size of a tmpfs, in bytes; more than any machine has.
pub const TMPFS_MAX: u64 = 1 << 50;
/// Maximum signal number.
pub const SIGNAL_MAX: u32 = 64;
/// Maximum user or group id. The kernel reserves 2^32 - 1 for "leave unchanged".
pub const ID_MAX: u32 = u32::MAX - 1;
/// Maximum number of layers of an image: the kernel's overlay file system accepts at most 500, and other engines have a
/// lower limit.
pub const LAYERS_MAX: usize = 127;
/// Maximum number of actions in a request.
pub const ACTIONS_MAX: usize = 256;
/// Maximum number of processes in a request. Each process has a log source and a mount for its secrets.
pub const PROCESSES_MAX: usize = 100;
/// Maximum number of downloads and uploads in a request.
pub const TRANSFERS_MAX: usize = 100;
/// Maximum length of a download or upload URL, in bytes. Signed URLs are long.
pub const URL_MAX: usize = 16 << 10;
/// Maximum length of the name of an artifact, in bytes.
pub const ARTIFACT_MAX: usize = 256;
/// Maximum length of a download's cache key, in bytes.
pub const CACHE_KEY_MAX: usize = 1024;
/// Maximum length of a transfer's failure reason, in bytes.
pub const TRANSFER_REASON_MAX: usize = 1024;
/// Maximum nesting depth of actions.
pub const ACTION_DEPTH_MAX: usize = 16;
/// Maximum timeout of an action.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// Maximum number of supplementary groups that a request adds.
pub const EXTRA_GROUPS_MAX: usize = 32;
/// Maximum length of a termination message, in bytes.
pub const TERMINATION_BYTES_MAX: u32 = 16_384;
/// Maximum length of the message of an emit_progress action, in bytes.
pub const PROGRESS_MESSAGE_MAX: usize = 4096;
/// Maximum `max_retries` of a restart policy.
pub const RESTARTS_MAX: u32 = 1_000_000;
/// Minimum configurable delay before the second consecutive restart. The first restart is immediate.
pub const RESTART_DELAY_MIN: Duration = Duration::from_millis(100);
/// Maximum configurable delay before a restart.
pub const RESTART_DELAY_MAX: Duration = Duration::from_secs(3600);
