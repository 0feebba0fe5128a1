//! Checks the tables `secret_providers`.

use executor_providers::{ProviderConfig, Unusable};

use super::{Check, ConfigError};

pub(super) fn resolve(check: &Check, providers: Vec<ProviderConfig>) -> Result<Vec<ProviderConfig>, ConfigError> {
    ProviderConfig::check_all(&providers).map_err(|Unusable { key, value, why }| check.fault(key, &value, &why))?;
    Ok(providers)
}
