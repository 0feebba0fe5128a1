//! `io.cnab.docker`: a bundle that uses the Docker daemon of its machine (rule 50).
//!
//! Porter defined the extension. If the user allows it, the run tool finds the daemon's socket at [`SOCKET`]. Access to
//! it is equivalent to root on the machine, so only explicit permission grants it.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::violation::Violations;

/// Name of the extension in `custom`.
pub const EXTENSION: &str = "io.cnab.docker";
const AT: &str = "/custom/io.cnab.docker";
/// Path of the socket in the container.
pub const SOCKET: &str = "/var/run/docker.sock";

/// Content of the extension.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Docker {
    /// True if the container must be privileged.
    #[serde(default)]
    pub privileged: bool,
}

impl Docker {
    /// Parses the extension; `None` if the bundle does not have it.
    ///
    /// # Errors
    /// Returns an error if the extension is malformed.
    pub fn new(custom: &Map<String, Value>, required: &[String]) -> Result<Option<Self>, Violations> {
        match custom.get(EXTENSION) {
            None if !required.iter().any(|name| name == EXTENSION) => Ok(None),
            None | Some(Value::Null) => Ok(Some(Self::default())),
            // serde would accept a list as the fields of the object in order.
            Some(value) => Some(value)
                .filter(|value| value.is_object())
                .and_then(|value| Self::deserialize(value).ok())
                .map(Some)
                .ok_or_else(|| Violations::one(AT, 50, "is not an object with `privileged` (true or false)")),
        }
    }
}
