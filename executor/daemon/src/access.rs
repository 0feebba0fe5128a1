//! Access control: a table of methods and the callers that may use them. Methods that are not in it are denied.

use executor_sys::peer::Peer;

use crate::problem::{Kind, Problem};

/// The method that answers secrets.
pub(crate) const GET_SECRETS: &str = "/executor.v1.Executor/GetSecrets";

/// Callers of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Callers {
    /// Root, the daemon's own user, and members of the configured group.
    Operators,
    /// Holders of a container's runtime token, which alone decides.
    TokenHolders,
}

/// Every method that is served.
const TABLE: [(&str, Callers); 35] = [
    ("/executor.v1.Executor/Run", Callers::Operators),
    ("/executor.v1.Executor/Get", Callers::Operators),
    ("/executor.v1.Executor/List", Callers::Operators),
    ("/executor.v1.Executor/Wait", Callers::Operators),
    ("/executor.v1.Executor/StreamLogs", Callers::Operators),
    ("/executor.v1.Executor/Stop", Callers::Operators),
    ("/executor.v1.Executor/Signal", Callers::Operators),
    ("/executor.v1.Executor/Delete", Callers::Operators),
    ("/executor.v1.Executor/WatchEvents", Callers::Operators),
    ("/executor.v1.Executor/Info", Callers::Operators),
    ("/executor.v1.Executor/UpdateFiles", Callers::Operators),
    ("/executor.v1.Executor/UpdateEgress", Callers::Operators),
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
    ("/executor.v1.Pods/CreatePod", Callers::Operators),
    ("/executor.v1.Pods/GetPod", Callers::Operators),
    ("/executor.v1.Pods/ListPods", Callers::Operators),
    ("/executor.v1.Pods/StopPod", Callers::Operators),
    ("/executor.v1.Pods/DeletePod", Callers::Operators),
    ("/executor.v1.Executor/Exec", Callers::Operators),
    ("/executor.v1.Executor/Attach", Callers::Operators),
    ("/executor.v1.Executor/GetArchive", Callers::Operators),
    ("/executor.v1.Executor/PutArchive", Callers::Operators),
    ("/grpc.health.v1.Health/Check", Callers::Operators),
    ("/grpc.health.v1.Health/Watch", Callers::Operators),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Callers::Operators),
    ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Callers::Operators),
];

/// The operators of this daemon.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Uid of the daemon's own user.
    pub own_uid: u32,
    /// Gid of the group whose members are operators.
    pub group: Option<u32>,
}

/// The caller of a method, as rules of the configuration name callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// A process of this machine, by the credentials that the kernel has of it.
    Process(Peer),
}

impl Caller {
    /// Returns whether a rule's user and group, where it has them, are the caller's.
    pub(crate) fn fits(&self, uid: Option<u32>, gid: Option<u32>) -> bool {
        let Self::Process(peer) = self;
        uid.is_none_or(|uid| peer.uid == uid) && gid.is_none_or(|gid| peer.is_member(gid))
    }
}

impl std::fmt::Display for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self::Process(peer) = self;
        write!(f, "uid {}", peer.uid)
    }
}

/// The sockets on which clients connect.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Socket {
    /// The control plane's socket.
    Main(Access),
    /// The socket that containers see: open to any peer, for the methods of token holders alone.
    Runtime,
}

impl Socket {
    /// Checks that a peer may call a method.
    ///
    /// # Errors
    /// The peer is not permitted.
    pub(crate) fn check(&self, method: &str, peer: &Peer) -> Result<(), Problem> {
        match self {
            Self::Main(access) => access.check(method, peer),
            Self::Runtime if TABLE.contains(&(method, Callers::TokenHolders)) => Ok(()),
            Self::Runtime => Err(Problem::new(Kind::Denied, "this socket serves executor.v1.Executor/GetSecrets only")),
        }
    }
}

impl Access {
    /// Checks that a peer may call a method.
    ///
    /// # Errors
    /// The peer is not permitted.
    pub fn check(&self, method: &str, peer: &Peer) -> Result<(), Problem> {
        let denied = |why: String| Err(Problem::new(Kind::Denied, why));
        match TABLE.iter().find(|(name, _)| *name == method) {
            Some((_, Callers::TokenHolders)) => Ok(()),
            Some((_, Callers::Operators)) if self.is_operator(peer) => Ok(()),
            Some((_, Callers::Operators)) => denied(format!(
                "uid {} may not call {method}: it is open to root, to uid {} and to members of the configured group",
                peer.uid, self.own_uid
            )),
            // The method is not repeated: a client can put any bytes there.
            None => denied(format!("uid {} called a method that this socket does not serve", peer.uid)),
        }
    }

    fn is_operator(&self, peer: &Peer) -> bool {
        peer.uid == 0 || peer.uid == self.own_uid || self.group.is_some_and(|group| peer.is_member(group))
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
    fn operators_and_nobody_else() {
        let access = Access { own_uid: 7, group: Some(50) };
        let may = |peer: &Peer| access.check("/executor.v1.Executor/Run", peer).is_ok();
        assert!(may(&peer(0, 0, &[])) && may(&peer(7, 7, &[])));
        assert!(may(&peer(8, 50, &[])) && may(&peer(8, 8, &[1, 50])));
        assert!(!may(&peer(8, 8, &[1])));
        let none = Access { group: None, ..access };
        let denied = none.check("/executor.v1.Executor/Run", &peer(8, 50, &[50])).unwrap_err();
        assert!(denied.message.contains("uid 8") && denied.kind == Kind::Denied, "{denied}");
    }

    #[test]
    fn what_is_not_in_the_table_is_closed_to_root() {
        let access = Access { own_uid: 0, group: None };
        for method in ["/executor.v1.Executor/Destroy", "/", "", "/executor.v1.Executor/run"] {
            assert!(access.check(method, &peer(0, 0, &[])).is_err(), "{method}");
        }
    }

    /// The token decides on either socket; the containers' socket serves nothing else.
    #[test]
    fn containers_may_call_one_method() {
        let stranger = peer(4711, 4711, &[]);
        assert!(Access { own_uid: 0, group: None }.check(GET_SECRETS, &stranger).is_ok());
        for (method, _) in TABLE {
            for caller in [&stranger, &peer(0, 0, &[])] {
                assert_eq!(Socket::Runtime.check(method, caller).is_ok(), method == GET_SECRETS, "{method}");
            }
        }
    }

    /// A method that is added to the interface must be added to the table, on purpose.
    #[test]
    fn the_table_has_every_method_of_the_interface() {
        let set = prost_types::FileDescriptorSet::decode(executor_proto::FILE_DESCRIPTOR_SET).unwrap();
        let mut methods = 0;
        for file in &set.file {
            for service in &file.service {
                for method in &service.method {
                    let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                    assert!(TABLE.iter().any(|(name, _)| *name == path), "{path}");
                    methods += 1;
                }
            }
        }
        assert_eq!(methods, 31);
    }
}
