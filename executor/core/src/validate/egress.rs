//! Validates egress rules.

use super::Report;
use super::ViolationReason::{Conflict, OutOfRange, Required, TooMany};
use crate::limits::{EGRESS_ELEMENTS_MAX, EGRESS_RULES_MAX};
use crate::plan::{EgressProtocol, EgressRule};

/// Checks egress rules. The peer that sent the addresses may not have checked them.
pub(super) fn check(rules: &[EgressRule], report: &mut Report) {
    if rules.len() > EGRESS_RULES_MAX {
        report.add(
            "egress_rules",
            TooMany.because(format!("has {} entries; at most {EGRESS_RULES_MAX} are allowed", rules.len())),
        );
        return;
    }
    let elements = rules.iter().map(EgressRule::elements).fold(0, usize::saturating_add);
    if elements > EGRESS_ELEMENTS_MAX {
        let why =
            format!("has {elements} combinations of destination and ports; at most {EGRESS_ELEMENTS_MAX} are allowed");
        report.add("egress_rules", TooMany.because(why));
        return;
    }
    for (index, rule) in rules.iter().enumerate() {
        check_rule(&format!("egress_rules[{index}]"), rule, report);
    }
}

fn check_rule(rule_field: &str, rule: &EgressRule, report: &mut Report) {
    let EgressRule { protocol, destinations, ports, icmp, log: _ } = rule;
    let field = |name: &str| format!("{rule_field}.{name}");
    let name = protocol.name();
    if destinations.is_empty() {
        report.add(field("destinations"), Required.because("is empty: name at least one address, network or range"));
    }
    for (index, range) in destinations.iter().enumerate() {
        let field = field(&format!("destinations[{index}]"));
        if !range.is_ordered() {
            let why = format!("{}-{} is not valid: use one IP version, in ascending order", range.first, range.last);
            report.add(field, OutOfRange.because(why));
            continue;
        }
        let other = match protocol {
            EgressProtocol::Icmp => range.first.is_ipv6().then_some("IPv6 address; use the protocol icmpv6"),
            EgressProtocol::Icmpv6 => range.first.is_ipv4().then_some("IPv4 address; use the protocol icmp"),
            EgressProtocol::All | EgressProtocol::Tcp | EgressProtocol::Udp => None,
        };
        if let Some(other) = other {
            report.add(field, Conflict.because(format!("{range} is an {other}")));
        }
    }
    if !ports.is_empty() && !matches!(protocol, EgressProtocol::Tcp | EgressProtocol::Udp) {
        report.add(field("ports"), Conflict.because(format!("needs the protocol tcp or udp, not {name}")));
    }
    for (index, range) in ports.iter().enumerate() {
        if range.first == 0 || range.first > range.last {
            let why = format!("is {}-{}; ports must be 1 to 65535, in ascending order", range.first, range.last);
            report.add(field(&format!("ports[{index}]")), OutOfRange.because(why));
        }
    }
    if icmp.is_some() && !matches!(protocol, EgressProtocol::Icmp | EgressProtocol::Icmpv6) {
        report.add(field("icmp_type"), Conflict.because(format!("needs the protocol icmp or icmpv6, not {name}")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{AddressRange, Connectivity, IcmpMessages, Isolation, Network, PortRange};
    use crate::update::EgressUpdate;
    use crate::validate::{Draft, Policy, recheck, validate, validate_egress};

    fn rule(protocol: EgressProtocol, destination: &str) -> EgressRule {
        let destinations = vec![destination.parse().unwrap()];
        EgressRule { protocol, destinations, ports: Vec::new(), icmp: None, log: false }
    }

    fn reported(egress: bool, network: Network, isolation: Isolation, egress_rules: Vec<EgressRule>) -> Vec<String> {
        let policy =
            Policy { allow_egress: true, allow_host_network: true, allow_privileged: true, ..Policy::default() };
        let connectivity = Connectivity { egress, egress_rules, ..Connectivity::default() };
        let network = Some(network);
        let draft = Draft { id: "c", path: "/bin/true", network, connectivity, isolation, ..Draft::default() };
        match validate(&draft, &policy) {
            Ok(plan) => {
                assert_eq!(recheck(&plan, &policy), Ok(()));
                Vec::new()
            }
            Err(violations) => violations.into_iter().map(|violation| violation.field).collect(),
        }
    }

    fn of_rules(rules: Vec<EgressRule>) -> Vec<String> {
        reported(true, Network::Cni, Isolation::default(), rules)
    }

    #[test]
    fn egress_rules_are_validated() {
        use EgressProtocol::{All, Icmp, Icmpv6, Tcp, Udp};
        let range =
            |first: &str, last: &str| AddressRange { first: first.parse().unwrap(), last: last.parse().unwrap() };
        let ports = |first, last| vec![PortRange { first, last }];
        let icmp = Some(IcmpMessages { kind: 8, code: None });
        let v4 = || rule(Tcp, "192.0.2.0/24");
        let table = [
            (v4(), &[][..]),
            (rule(All, "::/0"), &[]),
            (EgressRule { ports: ports(1, 65535), ..rule(Udp, "::1") }, &[]),
            (EgressRule { icmp, ..rule(Icmp, "192.0.2.1") }, &[]),
            (EgressRule { icmp, ..rule(Icmpv6, "::1") }, &[]),
            (EgressRule { destinations: Vec::new(), ..v4() }, &["destinations"]),
            (EgressRule { destinations: vec![range("192.0.2.9", "192.0.2.1")], ..v4() }, &["destinations[0]"]),
            (EgressRule { destinations: vec![range("192.0.2.9", "::1")], ..v4() }, &["destinations[0]"]),
            (rule(Icmp, "::1"), &["destinations[0]"]),
            (rule(Icmpv6, "192.0.2.1"), &["destinations[0]"]),
            (EgressRule { ports: ports(0, 1), ..v4() }, &["ports[0]"]),
            (EgressRule { ports: ports(2, 1), ..v4() }, &["ports[0]"]),
            (EgressRule { ports: ports(1, 2), ..rule(All, "::1") }, &["ports"]),
            (EgressRule { ports: ports(2, 1), ..rule(Icmp, "::1") }, &["destinations[0]", "ports", "ports[0]"]),
            (EgressRule { icmp, ..v4() }, &["icmp_type"]),
        ];
        for (rule, wrong) in table {
            let expected: Vec<String> = wrong.iter().map(|field| format!("egress_rules[1].{field}")).collect();
            assert_eq!(of_rules(vec![v4(), rule.clone()]), expected, "{rule:?}");
        }
    }

    #[test]
    fn numbers_are_bounded() {
        let one = || rule(EgressProtocol::Tcp, "192.0.2.0/24");
        assert!(of_rules(vec![one(); EGRESS_RULES_MAX]).is_empty());
        assert_eq!(of_rules(vec![one(); EGRESS_RULES_MAX + 1]), ["egress_rules"]);
        let ranges = |count: u16| (1..=count).map(|port| PortRange { first: port, last: port }).collect::<Vec<_>>();
        let wide = |destinations, ports| EgressRule {
            destinations: vec![one().destinations[0]; destinations],
            ports: ranges(ports),
            ..one()
        };
        assert!(of_rules(vec![wide(100, 100)]).is_empty());
        assert_eq!(of_rules(vec![wide(100, 100), one()]), ["egress_rules"]);
    }

    /// An update is validated with the container's settings, like the original request.
    #[test]
    fn egress_updates_are_validated_against_container() {
        let policy = Policy { allow_egress: true, allow_privileged: true, ..Policy::default() };
        let plan = |network, privileged| {
            let connectivity = Connectivity { egress: network == Network::Cni, ..Connectivity::default() };
            let isolation = Isolation { privileged, ..Isolation::default() };
            let network = Some(network);
            let draft = Draft { id: "c", path: "/bin/true", network, connectivity, isolation, ..Draft::default() };
            validate(&draft, &policy).unwrap()
        };
        let update = |egress, rules| EgressUpdate { egress, rules };
        let one = || vec![rule(EgressProtocol::Tcp, "192.0.2.0/24")];
        let table = [
            (plan(Network::Cni, false), update(true, one()), &[][..]),
            (plan(Network::Cni, false), update(false, Vec::new()), &[]),
            (plan(Network::Cni, false), update(false, one()), &["egress_rules"]),
            (
                plan(Network::Cni, false),
                update(true, vec![rule(EgressProtocol::Icmp, "::1")]),
                &["egress_rules[0].destinations[0]"],
            ),
            (plan(Network::Cni, true), update(true, Vec::new()), &[]),
            (plan(Network::Cni, true), update(true, one()), &["privileged"]),
            (plan(Network::Cni, true), update(false, Vec::new()), &["privileged"]),
            (plan(Network::None, false), update(false, Vec::new()), &["egress"]),
        ];
        for (plan, update, wrong) in table {
            match validate_egress(&update, &plan, &policy) {
                Ok(updated) => {
                    let Connectivity { egress, egress_rules, .. } = &updated.connectivity;
                    assert!(wrong.is_empty() && (*egress, egress_rules) == (update.egress, &update.rules));
                    assert_eq!(recheck(&updated, &policy), Ok(()), "{update:?}");
                }
                Err(violations) => {
                    let fields: Vec<&str> = violations.iter().map(|violation| &*violation.field).collect();
                    assert_eq!(fields, wrong, "{update:?}");
                }
            }
        }
        let refused =
            validate_egress(&update(true, one()), &plan(Network::Cni, false), &Policy::default()).unwrap_err();
        assert_eq!(refused[0].field, "egress", "egress is not allowed");
    }

    #[test]
    fn egress_rules_require_isolated_network() {
        let one = || vec![rule(EgressProtocol::Tcp, "192.0.2.0/24")];
        let plain = Isolation::default;
        assert_eq!(reported(false, Network::Cni, plain(), one()), ["egress_rules"]);
        assert_eq!(reported(true, Network::Host, plain(), one()), ["egress", "egress_rules"]);
        assert_eq!(reported(false, Network::None, plain(), one()), ["egress_rules"]);
        let raw = || Isolation { capabilities_added: vec!["CAP_NET_RAW".into()], ..plain() };
        assert_eq!(reported(true, Network::Cni, raw(), one()), ["capabilities.add"]);
        assert!(reported(true, Network::Cni, raw(), Vec::new()).is_empty(), "control failed");
        let privileged = || Isolation { privileged: true, ..plain() };
        assert_eq!(reported(true, Network::Cni, privileged(), one()), ["privileged"]);
        assert!(reported(true, Network::Cni, privileged(), Vec::new()).is_empty(), "control failed");
    }
}
