//! The limits that hold whatever the policy says: the kernel's own, and ours on what comes from outside.

use std::time::Duration;

/// Longest path, in bytes, NUL included (the kernel's PATH_MAX).
pub const PATH_MAX: usize = 4096;
/// Longest path component, in bytes.
pub const NAME_MAX: usize = 255;
/// A `NAME=VALUE` string, its NUL included, must be shorter than this plus one (the kernel's MAX_ARG_STRLEN).
pub const ARG_STRING_MAX: usize = 131_072;
/// Arguments and environment together, with 8 bytes for each pointer: what a stack of 8 MiB leaves (a quarter).
pub const ARG_TOTAL_MAX: usize = 2_000_000;
/// Maximum bytes over the paths of all files.
pub const FILE_PATHS_MAX: usize = 1 << 20;
/// Maximum number of arguments, most variables, most files.
pub const LIST_MAX: usize = 10_000;
/// Permission bits that a secret file can have: none that changes whom a program runs as.
pub const MODE_MAX: u32 = 0o777;
/// Maximum number of directories that a request declares to hold secret files alone.
pub const DIRECTORIES_MAX: usize = 100;
/// Least bytes that a process may be allowed to write among its secret files: a page.
pub const WRITABLE_MIN: u64 = 4096;
/// Bytes that a process may write among its files by default: this, or the share [`WRITABLE_SHARE`] of its memory if
/// that is less.
pub const WRITABLE_DEFAULT: u64 = 64 << 20;
/// Divisor of the container's memory for [`WRITABLE_DEFAULT`].
pub const WRITABLE_SHARE: u64 = 4;
/// Files, directories and links that it may make there: each costs the kernel memory, and the wipe time.
pub const WRITABLE_ENTRIES: u64 = 65_536;
/// Returns the processor time, in seconds, that a process may use to read so many bytes from outside, of which at most a million
/// entries of archives come: RLIMIT_CPU of workers. 32 MB and 10,000 entries a second are slow for TLS, digests and decompression.
pub const fn processor_seconds(bytes: u64) -> u64 {
    60 + 100 + bytes / (32 << 20)
}
/// Limit on core files of a container's processes, in bytes: none is written. It is 1 and not 0 because the kernel pays no
/// attention to 0 where the host's core_pattern is a pipe, and would hand the program's memory to a program of the host;
/// 1 is what it refuses to pipe (core(5)).
pub const CORE_FILE_MAX: u64 = 1;
/// Maximum number of labels.
pub const LABELS_MAX: usize = 64;
/// Maximum number of tags of a log.
pub const LOG_TAGS_MAX: usize = 32;
/// Maximum number of devices of a container, for whose nodes its /dev has room.
pub const DEVICES_MAX: usize = 24;
/// Maximum number of names below /dev of a device node.
pub const DEVICE_DEPTH_MAX: usize = 4;
/// Longest name of an AppArmor profile, in bytes.
pub const APPARMOR_PROFILE_MAX: usize = 1024;
/// Highest adjustment of the score by which the kernel chooses processes to kill, and with a minus the lowest.
pub const OOM_SCORE_MAX: i32 = 1000;
/// Highest limit of a log's bytes or lines per second.
pub const LOG_RATE_MAX: i64 = 1 << 50;
/// Maximum number of rules of a container's egress.
pub const EGRESS_RULES_MAX: usize = 1000;
/// Maximum number of combinations of destination and ports in all of these rules.
pub const EGRESS_ELEMENTS_MAX: usize = 10_000;
/// Longest grace period.
pub const GRACE_MAX: Duration = Duration::from_secs(3600);
/// Least memory: below it not even an empty container starts.
pub const MEMORY_MIN: u64 = 2 << 20;
/// Least processes: while a container is made, its init has a process beside it.
pub const PIDS_MIN: u64 = 2;
/// Most processes: the kernel's own limit on their ids.
pub const PIDS_MAX: u64 = 4_194_304;
/// Largest limit on memory or disk, in bytes: what no machine has.
pub const SIZE_MAX: u64 = 1 << 50;
/// Least open files: with fewer an init cannot make its container, which holds some 30 until the program is executed.
pub const NOFILE_MIN: u64 = 64;
/// Least disk: below it no file system of its own can be made.
pub const DISK_MIN: u64 = 1 << 20;
/// Least and most bytes of a file system in memory: a page, and what no machine has.
pub const TMPFS_MIN: u64 = 4096;
/// Largest tmpfs.
pub const TMPFS_MAX: u64 = 1 << 50;
/// Largest number of a signal.
pub const SIGNAL_MAX: u32 = 64;
/// Largest user or group id: 2^32 - 1 means "leave as it is" to the kernel.
pub const ID_MAX: u32 = u32::MAX - 1;
/// Maximum number of layers of an image: the kernel's overlay file system takes no more than 500, and the limit that other engines keep
/// is lower.
pub const LAYERS_MAX: usize = 127;
/// Maximum number of actions in a request.
pub const ACTIONS_MAX: usize = 256;
/// Maximum number of processes in a request: each has a source of output, and a place for its secrets.
pub const PROCESSES_MAX: usize = 100;
/// Maximum number of downloads and uploads in a request.
pub const TRANSFERS_MAX: usize = 100;
/// Longest URL of a download or an upload, in bytes: signed URLs are long.
pub const URL_MAX: usize = 16 << 10;
/// Longest name of an artifact, in bytes.
pub const ARTIFACT_MAX: usize = 256;
/// Longest key of a download in the cache, in bytes.
pub const CACHE_KEY_MAX: usize = 1024;
/// Longest reason of a transfer's failure, in bytes.
pub const TRANSFER_REASON_MAX: usize = 1024;
/// Maximum depth of actions in actions.
pub const ACTION_DEPTH_MAX: usize = 16;
/// Longest timeout of an action.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// Maximum number of supplementary groups that a request adds.
pub const EXTRA_GROUPS_MAX: usize = 32;
/// Maximum bytes that are kept of a process's message about its end.
pub const TERMINATION_BYTES_MAX: u32 = 16_384;
/// Longest message of an emit_progress action, in bytes.
pub const PROGRESS_MESSAGE_MAX: usize = 4096;
/// Maximum number of restarts that a policy can limit itself to.
pub const RESTARTS_MAX: u32 = 1_000_000;
/// Shortest pause before a restart that is not the first one in a row.
pub const RESTART_DELAY_MIN: Duration = Duration::from_millis(100);
/// Longest pause before a restart.
pub const RESTART_DELAY_MAX: Duration = Duration::from_secs(3600);
