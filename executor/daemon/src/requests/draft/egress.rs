//! Converts egress rules. The API does not restrict their addresses and numbers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use executor_core::limits::{EGRESS_ELEMENTS_MAX, EGRESS_RULES_MAX};
use executor_core::plan::{AddressRange, BadRange, EgressProtocol, EgressRule, IcmpMessages, PortRange};
use executor_core::validate::Violation;
use executor_core::validate::ViolationReason::{Conflict, InvalidFormat, OutOfRange, TooMany, UnknownValue};
use executor_proto::v1::{self, egress_rule};

/// Returns the rules of a request. A rule that cannot be converted becomes a violation and keeps its position, because
/// later violations refer to indices.
pub(crate) fn rules(rules: &[v1::EgressRule], violations: &mut Vec<Violation>) -> Vec<EgressRule> {
    let elements = |rule: &v1::EgressRule| rule.destinations.len().saturating_add(rule.ports.len());
    // Reject an overlong list as a whole, because each of its elements could be a violation.
    let overlong = if rules.len() > EGRESS_RULES_MAX {
        Some(format!("has {} entries; at most {EGRESS_RULES_MAX} are allowed", rules.len()))
    } else {
        rules.iter().map(elements).find(|count| *count > EGRESS_ELEMENTS_MAX).map(|count| {
            format!("has a rule with {count} destinations and ports; at most {EGRESS_ELEMENTS_MAX} are allowed")
        })
    };
    if let Some(why) = overlong {
        violations.push(Violation::new("egress_rules", TooMany.because(why)));
        return Vec::new();
    }
    rules.iter().enumerate().map(|(index, rule)| Rule { index, asked: rule }.translated(violations)).collect()
}

/// An egress rule with its index in the request.
struct Rule<'a> {
    index: usize,
    asked: &'a v1::EgressRule,
}

impl Rule<'_> {
    fn field(&self, name: &str) -> String {
        format!("egress_rules[{}].{name}", self.index)
    }

    fn translated(&self, violations: &mut Vec<Violation>) -> EgressRule {
        let protocol = self.protocol(violations);
        let nowhere = match protocol {
            EgressProtocol::Icmpv6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        };
        let mut destinations = Vec::with_capacity(self.asked.destinations.len());
        for (index, text) in self.asked.destinations.iter().enumerate() {
            destinations.push(text.parse().unwrap_or_else(|why: BadRange| {
                let shown: String = text.chars().take(80).collect();
                let why = InvalidFormat.because(format!("{shown:?} {why}"));
                violations.push(Violation::new(self.field(&format!("destinations[{index}]")), why));
                AddressRange { first: nowhere, last: nowhere }
            }));
        }
        let ports = self.asked.ports.iter().enumerate().map(|(index, range)| self.ports(index, *range, violations));
        let ports = ports.collect();
        EgressRule { protocol, destinations, ports, icmp: self.icmp(violations), log: self.asked.log }
    }

    fn protocol(&self, violations: &mut Vec<Violation>) -> EgressProtocol {
        match egress_rule::Protocol::try_from(self.asked.protocol) {
            Ok(egress_rule::Protocol::All) => EgressProtocol::All,
            Ok(egress_rule::Protocol::Tcp) => EgressProtocol::Tcp,
            Ok(egress_rule::Protocol::Udp) => EgressProtocol::Udp,
            Ok(egress_rule::Protocol::Icmp) => EgressProtocol::Icmp,
            Ok(egress_rule::Protocol::Icmpv6) => EgressProtocol::Icmpv6,
            Err(_) => {
                let number = self.asked.protocol;
                let why = format!("is {number}; 0 (all), 1 (tcp), 2 (udp), 3 (icmp) and 4 (icmpv6) are allowed");
                violations.push(Violation::new(self.field("protocol"), UnknownValue.because(why)));
                EgressProtocol::All
            }
        }
    }

    fn ports(&self, index: usize, asked: v1::PortRange, violations: &mut Vec<Violation>) -> PortRange {
        let v1::PortRange { first, last } = asked;
        let numbers = (u16::try_from(first), u16::try_from(if last == 0 { first } else { last }));
        if let (Ok(first), Ok(last)) = numbers {
            return PortRange { first, last };
        }
        let why = OutOfRange.because(format!("is {first}-{last}; ports must be 1 to 65535, in ascending order"));
        violations.push(Violation::new(self.field(&format!("ports[{index}]")), why));
        PortRange { first: 1, last: 1 }
    }

    fn icmp(&self, violations: &mut Vec<Violation>) -> Option<IcmpMessages> {
        let mut number = |name, asked: Option<i32>| {
            let asked = asked.filter(|number| *number != -1)?;
            let number = u8::try_from(asked);
            if number.is_err() {
                let why = OutOfRange.because(format!("is {asked}; 0 to 255 is allowed, or -1 for all"));
                violations.push(Violation::new(self.field(name), why));
            }
            Some(number.unwrap_or(0))
        };
        let (kind, code) = (number("icmp_type", self.asked.icmp_type), number("icmp_code", self.asked.icmp_code));
        if let (None, Some(code)) = (kind, code) {
            let why = Conflict.because(format!("is {code}, but `icmp_type` is not set"));
            violations.push(Violation::new(self.field("icmp_code"), why));
        }
        kind.map(|kind| IcmpMessages { kind, code })
    }
}

/// Converts an egress rule to its API message.
pub(crate) fn message(rule: &EgressRule) -> v1::EgressRule {
    let protocol = match rule.protocol {
        EgressProtocol::All => egress_rule::Protocol::All,
        EgressProtocol::Tcp => egress_rule::Protocol::Tcp,
        EgressProtocol::Udp => egress_rule::Protocol::Udp,
        EgressProtocol::Icmp => egress_rule::Protocol::Icmp,
        EgressProtocol::Icmpv6 => egress_rule::Protocol::Icmpv6,
    };
    let ports = rule.ports.iter().map(|range| v1::PortRange { first: range.first.into(), last: range.last.into() });
    v1::EgressRule {
        protocol: protocol.into(),
        destinations: rule.destinations.iter().map(ToString::to_string).collect(),
        ports: ports.collect(),
        icmp_type: rule.icmp.map(|icmp| icmp.kind.into()),
        icmp_code: rule.icmp.and_then(|icmp| icmp.code).map(i32::from),
        log: rule.log,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(asked: &[v1::EgressRule]) -> (Vec<EgressRule>, Vec<String>) {
        let mut violations = Vec::new();
        let rules = rules(asked, &mut violations);
        (rules, violations.into_iter().map(|violation| violation.field).collect())
    }

    #[test]
    fn egress_rules_are_validated_in_order() {
        let range = |first, last| v1::PortRange { first, last };
        let bad = v1::EgressRule {
            protocol: 9,
            destinations: vec!["192.0.2.1".into(), "x".into(), "::1-1.1.1.1".into()],
            ports: vec![range(80, 0), range(65_536, 0), range(1, 65_536)],
            icmp_type: Some(256),
            icmp_code: Some(-2),
            log: false,
        };
        let code_alone = v1::EgressRule { protocol: 3, icmp_type: Some(-1), icmp_code: Some(0), ..Default::default() };
        let (made, fields) = reported(&[v1::EgressRule::default(), bad, code_alone]);
        let of = ["protocol", "destinations[1]", "destinations[2]", "ports[1]", "ports[2]", "icmp_type", "icmp_code"];
        let mut expected: Vec<String> = of.iter().map(|name| format!("egress_rules[1].{name}")).collect();
        expected.push("egress_rules[2].icmp_code".into());
        assert_eq!(fields, expected);
        assert_eq!((made.len(), made[1].destinations.len(), made[1].ports.len()), (3, 3, 3));
        assert_eq!(made[1].ports[0], PortRange { first: 80, last: 80 });
        assert_eq!(reported(&vec![v1::EgressRule::default(); 1001]), (Vec::new(), vec!["egress_rules".to_owned()]));
    }

    #[test]
    fn rules_come_back_in_their_shortest_form() {
        let asked = v1::EgressRule {
            protocol: egress_rule::Protocol::Icmp.into(),
            destinations: vec!["192.0.2.7/24".into(), "192.0.2.1-192.0.2.1".into()],
            icmp_type: Some(8),
            icmp_code: Some(-1),
            ..Default::default()
        };
        let (made, fields) = reported(std::slice::from_ref(&asked));
        assert_eq!(fields, Vec::<String>::new());
        let destinations = vec!["192.0.2.0/24".into(), "192.0.2.1".into()];
        assert_eq!(message(&made[0]), v1::EgressRule { destinations, icmp_code: None, ..asked });
    }
}
