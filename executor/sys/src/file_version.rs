//! Detects changed files.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

/// Minimum age of a file's last change for later changes to be detected with certainty. A change that follows within
/// the resolution of the file system's clock could have the same time.
const AGE_MIN: Duration = Duration::from_secs(2);

/// Properties that differ after a file was replaced or changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileVersion {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl From<&Metadata> for FileVersion {
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

impl FileVersion {
    /// Returns true if a later change would certainly be detected.
    pub fn is_settled(&self, now: SystemTime) -> bool {
        let Ok(seconds) = u64::try_from(self.changed.0) else { return false };
        let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds + 1);
        now.duration_since(changed).is_ok_and(|age| age >= AGE_MIN)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn changed_file_has_another_version() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plugin");
        fs::write(&path, "one").unwrap();
        let version = || FileVersion::from(&fs::metadata(&path).unwrap());
        let before = version();
        assert_eq!(version(), before);
        let times = fs::metadata(&path).unwrap().modified().unwrap();
        let replaced = dir.path().join("new");
        fs::write(&replaced, "two").unwrap();
        fs::File::options().write(true).open(&replaced).unwrap().set_modified(times).unwrap();
        fs::rename(&replaced, &path).unwrap();
        assert_ne!(version(), before, "the size and the time of modification are the same");
    }

    #[test]
    fn recent_change_is_not_settled() {
        let version = FileVersion { device: 1, inode: 1, size: 1, modified: (0, 0), changed: (1000, 999_999_999) };
        let after = |seconds: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(1000 + seconds);
        for (seconds, is_settled) in [(0, false), (2, false), (3, true), (100, true)] {
            assert_eq!(version.is_settled(after(seconds)), is_settled, "{seconds}");
        }
        assert!(!version.is_settled(SystemTime::UNIX_EPOCH), "the clock was set back");
    }
}
