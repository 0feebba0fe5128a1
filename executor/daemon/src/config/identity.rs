//! Checks the table `identity`: the CA that signs certificates of containers.

use executor_core::identity::IdentitySettings;
use executor_core::settings::Unusable;

use super::{Check, ConfigError};

/// Checks the values of the table, and returns the table unchanged.
pub(super) fn resolve(check: &Check, settings: IdentitySettings) -> Result<IdentitySettings, ConfigError> {
    settings.check().map_err(|Unusable { key, value, why }| check.fault(key, &value, &why))?;
    Ok(settings)
}
