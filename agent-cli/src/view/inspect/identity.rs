//! Formats a container's certificate.

use std::time::SystemTime;

use executor_cli_kit::text::plain;
use executor_cli_kit::view::quantity::{age, time};
use executor_cli_kit::view::style::Role;
use executor_cli_kit::view::table::Table;
use executor_client::v1::InstanceIdentity;

pub(super) fn table(identity: &InstanceIdentity, now: SystemTime) -> Table {
    let mut table = Table::bare(2);
    table.pair("serial number", identity.serial_number.clone());
    table.pair("valid", format!("{} to {}", time(identity.not_before.as_ref()), time(identity.not_after.as_ref())));
    table.pair("replaced at", time(identity.renew_at.as_ref()));
    if identity.replaced > 0 {
        table.pair("replaced", format!("{} times", identity.replaced));
    }
    let mut names = |name: &str, all: &[String]| {
        if !all.is_empty() {
            table.pair(name, plain(&all.join(", ")));
        }
    };
    names("units", &identity.organizational_units);
    names("DNS names", &identity.dns_names);
    names("addresses", &identity.ip_addresses);
    if !identity.spiffe_id.is_empty() {
        names("SPIFFE ID", std::slice::from_ref(&identity.spiffe_id));
    }
    table.pair("certificate", plain(&identity.certificate_path));
    table.pair("key", plain(&identity.key_path));
    table.pair("CA", plain(&identity.chain_path));
    if !identity.problem.is_empty() {
        let text = format!("for {}: {}", age(identity.problem_since.as_ref(), now), plain(&identity.problem));
        table.row([("NOT REPLACED".into(), Role::Attention), (text, Role::Attention)]);
    }
    table
}
