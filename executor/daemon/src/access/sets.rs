//! Named method sets for callers with a certificate. Each served method is in exactly one set.

use super::is_served;

/// A named set of methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MethodSet {
    /// Read-only methods: containers, pods, images, networks, logs, outputs, events, health, reflection.
    Read,
    /// Container and pod lifecycle, operations in containers, and image pulls.
    Run,
    /// Node-wide operations.
    Admin,
}

impl MethodSet {
    pub(crate) const ALL: [Self; 3] = [Self::Read, Self::Run, Self::Admin];

    /// Returns the set's name in the configuration file.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Run => "run",
            Self::Admin => "admin",
        }
    }

    /// Returns the paths of the set's methods.
    pub(crate) fn methods(self) -> &'static [&'static str] {
        match self {
            Self::Read => &READ,
            Self::Run => &RUN,
            Self::Admin => &ADMIN,
        }
    }
}

const READ: [&str; 19] = [
    "/executor.v1.Executor/Get",
    "/executor.v1.Executor/List",
    "/executor.v1.Executor/Wait",
    "/executor.v1.Executor/StreamLogs",
    "/executor.v1.Executor/WatchEvents",
    "/executor.v1.Executor/Info",
    "/executor.v1.Executor/ListNetworks",
    "/executor.v1.Executor/Stats",
    "/executor.v1.Executor/WatchStats",
    "/executor.v1.Executor/GetOutputs",
    "/executor.v1.Images/List",
    "/executor.v1.Images/Inspect",
    "/executor.v1.Images/StoreUsage",
    "/executor.v1.Pods/GetPod",
    "/executor.v1.Pods/ListPods",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

const RUN: [&str; 24] = [
    "/executor.v1.Executor/Run",
    "/executor.v1.Executor/Start",
    "/executor.v1.Executor/Validate",
    "/executor.v1.Executor/Stop",
    "/executor.v1.Executor/Signal",
    "/executor.v1.Executor/Delete",
    "/executor.v1.Executor/UpdateFiles",
    "/executor.v1.Executor/UpdateEgress",
    "/executor.v1.Executor/UpdateLimits",
    "/executor.v1.Executor/Pause",
    "/executor.v1.Executor/Resume",
    "/executor.v1.Executor/ReopenLog",
    "/executor.v1.Executor/Exec",
    "/executor.v1.Executor/Attach",
    "/executor.v1.Executor/GetArchive",
    "/executor.v1.Executor/PutArchive",
    "/executor.v1.Images/Pull",
    "/executor.v1.Images/Import",
    "/executor.v1.Pods/CreatePod",
    "/executor.v1.Pods/StopPod",
    "/executor.v1.Pods/DeletePod",
    "/executor.v1.Pods/ConnectPort",
    "/executor.v1.Cell/Reserve",
    "/executor.v1.Cell/ReleaseReservation",
];

const ADMIN: [&str; 7] = [
    // On Unix sockets, the container's runtime token alone authorizes this method.
    super::GET_SECRETS,
    "/executor.v1.Executor/CheckNetwork",
    "/executor.v1.Images/Remove",
    "/executor.v1.Images/Prune",
    "/executor.v1.Cell/Drain",
    "/executor.v1.Cell/Undrain",
    "/executor.v1.Cell/SetHealthy",
];

/// Returns the methods for a configuration value: the name of a set, or `SERVICE/METHOD`.
///
/// # Errors
/// Returns a message if no set and no method has the name.
pub(crate) fn methods(word: &str) -> Result<Vec<&'static str>, String> {
    if let Some(set) = MethodSet::ALL.into_iter().find(|set| set.name() == word) {
        return Ok(set.methods().to_vec());
    }
    let names = || MethodSet::ALL.iter().flat_map(|set| set.methods());
    let named = names().find(|path| path.strip_prefix('/') == Some(word) && is_served(path));
    named.map(|path| vec![*path]).ok_or_else(|| {
        format!("unknown method {word:?}; use `read`, `run`, `admin` or a method such as `executor.v1.Executor/Stop`")
    })
}

#[cfg(test)]
mod tests {
    use super::super::TABLE;
    use super::*;

    /// Each new method must be put into a set deliberately.
    #[test]
    fn every_method_is_in_exactly_one_set() {
        for (path, _) in TABLE {
            let sets: Vec<_> = MethodSet::ALL.into_iter().filter(|set| set.methods().contains(&path)).collect();
            assert_eq!(sets.len(), 1, "{path} is in {sets:?}");
        }
        for path in MethodSet::ALL.iter().flat_map(|set| set.methods()) {
            assert!(is_served(path), "{path} is not served");
        }
    }

    #[test]
    fn words_are_sets_or_methods() {
        assert_eq!(methods("executor.v1.Executor/Stop").unwrap(), ["/executor.v1.Executor/Stop"]);
        assert_eq!(methods("read").unwrap(), READ);
        for bad in ["", "Read", "Stop", "/executor.v1.Executor/Stop", "executor.v1.Executor/Destroy", "all"] {
            assert!(methods(bad).unwrap_err().contains("`admin`"), "{bad}");
        }
    }
}
