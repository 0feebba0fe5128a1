//! Where things are: the directories that daemon, launcher and shims share.

use std::path::{Path, PathBuf};

use executor_core::ident::ContainerId;
use executor_core::token;

/// The ledger's directory, in the state directory.
pub(crate) const LEDGER: &str = "ledger";
/// The images' directory, likewise.
pub(crate) const IMAGES: &str = "images";

/// The two directories of a node, and what lies in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// Sockets and what a reboot may forget.
    pub run_dir: PathBuf,
    /// Exit records, logs, the ledger.
    pub state_dir: PathBuf,
}

impl Paths {
    /// The launcher's socket.
    pub fn launcher_socket(&self) -> PathBuf {
        self.run_dir.join("launcher.sock")
    }

    /// The directory that containers with a token see. Nothing but the socket below lies in it.
    pub fn runtime_dir(&self) -> PathBuf {
        self.run_dir.join(token::RUNTIME_SOURCE)
    }

    /// The socket that serves them.
    pub fn runtime_socket(&self) -> PathBuf {
        self.runtime_dir().join(token::RUNTIME_SOCKET)
    }

    /// The directory of the containers that have a shim.
    pub fn live_containers(&self) -> PathBuf {
        self.run_dir.join("containers")
    }

    /// The directory of a container that has a shim, or one that is not finished.
    pub fn live_container(&self, id: &ContainerId) -> PathBuf {
        self.live_containers().join(id.as_str())
    }

    /// A shim's socket.
    pub fn shim_socket(&self, id: &ContainerId) -> PathBuf {
        self.live_container(id).join("shim.sock")
    }

    /// What a shim remembers of its container.
    pub fn live_record(&self, id: &ContainerId) -> PathBuf {
        self.live_container(id).join("container.json")
    }

    /// The directory of the containers that left something on disk.
    pub fn kept_containers(&self) -> PathBuf {
        self.state_dir.join("containers")
    }

    /// A container's logs and exit record.
    pub fn kept_container(&self, id: &ContainerId) -> PathBuf {
        self.kept_containers().join(id.as_str())
    }

    /// How a container ended.
    pub fn exit_record(&self, id: &ContainerId) -> PathBuf {
        self.kept_container(id).join("exit.json")
    }

    /// The daemon's images.
    pub fn images(&self) -> PathBuf {
        self.state_dir.join(IMAGES)
    }

    /// The daemon's own directory.
    pub fn ledger(&self) -> PathBuf {
        self.state_dir.join(LEDGER)
    }
}

/// Ids of the containers that have a directory in `dir`; names that are no ids are none. A directory that is not
/// there is empty.
///
/// # Errors
/// It cannot be read.
pub fn containers_in(dir: &Path) -> std::io::Result<Vec<ContainerId>> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut ids = Vec::new();
    for entry in entries {
        let entry = entry?;
        let id = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(id) = id.filter(|_| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            ids.push(id);
        }
    }
    Ok(ids)
}
