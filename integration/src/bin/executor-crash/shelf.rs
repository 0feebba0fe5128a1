//! A secret provider for cycles with references: a directory whose values change.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::Context as _;
use executor_proto::v1::SecretReference;

/// Size of the larger value, in bytes.
pub(crate) const LARGE: usize = 9000;

/// The provider directory. The directory is outside of the node's directories, because these must contain no secret.
#[derive(Debug)]
pub(crate) struct Shelf(tempfile::TempDir);

impl Shelf {
    /// Path of the file that contains the secret value.
    pub(crate) const SMALL: &str = "small";
    /// Path of the file that repeats the secret value, up to a length of [`LARGE`] bytes.
    pub(crate) const LARGE: &str = "large";
    const NAME: &str = "shelf";

    pub(crate) fn new() -> anyhow::Result<Self> {
        let dir = tempfile::tempdir().context("cannot create a directory for secrets")?;
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
        Ok(Self(dir))
    }

    /// Returns the configuration table of the provider.
    pub(crate) fn provider(&self) -> String {
        let (name, path) = (Self::NAME, self.0.path().display());
        format!(
            "[[secret_providers]]\nname = \"{name}\"\ntype = \"directory\"\npath = \"{path}\"\npoll_seconds = 1\n\
             allow = [{{ uid = 0, paths = [\"/\"] }}]\n"
        )
    }

    pub(crate) fn reference(path: &str) -> SecretReference {
        SecretReference { provider: Self::NAME.into(), path: path.into(), ..SecretReference::default() }
    }

    /// Replaces each value atomically.
    ///
    /// # Panics
    /// Panics if a file of a few kilobytes cannot be written.
    pub(crate) fn put(&self, value: &str) {
        let large: Vec<u8> = value.bytes().cycle().take(LARGE).collect();
        for (name, content) in [(Self::LARGE, &*large), (Self::SMALL, value.as_bytes())] {
            let (new, path) = (self.0.path().join("new"), self.0.path().join(name));
            let put = fs::write(&new, content)
                .and_then(|()| fs::set_permissions(&new, fs::Permissions::from_mode(0o644)))
                .and_then(|()| fs::rename(&new, &path));
            put.unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
        }
    }
}
