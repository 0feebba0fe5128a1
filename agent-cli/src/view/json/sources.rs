//! Inputs given by reference, and providers of secrets.

use executor_cli_kit::view::json::time;
use executor_client::v1;
use executor_client::v1::secret_source::Target;
use serde::Serialize;

use super::seconds;

/// An input of a container, without its value.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct SecretSource {
    /// Path, if the input is a file.
    file: Option<String>,
    /// Name, if the input is a variable.
    variable: Option<String>,
    /// Index, if the input is an argument.
    argument: Option<u32>,
    /// Run action in a tree of actions.
    action: Option<String>,
    reference: Option<SecretReference>,
    /// Version that the provider returned.
    version: Option<String>,
    fetched_at: Option<String>,
    followed: bool,
    stale: bool,
    stale_since: Option<String>,
    problem: Option<String>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct SecretReference {
    provider: String,
    path: String,
    key: Option<String>,
    version: Option<String>,
}

/// A provider of secrets.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct SecretProvider {
    name: String,
    r#type: String,
    poll_seconds: Option<f64>,
    problem: Option<String>,
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

impl From<&v1::SecretSource> for SecretSource {
    fn from(source: &v1::SecretSource) -> Self {
        let (mut file, mut variable, mut argument) = (None, None, None);
        match &source.target {
            Some(Target::File(path)) => file = Some(path.clone()),
            Some(Target::Variable(name)) => variable = Some(name.clone()),
            Some(Target::Argument(index)) => argument = Some(*index),
            None => {}
        }
        Self {
            file,
            variable,
            argument,
            action: some(&source.action),
            reference: source.reference.as_ref().map(|reference| SecretReference {
                provider: reference.provider.clone(),
                path: reference.path.clone(),
                key: some(&reference.key),
                version: some(&reference.version),
            }),
            version: some(&source.version),
            fetched_at: time(source.fetched_at.as_ref()),
            followed: source.followed,
            stale: source.stale,
            stale_since: time(source.stale_since.as_ref()),
            problem: some(&source.problem),
        }
    }
}

impl From<&v1::SecretProvider> for SecretProvider {
    fn from(provider: &v1::SecretProvider) -> Self {
        Self {
            name: provider.name.clone(),
            r#type: provider.r#type.clone(),
            poll_seconds: seconds(provider.poll),
            problem: some(&provider.problem),
        }
    }
}
