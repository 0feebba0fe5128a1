//! Defines the requests from the daemon to a shim, and the shim's reports.

use std::collections::BTreeMap;

use prost::{Message, Oneof};

use super::{Attach, Done, Refused};
use crate::usage::Usage;

/// Request from the daemon to a shim.
#[derive(Clone, PartialEq, Message)]
pub struct ShimRequest {
    /// Number of the request; the reply repeats it.
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    /// Call; `None` if a newer peer sent a call that is unknown here.
    #[prost(oneof = "ShimCall", tags = "2, 3, 4, 5, 6, 7, 8, 40, 41, 42, 43, 44, 80, 81, 82, 100, 101, 102, 130, 450")]
    pub call: Option<ShimCall>,
}

/// Calls from the daemon to a shim.
#[derive(Clone, PartialEq, Oneof)]
pub enum ShimCall {
    /// Send the container's stop signal, then SIGKILL.
    #[prost(message, tag = "2")]
    Stop(Stop),
    /// Send a signal to a process.
    #[prost(message, tag = "3")]
    Signal(Signal),
    /// Pass a handle of the secret file system and the heartbeat to a restarted launcher. The descriptors accompany the
    /// reply, in this order. Without secret files, the reply is a refusal with only the heartbeat's descriptor.
    #[prost(message, tag = "4")]
    Share(Share),
    /// Replace the secret files; descriptors accompany the request.
    #[prost(message, tag = "5")]
    UpdateFiles(UpdateFiles),
    /// Return the secret inputs, for the holder of the runtime token. A memory file accompanies the reply.
    #[prost(message, tag = "6")]
    ReadSecrets(ReadSecrets),
    /// Connect a client to the process's input and output.
    #[prost(message, tag = "7")]
    Attach(Attach),
    /// Run one iteration of the event loop. There is no reply: the launcher sees the iteration in the shim's heartbeat.
    #[prost(message, tag = "8")]
    Ping(Ping),
    /// Replace the egress settings; a descriptor accompanies the request.
    #[prost(message, tag = "40")]
    UpdateEgress(UpdateEgress),
    /// Replace limits of the container.
    #[prost(message, tag = "41")]
    UpdateLimits(UpdateLimits),
    /// Stop all processes of the container until [`Resume`].
    #[prost(message, tag = "42")]
    Pause(Pause),
    /// Resume the processes of the container.
    #[prost(message, tag = "43")]
    Resume(Resume),
    /// Start the process of a held container.
    #[prost(message, tag = "44")]
    Start(Start),
    /// Terminate the container because a check failed.
    #[prost(message, tag = "80")]
    EndUnhealthy(EndUnhealthy),
    /// Write the state of the health checks to the log.
    #[prost(message, tag = "82")]
    NoteHealth(NoteHealth),
    /// Create a socket for a check. The socket's descriptor accompanies the reply.
    #[prost(message, tag = "81")]
    MakeSocket(MakeSocket),
    /// Return the URL of a transfer in progress. A memory file accompanies the reply.
    #[prost(message, tag = "100")]
    ReadTransfer(ReadTransfer),
    /// Report the result of a transfer that executord executed.
    #[prost(message, tag = "101")]
    EndTransfer(EndTransfer),
    /// Limit the CPU time of a transfer worker. The worker's pidfd accompanies the request.
    #[prost(message, tag = "102")]
    LimitWorker(LimitWorker),
    /// Read the counters of the container. The reply contains the counters.
    #[prost(message, tag = "130")]
    ReadUsage(ReadUsage),
    /// Open the log file of the request again.
    #[prost(message, tag = "450")]
    ReopenLog(ReopenLog),
}

/// Requests the URL of a transfer, which is available while the transfer's step runs.
#[derive(Clone, PartialEq, Message)]
pub struct ReadTransfer {
    /// Index of the transfer in the plan.
    #[prost(uint32, tag = "1")]
    pub transfer: u32,
}

/// Reports the completion of a transfer.
#[derive(Clone, PartialEq, Message)]
pub struct EndTransfer {
    /// Index of the transfer in the plan.
    #[prost(uint32, tag = "1")]
    pub transfer: u32,
    /// Reason of the failure: at most [`TRANSFER_REASON_MAX`](crate::limits::TRANSFER_REASON_MAX) bytes on one line.
    /// Empty after success.
    #[prost(string, tag = "2")]
    pub error: String,
    /// Number of transferred bytes.
    #[prost(uint64, tag = "3")]
    pub bytes: u64,
    /// Start of the transfer's step, in nanoseconds since the epoch. The start identifies the run, because the step may
    /// have been restarted.
    #[prost(uint64, tag = "4")]
    pub began: u64,
}

/// Moves a transfer worker into the cgroup of the container's workers. This cgroup has the container's CPU limits. The
/// shim replies before the daemon sends the worker its job.
#[derive(Clone, PartialEq, Message)]
pub struct LimitWorker {
    /// Index of the transfer in the plan.
    #[prost(uint32, tag = "1")]
    pub transfer: u32,
}

/// Requests the counters of the container.
#[derive(Clone, PartialEq, Message)]
pub struct ReadUsage {
    /// True if only the counters of the log are requested. The shim then reads no kernel files.
    #[prost(bool, tag = "1")]
    pub log_only: bool,
}

/// Terminates a container because its checks failed: sends the stop signal, and SIGKILL after the container's grace
/// period.
#[derive(Clone, PartialEq, Message)]
pub struct EndUnhealthy {
    /// Reason, for the log and the container's result: at most
    /// [`UNHEALTHY_REASON_MAX`](crate::protocol::UNHEALTHY_REASON_MAX) bytes on one line.
    #[prost(string, tag = "1")]
    pub reason: String,
    /// Last lines of the failed programs, at most one entry per check. The lines are written only to the log, masked.
    /// (Field 2 was the output of one program.)
    #[prost(message, repeated, tag = "3")]
    pub outputs: Vec<CheckOutput>,
    /// Number of restarts before the checked run.
    #[prost(uint64, tag = "120")]
    pub run: u64,
}

/// Last lines of a check's program.
#[derive(Clone, PartialEq, Message)]
pub struct CheckOutput {
    /// Source of the lines in the log, as in the plan's check.
    #[prost(string, tag = "1")]
    pub log_source: String,
    /// The lines: at most [`CHECK_OUTPUT_MAX`](crate::protocol::CHECK_OUTPUT_MAX) bytes.
    #[prost(string, tag = "2")]
    pub text: String,
}

/// Records a change of the container's health in the log.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct NoteHealth {
    /// True if the container became healthy; false when its checks begin.
    #[prost(bool, tag = "1")]
    pub healthy: bool,
    /// Number of restarts before the checked run.
    #[prost(uint64, tag = "2")]
    pub run: u64,
}

/// Requests an unconnected TCP socket in the container's network namespace. The shim refuses the request unless the
/// container has checks that connect, or is a pod and `policy.allow_connect` is set.
#[derive(Clone, PartialEq, Message)]
pub struct MakeSocket {
    /// True for IPv6, false for IPv4.
    #[prost(bool, tag = "1")]
    pub ipv6: bool,
}

/// Replaces the egress of a running container; see [`EGRESS_FDS`](crate::protocol::EGRESS_FDS).
#[derive(Clone, PartialEq, Message)]
pub struct UpdateEgress {}

/// Replaces limits of a running container; limits that are 0 or unset are unchanged. The units are the same as in
/// [`crate::plan::Limits`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct UpdateLimits {
    /// Limit on bytes of memory.
    #[prost(uint64, tag = "1")]
    pub memory_bytes: u64,
    /// Limit on the number of processes and threads.
    #[prost(uint64, tag = "2")]
    pub pids: u64,
    /// Limit on CPU time, in thousandths of a CPU.
    #[prost(uint64, tag = "3")]
    pub cpu_millis: u64,
    /// Weight for the distribution of CPU time, 1 to 10000.
    #[prost(uint32, tag = "4")]
    pub cpu_weight: u32,
    /// Weight for the distribution of disk bandwidth, 1 to 10000.
    #[prost(uint32, tag = "5")]
    pub io_weight: u32,
    /// Bytes of swap beyond `memory_bytes`; -1 for no limit.
    #[prost(int64, optional, tag = "6")]
    pub swap_bytes: Option<i64>,
    /// Bytes of memory that the kernel protects from reclaim when memory runs short.
    #[prost(uint64, tag = "7")]
    pub memory_reservation_bytes: u64,
    /// True if the limit on memory is removed.
    #[prost(bool, tag = "440")]
    pub unlimited_memory: bool,
    /// True if the limit on processes is removed.
    #[prost(bool, tag = "441")]
    pub unlimited_pids: bool,
    /// Period of `cpu_quota_us` in microseconds.
    #[prost(uint64, tag = "442")]
    pub cpu_period_us: u64,
    /// CPU time in each period, in microseconds; -1 for no limit.
    #[prost(int64, tag = "443")]
    pub cpu_quota_us: i64,
    /// Weight for the distribution of CPU time in the unit of cgroup v1 (`cpu.shares`), 2 to 262144.
    #[prost(uint32, tag = "444")]
    pub cpu_shares: u32,
    /// Bytes of huge pages by page size; other sizes are unchanged.
    #[prost(btree_map = "string, uint64", tag = "445")]
    pub hugepage_bytes: BTreeMap<String, u64>,
    /// Cgroup v2 files; other files are unchanged.
    #[prost(btree_map = "string, string", tag = "446")]
    pub unified: BTreeMap<String, String>,
    /// CPUs, in the kernel's list format.
    #[prost(string, tag = "447")]
    pub cpus: String,
    /// Memory nodes, in the kernel's list format.
    #[prost(string, tag = "448")]
    pub memory_nodes: String,
}

/// Stops all processes of a running container until [`Resume`].
#[derive(Clone, PartialEq, Message)]
pub struct Pause {}

/// Resumes the processes of a paused container.
#[derive(Clone, PartialEq, Message)]
pub struct Resume {}

/// Starts the process of a held container. The shim replies before the start, and reports the result of the start as a
/// state.
#[derive(Clone, PartialEq, Message)]
pub struct Start {}

/// Opens the path of the log file again, after the file was renamed. After an error the old file stays in use.
#[derive(Clone, PartialEq, Message)]
pub struct ReopenLog {}

/// Requests one iteration of the shim's event loop, which the shim's heartbeat then shows.
#[derive(Clone, PartialEq, Message)]
pub struct Ping {}

/// Replaces the secret files of a running container; see [`UPDATE_FDS`](crate::protocol::UPDATE_FDS).
#[derive(Clone, PartialEq, Message)]
pub struct UpdateFiles {
    /// Signal to send to the process `main` afterwards; 0 for none.
    #[prost(int32, tag = "1")]
    pub signal: i32,
}

/// Requests the secret inputs of the container, with the digest of its runtime token.
#[derive(Clone, PartialEq, Message)]
pub struct ReadSecrets {
    /// SHA-256 of the runtime token that was presented.
    #[prost(bytes = "vec", tag = "1")]
    pub token_digest: Vec<u8>,
}

/// Requests a second handle of the secret file system, and the heartbeat.
#[derive(Clone, PartialEq, Message)]
pub struct Share {}

/// Stops a container gracefully.
#[derive(Clone, PartialEq, Message)]
pub struct Stop {
    /// Milliseconds until SIGKILL; 0 for an immediate SIGKILL.
    #[prost(uint64, tag = "1")]
    pub grace_ms: u64,
    /// Signal to send instead of the container's stop signal; 0 for the stop signal.
    #[prost(int32, tag = "130")]
    pub signal: i32,
}

/// Sends a signal to a process.
#[derive(Clone, PartialEq, Message)]
pub struct Signal {
    /// Id of a process of the container.
    #[prost(string, tag = "1")]
    pub process_id: String,
    /// Number of the signal.
    #[prost(int32, tag = "2")]
    pub signal: i32,
}

/// Reply or report of a shim to the daemon.
#[derive(Clone, PartialEq, Message)]
pub struct ShimReport {
    /// Sequence number of the request that the report replies to; 0 for unsolicited reports.
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    /// Content; `None` if a newer peer sent content that is unknown here.
    #[prost(oneof = "ShimNews", tags = "2, 3, 4, 130")]
    pub news: Option<ShimNews>,
}

/// Contents of a shim's report.
#[derive(Clone, PartialEq, Oneof)]
#[allow(clippy::large_enum_variant)] // values are short-lived
pub enum ShimNews {
    /// The container is now in this state; its record on disk has the details. Sent when the daemon connects, and at
    /// each change.
    #[prost(message, tag = "2")]
    Reached(Reached),
    /// The container could not be created as requested, and is removed. As a reply: the request was refused.
    #[prost(message, tag = "3")]
    Refused(Refused),
    /// The request succeeded, and its reply has no content.
    #[prost(message, tag = "4")]
    Done(Done),
    /// Reply to [`ReadUsage`].
    #[prost(message, tag = "130")]
    Usage(Usage),
}

/// Reports the current state of a container.
#[derive(Clone, PartialEq, Message)]
pub struct Reached {
    /// State, as numbered by [`state_number`].
    #[prost(uint32, tag = "1")]
    pub state: u32,
}

/// Returns the number of a state in [`Reached`].
pub fn state_number(state: crate::lifecycle::State) -> u32 {
    use crate::lifecycle::State;
    match state {
        State::Reserved => 1,
        State::Initializing => 2,
        State::Created => 3,
        State::Running => 4,
        State::Stopping => 5,
        State::Wiping => 6,
        State::Completed => 7,
    }
}

/// Returns the state with this number; `None` for a state of a newer peer.
pub fn state_of(number: u32) -> Option<crate::lifecycle::State> {
    crate::lifecycle::State::ALL.into_iter().find(|state| state_number(*state) == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_keep_their_numbers() {
        for number in 1..=7 {
            assert_eq!(state_number(state_of(number).unwrap()), number);
        }
        assert_eq!(state_of(0), None);
        assert_eq!(state_of(8), None);
    }
}
