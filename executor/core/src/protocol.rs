//! Messages between the daemon, the launcher and the shims over SOCK_SEQPACKET, one message per packet.
//!
//! Protobuf, so that a daemon can be upgraded while older shims run on. Secrets are in no message: they are in
//! memory files whose descriptors accompany [`Launch`] in the order of [`LAUNCH_FDS`]. Lists that can be long
//! (files, labels) are in the plan's memory file and in the records on disk; a message here always fits a packet.
//! Messages name the process they are about, so that a container can have several.

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

/// Version of these messages. Both sides refuse a peer of another major version.
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
/// Descriptor of the answer to a [`ReadTransfer`]: a memory file with the URL.
pub const TRANSFER_FDS: [&str; 1] = ["url"];
/// Largest plan, in bytes of JSON.
pub const PLAN_MAX: u64 = 16 << 20;

/// Request of the daemon to the launcher.
#[derive(Clone, PartialEq, Message)]
pub struct LauncherRequest {
    /// Numbers the request; the reply repeats it.
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    /// Call.
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
    /// Remove what is on disk of a completed container.
    #[prost(message, tag = "4")]
    Remove(Remove),
    /// End, when no container is left.
    #[prost(message, tag = "5")]
    Shutdown(Shutdown),
    /// Unpack a layer of an image into the store, or look whether it is there.
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
    /// Count the shells.
    #[prost(message, tag = "150")]
    CountWarmPool(CountWarmPool),
    /// Start a process that signs certificates.
    #[prost(message, tag = "240")]
    OpenSigner(OpenSigner),
}

/// Introduces the daemon.
#[derive(Clone, PartialEq, Message)]
pub struct Hello {
    /// [`VERSION`].
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Key of the request tags that the daemon has from an earlier launcher; empty where it has none.
    #[prost(bytes = "vec", tag = "2")]
    pub tag_key: Vec<u8>,
    /// Digests of the daemon's configuration. They only make the launcher read its own file again. `None` if the daemon is older than
    /// this field.
    #[prost(message, optional, tag = "3")]
    pub configuration: Option<ConfigurationDigests>,
}

/// Starts a container; descriptors accompany it.
#[derive(Clone, PartialEq, Message)]
pub struct Launch {
    /// Id of the container, as in the plan.
    #[prost(string, tag = "1")]
    pub container_id: String,
    /// Keyed hash of the request, hexadecimal.
    #[prost(string, tag = "2")]
    pub request_tag: String,
    /// Time of admission, in nanoseconds since the epoch.
    #[prost(uint64, tag = "3")]
    pub created_at: u64,
    /// Id of the pod that the container is a member of, as in the plan; empty where there is none.
    #[prost(string, tag = "110")]
    pub pod_id: String,
    /// The container can be made of a shell, by the plan.
    #[prost(bool, tag = "111")]
    pub fits_warm: bool,
}

/// Asks for the counts of shells.
#[derive(Clone, PartialEq, Message)]
pub struct CountWarmPool {}

/// Removes a completed container's logs and record.
#[derive(Clone, PartialEq, Message)]
pub struct Remove {
    /// Id of the container.
    #[prost(string, tag = "1")]
    pub container_id: String,
}

/// Ends the launcher.
#[derive(Clone, PartialEq, Message)]
pub struct Shutdown {}

/// Unpacks a layer, and answers when it is in the store. The blob's descriptor accompanies it, at any position: it is
/// read from its beginning. Without a descriptor nothing is unpacked: [`Done`] tells that the layer is there, and
/// [`Reason::NotFound`] that it is not.
///
/// A layer that is there already is not unpacked again. One whose parents are not there is refused
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
    /// holds.
    #[prost(uint64, tag = "3")]
    pub bytes_max: u64,
    /// Layers below this one in its image, bottom first: the 32 bytes of each diffID.
    #[prost(bytes = "vec", repeated, tag = "4")]
    pub parents: Vec<Vec<u8>>,
}

/// Removes a layer, and answers when its room is free again. [`Reason::Busy`] while a container that is not completed
/// has it, [`Reason::NotFound`] where it is not there.
#[derive(Clone, PartialEq, Message)]
pub struct RemoveLayer {
    /// DiffID of the layer, `sha256:HEX`.
    #[prost(string, tag = "1")]
    pub diff_id: String,
}

/// Answer of the launcher to the daemon.
#[derive(Clone, PartialEq, Message)]
pub struct LauncherReply {
    /// Sequence number of the request.
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    /// The answer.
    #[prost(oneof = "LauncherAnswer", tags = "2, 3, 4, 5, 6, 150")]
    pub answer: Option<LauncherAnswer>,
}

/// Answers of the launcher.
#[derive(Clone, PartialEq, Oneof)]
pub enum LauncherAnswer {
    /// Answer to [`Hello`]: every container without a live shim has an exit record by now.
    #[prost(message, tag = "2")]
    Welcome(Welcome),
    /// Done.
    #[prost(message, tag = "3")]
    Done(Done),
    /// The call was refused.
    #[prost(message, tag = "4")]
    Refused(Refused),
    /// Unasked (sequence 0): a shim ended before its container did; the launcher has finished the container.
    #[prost(message, tag = "5")]
    ShimLost(ShimLost),
    /// Answer to [`UnpackLayer`] if there is a warning about the layer; else the answer is [`Done`].
    #[prost(message, tag = "6")]
    Unpacked(Unpacked),
    /// Answer to [`CountWarmPool`].
    #[prost(message, tag = "150")]
    WarmPool(WarmPool),
}

/// A layer is there, and not all that its archive has is in it.
#[derive(Clone, PartialEq, Message)]
pub struct Unpacked {
    /// Entries that were left out.
    #[prost(string, tag = "1")]
    pub warning: String,
}

/// Introduces the launcher.
#[derive(Clone, PartialEq, Message)]
pub struct Welcome {
    /// [`VERSION`].
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Key of the request tags, in force from now on.
    #[prost(bytes = "vec", tag = "2")]
    pub tag_key: Vec<u8>,
    /// Secrets live on tmpfs with `noswap`; else on ramfs.
    #[prost(bool, tag = "3")]
    pub noswap: bool,
    /// `v1`, `hybrid` or `v2`.
    #[prost(string, tag = "4")]
    pub cgroups: String,
    /// Digests of the launcher's configuration in force. `None` if the launcher is older than this field.
    #[prost(message, optional, tag = "5")]
    pub configuration: Option<ConfigurationDigests>,
    /// Reason for which the launcher did not take over what its file says now; empty if it did.
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

/// Done.
#[derive(Clone, PartialEq, Message)]
pub struct Done {}

/// Counts of the shells of a launcher, since it started.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct WarmPool {
    /// Number that are to wait: as configured, or fewer where ids are scarce.
    #[prost(uint32, tag = "1")]
    pub configured: u32,
    /// Number that wait.
    #[prost(uint32, tag = "2")]
    pub ready: u32,
    /// Launches that found one.
    #[prost(uint64, tag = "3")]
    pub used: u64,
    /// Launches that could have used one, and found none.
    #[prost(uint64, tag = "4")]
    pub missed: u64,
}

/// A shim is gone and its container was finished.
#[derive(Clone, PartialEq, Message)]
pub struct ShimLost {
    /// Id of the container.
    #[prost(string, tag = "1")]
    pub container_id: String,
    /// Time of the container's admission, as in its [`Launch`], because the id may belong to another container by now.
    /// 0 if unknown.
    #[prost(uint64, tag = "2")]
    pub created_at: u64,
}

/// Request of the daemon to a shim.
#[derive(Clone, PartialEq, Message)]
pub struct ShimRequest {
    /// Numbers the request; the reply repeats it.
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    /// Call.
    #[prost(oneof = "ShimCall", tags = "2, 3, 4, 5, 6, 7, 8, 40, 41, 42, 43, 80, 81, 82, 100, 101, 102, 130")]
    pub call: Option<ShimCall>,
}

/// Calls of the daemon to a shim.
#[derive(Clone, PartialEq, Oneof)]
pub enum ShimCall {
    /// The container's stop signal, then SIGKILL.
    #[prost(message, tag = "2")]
    Stop(Stop),
    /// A signal to a process.
    #[prost(message, tag = "3")]
    Signal(Signal),
    /// A handle on the secret file system and the signs of life, for a launcher that came later. Their descriptors
    /// accompany the reply, in this order; where there are no secret files it is a refusal, with the latter.
    #[prost(message, tag = "4")]
    Share(Share),
    /// Replaces the secret files; descriptors accompany it.
    #[prost(message, tag = "5")]
    UpdateFiles(UpdateFiles),
    /// The secret inputs, for the holder of the runtime token. A memory file accompanies the reply.
    #[prost(message, tag = "6")]
    ReadSecrets(ReadSecrets),
    /// Connect a client to the process's input and output.
    #[prost(message, tag = "7")]
    Attach(Attach),
    /// Turn the loop once. Not answered: the launcher sees it in the shim's signs of life.
    #[prost(message, tag = "8")]
    Ping(Ping),
    /// Replaces the egress; a descriptor accompanies it.
    #[prost(message, tag = "40")]
    UpdateEgress(UpdateEgress),
    /// Replaces limits of the container.
    #[prost(message, tag = "41")]
    UpdateLimits(UpdateLimits),
    /// Stops all processes of the container until they go on.
    #[prost(message, tag = "42")]
    Pause(Pause),
    /// Lets the processes go on.
    #[prost(message, tag = "43")]
    Resume(Resume),
    /// End the container because of its checks.
    #[prost(message, tag = "80")]
    EndUnhealthy(EndUnhealthy),
    /// Note in the log how far the checks are.
    #[prost(message, tag = "82")]
    NoteHealth(NoteHealth),
    /// A socket for a check. Its descriptor accompanies the reply.
    #[prost(message, tag = "81")]
    MakeSocket(MakeSocket),
    /// The URL of a transfer that has begun. A memory file accompanies the reply.
    #[prost(message, tag = "100")]
    ReadTransfer(ReadTransfer),
    /// The end of a transfer that executord has carried out.
    #[prost(message, tag = "101")]
    EndTransfer(EndTransfer),
    /// Limit the processor time of a worker of a transfer. The worker's pidfd accompanies it.
    #[prost(message, tag = "102")]
    LimitWorker(LimitWorker),
    /// The counters of the container. They are in the answer.
    #[prost(message, tag = "130")]
    ReadUsage(ReadUsage),
}

/// Asks for the URL of a transfer, which is given out while the transfer's step runs.
#[derive(Clone, PartialEq, Message)]
pub struct ReadTransfer {
    /// Index of the transfer in the plan.
    #[prost(uint32, tag = "1")]
    pub transfer: u32,
}

/// Tells the end of a transfer.
#[derive(Clone, PartialEq, Message)]
pub struct EndTransfer {
    /// Index of the transfer in the plan.
    #[prost(uint32, tag = "1")]
    pub transfer: u32,
    /// Why it failed: at most [`TRANSFER_REASON_MAX`](crate::limits::TRANSFER_REASON_MAX) bytes on one line. Empty after success.
    #[prost(string, tag = "2")]
    pub error: String,
    /// Bytes that were transferred.
    #[prost(uint64, tag = "3")]
    pub bytes: u64,
    /// Start of its step, in nanoseconds since the epoch, because the step may have begun again.
    #[prost(uint64, tag = "4")]
    pub began: u64,
}

/// Moves a worker of a transfer into the cgroup of the container's workers, which has the container's processor limits. Answered
/// before the worker gets its job.
#[derive(Clone, PartialEq, Message)]
pub struct LimitWorker {
    /// Index of the transfer in the plan.
    #[prost(uint32, tag = "1")]
    pub transfer: u32,
}

/// Asks for the counters.
#[derive(Clone, PartialEq, Message)]
pub struct ReadUsage {
    /// Only those of the log, which cost the shim no look at the kernel's files.
    #[prost(bool, tag = "1")]
    pub log_only: bool,
}

/// Ends a container in time because its checks failed: its stop signal, then SIGKILL after its own grace period.
#[derive(Clone, PartialEq, Message)]
pub struct EndUnhealthy {
    /// Reason, for the log and the container's result: at most [`UNHEALTHY_REASON_MAX`] bytes on one line.
    #[prost(string, tag = "1")]
    pub reason: String,
    /// Last lines of the programs that failed, for the log alone, where they are masked: one entry for a check at most. (2 was the
    /// output of one program.)
    #[prost(message, repeated, tag = "3")]
    pub outputs: Vec<CheckOutput>,
    /// Number of the run that was checked: that of the restarts before it.
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

/// Notes a turn of the container's health in the log.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct NoteHealth {
    /// True if the container became healthy; false if its checks begin.
    #[prost(bool, tag = "1")]
    pub healthy: bool,
    /// Number of the run that is checked: that of the restarts before it.
    #[prost(uint64, tag = "2")]
    pub run: u64,
}

/// Asks for a TCP socket in the container's network namespace, unconnected. Only for a container with checks that connect.
#[derive(Clone, PartialEq, Message)]
pub struct MakeSocket {
    /// True for IPv6.
    #[prost(bool, tag = "1")]
    pub ipv6: bool,
}

/// Replaces the egress of a running container, as [`EGRESS_FDS`] say.
#[derive(Clone, PartialEq, Message)]
pub struct UpdateEgress {}

/// Replaces limits of a running container; those that are 0 or unset stay as they are. Units are those of
/// [`crate::plan::Limits`].
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct UpdateLimits {
    /// Bytes of memory.
    #[prost(uint64, tag = "1")]
    pub memory_bytes: u64,
    /// Processes and threads.
    #[prost(uint64, tag = "2")]
    pub pids: u64,
    /// Thousandths of a processor.
    #[prost(uint64, tag = "3")]
    pub cpu_millis: u64,
    /// Share of the processors, 1 to 10000.
    #[prost(uint32, tag = "4")]
    pub cpu_weight: u32,
    /// Share of the disks, 1 to 10000.
    #[prost(uint32, tag = "5")]
    pub io_weight: u32,
    /// Bytes of swap beyond the memory; -1 for no limit.
    #[prost(int64, optional, tag = "6")]
    pub swap_bytes: Option<i64>,
    /// Bytes that the kernel leaves to the container when memory runs short.
    #[prost(uint64, tag = "7")]
    pub memory_reservation_bytes: u64,
}

/// Asks to stop all processes of a running container until [`Resume`].
#[derive(Clone, PartialEq, Message)]
pub struct Pause {}

/// Asks to let the processes of a paused container go on.
#[derive(Clone, PartialEq, Message)]
pub struct Resume {}

/// Asks for a sign of life.
#[derive(Clone, PartialEq, Message)]
pub struct Ping {}

/// Replaces the secret files of a running container, as [`UPDATE_FDS`] say.
#[derive(Clone, PartialEq, Message)]
pub struct UpdateFiles {
    /// Sent to the process `main` afterwards; 0 for none.
    #[prost(int32, tag = "1")]
    pub signal: i32,
}

/// Asks for the secret inputs.
#[derive(Clone, PartialEq, Message)]
pub struct ReadSecrets {
    /// SHA-256 of the runtime token that was presented.
    #[prost(bytes = "vec", tag = "1")]
    pub token_digest: Vec<u8>,
}

/// Asks for the second handle on the secret file system.
#[derive(Clone, PartialEq, Message)]
pub struct Share {}

/// Ends a container in time.
#[derive(Clone, PartialEq, Message)]
pub struct Stop {
    /// Milliseconds until SIGKILL; 0 for SIGKILL at once.
    #[prost(uint64, tag = "1")]
    pub grace_ms: u64,
    /// Signal in place of the container's own; 0 for that.
    #[prost(int32, tag = "130")]
    pub signal: i32,
}

/// Sends a signal.
#[derive(Clone, PartialEq, Message)]
pub struct Signal {
    /// Process of the container.
    #[prost(string, tag = "1")]
    pub process_id: String,
    /// Number.
    #[prost(int32, tag = "2")]
    pub signal: i32,
}

/// Report of a shim to the daemon.
#[derive(Clone, PartialEq, Message)]
pub struct ShimReport {
    /// Sequence number of the request that this answers; 0 for unsolicited reports.
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    /// Content.
    #[prost(oneof = "ShimNews", tags = "2, 3, 4, 130")]
    pub news: Option<ShimNews>,
}

/// Contents of a shim's report.
#[derive(Clone, PartialEq, Oneof)]
#[allow(clippy::large_enum_variant)] // one at a time, on its way
pub enum ShimNews {
    /// The container is in this state now; its record on disk says more. Told on connecting, and at each change.
    #[prost(message, tag = "2")]
    Reached(Reached),
    /// The container could not be made as asked; nothing of it is left.
    #[prost(message, tag = "3")]
    Refused(Refused),
    /// A request was carried out.
    #[prost(message, tag = "4")]
    Done(Done),
    /// Answer to [`ReadUsage`].
    #[prost(message, tag = "130")]
    Usage(Usage),
}

/// A state was reached.
#[derive(Clone, PartialEq, Message)]
pub struct Reached {
    /// State, as [`state_number`] numbers it.
    #[prost(uint32, tag = "1")]
    pub state: u32,
}

/// Something was refused or failed.
#[derive(Clone, PartialEq, Message)]
pub struct Refused {
    /// Reason.
    #[prost(enumeration = "Reason", tag = "1")]
    pub reason: i32,
    /// Message on one line, with the causes.
    #[prost(string, tag = "2")]
    pub message: String,
    /// Field by field, where fields of the request are at fault. As many as fit a packet.
    #[prost(message, repeated, tag = "3")]
    pub violations: Vec<FieldViolation>,
}

/// Violation of a field.
#[derive(Clone, PartialEq, Message)]
pub struct FieldViolation {
    /// Path of the field, as in the interface.
    #[prost(string, tag = "1")]
    pub field: String,
    /// Description of the violation.
    #[prost(string, tag = "2")]
    pub description: String,
    /// Name of its [`ViolationReason`].
    #[prost(string, tag = "3")]
    pub reason: String,
}

/// Reason of a refusal, from which the daemon derives the gRPC status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Reason {
    /// A fault of ours.
    Internal = 0,
    /// The request itself.
    Invalid = 1,
    /// The request and the host do not fit: a rootfs, a user, a path.
    Precondition = 2,
    /// Disk, memory or the like ran out.
    Exhausted = 3,
    /// The container or process does not exist.
    NotFound = 4,
    /// The container exists already.
    Exists = 5,
    /// The request is based on an outdated state; it can be made again with the current one.
    Stale = 6,
    /// Busy; the same request can succeed shortly after.
    Busy = 7,
    /// The caller is not allowed to make the request.
    Denied = 8,
}

/// Number of a state in [`Reached`].
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

/// The state of a number; `None` for one that a newer peer knows.
pub fn state_of(number: u32) -> Option<crate::lifecycle::State> {
    crate::lifecycle::State::ALL.into_iter().find(|state| state_number(*state) == number)
}

impl Refused {
    /// A refusal for a reason, told in one line.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason: reason as i32, message: message.into(), violations: Vec::new() }
    }

    /// A refusal of fields. Cut so that it fits a packet; the message tells how many there were.
    pub fn from_fields(reason: Reason, violations: &[Violation]) -> Self {
        const MOST: usize = 48 << 10;
        let mut size = 0;
        let fit = violations.iter().take_while(|violation| {
            size += violation.field.len() + violation.description.len() + 48;
            size < MOST
        });
        // What a host refuses without saying why in one word is that it does not fit, or that it does not suffice.
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
        // What says no reason of its own has the one of the refusal; another stays.
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
