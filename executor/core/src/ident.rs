//! Defines the ids of containers, and identities of processes that may have exited.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Maximum length of a container id, in bytes. The id becomes a directory name, a cgroup name and part of a socket's
/// path.
pub const CONTAINER_ID_MAX: usize = 128;

/// Id of the container that the daemon uses for its self-test. No client can use this id.
pub const SELF_TEST_ID: &str = "executor.self-test";

/// Returns [`SELF_TEST_ID`] as an id.
pub fn self_test() -> ContainerId {
    ContainerId(SELF_TEST_ID.to_owned())
}

/// A container id: 1 to 128 of `[A-Za-z0-9._-]`, beginning with a letter or a digit. The id is safe as a single path
/// component.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ContainerId(String);

/// Error from parsing a container id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadContainerId {
    /// The id is empty or too long; holds the length in bytes.
    #[error("is {0} bytes; 1 to {CONTAINER_ID_MAX} are allowed")]
    Length(usize),
    /// The id has an invalid character, or begins with a character other than a letter or a digit.
    #[error("may only contain letters, digits, `.`, `_` and `-`, and must begin with a letter or a digit")]
    Characters,
}

impl ContainerId {
    /// Returns true for the id of the self-test container.
    pub fn is_self_test(&self) -> bool {
        self.0 == SELF_TEST_ID
    }

    /// Returns the id as a string.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ContainerId {
    type Err = BadContainerId;

    fn from_str(text: &str) -> Result<Self, BadContainerId> {
        Self::try_from(text.to_owned())
    }
}

impl TryFrom<String> for ContainerId {
    type Error = BadContainerId;

    fn try_from(text: String) -> Result<Self, BadContainerId> {
        if text.is_empty() || text.len() > CONTAINER_ID_MAX {
            return Err(BadContainerId::Length(text.len()));
        }
        let safe = text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
        if !safe || !text.as_bytes()[0].is_ascii_alphanumeric() {
            return Err(BadContainerId::Characters);
        }
        Ok(Self(text))
    }
}

impl From<ContainerId> for String {
    fn from(id: ContainerId) -> Self {
        id.0
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Unambiguous identity of a process. A pid alone is not unique: a pid can be reused after the process has exited, and
/// pids start again at each boot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Process id in the host's PID namespace.
    pub pid: i32,
    /// Start time of the process in clock ticks after boot (field 22 of `/proc/PID/stat`).
    pub start_time: u64,
    /// Id of the boot, from `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_safe_path_components() {
        for good in ["a", "0", "web-1.2_x", &"x".repeat(128)] {
            assert_eq!(ContainerId::from_str(good).unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", "-a", "_a", "a/b", "a b", "a\0", "ä", "a\n", &"x".repeat(129)] {
            assert!(ContainerId::from_str(bad).is_err(), "{bad:?}");
        }
    }
}
