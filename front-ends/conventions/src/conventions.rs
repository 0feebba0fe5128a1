//! The interface for front ends: loads the registrations, and decorates pod templates with the matching conventions.

use std::path::{Path, PathBuf};

use crate::config::{self, Configuration};
use crate::decorate::{Decorated, Intent, decorate};
use crate::images::Registries;
use crate::transport::Https;
use crate::violation::Violations;

/// Loaded registrations, with the means to call the convention servers.
#[derive(Debug)]
pub struct Conventions {
    pub configuration: Configuration,
    images: Registries,
    transport: Https,
}

impl Conventions {
    /// Reads the registrations file ([`config::load`]). The credentials and certificates are for image registries
    /// ([`Registries::new`]).
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is invalid.
    pub fn load(
        file: Option<&Path>,
        registry_auth_file: Option<PathBuf>,
        registry_ca_file: Option<PathBuf>,
    ) -> Result<Self, Violations> {
        let configuration = config::load(file)?;
        let images = Registries::new(registry_auth_file, registry_ca_file);
        Ok(Self { configuration, images, transport: Https::default() })
    }

    /// Excludes images that are replaced at run time ([`Registries::replacing`]).
    #[must_use]
    pub fn replacing(mut self, images: impl IntoIterator<Item = String>) -> Self {
        self.images = self.images.replacing(images);
        self
    }

    /// Decorates a template with the conventions whose selectors match. If no selector matches, the template is
    /// returned unchanged.
    ///
    /// # Errors
    /// Returns the violations if there are any; then nothing is decorated.
    pub async fn decorate(&self, intent: &Intent<'_>) -> Result<Decorated, Violations> {
        decorate(intent, &self.configuration.registrations, &self.images, &self.transport).await
    }
}
