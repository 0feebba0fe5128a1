//! Converts secret references and secret providers to API messages.

use executor_core::reference::SecretReference;
use executor_proto::v1;
use executor_proto::v1::secret_source;
use executor_providers::ProviderStatus;

use super::{duration, timestamp};
use crate::model::sources::{SourceRecord, ValueTarget};

/// Converts the record of a secret reference to its API message.
pub(super) fn source(source: &SourceRecord) -> v1::SecretSource {
    let SecretReference { provider, path, key, version } = source.reference.clone();
    let stale = source.stale.as_ref();
    v1::SecretSource {
        target: Some(match &source.target {
            ValueTarget::File(path) => secret_source::Target::File(path.display().to_string()),
            ValueTarget::Variable(name) => secret_source::Target::Variable(name.clone()),
            ValueTarget::Argument(index) => secret_source::Target::Argument(*index),
        }),
        action: source.action.clone(),
        reference: Some(v1::SecretReference { provider, path, key, version }),
        version: source.version.clone(),
        fetched_at: Some(timestamp(source.fetched_at)),
        followed: source.followed,
        stale: stale.is_some(),
        stale_since: stale.map(|stale| timestamp(stale.since)),
        problem: stale.map(|stale| stale.why.clone()).unwrap_or_default(),
    }
}

/// Converts a provider's status to its API message.
pub(in crate::api) fn provider(status: ProviderStatus) -> v1::SecretProvider {
    v1::SecretProvider {
        name: status.name,
        r#type: status.kind.to_owned(),
        poll: Some(duration(status.poll)),
        problem: status.problem,
    }
}
