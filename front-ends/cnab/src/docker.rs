//! Parses the extension `io.cnab.docker`, which gives a bundle access to the Docker daemon of the host (rule 50 of
//! `docs/guides/cnab-rules.md`).
//!
//! Porter defined the extension. The daemon's socket is mounted at [`SOCKET`]. Access to the socket is equivalent to
//! root access to the host, so the user must explicitly allow it.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::violation::Violations;

/// Name of the extension in `custom`.
pub const EXTENSION: &str = "io.cnab.docker";
const AT: &str = "/custom/io.cnab.docker";
/// Path of the socket in the container.
pub const SOCKET: &str = "/var/run/docker.sock";

/// Content of the extension `io.cnab.docker`.
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
            // Refuse a list, which serde would accept as the object's fields in order.
            Some(value) => Some(value)
                .filter(|value| value.is_object())
                .and_then(|value| Self::deserialize(value).ok())
                .map(Some)
                .ok_or_else(|| Violations::one(AT, 50, "is not an object with `privileged` (true or false)")),
        }
    }
}
