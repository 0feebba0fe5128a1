//! Directory of a secret provider of type `directory`, for tests.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A directory that only the test uses and that the daemon's user can read.
pub struct Shelf(TempDir);

impl Default for Shelf {
    fn default() -> Self {
        Self::new()
    }
}

impl Shelf {
    /// Creates an empty directory.
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
        Self(dir)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file atomically.
    pub fn put(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let (new, path) = (self.path().join(format!("{name}.new")), self.path().join(name));
        fs::write(&new, content).expect("write");
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).expect("chmod");
        fs::rename(&new, &path).expect("rename");
        path
    }

    /// Returns the configuration table for this directory, the provider `shelf`.
    pub fn provider(&self) -> String {
        format!(
            "[[secret_providers]]\nname = \"shelf\"\ntype = \"directory\"\npath = \"{}\"\npoll_seconds = 1\n\
             allow = [{{ uid = 0, paths = [\"/\"] }}]\n",
            self.path().display()
        )
    }
}
