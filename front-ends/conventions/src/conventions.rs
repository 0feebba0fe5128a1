//! Entry point for front ends: loads the registrations, and decorates pod templates by calling the convention servers
//! that match.

use std::path::{Path, PathBuf};

use crate::config::{self, Configuration};
use crate::decorate::{Decorated, Intent, decorate};
use crate::images::Registries;
use crate::transport::Https;
use crate::violation::Violations;

/// The conventions of a user, ready to be called.
#[derive(Debug)]
pub struct Conventions {
    pub configuration: Configuration,
    images: Registries,
    transport: Https,
}

impl Conventions {
    /// Reads the file of registrations ([`config::load`]). For credentials and certificates of image registries, see
    /// [`Registries::new`].
    ///
    /// # Errors
    /// Returns everything that is wrong with the file.
    pub fn load(
        file: Option<&Path>,
        registry_auth_file: Option<PathBuf>,
        registry_ca_file: Option<PathBuf>,
    ) -> Result<Self, Violations> {
        let configuration = config::load(file)?;
        let images = Registries::new(registry_auth_file, registry_ca_file);
        Ok(Self { configuration, images, transport: Https::default() })
    }

    /// Excludes images that are replaced at run time by something else ([`Registries::replacing`]).
    #[must_use]
    pub fn replacing(mut self, images: impl IntoIterator<Item = String>) -> Self {
        self.images = self.images.replacing(images);
        self
    }

    /// Decorates a template with the conventions whose selectors match. If none matches, the template is returned
    /// unchanged.
    ///
    /// # Errors
    /// Returns the violations. One violation is enough to fail the whole decoration.
    pub async fn decorate(&self, intent: &Intent<'_>) -> Result<Decorated, Violations> {
        decorate(intent, &self.configuration.registrations, &self.images, &self.transport).await
    }
}
