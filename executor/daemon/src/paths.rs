//! Paths of the directories that the daemon, the launcher and shims share.

use std::path::{Path, PathBuf};

use executor_core::ident::ContainerId;
use executor_core::token;

/// Name of the ledger's directory in the state directory.
pub(crate) const LEDGER: &str = "ledger";
/// Name of the images' directory in the state directory.
pub(crate) const IMAGES: &str = "images";

/// Name of the downloads' directory in the state directory.
pub(crate) const TRANSFERS: &str = "transfers";

/// The two directories of a node, and the paths below them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// Directory of sockets and other runtime files that need not survive a reboot.
    pub run_dir: PathBuf,
    /// Directory of exit records, logs, images and the ledger.
    pub state_dir: PathBuf,
}

impl Paths {
    /// Returns the path of the launcher's socket.
    pub fn launcher_socket(&self) -> PathBuf {
        self.run_dir.join("launcher.sock")
    }

    /// Returns the directory that containers with a runtime token see. The directory holds only their socket.
    pub fn runtime_dir(&self) -> PathBuf {
        self.run_dir.join(token::RUNTIME_HOST_DIR)
    }

    /// Returns the path of the socket for containers with a runtime token.
    pub fn runtime_socket(&self) -> PathBuf {
        self.runtime_dir().join(token::RUNTIME_SOCKET)
    }

    /// Returns the directory of the containers that have a shim.
    pub fn live_containers(&self) -> PathBuf {
        self.run_dir.join("containers")
    }

    /// Returns the directory of a container that has a shim or is not cleaned up.
    pub fn live_container(&self, id: &ContainerId) -> PathBuf {
        self.live_containers().join(id.as_str())
    }

    /// Returns the path of a shim's socket.
    pub fn shim_socket(&self, id: &ContainerId) -> PathBuf {
        self.live_container(id).join("shim.sock")
    }

    /// Returns the path of the record of a container with a shim.
    pub fn live_record(&self, id: &ContainerId) -> PathBuf {
        self.live_container(id).join("container.json")
    }

    /// Returns the directory of the containers with files on disk.
    pub fn kept_containers(&self) -> PathBuf {
        self.state_dir.join("containers")
    }

    /// Returns the directory of a container's logs, outputs and exit record.
    pub fn kept_container(&self, id: &ContainerId) -> PathBuf {
        self.kept_containers().join(id.as_str())
    }

    pub fn exit_record(&self, id: &ContainerId) -> PathBuf {
        self.kept_container(id).join("exit.json")
    }

    /// Returns the path of the first record of a container, which stays until the container is deleted.
    pub fn first_record(&self, id: &ContainerId) -> PathBuf {
        self.kept_container(id).join("container.json")
    }

    /// Returns the directory of the images.
    pub fn images(&self) -> PathBuf {
        self.state_dir.join(IMAGES)
    }

    /// Returns the directory of downloads and of their cache.
    pub fn transfers(&self) -> PathBuf {
        self.state_dir.join(TRANSFERS)
    }

    /// Returns the directory of the ledger.
    pub fn ledger(&self) -> PathBuf {
        self.state_dir.join(LEDGER)
    }
}

/// Lists the ids of the containers that have a directory in `dir`. Other names are skipped; a missing directory counts
/// as empty.
///
/// # Errors
/// Returns an error if the directory cannot be read.
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
