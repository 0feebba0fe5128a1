//! Selects the CNI version for a network: the newest version that its configuration and all of its plugins support.
//!
//! Plugins are called only if the configuration allows several versions. Responses are cached in RUN_DIR/cni/versions,
//! one small file for each plugin path. A plugin is called again if the inode, size or change time of its file has
//! changed.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use executor_core::cni::{CniNetwork, Plugin, Version, supported_versions};
use executor_sys::file_version::FileVersion;
use executor_sys::replace::Replacement;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::plugin::{self, Fault};
use crate::files;
use crate::host::Host;
use crate::network::{NetworkError, PluginTimeouts};

/// Maximum size of a cache file, in bytes.
const BYTES_MAX: u64 = 16 << 10;
/// Number of hexadecimal digits in the name of a cache file, which identify the plugin.
const DIGITS: usize = 32;

/// Cached response of a plugin.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KeptAnswer {
    path: PathBuf,
    file: FileVersion,
    versions: Vec<Version>,
}

/// Returns the CNI version to use. Plugins run in `cgroup`.
pub(super) fn negotiate(
    host: &Host,
    cgroup: &Path,
    network: &CniNetwork,
    timeouts: PluginTimeouts,
) -> Result<Version, NetworkError> {
    let mut versions = network.versions.clone();
    for plugin in network.plugins.iter().filter(|_| network.versions.len() > 1) {
        let theirs = supported(host, cgroup, plugin, timeouts)?;
        versions.retain(|version| theirs.contains(version));
    }
    versions.last().copied().ok_or(NetworkError::NoVersion)
}

fn supported(
    host: &Host,
    cgroup: &Path,
    plugin: &Plugin,
    timeouts: PluginTimeouts,
) -> Result<Vec<Version>, NetworkError> {
    let failed = |fault: Fault| NetworkError::Plugin(plugin.kind.clone(), "VERSION", fault);
    let path = plugin::find(&host.policy.cni_bin_dirs, &plugin.kind).map_err(failed)?;
    let state = || fs::metadata(&path).map(|meta| FileVersion::from(&meta));
    let before = state().map_err(|error| NetworkError::System("cannot inspect the program of a plugin", error))?;
    let kept = kept_path(host, &path);
    let known = files::read_json::<KeptAnswer>(&kept, BYTES_MAX).ok();
    if let Some(known) = known.filter(|known| known.path == path && known.file == before) {
        return Ok(known.versions);
    }
    let answer = plugin::versions(host, cgroup, plugin, timeouts.deadline()).map_err(failed)?;
    let versions = supported_versions(&answer).map_err(|why| NetworkError::Answer(plugin.kind.clone(), why))?;
    if before.is_settled(SystemTime::now()) && state().is_ok_and(|after| after == before) {
        let answer = KeptAnswer { path: path.clone(), file: before, versions: versions.clone() };
        // If the file cannot be written, the plugin is called again next time.
        let _ = serde_json::to_vec(&answer).map(|bytes| Replacement::from_path(&kept).write(&bytes));
    }
    Ok(versions)
}

/// Deletes the cached responses of a network's plugins after one of the plugins refused the version. A plugin may be a
/// script that runs another program, and that program may have been replaced.
pub(super) fn delete_cached(host: &Host, network: &CniNetwork) {
    for plugin in &network.plugins {
        if let Ok(path) = plugin::find(&host.policy.cni_bin_dirs, &plugin.kind) {
            let _ = fs::remove_file(kept_path(host, &path)); // the file may not exist
        }
    }
}

fn kept_path(host: &Host, plugin: &Path) -> PathBuf {
    let digest = hex::encode(Sha256::digest(plugin.as_os_str().as_bytes()));
    dir(host).join(format!("{}.json", &digest[..DIGITS]))
}

/// Returns the directory of the cached responses.
pub(super) fn dir(host: &Host) -> PathBuf {
    super::dir(host).join("versions")
}
