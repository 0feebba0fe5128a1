//! Defines the requests from the daemon to the launcher, and the launcher's replies.

use prost::{Message, Oneof};

use super::{
    Archive, CheckNetwork, Done, Exec, ListNetworks, NameSockets, NetworkChecked, NetworksListed, OpenNameSockets,
    OpenSigner, Refused,
};
use crate::settings::SectionDigests;

/// Request from the daemon to the launcher.
#[derive(Clone, PartialEq, Message)]
pub struct LauncherRequest {
    /// Number of the request; the reply repeats it.
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    /// Call; `None` if a newer peer sent a call that is unknown here.
    #[prost(oneof = "LauncherCall", tags = "2, 3, 4, 5, 6, 7, 8, 9, 150, 240, 340, 341, 342, 470")]
    pub call: Option<LauncherCall>,
}

/// Calls from the daemon to the launcher.
#[derive(Clone, PartialEq, Oneof)]
pub enum LauncherCall {
    /// Introduce the daemon. This is the first request on a connection.
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
    /// Unpack a layer of an image into the store, or check that the layer is in the store.
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
    /// List the networks that containers can use.
    #[prost(message, tag = "340")]
    ListNetworks(ListNetworks),
    /// Check the containers of a network with the network's plugins.
    #[prost(message, tag = "341")]
    CheckNetwork(CheckNetwork),
    /// Open the sockets of the name server of a built-in network.
    #[prost(message, tag = "342")]
    OpenNameSockets(OpenNameSockets),
    /// Measure the size of all stored layers.
    #[prost(message, tag = "470")]
    MeasureLayers(MeasureLayers),
}

/// Introduces the daemon to the launcher.
#[derive(Clone, PartialEq, Message)]
pub struct Hello {
    /// Version of the messages of the daemon: [`VERSION`](crate::protocol::VERSION).
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Key of the request digests, if the daemon received a key from an earlier launcher; otherwise empty.
    #[prost(bytes = "vec", tag = "2")]
    pub tag_key: Vec<u8>,
    /// Digests of the daemon's configuration. If they differ from the launcher's digests, the launcher reads its
    /// configuration file again. `None` if the daemon is older than this field.
    #[prost(message, optional, tag = "3")]
    pub configuration: Option<ConfigurationDigests>,
}

/// Starts a container. The descriptors [`LAUNCH_FDS`](crate::protocol::LAUNCH_FDS) accompany the request.
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
    /// Name of the network, as in the plan, if the container is on a network of the node.
    #[prost(string, optional, tag = "112")]
    pub network: Option<String>,
    /// First host id of the range that the request names, as in the plan; 0 for a range of the pool.
    #[prost(uint32, tag = "422")]
    pub given_ids: u32,
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

/// Makes the launcher exit if no container is left.
#[derive(Clone, PartialEq, Message)]
pub struct Shutdown {}

/// Unpacks a layer, and replies when the layer is in the store. The blob's descriptor accompanies the request. The blob
/// is read from its beginning, regardless of the file offset. Without a descriptor nothing is unpacked: the reply is
/// [`Done`] if the layer is in the store, otherwise [`Reason::NotFound`](crate::protocol::reply::Reason::NotFound).
///
/// A layer that is already stored is not unpacked again. A layer whose parents are missing is refused
/// ([`Reason::Precondition`](crate::protocol::reply::Reason::Precondition)), so an image is unpacked from the bottom
/// up.
#[derive(Clone, PartialEq, Message)]
pub struct UnpackLayer {
    /// Digest of the uncompressed archive, `sha256:HEX`.
    #[prost(string, tag = "1")]
    pub diff_id: String,
    /// Media type of the blob in the manifest.
    #[prost(string, tag = "2")]
    pub media_type: String,
    /// Maximum bytes of the uncompressed archive and of the files in it; 0 for the launcher's own limit. The launcher's
    /// limit always applies.
    #[prost(uint64, tag = "3")]
    pub bytes_max: u64,
    /// Layers below this layer in its image, bottom first: the 32 bytes of each diffID.
    #[prost(bytes = "vec", repeated, tag = "4")]
    pub parents: Vec<Vec<u8>>,
}

/// Removes a layer, and replies when its disk space is free. Refused with
/// [`Reason::Busy`](crate::protocol::reply::Reason::Busy) while a container that is not completed uses the layer, and
/// with [`Reason::NotFound`](crate::protocol::reply::Reason::NotFound) if the layer does not exist.
#[derive(Clone, PartialEq, Message)]
pub struct RemoveLayer {
    /// diffID of the layer, `sha256:HEX`.
    #[prost(string, tag = "1")]
    pub diff_id: String,
}

/// Requests the size of all stored layers. Each layer is measured once.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct MeasureLayers {}

/// Size of all stored layers.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct LayersMeasured {
    /// Bytes of all layers on the disk.
    #[prost(uint64, tag = "1")]
    pub bytes: u64,
    /// Number of inodes of all layers.
    #[prost(uint64, tag = "2")]
    pub inodes: u64,
}

/// Reply of the launcher to the daemon.
#[derive(Clone, PartialEq, Message)]
pub struct LauncherReply {
    /// Sequence number of the request; 0 for an unsolicited message.
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
    /// Response; `None` if a newer peer sent a response that is unknown here.
    #[prost(oneof = "LauncherAnswer", tags = "2, 3, 4, 5, 6, 150, 340, 341, 342, 470")]
    pub answer: Option<LauncherAnswer>,
}

/// Contents of the launcher's replies.
#[derive(Clone, PartialEq, Oneof)]
pub enum LauncherAnswer {
    /// Reply to [`Hello`]: every container without a live shim now has an exit record.
    #[prost(message, tag = "2")]
    Welcome(Welcome),
    /// The request succeeded, and its reply has no content.
    #[prost(message, tag = "3")]
    Done(Done),
    /// The request was refused or failed.
    #[prost(message, tag = "4")]
    Refused(Refused),
    /// Unsolicited (sequence 0): a shim exited before its container; the launcher has finished the container.
    #[prost(message, tag = "5")]
    ShimLost(ShimLost),
    /// Reply to [`UnpackLayer`] if there is a warning about the layer; otherwise the reply is [`Done`].
    #[prost(message, tag = "6")]
    Unpacked(Unpacked),
    /// Reply to [`CountWarmPool`].
    #[prost(message, tag = "150")]
    WarmPool(WarmPool),
    /// Reply to [`ListNetworks`].
    #[prost(message, tag = "340")]
    NetworksListed(NetworksListed),
    /// Reply to [`CheckNetwork`].
    #[prost(message, tag = "341")]
    NetworkChecked(NetworkChecked),
    /// Reply to [`OpenNameSockets`].
    #[prost(message, tag = "342")]
    NameSockets(NameSockets),
    /// Reply to [`MeasureLayers`].
    #[prost(message, tag = "470")]
    LayersMeasured(LayersMeasured),
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
    /// Version of the messages of the launcher: [`VERSION`](crate::protocol::VERSION).
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
    /// Reason why the launcher did not load its current configuration file; empty if the file is loaded.
    #[prost(string, tag = "6")]
    pub stale: String,
    /// Process id of the launcher.
    #[prost(uint32, tag = "7")]
    pub pid: u32,
}

/// Digests of the parts of a configuration that the daemon and the launcher both read.
#[derive(Clone, PartialEq, Message)]
pub struct ConfigurationDigests {
    /// SHA-256 of each section, by the section's name.
    #[prost(btree_map = "string, bytes", tag = "1")]
    pub sections: SectionDigests,
}

/// Counts of a launcher's warm pool since the start of the launcher.
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

/// A shim exited, and the launcher finished its container.
#[derive(Clone, PartialEq, Message)]
pub struct ShimLost {
    /// Id of the container.
    #[prost(string, tag = "1")]
    pub container_id: String,
    /// Time of the container's acceptance, as in its [`Launch`], because the id may belong to another container by now.
    /// 0 if unknown.
    #[prost(uint64, tag = "2")]
    pub created_at: u64,
}
