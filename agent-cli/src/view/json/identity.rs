//! The certificate of a container.

use executor_cli_kit::view::json::time;
use executor_client::v1;
use serde::Serialize;

/// A container's certificate, without its key.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct InstanceIdentity {
    /// Serial number, in hexadecimal.
    serial_number: String,
    not_before: Option<String>,
    not_after: Option<String>,
    /// Time at which the certificate is replaced.
    renew_at: Option<String>,
    organizational_units: Vec<String>,
    dns_names: Vec<String>,
    ip_addresses: Vec<String>,
    spiffe_id: Option<String>,
    certificate_path: String,
    key_path: String,
    chain_path: String,
    /// Number of times that the certificate was replaced.
    replaced: u64,
    /// Reason why the certificate was not replaced when due.
    problem: Option<String>,
    problem_since: Option<String>,
}

impl From<&v1::InstanceIdentity> for InstanceIdentity {
    fn from(identity: &v1::InstanceIdentity) -> Self {
        let some = |text: &String| (!text.is_empty()).then(|| text.clone());
        Self {
            serial_number: identity.serial_number.clone(),
            not_before: time(identity.not_before.as_ref()),
            not_after: time(identity.not_after.as_ref()),
            renew_at: time(identity.renew_at.as_ref()),
            organizational_units: identity.organizational_units.clone(),
            dns_names: identity.dns_names.clone(),
            ip_addresses: identity.ip_addresses.clone(),
            spiffe_id: some(&identity.spiffe_id),
            certificate_path: identity.certificate_path.clone(),
            key_path: identity.key_path.clone(),
            chain_path: identity.chain_path.clone(),
            replaced: identity.replaced,
            problem: some(&identity.problem),
            problem_since: time(identity.problem_since.as_ref()),
        }
    }
}
