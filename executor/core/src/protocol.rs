//! Defines the messages between the daemon, the launcher and the shims over SOCK_SEQPACKET, one message per packet.
//!
//! The encoding is protobuf, so that a daemon can be upgraded while older shims keep running. No message contains a
//! secret: secrets are in memory files whose descriptors accompany [`Launch`] in the order of [`LAUNCH_FDS`]. Long
//! lists (files, labels) are in the plan's memory file and in the records on disk, so a message always fits a packet. A
//! message about a process names the process, because a container can have several processes.

mod launcher;
mod networks;
mod reply;
mod shim;
mod signer;
mod streams;

pub use launcher::{
    ConfigurationDigests, CountWarmPool, Hello, Launch, LauncherAnswer, LauncherCall, LauncherReply, LauncherRequest,
    LayersMeasured, MeasureLayers, Remove, RemoveLayer, ShimLost, Shutdown, UnpackLayer, Unpacked, WarmPool, Welcome,
};
pub use networks::{
    AttachmentCheck, CHECK_PATIENCE, CHECKS_MAX, CNI_NETWORKS_MAX, CheckNetwork, CheckOutcome, LISTED_CONTAINERS_BYTES,
    ListNetworks, ListedBridge, ListedContainer, ListedNetwork, ListedPort, NETWORK_LIST_MAX, NETWORK_NAMES_MAX,
    NETWORK_WARNING_LENGTH, NETWORK_WARNINGS_MAX, NETWORKS_FDS, NameSockets, NetworkChecked, NetworkChecks,
    NetworkList, NetworksListed, OpenNameSockets,
};
pub use reply::{Done, FieldViolation, Reason, Refused};
pub use shim::{
    CheckOutput, EndTransfer, EndUnhealthy, LimitWorker, MakeSocket, NoteHealth, Pause, Ping, Reached, ReadSecrets,
    ReadTransfer, ReadUsage, ReopenLog, Resume, Share, ShimCall, ShimNews, ShimReport, ShimRequest, Signal, Start,
    Stop, UpdateEgress, UpdateFiles, UpdateLimits, state_number, state_of,
};
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
/// Maximum size of a packet, in bytes.
pub const PACKET_MAX: usize = 64 << 10;
/// Descriptors of a [`Launch`], in order.
pub const LAUNCH_FDS: [&str; 4] = ["shim connection", "plan", "process payload", "files payload"];
/// Descriptors of an [`UpdateFiles`], in order: a [`crate::update::FileUpdate`] as JSON, and a payload of the contents.
pub const UPDATE_FDS: [&str; 2] = ["update", "contents"];
/// Descriptor of an [`UpdateEgress`]: a [`crate::update::EgressUpdate`] as JSON.
pub const EGRESS_FDS: [&str; 1] = ["update"];
/// Maximum length of the reason in an [`EndUnhealthy`], in bytes.
pub const UNHEALTHY_REASON_MAX: usize = 1024;
/// Maximum length of a check's output in an [`EndUnhealthy`], in bytes.
pub const CHECK_OUTPUT_MAX: usize = 2048;
/// Descriptor of the reply to a [`ReadTransfer`]: a memory file with the URL.
pub const TRANSFER_FDS: [&str; 1] = ["url"];
/// Maximum size of a plan, in bytes of JSON.
pub const PLAN_MAX: u64 = 16 << 20;
