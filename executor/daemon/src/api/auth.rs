//! Who may call what: a table from method to whom it is open, and nobody where the table says nothing.

use executor_sys::peer::Peer;

use crate::problem::{Kind, Problem};

/// The one method that answers secrets.
pub(super) const GET_SECRETS: &str = "/executor.v1.Executor/GetSecrets";

/// To whom a method is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// Root, the daemon's own user, and members of the configured group.
    Operators,
    /// Whoever presents a container's runtime token. The token decides, and nothing else of the caller.
    TokenHolders,
}

/// Every method that is served.
const TABLE: [(&str, Who); 27] = [
    ("/executor.v1.Executor/Run", Who::Operators),
    ("/executor.v1.Executor/Get", Who::Operators),
    ("/executor.v1.Executor/List", Who::Operators),
    ("/executor.v1.Executor/Wait", Who::Operators),
    ("/executor.v1.Executor/StreamLogs", Who::Operators),
    ("/executor.v1.Executor/Stop", Who::Operators),
    ("/executor.v1.Executor/Signal", Who::Operators),
    ("/executor.v1.Executor/Delete", Who::Operators),
    ("/executor.v1.Executor/WatchEvents", Who::Operators),
    ("/executor.v1.Executor/Info", Who::Operators),
    ("/executor.v1.Executor/UpdateFiles", Who::Operators),
    (GET_SECRETS, Who::TokenHolders),
    ("/executor.v1.Executor/GetOutputs", Who::Operators),
    ("/executor.v1.Images/Pull", Who::Operators),
    ("/executor.v1.Images/Import", Who::Operators),
    ("/executor.v1.Images/List", Who::Operators),
    ("/executor.v1.Images/Inspect", Who::Operators),
    ("/executor.v1.Images/Remove", Who::Operators),
    ("/executor.v1.Images/Prune", Who::Operators),
    ("/executor.v1.Executor/Exec", Who::Operators),
    ("/executor.v1.Executor/Attach", Who::Operators),
    ("/executor.v1.Executor/GetArchive", Who::Operators),
    ("/executor.v1.Executor/PutArchive", Who::Operators),
    ("/grpc.health.v1.Health/Check", Who::Operators),
    ("/grpc.health.v1.Health/Watch", Who::Operators),
    ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Who::Operators),
    ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Who::Operators),
];

/// Whom the table's words mean here.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The daemon's own user.
    pub own_uid: u32,
    /// The group whose members are operators.
    pub group: Option<u32>,
}

/// Where a client came in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Door {
    /// The control plane's socket.
    Main(Access),
    /// The socket that containers see: any peer, and nothing but what a token opens.
    Runtime,
}

impl Door {
    /// Lets a peer call a method.
    ///
    /// # Errors
    /// It may not.
    pub(super) fn judge(&self, method: &str, peer: &Peer) -> Result<(), Problem> {
        match self {
            Self::Main(access) => access.judge(method, peer),
            Self::Runtime if TABLE.contains(&(method, Who::TokenHolders)) => Ok(()),
            Self::Runtime => {
                Err(Problem::new(Kind::Denied, "this socket serves executor.v1.Executor/GetSecrets alone"))
            }
        }
    }
}

impl Access {
    /// Lets a peer call a method.
    ///
    /// # Errors
    /// It may not.
    pub fn judge(&self, method: &str, peer: &Peer) -> Result<(), Problem> {
        let denied = |why: String| Err(Problem::new(Kind::Denied, why));
        match TABLE.iter().find(|(name, _)| *name == method) {
            Some((_, Who::TokenHolders)) => Ok(()),
            Some((_, Who::Operators)) if self.is_operator(peer) => Ok(()),
            Some((_, Who::Operators)) => denied(format!(
                "uid {} may not call {method}: it is open to root, to uid {} and to members of the configured group",
                peer.uid, self.own_uid
            )),
            // What was called is not repeated: nobody knows what it is.
            None => denied(format!("uid {} called a method that is not one of this socket's", peer.uid)),
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
        let may = |peer: &Peer| access.judge("/executor.v1.Executor/Run", peer).is_ok();
        assert!(may(&peer(0, 0, &[])) && may(&peer(7, 7, &[])));
        assert!(may(&peer(8, 50, &[])) && may(&peer(8, 8, &[1, 50])));
        assert!(!may(&peer(8, 8, &[1])));
        let none = Access { group: None, ..access };
        let denied = none.judge("/executor.v1.Executor/Run", &peer(8, 50, &[50])).unwrap_err();
        assert!(denied.message.contains("uid 8") && denied.kind == Kind::Denied, "{denied}");
    }

    #[test]
    fn what_is_not_in_the_table_is_closed_to_root() {
        let access = Access { own_uid: 0, group: None };
        for method in ["/executor.v1.Executor/Destroy", "/", "", "/executor.v1.Executor/run"] {
            assert!(access.judge(method, &peer(0, 0, &[])).is_err(), "{method}");
        }
    }

    /// secrets.md, rule 4: the token decides, on either socket; a container's has nothing else.
    #[test]
    fn containers_may_call_one_method() {
        let stranger = peer(4711, 4711, &[]);
        assert!(Access { own_uid: 0, group: None }.judge(GET_SECRETS, &stranger).is_ok());
        for (method, _) in TABLE {
            for caller in [&stranger, &peer(0, 0, &[])] {
                assert_eq!(Door::Runtime.judge(method, caller).is_ok(), method == GET_SECRETS, "{method}");
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
        assert_eq!(methods, 23);
    }
}
