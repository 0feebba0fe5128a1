//! Builds the input of a plugin: its command and the configuration for its standard input.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{CniNetwork, Plugin, Version};
use crate::plan::{CniArgument, CniBandwidth, CniOptions, Connectivity, Protocol, PublishedPort};

/// Command that a plugin executes (CNI_COMMAND).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Connect the container.
    Add,
    /// Disconnect the container.
    Del,
    /// Check that the container is connected.
    Check,
    /// Remove resources that belong to no valid attachment.
    Gc,
    /// Report the supported versions.
    Version,
}

impl Verb {
    /// Returns the value of CNI_COMMAND.
    pub fn name(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Gc => "GC",
            Self::Version => "VERSION",
        }
    }
}

/// Settings for plugins (`runtimeConfig`), by capability name. A plugin receives only the capabilities that its
/// configuration declares.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities(pub Map<String, Value>);

/// Name of the capability for published ports.
const PORTS: &str = "portMappings";
/// Element of CNI_ARGS in every plugin call. Allows plugins to ignore arguments that they do not support.
const IGNORE_UNKNOWN: &str = "IgnoreUnknown=1";

/// Returns the value of CNI_ARGS.
pub fn cni_args(arguments: &[CniArgument]) -> String {
    let all = arguments.iter().map(|CniArgument { name, value }| format!("{name}={value}"));
    std::iter::once(IGNORE_UNKNOWN.to_owned()).chain(all).collect::<Vec<_>>().join(";")
}

impl Capabilities {
    /// Returns the capabilities of a request: published ports, DNS settings, and the capabilities of its CNI options.
    pub fn from_asked(connectivity: &Connectivity) -> Self {
        let mut all = Map::new();
        let port = |port: &PublishedPort| {
            let mut mapping = json!({
                "hostPort": port.host_port,
                "containerPort": port.container_port,
                "protocol": port.protocol.name(),
            });
            if let Some(address) = port.host_ip {
                mapping["hostIP"] = address.to_string().into();
            }
            mapping
        };
        if !connectivity.ports.is_empty() {
            all.insert(PORTS.into(), connectivity.ports.iter().map(port).collect());
        }
        if !connectivity.dns_servers.is_empty()
            || !connectivity.dns_searches.is_empty()
            || !connectivity.dns_options.is_empty()
        {
            let servers: Vec<String> = connectivity.dns_servers.iter().map(ToString::to_string).collect();
            let dns = json!({ "servers": servers, "searches": connectivity.dns_searches, "options": connectivity.dns_options });
            all.insert("dns".into(), dns);
        }
        if let Some(options) = &connectivity.cni {
            add_options(options, &mut all);
        }
        Self(all)
    }

    /// Returns true if ports are requested but no plugin of the network can publish them. (Name servers are written to
    /// resolv.conf without a plugin.)
    pub fn lacks_port_plugin(&self, network: &CniNetwork) -> bool {
        self.0.contains_key(PORTS) && !network.plugins.iter().any(|plugin| declares(plugin, PORTS))
    }
}

impl Capabilities {
    /// Returns the published ports.
    pub fn published(&self) -> impl Iterator<Item = PublishedPort> + '_ {
        ports(self).iter().filter_map(|port| {
            let number = |name: &str| u16::try_from(port.get(name)?.as_u64()?).ok();
            Some(PublishedPort {
                host_ip: port.get("hostIP").and_then(Value::as_str).and_then(|ip| ip.parse().ok()),
                host_port: number("hostPort")?,
                container_port: number("containerPort")?,
                protocol: Protocol::from_name(port.get("protocol")?.as_str()?)?,
            })
        })
    }

    /// Returns a port that both containers publish on overlapping host addresses. Plugins do not check for this
    /// conflict: the first container would get the traffic for the second.
    pub fn published_by_both(&self, other: &Self) -> Option<String> {
        let shared = |one: &&Value| ports(other).iter().any(|another| overlap(one, another));
        let port = ports(self).iter().find(shared)?;
        Some(format!("{}/{}", port["hostPort"], port["protocol"].as_str().unwrap_or_default()))
    }
}

fn add_options(options: &CniOptions, all: &mut Map<String, Value>) {
    if let Some(CniBandwidth { ingress_rate, ingress_burst, egress_rate, egress_burst }) = options.bandwidth {
        // As the plugin `bandwidth` requires, an unlimited direction has neither a rate nor a burst.
        let limits = [
            ("ingressRate", ingress_rate),
            ("ingressBurst", ingress_burst),
            ("egressRate", egress_rate),
            ("egressBurst", egress_burst),
        ];
        let set = limits.into_iter().filter(|(_, number)| *number > 0);
        let set: Map<String, Value> = set.map(|(name, number)| (name.to_owned(), number.into())).collect();
        all.insert("bandwidth".into(), set.into());
    }
    if !options.cgroup_path.is_empty() {
        all.insert("cgroupPath".into(), options.cgroup_path.clone().into());
    }
    if !options.pod_annotations.is_empty() {
        let annotations = options.pod_annotations.iter();
        let annotations: Map<String, Value> =
            annotations.map(|(name, value)| (name.clone(), value.clone().into())).collect();
        all.insert("io.kubernetes.cri.pod-annotations".into(), annotations.into());
    }
}

fn ports(asked: &Capabilities) -> &[Value] {
    asked.0.get(PORTS).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn overlap(one: &Value, another: &Value) -> bool {
    let bound_to = |port: &Value| {
        let ip = port.get("hostIP").and_then(Value::as_str).and_then(|ip| ip.parse::<IpAddr>().ok());
        ip.filter(|ip| !ip.is_unspecified())
    };
    let ips = (bound_to(one), bound_to(another));
    let meet = !matches!(ips, (Some(one), Some(another)) if one != another);
    meet && one["hostPort"] == another["hostPort"] && one["protocol"] == another["protocol"]
}

/// Returns true if the plugin's configuration declares a capability.
fn declares(plugin: &Plugin, capability: &str) -> bool {
    plugin.config.get("capabilities").and_then(|all| all.get(capability)).and_then(Value::as_bool) == Some(true)
}

/// Returns the standard input of a plugin: its own configuration, the network's name and version, the requested
/// capabilities, and the result `previous`: for ADD, the result of the plugin before this plugin; for CHECK and DEL,
/// the final result of ADD.
pub fn stdin(
    network: &CniNetwork,
    plugin: &Plugin,
    version: Version,
    capabilities: &Capabilities,
    previous: Option<&Value>,
) -> Value {
    let mut config = derived(network, plugin, version);
    let theirs: Map<String, Value> = capabilities
        .0
        .iter()
        .filter(|(capability, _)| declares(plugin, capability))
        .map(|(capability, value)| (capability.clone(), value.clone()))
        .collect();
    if theirs.is_empty() {
        config.remove("runtimeConfig");
    } else {
        config.insert("runtimeConfig".into(), theirs.into());
    }
    match previous {
        Some(result) => config.insert("prevResult".into(), result.clone()),
        None => config.remove("prevResult"),
    };
    config.into()
}

/// Returns a plugin's own configuration with the network's name and version, and the attachments to keep: pairs of
/// `CNI_CONTAINERID` and `CNI_IFNAME`.
pub fn gc_stdin<'a>(
    network: &CniNetwork,
    plugin: &Plugin,
    version: Version,
    valid: impl Iterator<Item = (&'a str, &'a str)>,
) -> Value {
    let mut config = derived(network, plugin, version);
    config.remove("runtimeConfig");
    config.remove("prevResult");
    let valid: Value = valid.map(|(id, interface)| json!({"containerID": id, "ifname": interface})).collect();
    // Plugins with libcni 1.2.0 read `cni.dev/attachments`, and would remove every attachment without this key.
    config.insert("cni.dev/valid-attachments".into(), valid.clone());
    config.insert("cni.dev/attachments".into(), valid);
    config.into()
}

fn derived(network: &CniNetwork, plugin: &Plugin, version: Version) -> Map<String, Value> {
    let mut config = plugin.config.clone();
    config.remove("cniVersions");
    config.insert("name".into(), network.name.clone().into());
    config.insert("cniVersion".into(), version.name().into());
    config
}
