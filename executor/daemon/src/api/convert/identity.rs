//! Converts the certificates of containers to API messages.

use executor_proto::v1;

use super::timestamp;
use crate::model::identity::IdentityRecord;

/// Converts the record of a container's certificate to its API message.
pub(super) fn identity(record: &IdentityRecord) -> v1::InstanceIdentity {
    let [certificate, key, chain] = record.files.each_ref().map(|path| path.display().to_string());
    let stale = record.stale.as_ref();
    v1::InstanceIdentity {
        serial_number: record.serial.clone(),
        not_before: Some(timestamp(record.not_before)),
        not_after: Some(timestamp(record.not_after)),
        renew_at: Some(timestamp(record.renew_at)),
        organizational_units: record.names.organizational_units.clone(),
        dns_names: record.names.dns_names.clone(),
        ip_addresses: record.names.ip_addresses.clone(),
        spiffe_id: record.names.spiffe_id.clone(),
        certificate_path: certificate,
        key_path: key,
        chain_path: chain,
        replaced: record.replaced,
        problem: stale.map(|stale| stale.why.clone()).unwrap_or_default(),
        problem_since: stale.map(|stale| timestamp(stale.since)),
    }
}
