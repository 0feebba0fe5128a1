//! `io.cnab.docker`: a bundle that works with the Docker daemon of the machine that it runs on (rule 50).
//!
//! Porter defined it. Where the person who runs the bundle allows it, the run tool finds the daemon's socket at
//! [`SOCKET`]. That is as much as being root on the machine, so nothing but that word gives it.

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
    /// The container is to be privileged.
    #[serde(default)]
    pub privileged: bool,
}

impl Docker {
    /// Reads the extension; `None` where the bundle does not name it.
    ///
    /// # Errors
    /// The extension has another form.
    pub fn new(custom: &Map<String, Value>, required: &[String]) -> Result<Option<Self>, Violations> {
        match custom.get(EXTENSION) {
            None if !required.iter().any(|name| name == EXTENSION) => Ok(None),
            None | Some(Value::Null) => Ok(Some(Self::default())),
            // A list would be read as the fields of the object in their order.
            Some(value) => Some(value)
                .filter(|value| value.is_object())
                .and_then(|value| Self::deserialize(value).ok())
                .map(Some)
                .ok_or_else(|| Violations::one(AT, 50, "is not an object with `privileged` (true or false)")),
        }
    }
}
