//! Access control: a table of methods and the callers that may use them. Only methods in the table are served.
//!
//! Local clients are authorized by their kernel-reported credentials (`Socket`), network clients by their certificates
//! (`callers`) and the rules in force (`rules`).

pub mod callers;
pub mod rules;
pub(crate) mod sets;

use std::fmt;

use executor_sys::peer::Peer;

use crate::api_error::{ApiError, Kind};

/// The method that returns secrets.
pub(crate) const GET_SECRETS: &str = "/executor.v1.Executor/GetSecrets";

/// Callers that may use a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Callers {
    /// Root, the daemon's own user, and members of the configured group.
    Operators,
    /// Holders of a container's runtime token. Only the token is checked.
    TokenHolders,
}

/// Every served method, with the callers that may use it.
const TABLE: [(&str, Callers); 50] = [
    ("/executor.v1.Executor/Run", Callers::Operators),
    ("/executor.v1.Executor/Start", Callers::Operators),
    ("/executor.v1.Executor/Validate", Callers::Operators),
    ("/executor.v1.Executor/Get", Callers::Operators),
    ("/executor.v1.Executor/List", Callers::Operators),
    ("/executor.v1.Executor/Wait", Callers::Operators),
    ("/executor.v1.Executor/StreamLogs", Callers::Operators),
    ("/executor.v1.Executor/Stop", Callers::Operators),
    ("/executor.v1.Executor/Signal", Callers::Operators),
    ("/executor.v1.Executor/Delete", Callers::Operators),
    ("/executor.v1.Executor/WatchEvents", Callers::Operators),
    ("/executor.v1.Executor/Info", Callers::Operators),
    ("/executor.v1.Executor/ListNetworks", Callers::Operators),
    ("/executor.v1.Executor/CheckNetwork", Callers::Operators),
    ("/executor.v1.Executor/UpdateFiles", Callers::Operators),
    ("/executor.v1.Executor/UpdateEgress", Callers::Operators),
    ("/executor.v1.Executor/UpdateLimits", Callers::Operators),
    ("/executor.v1.Executor/Pause", Callers::Operators),
    ("/executor.v1.Executor/Resume", Callers::Operators),
    ("/executor.v1.Executor/ReopenLog", Callers::Operators),
    ("/executor.v1.Executor/Stats", Callers::Operators),
    ("/executor.v1.Executor/WatchStats", Callers::Operators),
    (GET_SECRETS, Callers::TokenHolders),
    ("/executor.v1.Executor/GetOutputs", Callers::Operators),
    ("/executor.v1.Images/Pull", Callers::Operators),
    ("/executor.v1.Images/Import", Callers::Operators),
    ("/executor.v1.Images/List", Callers::Operators),
    ("/executor.v1.Images/Inspect", Callers::Operators),
    ("/executor.v1.Images/Remove", Callers::Operators),
    ("/executor.v1.Images/Prune", Callers::Operators),
    ("/executor.v1.Images/StoreUsage", Callers::Operators),
    ("/executor.v1.Cell/Reserve", Callers::Operators),
    ("/executor.v1.Cell/ReleaseReservation", Callers::Operators),
    ("/executor.v1.Cell/Drain", Callers::Operators),
    ("/executor.v1.Cell/Undrain", Callers::Operators),
    ("/executor.v1.Cell/SetHealthy", Callers::Operators),
    ("/executor.v1.Pods/CreatePod", Callers::Operators),
    ("/executor.v1.Pods/GetPod", Callers::Operators),
    ("/executor.v1.Pods/ListPods", Callers::Operators),
    ("/executor.v1.Pods/StopPod", Callers::Operators),
    ("/executor.v1.Pods/DeletePod", Callers::Operators),
    ("/executor.v1.Pods/ConnectPort", Callers::Operators),
    ("/executor.v1.Executor/Exec", Callers::Operators),
    ("/executor.v1.Executor/Attach", Callers::Operators),
    ("/executor.v1.Executor/GetArchive", Callers::Operators),
    ("/executor.v1.Executor/PutArchive", Callers::Operators),
    ("/grpc.health.v1.Health/Check", Callers::Operators),
    ("/grpc.health.v1.Health/Watch", Callers::Operators),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Callers::Operators),
    ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Callers::Operators),
];

/// Methods that may run for a long time: `Wait`, and every method whose requests or responses are a stream.
const LONG_RUNNING: [&str; 16] = [
    WAIT,
    "/executor.v1.Executor/StreamLogs",
    "/executor.v1.Executor/WatchEvents",
    "/executor.v1.Executor/WatchStats",
    "/executor.v1.Executor/GetOutputs",
    "/executor.v1.Executor/Exec",
    "/executor.v1.Executor/Attach",
    "/executor.v1.Executor/GetArchive",
    "/executor.v1.Executor/PutArchive",
    "/executor.v1.Images/Pull",
    "/executor.v1.Images/Import",
    "/executor.v1.Pods/ConnectPort",
    "/executor.v1.Cell/Drain",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// Path of `Wait`, which is in [`LONG_RUNNING`] although neither its requests nor its responses are a stream.
const WAIT: &str = "/executor.v1.Executor/Wait";

/// Returns true if the method's requests or responses are a stream.
pub(crate) fn is_stream(path: &str) -> bool {
    path != WAIT && LONG_RUNNING.contains(&path)
}

/// A served method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Method {
    /// Name, such as `executor.v1.Executor/Run`.
    pub(crate) name: &'static str,
    /// True if the method may run for a long time.
    pub(crate) is_long_running: bool,
}

/// Returns the served method for a path.
pub(crate) fn method(path: &str) -> Option<Method> {
    let (found, _) = TABLE.iter().find(|(name, _)| *name == path)?;
    Some(Method { name: found.strip_prefix('/').unwrap_or(found), is_long_running: LONG_RUNNING.contains(found) })
}

/// Local clients that are operators, in addition to root.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Uid of the daemon's own user; `None` if other programs run as the same user.
    pub own_uid: Option<u32>,
    /// Gid of the group whose members are operators.
    pub group: Option<u32>,
}

/// Metrics label of the TCP listener.
pub(crate) const TCP: &str = "tcp";

/// A Unix socket on which clients connect.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Socket {
    /// The control plane's socket.
    Main(Access),
    /// The socket for containers. Any peer may connect, but only token methods are served.
    Runtime,
}

/// A connected client, with the data that decides which methods it may call.
#[derive(Clone, Debug)]
pub(crate) enum Client {
    /// A process on this host, authorized by its credentials.
    Local(Socket, Peer),
    /// A network caller, authorized by its certificate.
    Remote(rules::Caller),
}

impl Client {
    /// Checks that the client may call a method.
    ///
    /// # Errors
    /// Returns an error if the client is not permitted or the method is not served.
    pub(crate) fn check(&self, method: &str) -> Result<(), ApiError> {
        match self {
            Self::Local(socket, peer) => socket.check(method, peer),
            Self::Remote(caller) => caller.check(method),
        }
    }

    /// Returns the metrics label of the socket that the client connected to.
    pub(crate) fn socket_label(&self) -> &'static str {
        match self {
            Self::Local(socket, _) => socket.name(),
            Self::Remote(_) => TCP,
        }
    }

    /// Returns true for clients of the containers' socket, where any process may connect at any rate. Denied calls of
    /// these clients must not fill the log.
    pub(crate) fn uses_runtime_socket(&self) -> bool {
        matches!(self, Self::Local(Socket::Runtime, _))
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(_, peer) => write!(f, "uid {}", peer.uid),
            Self::Remote(caller) => caller.fmt(f),
        }
    }
}

/// Returns the error for a method that is not served. The error omits the method name, because a client can send any
/// bytes as the name.
fn unknown_method(caller: impl fmt::Display) -> ApiError {
    let version = executor_secrets::VERSION;
    let why = format!("{caller} called a method that executord {version} does not serve: see `features` of Info");
    ApiError::new(Kind::Unimplemented, why)
}

fn is_served(path: &str) -> bool {
    TABLE.iter().any(|(name, _)| *name == path)
}

impl Socket {
    /// Returns the socket's name in metrics.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Main(_) => "control",
            Self::Runtime => "runtime",
        }
    }

    /// Checks that a peer may call a method.
    ///
    /// # Errors
    /// Returns an error if the peer is not permitted or the method is not served.
    pub(crate) fn check(&self, method: &str, peer: &Peer) -> Result<(), ApiError> {
        match self {
            Self::Main(access) => access.check(method, peer),
            Self::Runtime if TABLE.contains(&(method, Callers::TokenHolders)) => Ok(()),
            Self::Runtime => {
                let kind = if is_served(method) { Kind::Denied } else { Kind::Unimplemented };
                Err(ApiError::new(kind, "this socket serves executor.v1.Executor/GetSecrets only"))
            }
        }
    }
}

impl Access {
    /// Checks that a peer may call a method.
    ///
    /// # Errors
    /// Returns an error if the peer is not permitted or the method is not served.
    pub fn check(&self, method: &str, peer: &Peer) -> Result<(), ApiError> {
        let denied = |why: String| Err(ApiError::new(Kind::Denied, why));
        match TABLE.iter().find(|(name, _)| *name == method) {
            Some((_, Callers::TokenHolders)) => Ok(()),
            Some((_, Callers::Operators)) if self.is_operator(peer) => Ok(()),
            Some((_, Callers::Operators)) => {
                let own = self.own_uid.map(|uid| format!(", uid {uid}")).unwrap_or_default();
                denied(format!("uid {} may not call {method}: only root{own} and members of allow_group may", peer.uid))
            }
            // Omit the method name: a client can send any bytes as the name.
            None if self.is_operator(peer) => Err(unknown_method(format_args!("uid {}", peer.uid))),
            None => denied(format!("uid {} called a method that this socket does not serve", peer.uid)),
        }
    }

    fn is_operator(&self, peer: &Peer) -> bool {
        peer.uid == 0 || Some(peer.uid) == self.own_uid || self.group.is_some_and(|group| peer.is_member(group))
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    fn peer(uid: u32, gid: u32, groups: &[u32]) -> Peer {
        Peer { uid, gid, groups: groups.to_vec() }
    }

    #[test]
    fn operators_and_no_other() {
        let access = Access { own_uid: Some(7), group: Some(50) };
        let may = |peer: &Peer| access.check("/executor.v1.Executor/Run", peer).is_ok();
        assert!(may(&peer(0, 0, &[])) && may(&peer(7, 7, &[])));
        assert!(may(&peer(8, 50, &[])) && may(&peer(8, 8, &[1, 50])));
        assert!(!may(&peer(8, 8, &[1])));
        let shared = Access { own_uid: None, group: Some(50) };
        assert!(shared.check("/executor.v1.Executor/Run", &peer(7, 7, &[])).is_err());
        let none = Access { group: None, ..access };
        let denied = none.check("/executor.v1.Executor/Run", &peer(8, 50, &[50])).unwrap_err();
        assert!(denied.message.contains("uid 8") && denied.kind == Kind::Denied, "{denied}");
    }

    #[test]
    fn unknown_method_is_unimplemented_for_operators() {
        let access = Access { own_uid: Some(0), group: None };
        for method in ["/executor.v1.Executor/Destroy", "/", "", "/executor.v1.Executor/run"] {
            let check = |uid| access.check(method, &peer(uid, uid, &[])).unwrap_err().kind;
            assert_eq!((check(0), check(8)), (Kind::Unimplemented, Kind::Denied), "{method}");
            let runtime = Socket::Runtime.check(method, &peer(8, 8, &[])).unwrap_err();
            assert_eq!(runtime.kind, Kind::Unimplemented, "{method}");
        }
    }

    /// On both sockets, the runtime token alone authorizes GetSecrets. The containers' socket serves no other method.
    #[test]
    fn containers_may_call_one_method() {
        let stranger = peer(4711, 4711, &[]);
        assert!(Access { own_uid: Some(0), group: None }.check(GET_SECRETS, &stranger).is_ok());
        for (method, _) in TABLE {
            for caller in [&stranger, &peer(0, 0, &[])] {
                assert_eq!(Socket::Runtime.check(method, caller).is_ok(), method == GET_SECRETS, "{method}");
            }
        }
    }

    /// Each new method must be added to the table deliberately.
    #[test]
    fn access_table_lists_every_method() {
        let set = prost_types::FileDescriptorSet::decode(executor_proto::FILE_DESCRIPTOR_SET).unwrap();
        let mut methods = 0;
        for file in &set.file {
            for service in &file.service {
                for method in &service.method {
                    let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                    assert!(TABLE.iter().any(|(name, _)| *name == path), "{path}");
                    let streams = method.client_streaming() || method.server_streaming();
                    let waits = path == WAIT;
                    assert_eq!(
                        LONG_RUNNING.contains(&&*path),
                        streams || waits,
                        "{path}: only streams and waits are long-running"
                    );
                    methods += 1;
                }
            }
        }
        assert_eq!(methods, 46);
    }
}
