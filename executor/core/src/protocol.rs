//! Messages between the daemon, the launcher and the shims over SOCK_SEQPACKET, one message per packet.
//!
//! The encoding is protobuf, so that a daemon can be upgraded while older shims keep running. No message contains a
//! secret: secrets are in memory files whose descriptors accompany [`Launch`] in the order of [`LAUNCH_FDS`]. Long
//! lists (files, labels) are in the plan's memory file and in the records on disk, so a message always fits a packet. A
//! message names the process that it concerns, because a container can have several.

use prost::{Message, Oneof};

use crate::settings::SectionDigests;
use crate::usage::Usage;
use crate::violation::{Violation, ViolationReason};

mod signer;
mod streams;

pub use signer::{
    OpenSigner, PUBLIC_KEY_LENGTH, SIGNER_FDS, SIGNERS_MAX, SignRequest, Signed, SignerAnswer, SignerReady, SignerReply,
};
pub use streams::{
    ARCHIVE_DOWNLOAD, ARCHIVE_FOLLOW, ARCHIVE_STAT, ATTACH_FDS, ATTACHED_PACKET_MAX, Archive, ArchiveDone, ArchiveStat,
    ArchiveWork, Attach, EXEC_FDS, EXECS_MAX, EXECS_MAX_IN_ALL, Exec, ExecNews, ExecOrder, ExecReport, FromShim,
    NotExecuted, Started, ToShim, position_of, position_packet,
};

/// Version of these messages. Both sides reject a peer with another version.
pub const VERSION: u32 = 1;
/// Largest packet, in bytes.
pub const PACKET_MAX: usize = 64 << 10;
/// Descriptors of a [`Launch`], in order.
pub const LAUNCH_FDS: [&str; 4] = ["shim connection", "plan", "process payload", "files payload"];
/// Descriptors of an [`UpdateFiles`], in order: a [`crate::update::FileUpdate`] as JSON, and a payload of the contents.
pub const UPDATE_FDS: [&str; 2] = ["update", "contents"];
/// Descriptor of an [`UpdateEgress`]: a [`crate::update::EgressUpdate`] as JSON.
pub const EGRESS_FDS: [&str; 1] = ["update"];
/// Maximum bytes of the reason of an [`EndUnhealthy`].
pub const UNHEALTHY_REASON_MAX: usize = 1024;
/// Maximum bytes of a check's output in an [`EndUnhealthy`].
pub const CHECK_OUTPUT_MAX: usize = 2048;
/// Descriptor of the reply to a [`ReadTransfer`]: a memory file with the URL.
pub const TRANSFER_FDS: [&str; 1] = ["url"];
/// Largest plan, in bytes of JSON.
pub const PLAN_MAX: u64 = 16 << 20;

/// Request of the daemon to the launcher.
#[derive(Clone, PartialEq, Message)]
pub struct LauncherRequest {
    /// Number of the request; the reply repeats it.
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    /// Call; `None` if a newer peer sent a call that is unknown here.
    #[prost(oneof = "LauncherCall", tags = "2, 3, 4, 5, 6, 7, 8, 9, 150, 240")]
    pub call: Option<LauncherCall>,
}

/// Calls of the daemon to the launcher.
#[derive(Clone, PartialEq, Oneof)]
pub enum LauncherCall {
    /// The first request on a connection.
    #[prost(message, tag = "2")]
    Hello(Hello),
    /// Fork a shim for a container.
    #[prost(message, tag = "3")]
    Launch(Launch),
    /// Remove the leftover files of a completed container.
    #[prost(message, tag = "4")]
    Remove(Remove),
    /// Exit if no container is left.
    #[prost(message, tag = "5")]
    Shutdown(Shutdown),
    /// Unpack a layer of an image into the store, or check that it is there.
    #[prost(message, tag = "6")]
    UnpackLayer(UnpackLayer),
    /// Remove a layer from the store.
    #[prost(message, tag = "7")]
    RemoveLayer(RemoveLayer),
    /// Execute a process in a container.
    #[prost(message, tag = "8")]
    Exec(Exec),
    /// Copy files out of a container, or into it.
    #[prost(message, tag = "9")]
    Archive(Archive),
    /// Report the counts of the warm pool.
    #[prost(message, tag = "150")]
    CountWarmPool(CountWarmPool),
    /// Start a process that signs certificates.
    #[prost(message, tag = "240")]
    OpenSigner(OpenSigner),
}

/// Introduces the daemon to the launcher.
#[derive(Clone, PartialEq, Message)]
pub struct Hello {
    /// [`VERSION`].
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Key of the request digests that the daemon got from an earlier launcher; empty if it has none.
    #[prost(bytes = "vec", tag = "2")]
    pub tag_key: Vec<u8>,
    /// Digests of the daemon's configuration. If they differ from the launcher's, the launcher reads its own file
    /// again. `None` if the daemon is older than this field.
    #[prost(message, optional, tag = "3")]
    pub configuration: Option<ConfigurationDigests>,
}

/// Starts a container; descriptors accompany it.
#[derive(Clone, PartialEq, Message)]
pub struct Launch {
    /// Id of the container, as in the plan.
    #[prost(string, tag = "1")]
    pub container_id: String,
    /// Keyed digest of the request, hexadecimal.
    #[prost(string, tag = "2")]
    pub request_tag: String,
    /// Time of acceptance, in nanoseconds since the epoch.
    #[prost(uint64, tag = "3")]
    pub created_at: u64,
    /// Id of the pod that the container is a member of, as in the plan; empty if there is none.
    #[prost(string, tag = "110")]
    pub pod_id: String,
    /// True if a warm container can be used for this plan.
    #[prost(bool, tag = "111")]
    pub fits_warm: bool,
}

/// Requests the counts of the warm pool.
#[derive(Clone, PartialEq, Message)]
pub struct CountWarmPool {}

/// Removes a completed container's logs and record.
#[derive(Clone, PartialEq, Message)]
pub struct Remove {
    /// Id of the container.
    #[prost(string, tag = "1")]
    pub container_id: String,
}

/// Makes the launcher exit.
#[derive(Clone, PartialEq, Message)]
pub struct Shutdown {}

/// Unpacks a layer, and replies when the layer is in the store. The blob's descriptor accompanies the request; it is
/// read from its beginning, regardless of its file offset. Without a descriptor nothing is unpacked: the reply is
/// [`Done`] if the layer is in the store, [`Reason::NotFound`] if not.
///
/// A layer that is already stored is not unpacked again. A layer whose parents are missing is refused
/// ([`Reason::Precondition`]), so an image is unpacked from the bottom up.
#[derive(Clone, PartialEq, Message)]
pub struct UnpackLayer {
    /// Digest of the uncompressed archive, `sha256:HEX`.
    #[prost(string, tag = "1")]
    pub diff_id: String,
    /// Media type of the blob in the manifest.
    #[prost(string, tag = "2")]
    pub media_type: String,
    /// Maximum bytes of the uncompressed archive and of the files in it; 0 for the launcher's own limit, which always
    /// applies.
    #[prost(uint64, tag = "3")]
    pub bytes_max: u64,
    /// Layers below this one in its image, bottom first: the 32 bytes of each diffID.
    #[prost(bytes = "vec", repeated, tag = "4")]
    pub parents: Vec<Vec<u8>>,
}

/// Removes a layer, and replies when its disk space is free. Refused with [`Reason::Busy`] while a container that is
/// not completed uses it, and with [`Reason::NotFound`] if it does not exist.
#[derive(Clone, PartialEq, Message)]
pub struct RemoveLayer {
    /// diffID of the layer, `sha256:HEX`.
    #[prost(string, tag = "1")]
    pub diff_id: String,
}

/// Reply of the launcher to the daemon.
#[derive(Clone, PartialEq, Message)]
pub struct LauncherReply {
    /// Sequence number of the request.
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    /// Answer; `None` if a newer peer sent an answer that is unknown here.
    #[prost(oneof = "LauncherAnswer", tags = "2, 3, 4, 5, 6, 150")]
    pub answer: Option<LauncherAnswer>,
}

/// Answers of the launcher to calls of the daemon.
#[derive(Clone, PartialEq, Oneof)]
pub enum LauncherAnswer {
    /// Answer to [`Hello`]: every container without a live shim now has an exit record.
    #[prost(message, tag = "2")]
    Welcome(Welcome),
    /// The call succeeded.
    #[prost(message, tag = "3")]
    Done(Done),
    /// The call was refused.
    #[prost(message, tag = "4")]
    Refused(Refused),
    /// Unsolicited (sequence 0): a shim exited before its container; the launcher has finished the container.
    #[prost(message, tag = "5")]
    ShimLost(ShimLost),
    /// Answer to [`UnpackLayer`] if there is a warning about the layer; otherwise the answer is [`Done`].
    #[prost(message, tag = "6")]
    Unpacked(Unpacked),
    /// Answer to [`CountWarmPool`].
    #[prost(message, tag = "150")]
    WarmPool(WarmPool),
}

/// The layer is in the store, but without some entries of its archive.
#[derive(Clone, PartialEq, Message)]
pub struct Unpacked {
    /// Description of the entries that were left out.
    #[prost(string, tag = "1")]
    pub warning: String,
}

/// Introduces the launcher to the daemon.
#[derive(Clone, PartialEq, Message)]
pub struct Welcome {
    /// [`VERSION`].
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Key of the request digests that is now in force.
    #[prost(bytes = "vec", tag = "2")]
    pub tag_key: Vec<u8>,
    /// True if secrets are on tmpfs with `noswap`; otherwise they are on ramfs.
    #[prost(bool, tag = "3")]
    pub noswap: bool,
    /// Version of cgroups: `v1`, `hybrid` or `v2`.
    #[prost(string, tag = "4")]
    pub cgroups: String,
    /// Digests of the launcher's configuration in force. `None` if the launcher is older than this field.
    #[prost(message, optional, tag = "5")]
    pub configuration: Option<ConfigurationDigests>,
    /// Reason why the launcher did not load the current content of its file; empty if it did.
    #[prost(string, tag = "6")]
    pub stale: String,
    /// Process id of the launcher.
    #[prost(uint32, tag = "7")]
    pub pid: u32,
}

/// Digests of the parts of a configuration that the daemon and the launcher both read.
#[derive(Clone, PartialEq, Message)]
pub struct ConfigurationDigests {
    /// Digest of each section, by name.
    #[prost(btree_map = "string, bytes", tag = "1")]
    pub sections: SectionDigests,
}

/// The call succeeded.
#[derive(Clone, PartialEq, Message)]
pub struct Done {}

/// Counts of a launcher's warm pool, since it started.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct WarmPool {
    /// Target number of warm containers: as configured, or fewer if ids are scarce.
    #[prost(uint32, tag = "1")]
    pub configured: u32,
    /// Number of warm containers that are waiting.
    #[prost(uint32, tag = "2")]
    pub ready: u32,
    /// Launches that used a warm container.
    #[prost(uint64, tag = "3")]
    pub used: u64,
    /// Launches that could have used a warm container but found none.
    #[prost(uint64, tag = "4")]
    pub missed: u64,
}

/// A shim exited and its container was finished.
#[derive(Clone, PartialEq, Message)]
pub struct ShimLost {
    /// Id of the container.
    #[prost(string, tag = "1")]
    pub container_id: String,
    /// Time of the container's acceptance, as in its [`Launch`], because another container may have the id by now. 0 if
    /// unknown.
    #[prost(uint64, tag = "2")]
    pub created_at: u64,
}

/// Request of the daemon to a shim.
#[derive(Clone, PartialEq, Message)]
pub struct ShimRequest {
    /// Number of the request; the reply repeats it.
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    /// Call; `None` if a newer peer sent a call that is unknown here.
    #[prost(oneof = "ShimCall", tags = "2, 3, 4, 5, 6, 7, 8, 40, 41, 42, 43, 80, 81, 82, 100, 101, 102, 130")]
    pub call: Option<ShimCall>,
}

/// Calls of the daemon to a shim.
#[derive(Clone, PartialEq, Oneof)]
pub enum ShimCall {
    /// Send the container's stop signal, then SIGKILL.
    #[prost(message, tag = "2")]
    Stop(Stop),
    /// Send a signal to a process.
    #[prost(message, tag = "3")]
    Signal(Signal),
    /// Pass a handle of the secret file system and the heartbeat to a restarted launcher. Their descriptors
    /// accompany the reply, in this order; without secret files the reply is a refusal, with the heartbeat only.
    #[prost(message, tag = "4")]
    Share(Share),
    /// Replace the secret files; descriptors accompany the call.
    #[prost(message, tag = "5")]
    UpdateFiles(UpdateFiles),
    /// Return the secret inputs, for the holder of the runtime token. A memory file accompanies the reply.
    #[prost(message, tag = "6")]
    ReadSecrets(ReadSecrets),
    /// Connect a client to the process's input and output.
    #[prost(message, tag = "7")]
    Attach(Attach),
    /// Run one iteration of the event loop. There is no reply: the launcher sees it in the shim's heartbeat.
    #[prost(message, tag = "8")]
    Ping(Ping),
    /// Replace the egress; a descriptor accompanies the call.
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
    /// End the container because of its checks.
    #[prost(message, tag = "80")]
    EndUnhealthy(EndUnhealthy),
    /// Write the state of the health checks to the log.
    #[prost(message, tag = "82")]
    NoteHealth(NoteHealth),
    /// Create a socket for a check. Its descriptor accompanies the reply.
    #[prost(message, tag = "81")]
    MakeSocket(MakeSocket),
    /// Return the URL of a transfer in progress. A memory file accompanies the reply.
    #[prost(message, tag = "100")]
    ReadTransfer(ReadTransfer),
    /// Report the result of a transfer that executord executed.
    #[prost(message, tag = "101")]
    EndTransfer(EndTransfer),
    /// Limit the processor time of a transfer worker. The worker's pidfd accompanies the call.
    #[prost(message, tag = "102")]
    LimitWorker(LimitWorker),
    /// Read the counters of the container. They are in the answer.
    #[prost(message, tag = "130")]
    ReadUsage(ReadUsage),
}

/// Requests the URL of a transfer, which is available while the transfer's step runs.
#[derive(Clone, PartialEq, Message)]
pub struct ReadTransfer {
    /// Index of the transfer in the plan.
    #[prost(uint32, tag = "1")]
    pub transfer: u32,
}

/// Reports the end of a transfer.
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
    /// Start of the transfer's step, in nanoseconds since the epoch. It identifies the run, because the step may have
    /// been restarted.
    #[prost(uint64, tag = "4")]
    pub began: u64,
}

/// Moves a transfer worker into the cgroup of the container's workers, which has the container's processor limits. The
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
    /// True for the counters of the log only, for which the shim reads no files of the kernel.
    #[prost(bool, tag = "1")]
    pub log_only: bool,
}

/// Ends a container because its checks failed: its stop signal, then SIGKILL after its own grace period.
#[derive(Clone, PartialEq, Message)]
pub struct EndUnhealthy {
    /// Reason, for the log and the container's result: at most [`UNHEALTHY_REASON_MAX`] bytes on one line.
    #[prost(string, tag = "1")]
    pub reason: String,
    /// Last lines of the failed programs, at most one entry per check. They are written only to the log, masked. (Field
    /// 2 was the output of one program.)
    #[prost(message, repeated, tag = "3")]
    pub outputs: Vec<CheckOutput>,
    /// Number of the checked run: the number of restarts before it.
    #[prost(uint64, tag = "120")]
    pub run: u64,
}

/// Last lines of a check's program.
#[derive(Clone, PartialEq, Message)]
pub struct CheckOutput {
    /// Source of the lines in the log, as the plan's check has it.
    #[prost(string, tag = "1")]
    pub log_source: String,
    /// The lines: at most [`CHECK_OUTPUT_MAX`] bytes.
    #[prost(string, tag = "2")]
    pub text: String,
}

/// Records a change of the container's health in the log.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct NoteHealth {
    /// True if the container became healthy; false if its checks begin.
    #[prost(bool, tag = "1")]
    pub healthy: bool,
    /// Number of the checked run: the number of restarts before it.
    #[prost(uint64, tag = "2")]
    pub run: u64,
}

/// Requests an unconnected TCP socket in the container's network namespace. Only for a container with checks that
/// connect.
#[derive(Clone, PartialEq, Message)]
pub struct MakeSocket {
    /// True for IPv6, false for IPv4.
    #[prost(bool, tag = "1")]
    pub ipv6: bool,
}

/// Replaces the egress of a running container; see [`EGRESS_FDS`].
#[derive(Clone, PartialEq, Message)]
pub struct UpdateEgress {}

/// Replaces limits of a running container; limits that are 0 or unset are unchanged. Units are those of
/// [`crate::plan::Limits`].
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct UpdateLimits {
    /// Bytes of memory.
    #[prost(uint64, tag = "1")]
    pub memory_bytes: u64,
    /// Number of processes and threads.
    #[prost(uint64, tag = "2")]
    pub pids: u64,
    /// Processor time in thousandths of a processor.
    #[prost(uint64, tag = "3")]
    pub cpu_millis: u64,
    /// Share of processor time, 1 to 10000.
    #[prost(uint32, tag = "4")]
    pub cpu_weight: u32,
    /// Share of disk bandwidth, 1 to 10000.
    #[prost(uint32, tag = "5")]
    pub io_weight: u32,
    /// Bytes of swap beyond `memory_bytes`; -1 for no limit.
    #[prost(int64, optional, tag = "6")]
    pub swap_bytes: Option<i64>,
    /// Bytes of memory that the kernel protects from reclaim when memory runs short.
    #[prost(uint64, tag = "7")]
    pub memory_reservation_bytes: u64,
}

/// Stops all processes of a running container until [`Resume`].
#[derive(Clone, PartialEq, Message)]
pub struct Pause {}

/// Resumes the processes of a paused container.
#[derive(Clone, PartialEq, Message)]
pub struct Resume {}

/// Requests a heartbeat.
#[derive(Clone, PartialEq, Message)]
pub struct Ping {}

/// Replaces the secret files of a running container; see [`UPDATE_FDS`].
#[derive(Clone, PartialEq, Message)]
pub struct UpdateFiles {
    /// Signal to send to the process `main` afterwards; 0 for none.
    #[prost(int32, tag = "1")]
    pub signal: i32,
}

/// Requests the secret inputs.
#[derive(Clone, PartialEq, Message)]
pub struct ReadSecrets {
    /// SHA-256 of the runtime token that was presented.
    #[prost(bytes = "vec", tag = "1")]
    pub token_digest: Vec<u8>,
}

/// Requests a second handle of the secret file system.
#[derive(Clone, PartialEq, Message)]
pub struct Share {}

/// Ends a container gracefully.
#[derive(Clone, PartialEq, Message)]
pub struct Stop {
    /// Milliseconds until SIGKILL; 0 for SIGKILL at once.
    #[prost(uint64, tag = "1")]
    pub grace_ms: u64,
    /// Signal to send instead of the container's stop signal; 0 for the container's.
    #[prost(int32, tag = "130")]
    pub signal: i32,
}

/// Sends a signal to a process.
#[derive(Clone, PartialEq, Message)]
pub struct Signal {
    /// Id of a process of the container.
    #[prost(string, tag = "1")]
    pub process_id: String,
    /// Signal number.
    #[prost(int32, tag = "2")]
    pub signal: i32,
}

/// Reply or report of a shim to the daemon.
#[derive(Clone, PartialEq, Message)]
pub struct ShimReport {
    /// Sequence number of the request that this answers; 0 for unsolicited reports.
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    /// Content; `None` if a newer peer sent content that is unknown here.
    #[prost(oneof = "ShimNews", tags = "2, 3, 4, 130")]
    pub news: Option<ShimNews>,
}

/// Contents of a shim's report.
#[derive(Clone, PartialEq, Oneof)]
#[allow(clippy::large_enum_variant)] // one at a time, on its way
pub enum ShimNews {
    /// The container is now in this state; its record on disk has the details. Sent when the daemon connects, and at
    /// each change.
    #[prost(message, tag = "2")]
    Reached(Reached),
    /// The container could not be created as requested, and is removed; or a request was refused.
    #[prost(message, tag = "3")]
    Refused(Refused),
    /// A request succeeded.
    #[prost(message, tag = "4")]
    Done(Done),
    /// Answer to [`ReadUsage`].
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

/// A refusal or a failure.
#[derive(Clone, PartialEq, Message)]
pub struct Refused {
    /// Number of a [`Reason`].
    #[prost(enumeration = "Reason", tag = "1")]
    pub reason: i32,
    /// Message with the causes, on one line.
    #[prost(string, tag = "2")]
    pub message: String,
    /// Violations, if fields of the request are invalid. As many as fit a packet.
    #[prost(message, repeated, tag = "3")]
    pub violations: Vec<FieldViolation>,
}

/// Violation of a field.
#[derive(Clone, PartialEq, Message)]
pub struct FieldViolation {
    /// Path of the field, as in the public interface.
    #[prost(string, tag = "1")]
    pub field: String,
    /// Description of the violation.
    #[prost(string, tag = "2")]
    pub description: String,
    /// Name of the [`ViolationReason`].
    #[prost(string, tag = "3")]
    pub reason: String,
}

/// Reason of a refusal, from which the daemon derives the gRPC status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Reason {
    /// An internal error.
    Internal = 0,
    /// The request is invalid.
    Invalid = 1,
    /// The host does not satisfy the request: a rootfs, a user, a path.
    Precondition = 2,
    /// A resource such as disk or memory is exhausted.
    Exhausted = 3,
    /// The container or process does not exist.
    NotFound = 4,
    /// The container already exists.
    Exists = 5,
    /// The request is based on an outdated state; it can be repeated with the current one.
    Stale = 6,
    /// Busy; the same request may succeed soon.
    Busy = 7,
    /// The caller may not make the request.
    Denied = 8,
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

impl Refused {
    /// Creates a refusal with a message of one line.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason: reason as i32, message: message.into(), violations: Vec::new() }
    }

    /// Creates a refusal of fields, truncated so that it fits a packet; the message has the total number of violations.
    pub fn from_fields(reason: Reason, violations: &[Violation]) -> Self {
        const MOST: usize = 48 << 10;
        let mut size = 0;
        let fit = violations.iter().take_while(|violation| {
            size += violation.field.len() + violation.description.len() + 48;
            size < MOST
        });
        // A violation without its own reason gets the general reason of the refusal: unsuitable or insufficient.
        let general = match reason {
            Reason::Precondition => ViolationReason::Unsuitable,
            Reason::Exhausted => ViolationReason::Insufficient,
            _ => ViolationReason::InvalidValue,
        };
        let fields = fit.map(|v| FieldViolation {
            field: v.field.clone(),
            description: v.description.clone(),
            reason: v.reason.or(general).name().to_owned(),
        });
        let first = violations.first().map(ToString::to_string).unwrap_or_default();
        let message = match violations.len() {
            0 | 1 => first.chars().take(2048).collect(),
            n => format!("{n} violations, first: {}", first.chars().take(2048).collect::<String>()),
        };
        Self { reason: reason as i32, message, violations: fields.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_always_fits_a_packet() {
        let many: Vec<_> = (0..10_000).map(|i| Violation::new(format!("f[{i}]"), "x".repeat(300))).collect();
        let refused = Refused::from_fields(Reason::Invalid, &many);
        let report = ShimReport { sequence: u64::MAX, news: Some(ShimNews::Refused(refused)) };
        assert!(report.encoded_len() < PACKET_MAX);
        // A violation without its own reason gets the reason of the refusal; any other reason is unchanged.
        let one = [Violation::new("f", "x"), Violation::new("g", ViolationReason::NotFound.because("y"))];
        let reported = Refused::from_fields(Reason::Precondition, &one).violations;
        assert_eq!((&*reported[0].reason, &*reported[1].reason), ("UNSUITABLE", "NOT_FOUND"));
        let huge = [Violation::new("f", "x".repeat(1 << 20))];
        assert!(Refused::from_fields(Reason::Invalid, &huge).encoded_len() < PACKET_MAX);
    }

    #[test]
    fn states_keep_their_numbers() {
        for number in 1..=7 {
            assert_eq!(state_number(state_of(number).unwrap()), number);
        }
        assert_eq!(state_of(0), None);
        assert_eq!(state_of(8), None);
    }
}
