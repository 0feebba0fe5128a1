//! Everything at once, for programs that play templates: the file, the registries, the connections.

use std::path::{Path, PathBuf};

use crate::config::{self, Configuration};
use crate::decorate::{Decorated, Intent, decorate};
use crate::images::Registries;
use crate::transport::Https;
use crate::violation::Violations;

/// The conventions of a user, ready to be asked.
#[derive(Debug)]
pub struct Conventions {
    /// Registrations with their file.
    pub configuration: Configuration,
    images: Registries,
    transport: Https,
}

impl Conventions {
    /// Reads the file of registrations ([`config::load`]). Credentials and certificates of images' registries are as for
    /// [`Registries::new`].
    ///
    /// # Errors
    /// Everything that is wrong with the file.
    pub fn load(
        file: Option<&Path>,
        registry_auth_file: Option<PathBuf>,
        registry_ca_file: Option<PathBuf>,
    ) -> Result<Self, Violations> {
        let configuration = config::load(file)?;
        let images = Registries::new(registry_auth_file, registry_ca_file);
        Ok(Self { configuration, images, transport: Https::default() })
    }

    /// Leaves images alone in whose place something else is run ([`Registries::replacing`]).
    #[must_use]
    pub fn replacing(mut self, images: impl IntoIterator<Item = String>) -> Self {
        self.images = self.images.replacing(images);
        self
    }

    /// Decorates a template with the conventions whose selectors match. Without any it is returned as it is.
    ///
    /// # Errors
    /// The violations, of which one is enough to fail the whole.
    pub async fn decorate(&self, intent: &Intent<'_>) -> Result<Decorated, Violations> {
        decorate(intent, &self.configuration.registrations, &self.images, &self.transport).await
    }
}
