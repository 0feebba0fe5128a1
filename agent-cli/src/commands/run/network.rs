//! Options of `run` for networks: selection, published ports, egress, host name and DNS.

#![allow(rustdoc::broken_intra_doc_links)] // brackets in help texts are not links

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr as _;

use clap::Args;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::network::Chosen;
use executor_client::v1::port_mapping::Protocol;
use executor_client::v1::{Dns, PortMapping, RunRequest};

use crate::egress;

#[derive(Debug, Args)]
#[command(next_help_heading = "Network")]
pub(crate) struct NetworkArgs {
    /// Network: none, host, bridge, the name of another network, or ns:/PATH [default: none, or cni with --publish]
    ///
    /// `none` has only loopback. `bridge` is built in. `host` is this machine's network, and ns:/PATH an existing
    /// network namespace, if executord's configuration allows them. `cni` is the first configured CNI network, or
    /// `bridge` if no CNI network is configured. Use cni:NAME for a network named `none`, `host` or `cni`.
    #[arg(long, visible_alias = "net", value_name = "NETWORK", value_parser = Chosen::from_str)]
    network: Option<Chosen>,
    /// Port of this machine to forward to the container; can be repeated
    ///
    /// 8080:80, 127.0.0.1:8080:80, [::1]:8080:80, 5353:53/udp. A CNI network needs a plugin that publishes ports.
    #[arg(long, short, value_name = "[IP:]HOST:CONTAINER[/PROTOCOL]", value_parser = port)]
    publish: Vec<PortMapping>,
    /// Allow connections beyond the container's own network, if executord's configuration allows it
    #[arg(long)]
    egress: bool,
    /// Allow only the destinations in this JSON file; implies --egress
    ///
    /// The file has the format of Cloud Foundry's application security groups: [{"protocol": "tcp", "destination":
    /// "192.0.2.0/24,198.51.100.1-198.51.100.9", "ports": "443,8000-8100"}], with the protocols tcp, udp, icmp (with
    /// type and code), icmpv6 and all. The container's own network needs no rule; name servers outside of it do.
    /// `agent-cli egress` replaces the rules of a running container.
    #[arg(long, value_name = "FILE")]
    egress_rules: Option<PathBuf>,
    /// Host name of the container [default: its id]
    #[arg(long, value_name = "NAME")]
    hostname: Option<String>,
    /// Additional name by which other containers on a built-in network find this container; can be repeated
    ///
    /// Containers on a built-in network also find it by its id and its host name. Several containers can have the same
    /// alias.
    #[arg(long, visible_alias = "net-alias", value_name = "NAME")]
    network_alias: Vec<String>,
    /// Address of a name server; can be repeated [default: the network's name servers]
    ///
    /// On a built-in network the container uses the network's own name server, which resolves names of containers and
    /// forwards other names to these servers.
    #[arg(long, value_name = "ADDRESS")]
    dns: Vec<IpAddr>,
    /// DNS search domain; can be repeated
    #[arg(long, value_name = "DOMAIN")]
    dns_search: Vec<String>,
    /// Resolver option, see resolv.conf(5); can be repeated
    #[arg(long, visible_alias = "dns-opt", value_name = "OPTION")]
    dns_option: Vec<String>,
}

/// Parses a published port: `[IP:]HOST:CONTAINER[/PROTOCOL]`.
fn port(text: &str) -> Result<PortMapping, String> {
    const HOW: &str = "a published port is [IP:]HOST:CONTAINER[/tcp|udp|sctp], such as 8080:80";
    let (rest, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    let protocol = match protocol.to_ascii_lowercase().as_str() {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "sctp" => Protocol::Sctp,
        _ => return Err(HOW.into()),
    };
    let (rest, container_port) = rest.rsplit_once(':').ok_or(HOW)?;
    let (host_ip, host_port) = match rest.rsplit_once(':') {
        None => (None, rest),
        Some((ip, port)) => {
            let ip = ip.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')).unwrap_or(ip);
            (Some(ip.parse::<IpAddr>().map_err(|_| HOW)?), port)
        }
    };
    let number = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0).map(u32::from);
    Ok(PortMapping {
        host_ip: host_ip.map(|ip| ip.to_string()).unwrap_or_default(),
        host_port: number(host_port).ok_or("a port is a number from 1 to 65535")?,
        container_port: number(container_port).ok_or("a port is a number from 1 to 65535")?,
        protocol: protocol.into(),
    })
}

impl NetworkArgs {
    /// Adds the options for networks to a run request.
    pub(crate) fn apply(self, request: &mut RunRequest) -> Result<(), Failure> {
        // A published port needs a network: without `--network`, the default network of the node.
        let default = if self.publish.is_empty() { Chosen::None } else { Chosen::Cni(String::new()) };
        self.network.unwrap_or(default).apply(request);
        request.ports = self.publish;
        request.egress = self.egress || self.egress_rules.is_some();
        if let Some(path) = &self.egress_rules {
            request.egress_rules = egress::read(path)?;
            // An empty list of rules would allow every destination.
            if request.egress_rules.is_empty() {
                return Err(Failure::Usage(format!("--egress-rules {}: has no rules", path.display())));
            }
        }
        request.hostname = self.hostname.unwrap_or_default();
        request.network_aliases = self.network_alias;
        if !(self.dns.is_empty() && self.dns_search.is_empty() && self.dns_option.is_empty()) {
            request.dns = Some(Dns {
                servers: self.dns.iter().map(ToString::to_string).collect(),
                searches: self.dns_search,
                options: self.dns_option,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use executor_cli_kit::network::written;

    #[test]
    fn published_ports_are_parsed() {
        let table = [
            ("8080:80", "8080:80/tcp"),
            ("127.0.0.1:53:5353/udp", "127.0.0.1:53:5353/udp"),
            ("[::1]:1:65535/SCTP", "[::1]:1:65535/sctp"),
        ];
        for (text, same) in table {
            assert_eq!(port(text).as_ref().map(written), Ok(same.to_owned()), "{text}");
        }
        for text in ["", "80", "0:80", "80:65536", "80:80/icmp", "x:80:80", "80:80:80:80", ":80", "80:", "1.2.3.4::80"]
        {
            assert!(port(text).is_err(), "{text}");
        }
    }
}
