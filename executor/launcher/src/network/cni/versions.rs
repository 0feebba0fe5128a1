//! Selects the CNI version for a network: the newest version that its configuration and all of its plugins support.
//!
//! Plugins are called only if the configuration allows several versions. Responses are cached in RUN_DIR/cni/versions,
//! one small file for each plugin path. A plugin is called again if the inode, size or change time of its file has
//! changed.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use executor_core::cni::{CniNetwork, Plugin, Version, supported_versions};
use executor_sys::replace::Replacement;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::plugin::{self, Fault};
use crate::files;
use crate::host::Host;
use crate::network::{Patience, Trouble};

/// Largest cache file, in bytes.
const BYTES_MAX: u64 = 16 << 10;
/// Minimum age of a plugin file's last change for caching. A second change within the clock resolution of the file
/// system would not be detected.
const SETTLED: Duration = Duration::from_secs(2);
/// Number of hexadecimal digits that distinguish plugins.
const DIGITS: usize = 32;

/// Cached response of a plugin.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KeptAnswer {
    path: PathBuf,
    file: FileState,
    versions: Vec<Version>,
}

/// Properties that differ after a file was replaced or changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FileState {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl From<&Metadata> for FileState {
    fn from(meta: &Metadata) -> Self {
        Self {
            device: meta.dev(),
            inode: meta.ino(),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }
}

impl FileState {
    /// Returns true if a later change would certainly be detected.
    fn is_settled(&self, now: SystemTime) -> bool {
        let Ok(seconds) = u64::try_from(self.changed.0) else { return false };
        let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds + 1);
        now.duration_since(changed).is_ok_and(|age| age >= SETTLED)
    }
}

/// Returns the CNI version to use. Plugins run in `cgroup`.
pub(super) fn negotiate(
    host: &Host,
    cgroup: &Path,
    network: &CniNetwork,
    patience: Patience,
) -> Result<Version, Trouble> {
    let mut versions = network.versions.clone();
    for plugin in network.plugins.iter().filter(|_| network.versions.len() > 1) {
        let theirs = supported(host, cgroup, plugin, patience)?;
        versions.retain(|version| theirs.contains(version));
    }
    versions.last().copied().ok_or(Trouble::NoVersion)
}

fn supported(host: &Host, cgroup: &Path, plugin: &Plugin, patience: Patience) -> Result<Vec<Version>, Trouble> {
    let failed = |fault: Fault| Trouble::Plugin(plugin.kind.clone(), "VERSION", fault);
    let path = plugin::find(&host.policy.cni_bin_dirs, &plugin.kind).map_err(failed)?;
    let state = || fs::metadata(&path).map(|meta| FileState::from(&meta));
    let before = state().map_err(|error| Trouble::System("program of a plugin", error))?;
    let kept = kept_path(host, &path);
    if let Ok(KeptAnswer { versions, .. }) = files::read_json(&kept, BYTES_MAX)
        .and_then(|kept: KeptAnswer| if kept.path == path && kept.file == before { Ok(kept) } else { Err(other()) })
    {
        return Ok(versions);
    }
    let answer = plugin::versions(host, cgroup, plugin, patience.deadline()).map_err(failed)?;
    let versions = supported_versions(&answer).map_err(|why| Trouble::Answer(plugin.kind.clone(), why))?;
    if before.is_settled(SystemTime::now()) && state().is_ok_and(|after| after == before) {
        let answer = KeptAnswer { path: path.clone(), file: before, versions: versions.clone() };
        // If the file cannot be written, the plugin is called again next time.
        let _ = serde_json::to_vec(&answer).map(|bytes| Replacement::from_path(&kept).write(&bytes));
    }
    Ok(versions)
}

/// Deletes the cached responses of a network's plugins after one of them refused the version. A plugin may be a script
/// that runs another program, and that program may have been replaced.
pub(super) fn forget(host: &Host, network: &CniNetwork) {
    for plugin in &network.plugins {
        if let Ok(path) = plugin::find(&host.policy.cni_bin_dirs, &plugin.kind) {
            let _ = fs::remove_file(kept_path(host, &path)); // there may be none
        }
    }
}

fn other() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

fn kept_path(host: &Host, plugin: &Path) -> PathBuf {
    let digest = hex::encode(Sha256::digest(plugin.as_os_str().as_bytes()));
    dir(host).join(format!("{}.json", &digest[..DIGITS]))
}

/// Returns the directory of the cached responses.
pub(super) fn dir(host: &Host) -> PathBuf {
    super::dir(host).join("versions")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_file_has_another_state() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plugin");
        fs::write(&path, "one").unwrap();
        let state = || FileState::from(&fs::metadata(&path).unwrap());
        let before = state();
        assert_eq!(state(), before);
        let times = fs::metadata(&path).unwrap().modified().unwrap();
        let replaced = dir.path().join("new");
        fs::write(&replaced, "two").unwrap();
        fs::File::options().write(true).open(&replaced).unwrap().set_modified(times).unwrap();
        fs::rename(&replaced, &path).unwrap();
        assert_ne!(state(), before, "the size and the time of modification are the same");
    }

    #[test]
    fn recent_change_is_not_settled() {
        let state = FileState { device: 1, inode: 1, size: 1, modified: (0, 0), changed: (1000, 999_999_999) };
        let after = |seconds: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(1000 + seconds);
        for (seconds, is_settled) in [(0, false), (2, false), (3, true), (100, true)] {
            assert_eq!(state.is_settled(after(seconds)), is_settled, "{seconds}");
        }
        assert!(!state.is_settled(SystemTime::UNIX_EPOCH), "the clock was set back");
    }
}
