//! Networks: the table of `network ls`, `network inspect`, and the table of `network check`.

use executor_cli_kit::network::leads_to;
use executor_cli_kit::view::style::{Role, Style};
use executor_cli_kit::view::table::Table;
use executor_client::v1::network_check::Outcome;
use executor_client::v1::{CheckNetworkResponse, NetworkContainer, NodeNetwork};

use crate::view::human::word;

/// Placeholder for an empty value.
const NOTHING: &str = "-";

/// Formats the table of `network ls`.
pub(crate) fn table(networks: &[NodeNetwork], style: Style) -> String {
    let mut table = Table::with_heading(0, &["NAME", "DRIVER", "INTERFACE", "SUBNETS", "CONTAINERS"]);
    let or_nothing = |text: String| if text.is_empty() { NOTHING.to_owned() } else { text };
    for network in networks {
        table.row([
            (network.name.clone(), Role::Plain),
            (network.driver.clone(), Role::Plain),
            (or_nothing(network.interface.clone()), Role::Plain),
            (or_nothing(network.subnets.join(",")), Role::Plain),
            (network.container_count.to_string(), Role::Plain),
        ]);
    }
    table.render(style)
}

/// Formats the output of `network inspect` for one network.
pub(crate) fn inspect(network: &NodeNetwork, style: Style) -> String {
    let mut table = Table::bare(0);
    table.pair("name", &network.name);
    table.pair("driver", &network.driver);
    if !network.interface.is_empty() {
        let state = if network.interface_exists { "exists" } else { "is made for the first container" };
        table.pair("interface", format!("{} ({state})", network.interface));
    }
    for (name, words) in [
        ("subnets", &network.subnets),
        ("gateways", &network.gateways),
        ("plugins", &network.plugins),
        ("CNI versions", &network.versions),
    ] {
        if !words.is_empty() {
            table.pair(name, words.join(", "));
        }
    }
    if network.mtu != 0 {
        table.pair("MTU", network.mtu.to_string());
    }
    if network.addresses != 0 {
        table.pair("addresses", format!("{} of {} in use", network.leased_addresses, network.addresses));
    }
    network.warnings.iter().for_each(|warning| table.pair("warning", warning));
    table.pair("containers", network.container_count.to_string());
    network.containers.iter().for_each(|one| table.pair("container", container(one)));
    let left_out = (network.container_count as usize).saturating_sub(network.containers.len());
    if left_out > 0 {
        table.pair("container", format!("and {left_out} more"));
    }
    table.render(style)
}

/// Formats the table of `network check`.
pub(crate) fn checks(checked: &CheckNetworkResponse, style: Style) -> String {
    let mut table = Table::with_heading(0, &["CONTAINER", "NETWORK", "MESSAGE"]);
    for check in &checked.checks {
        let role = match check.outcome() {
            Outcome::Connected => Role::Good,
            Outcome::Broken => Role::Bad,
            Outcome::Skipped | Outcome::Unspecified => Role::Faint,
        };
        let outcome = word(check.outcome().as_str_name(), "OUTCOME_");
        table.row([(check.id.clone(), Role::Plain), (outcome, role), (check.message.clone(), Role::Plain)]);
    }
    let mut text = table.render(style);
    if checked.unchecked > 0 {
        text.push_str(&format!("{} more containers were not checked\n", checked.unchecked));
    }
    text
}

/// Formats a container: its id, addresses, published ports and names.
fn container(container: &NetworkContainer) -> String {
    let ports: Vec<String> = container.ports.iter().map(leads_to).collect();
    let names = match &container.names[..] {
        [] => String::new(),
        names => format!("names {}", names.join(", ")),
    };
    let parts = [container.id.clone(), container.addresses.join(", "), ports.join(", "), names];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inspect_counts_containers_left_out() {
        let container = NetworkContainer { id: "a\u{1b}[2J".into(), ..NetworkContainer::default() };
        let network = NodeNetwork { containers: vec![container], container_count: 3, ..NodeNetwork::default() };
        let text = inspect(&network, Style::PLAIN);
        assert!(text.contains("and 2 more") && !text.contains('\u{1b}'), "{text}");
        assert!(!text.contains("interface") && !text.contains("MTU"), "{text}");
    }
}
