//! Formats a container's network, ports and addresses.

use executor_cli_kit::network::written;
use executor_cli_kit::view::table::Table;
use executor_client::v1::{Container, ContainerSpec, Network};

use crate::egress;
use crate::view::human;

/// Describes the kind of network on one line.
pub(super) fn kind(container: &Container, spec: &ContainerSpec) -> String {
    let of_cni = || {
        let status = container.network_status.as_ref();
        let name = status.map_or(&spec.network_name, |status| &status.name);
        let egress = match (spec.egress, spec.egress_rules.is_empty()) {
            (false, _) => "",
            (true, true) => ", with egress",
            (true, false) => ", with egress by rules",
        };
        if name.is_empty() { format!("cni{egress}") } else { format!("cni, {name}{egress}") }
    };
    match spec.network() {
        Network::Cni => of_cni(),
        Network::Path => spec.network_namespace.clone(),
        _ => human::network(spec.network),
    }
}

/// Adds the network settings that [`kind`] does not show.
pub(super) fn pairs(table: &mut Table, container: &Container, spec: &ContainerSpec) {
    let mut pair = |name: &str, words: Vec<String>| {
        if !words.is_empty() {
            table.pair(name, words.join(", "));
        }
    };
    pair("addresses", container.network_status.as_ref().map(|status| status.addresses.clone()).unwrap_or_default());
    pair("published ports", spec.ports.iter().map(written).collect());
    pair("host name", Some(spec.hostname.clone()).filter(|name| !name.is_empty()).into_iter().collect());
    pair("network aliases", spec.network_aliases.clone());
    let hosts = spec.extra_hosts.iter();
    pair("hosts", hosts.map(|host| format!("{} is {}", host.name, host.address)).collect());
    let dns = spec.dns.clone().unwrap_or_default();
    pair("name servers", dns.servers);
    pair("search domains", dns.searches);
    pair("resolver options", dns.options);
    const SHOWN_MAX: usize = 10;
    for rule in spec.egress_rules.iter().take(SHOWN_MAX) {
        table.pair("egress", egress::format_rule(rule));
    }
    if let Some(more) = spec.egress_rules.len().checked_sub(SHOWN_MAX).filter(|more| *more > 0) {
        table.pair("egress", format!("{more} more (agent-cli egress show)"));
    }
}
