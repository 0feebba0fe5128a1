//! Converts ports, names and addresses of a request, which are strings in the API.

use std::net::IpAddr;

use executor_core::plan::{CniArgument, CniBandwidth, CniOptions, Connectivity, Protocol, PublishedPort};
use executor_core::validate::Violation;
use executor_core::validate::ViolationReason::{InvalidFormat, OutOfRange, UnknownValue};
use executor_proto::v1::{self, PortMapping, RunRequest, port_mapping};

/// Returns the ports, names and addresses of a request. Values that cannot be converted become violations.
pub(super) fn from_request(request: &RunRequest, violations: &mut Vec<Violation>) -> Connectivity {
    let dns = request.dns.clone().unwrap_or_default();
    let ports = request.ports.iter().enumerate();
    Connectivity {
        network_name: request.network_name.clone(),
        ports: ports.filter_map(|(index, asked)| port(index, asked, violations)).collect(),
        egress: request.egress,
        egress_rules: super::egress_rules(&request.egress_rules, violations),
        hostname: request.hostname.clone(),
        network_aliases: request.network_aliases.clone(),
        dns_servers: dns
            .servers
            .iter()
            .enumerate()
            .filter_map(|(index, text)| address(&format!("dns.servers[{index}]"), text, violations))
            .collect(),
        dns_searches: dns.searches,
        dns_options: dns.options,
        name_server: false, // set when the name server is opened
        network_namespace: request.network_namespace.clone().into(),
        cni: None, // only pods have CNI options
    }
}

/// Converts the settings for CNI plugins.
pub(super) fn cni_options(asked: &v1::CniOptions) -> CniOptions {
    let v1::CniOptions { arguments, bandwidth, cgroup_path, pod_annotations } = asked;
    let argument =
        |v1::CniArgument { name, value }: &v1::CniArgument| CniArgument { name: name.clone(), value: value.clone() };
    let limits = |v1::CniBandwidth { ingress_rate, ingress_burst, egress_rate, egress_burst }| CniBandwidth {
        ingress_rate,
        ingress_burst,
        egress_rate,
        egress_burst,
    };
    CniOptions {
        arguments: arguments.iter().map(argument).collect(),
        bandwidth: bandwidth.map(limits),
        cgroup_path: cgroup_path.clone(),
        pod_annotations: pod_annotations.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
    }
}

fn port(index: usize, asked: &PortMapping, violations: &mut Vec<Violation>) -> Option<PublishedPort> {
    let field = |name: &str| format!("ports[{index}].{name}");
    let before = violations.len();
    let host_ip = (!asked.host_ip.is_empty()).then(|| address(&field("host_ip"), &asked.host_ip, violations)).flatten();
    let mut number = |name: &str, number: u32| {
        u16::try_from(number).ok().filter(|number| *number > 0).unwrap_or_else(|| {
            let why = OutOfRange.because(format!("is {number}; 1 to 65535 are allowed"));
            violations.push(Violation::new(field(name), why));
            0
        })
    };
    let (host_port, container_port) =
        (number("host_port", asked.host_port), number("container_port", asked.container_port));
    let protocol = match port_mapping::Protocol::try_from(asked.protocol) {
        Ok(port_mapping::Protocol::Tcp) => Protocol::Tcp,
        Ok(port_mapping::Protocol::Udp) => Protocol::Udp,
        Ok(port_mapping::Protocol::Sctp) => Protocol::Sctp,
        Err(_) => {
            let why = format!("is {}; 0 (tcp), 1 (udp) and 2 (sctp) are allowed", asked.protocol);
            violations.push(Violation::new(field("protocol"), UnknownValue.because(why)));
            Protocol::Tcp
        }
    };
    (violations.len() == before).then_some(PublishedPort { host_ip, host_port, container_port, protocol })
}

pub(super) fn address(field: &str, text: &str, violations: &mut Vec<Violation>) -> Option<IpAddr> {
    let parsed = text.parse().ok();
    if parsed.is_none() {
        let shown: String = text.chars().take(80).collect();
        violations.push(Violation::new(field, InvalidFormat.because(format!("{shown:?} is not a valid IP address"))));
    }
    parsed
}

#[cfg(test)]
mod tests {
    use executor_proto::v1::Dns;

    use super::*;

    #[test]
    fn invalid_ports_and_addresses_are_reported() {
        let port = |host_ip: &str, host_port, container_port, protocol| PortMapping {
            host_ip: host_ip.into(),
            host_port,
            container_port,
            protocol,
        };
        let request = RunRequest {
            ports: vec![port("", 80, 8080, 1), port("x", 0, 65_536, 3), port("::1", 65_535, 1, 0)],
            dns: Some(Dns { servers: vec!["10.0.0.1".into(), "name".into()], ..Dns::default() }),
            ..RunRequest::default()
        };
        let mut violations = Vec::new();
        let made = from_request(&request, &mut violations);
        let fields: Vec<&str> = violations.iter().map(|violation| &*violation.field).collect();
        let wrong = ["ports[1].host_ip", "ports[1].host_port", "ports[1].container_port", "ports[1].protocol"];
        assert_eq!(fields, [&wrong[..], &["dns.servers[1]"]].concat());
        assert_eq!(made.ports.len(), 2);
        assert_eq!(made.ports[0].protocol, Protocol::Udp);
        assert_eq!(made.ports[1].host_ip, Some("::1".parse().unwrap()));
    }
}
