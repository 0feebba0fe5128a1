//! Lowers the properties that the containers of a pod share: network, names, processes and ids (rules P40 to P43 and
//! P48 of `docs/guides/kube-rules.md`).

use std::collections::BTreeSet;
use std::net::IpAddr;

use executor_client::v1::port_mapping::Protocol;
use executor_client::v1::{CreatePodRequest, Dns, ExtraHost, Network, PortMapping, UserNamespace};

use k8s_openapi::api::core::v1::PodDNSConfig;

use super::Lowering;
use crate::names::{is_label, is_port_name, is_subdomain};
use crate::options::PodNetwork;
use crate::plan::Role;

/// Maximum number of name servers (rule P42).
const SERVERS_MAX: usize = 3;
/// Sysctls that a kubelet allows by default.
const SAFE_SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];
/// Maximum number of search domains.
const SEARCHES_MAX: usize = 32;
/// Maximum total length of the search domains, in bytes.
const SEARCH_BYTES_MAX: usize = 2048;

impl Lowering<'_> {
    pub(super) fn shared(&mut self) -> CreatePodRequest {
        let spec = self.spec;
        let host_network = spec.host_network == Some(true);
        let (network, network_name) = match &self.options.network {
            _ if host_network => (Network::Host, String::new()),
            PodNetwork::None => (Network::None, String::new()),
            PodNetwork::Host => (Network::Host, String::new()),
            PodNetwork::Cni(name) => (Network::Cni, name.clone()),
        };
        let hostname = match spec.hostname.as_deref().filter(|name| !name.is_empty()) {
            Some(name) if !is_label(name) => {
                self.refuse(
                    "spec.hostname",
                    "P40",
                    "is not a DNS label: use at most 63 characters of a-z, 0-9 and `-`",
                );
                String::new()
            }
            Some(name) => name.to_owned(),
            None => self.name.chars().take(63).collect::<String>().trim_end_matches(['-', '.']).to_owned(),
        };
        let sysctls = spec.security_context.as_ref().and_then(|context| context.sysctls.clone()).unwrap_or_default();
        let mut named = BTreeSet::new();
        for (index, sysctl) in sysctls.iter().enumerate() {
            if !SAFE_SYSCTLS.contains(&&*sysctl.name.replace('/', ".")) {
                let message = "is not one of Kubernetes' safe sysctls: a kubelet refuses it unless it is allowed there";
                self.warn(&format!("spec.securityContext.sysctls[{index}].name"), "P47", message);
            }
            if !named.insert(sysctl.name.replace('/', ".")) {
                let message = "is the name of another sysctl of the pod";
                self.refuse(&format!("spec.securityContext.sysctls[{index}].name"), "P47", message);
            }
            if network == Network::Host && sysctl.name.replace('/', ".").starts_with("net.") {
                let message = "is a network setting, which is not allowed on the host's network";
                self.refuse(&format!("spec.securityContext.sysctls[{index}].name"), "P47", message);
            }
        }
        let (host_pid, host_ipc) = (spec.host_pid == Some(true), spec.host_ipc == Some(true));
        for (field, is_set) in [("hostPID", host_pid), ("hostIPC", host_ipc)] {
            if is_set && spec.host_users == Some(false) {
                self.refuse(&format!("spec.{field}"), "P48", "cannot be combined with `hostUsers: false`");
            }
        }
        if host_pid && spec.share_process_namespace == Some(true) {
            self.refuse("spec.shareProcessNamespace", "P48", "cannot be combined with hostPID");
        }
        CreatePodRequest {
            network: network.into(),
            network_name,
            egress: self.options.egress && network == Network::Cni,
            ports: self.ports(network),
            // A pod in the host network has the host's name.
            hostname: if network == Network::Host { String::new() } else { hostname },
            dns: self.dns(),
            extra_hosts: self.host_aliases(),
            sysctls: sysctls.into_iter().map(|one| (one.name, one.value)).collect(),
            user_namespace: match spec.host_users {
                Some(true) => UserNamespace::Host.into(),
                None if host_pid || host_ipc => UserNamespace::Host.into(),
                _ => UserNamespace::Own.into(),
            },
            share_processes: spec.share_process_namespace == Some(true),
            host_pid,
            host_ipc,
            ..CreatePodRequest::default()
        }
    }

    fn host_aliases(&mut self) -> Vec<ExtraHost> {
        let mut hosts = Vec::new();
        for (index, alias) in self.spec.host_aliases.iter().flatten().enumerate() {
            if alias.ip.parse::<IpAddr>().is_err() {
                self.refuse(&format!("spec.hostAliases[{index}].ip"), "P41", "is not an IP address");
            }
            for (at, name) in alias.hostnames.iter().flatten().enumerate() {
                if !is_subdomain(name) {
                    let message = "is not a DNS subdomain: use at most 253 characters of a-z, 0-9, `-` and `.`";
                    self.refuse(&format!("spec.hostAliases[{index}].hostnames[{at}]"), "P41", message);
                }
                hosts.push(ExtraHost { name: name.clone(), address: alias.ip.clone() });
            }
        }
        hosts
    }

    fn dns(&mut self) -> Option<Dns> {
        let policy = self.spec.dns_policy.as_deref();
        match policy {
            None | Some("" | "Default" | "None") => {}
            Some("ClusterFirst" | "ClusterFirstWithHostNet") => {
                let message = "acts as Default: there is no cluster DNS (MissingClusterDNS)";
                self.warn("spec.dnsPolicy", "P42", message);
            }
            Some(_) => {
                self.refuse("spec.dnsPolicy", "P42", "must be ClusterFirst, ClusterFirstWithHostNet, Default or None");
            }
        }
        // Ignore empty lists: a request with empty lists would clear the settings of the host.
        let is_set = |config: &&PodDNSConfig| {
            let PodDNSConfig { nameservers, searches, options } = config;
            let lists =
                [nameservers.as_ref().map(Vec::len), searches.as_ref().map(Vec::len), options.as_ref().map(Vec::len)];
            lists.into_iter().flatten().any(|length| length > 0)
        };
        let Some(config) = self.spec.dns_config.as_ref().filter(is_set) else {
            if policy == Some("None") {
                self.refuse("spec.dnsConfig", "P42", "is missing: dnsPolicy None needs its nameservers");
            }
            return None;
        };
        let servers = config.nameservers.clone().unwrap_or_default();
        let searches = config.searches.clone().unwrap_or_default();
        for (index, _) in config
            .options
            .iter()
            .flatten()
            .enumerate()
            .filter(|(_, one)| one.name.as_ref().is_none_or(String::is_empty))
        {
            self.refuse(&format!("spec.dnsConfig.options[{index}].name"), "P42", "is missing");
        }
        if policy == Some("None") && servers.is_empty() {
            self.refuse("spec.dnsConfig.nameservers", "P42", "is empty: dnsPolicy None needs at least one");
        }
        if servers.len() > SERVERS_MAX {
            let message = format!("has {} entries; at most {SERVERS_MAX} are allowed", servers.len());
            self.refuse("spec.dnsConfig.nameservers", "P42", message);
        }
        if servers.iter().any(|server| server.parse::<IpAddr>().is_err()) {
            self.refuse("spec.dnsConfig.nameservers", "P42", "has an entry that is not an IP address");
        }
        let bytes: usize = searches.iter().map(|search| search.len() + 1).sum();
        if searches.len() > SEARCHES_MAX || bytes > SEARCH_BYTES_MAX {
            let message = format!(
                "has {} entries with {bytes} bytes; at most {SEARCHES_MAX} entries with {SEARCH_BYTES_MAX} bytes are allowed",
                searches.len()
            );
            self.refuse("spec.dnsConfig.searches", "P42", message);
        }
        if policy != Some("None") {
            self.warn("spec.dnsConfig", "P42", "replaces the host's settings instead of extending them");
        }
        let option = |name: &str, value: Option<&str>| match value {
            Some(value) => format!("{name}:{value}"),
            None => name.to_owned(),
        };
        let options = config.options.iter().flatten();
        let options = options.filter_map(|one| Some(option(one.name.as_deref()?, one.value.as_deref()))).collect();
        Some(Dns { servers, searches, options })
    }

    /// Returns the published ports, which are the ports with a hostPort (rule P43).
    fn ports(&mut self, network: Network) -> Vec<PortMapping> {
        let mut ports: Vec<PortMapping> = Vec::new();
        let declared: Vec<_> = self
            .containers()
            .into_iter()
            .flat_map(|(path, container, role)| {
                let all = container.ports.iter().flatten().enumerate();
                all.map(move |(index, port)| (format!("{path}.ports[{index}]"), port, role, &*container.name))
            })
            .collect();
        let (mut names, mut published) = (BTreeSet::new(), BTreeSet::new());
        for (path, port, role, container) in declared {
            if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
                let at = format!("{path}.name");
                if !is_port_name(name) {
                    let message = "is not a valid port name: use 1 to 15 characters of a-z, 0-9 and `-`, at least one of them a letter";
                    self.refuse(&at, "P43", message);
                } else if !names.insert((container, name)) {
                    self.refuse(&at, "P43", format!("`{name}` is the name of another port of the container"));
                }
            }
            let host_ip = port.host_ip.clone().unwrap_or_default();
            if !host_ip.is_empty() && host_ip.parse::<IpAddr>().is_err() {
                self.refuse(&format!("{path}.hostIP"), "P43", "is not an IP address");
            }
            let valid = |number: i32| u32::try_from(number).ok().filter(|number| (1..=65535).contains(number));
            let Some(container_port) = valid(port.container_port) else {
                let message = format!("is {}; it must be 1 to 65535", port.container_port);
                self.refuse(&format!("{path}.containerPort"), "P43", message);
                continue;
            };
            let protocol = match port.protocol.as_deref() {
                None | Some("" | "TCP") => Protocol::Tcp,
                Some("UDP") => Protocol::Udp,
                Some("SCTP") => Protocol::Sctp,
                Some(_) => {
                    self.refuse(&format!("{path}.protocol"), "P43", "must be TCP, UDP or SCTP");
                    continue;
                }
            };
            let asked = port.host_port.filter(|number| *number != 0 && role != Role::Init);
            let Some(asked) = asked else { continue };
            let Some(host_port) = valid(asked) else {
                self.refuse(&format!("{path}.hostPort"), "P43", format!("is {asked}; it must be 1 to 65535"));
                continue;
            };
            match network {
                Network::Host if host_port != container_port => {
                    let message = "must be equal to containerPort on the host's network";
                    self.refuse(&format!("{path}.hostPort"), "P43", message);
                    continue;
                }
                Network::Host => continue,
                Network::Cni => {}
                _ => {
                    let message = "needs a network that publishes ports: --network cni";
                    self.refuse(&format!("{path}.hostPort"), "P43", message);
                    continue;
                }
            }
            if !published.insert((host_port, i32::from(protocol), host_ip.clone())) {
                self.refuse(&format!("{path}.hostPort"), "P43", format!("{host_port} is published twice"));
                continue;
            }
            ports.push(PortMapping { host_ip, host_port, container_port, protocol: protocol.into() });
        }
        ports
    }
}
