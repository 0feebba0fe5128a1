//! Creates the container's /etc/hostname, /etc/hosts and /etc/resolv.conf.
//!
//! The input is the plan, the container's addresses and, for a container with the host's network, the host's files; the
//! output is the contents of the files. All values were validated before, by [`crate::validate`] or by [`crate::cni`].

use std::net::IpAddr;

use crate::cni::{Addresses, Dns};
use crate::plan::{Network, Plan};

/// Maximum number of bytes that are read from a host file.
pub const HOST_FILE_MAX: u64 = 1 << 20;
/// Maximum length of a host name derived from an id, in bytes: the limit of a DNS label.
const FROM_ID_MAX: usize = 63;
/// Address of the container's own host name if the container has no network, as in Debian.
const OWN_ADDRESS_DEFAULT: &str = "127.0.1.1";

/// Returns a container's host name.
pub fn hostname(plan: &Plan) -> String {
    match &*plan.connectivity.hostname {
        "" => plan.id.as_str().chars().take(FROM_ID_MAX).collect(),
        asked => asked.to_owned(),
    }
}

/// Returns /etc/hosts. `of_host` is the host's own file, for a container with the host's network.
pub fn hosts(plan: &Plan, addresses: &[IpAddr], of_host: &str) -> String {
    let name = hostname(plan);
    let known =
        |text: &str| text.split('#').next().unwrap_or_default().split_whitespace().skip(1).any(|one| one == name);
    let mut text = match plan.network {
        Network::Host if !of_host.is_empty() => of_host.trim_end().to_owned() + "\n",
        Network::Host | Network::None | Network::Cni | Network::Path => {
            "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n".to_owned()
        }
    };
    let extra: String =
        plan.surroundings.extra_hosts.iter().map(|host| format!("{} {}\n", host.address, host.name)).collect();
    if text.lines().any(known) {
        return text + &extra;
    }
    let short = name.split_once('.').map_or(String::new(), |(short, _)| format!(" {short}"));
    let mut own: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    if own.is_empty() {
        own.push(OWN_ADDRESS_DEFAULT.to_owned());
    }
    for address in own {
        text += &format!("{address} {name}{short}\n");
    }
    text + &extra
}

/// Returns true for a loopback or unspecified address: such a name server is in the container itself.
pub fn is_own_server(server: IpAddr) -> bool {
    let server = server.to_canonical();
    server.is_loopback() || server.is_unspecified()
}

/// Resolver option: the resolver looks up a name without dots unchanged before it tries the search domains.
const NDOTS_ZERO: &str = "ndots:0";

/// Returns /etc/resolv.conf. Name servers, search domains and options each come from the request or, if unset there,
/// from the CNI network. If both set no name servers and the container can reach the host's resolvers, all missing
/// values come from the host's file `of_host`.
///
/// If executord answers DNS queries on the network, the only name servers are the network's gateways, and executord
/// forwards queries to the request's name servers. This does not apply to a request with a loopback server, because
/// only the container itself can reach such a server.
pub fn resolv_conf(plan: &Plan, addresses: &Addresses, of_host: &str) -> String {
    let network = &addresses.dns;
    let asked = &plan.connectivity;
    let nothing_asked = asked.dns_servers.is_empty() && asked.dns_searches.is_empty() && asked.dns_options.is_empty();
    if plan.network == Network::Host && nothing_asked {
        return of_host.to_owned();
    }
    let mut servers = first_of(&asked.dns_servers, &network.servers);
    let mut searches = first_of(&asked.dns_searches, &network.searches);
    let mut options = first_of(&asked.dns_options, &network.options);
    let reaches =
        matches!(plan.network, Network::Host | Network::Path) || (plan.network == Network::Cni && asked.egress);
    if servers.is_empty() && reaches {
        let theirs = parse(of_host);
        // In a separate network namespace, a loopback address does not reach the host's resolver.
        let kept = |server: &IpAddr| plan.network == Network::Host || !server.is_loopback();
        servers = theirs.servers.into_iter().filter(kept).collect();
        if searches.is_empty() {
            searches = theirs.searches;
        }
        if options.is_empty() {
            options = theirs.options;
        }
    }
    if !addresses.name_servers.is_empty() && !asked.dns_servers.iter().copied().any(is_own_server) {
        servers.clone_from(&addresses.name_servers);
        options = first_of(&asked.dns_options, &[NDOTS_ZERO.to_owned()]);
    }
    let mut text: String = servers.iter().map(|server| format!("nameserver {server}\n")).collect();
    for (word, list) in [("search", searches), ("options", options)] {
        if !list.is_empty() {
            text += &format!("{word} {}\n", list.join(" "));
        }
    }
    text
}

fn first_of<T: Clone>(asked: &[T], network: &[T]) -> Vec<T> {
    if asked.is_empty() { network.to_vec() } else { asked.to_vec() }
}

/// Returns the name servers in a resolv.conf.
pub fn servers(text: &str) -> Vec<IpAddr> {
    parse(text).servers
}

/// Parses a resolv.conf (resolv.conf(5)); unknown lines are ignored.
fn parse(text: &str) -> Dns {
    let mut found = Dns::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let kind = words.next().unwrap_or_default();
        let rest = words.map(str::to_owned);
        match kind {
            "nameserver" => found.servers.extend(rest.filter_map(|word| word.parse::<IpAddr>().ok())),
            "domain" | "search" => found.searches = rest.collect(),
            "options" => found.options.extend(rest),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Connectivity;
    use crate::validate::{Draft, Policy, validate};

    const HOST: &str =
        "# generated\nnameserver 127.0.0.53\nnameserver 192.0.2.1\nsearch old\ndomain corp\noptions edns0\n";

    fn plan(network: Network, connectivity: Connectivity) -> Plan {
        let policy = Policy { allow_host_network: true, allow_egress: true, ..Policy::default() };
        let draft = Draft { id: "web_1", path: "/x", network: Some(network), connectivity, ..Draft::default() };
        validate(&draft, &policy).unwrap()
    }

    fn named(hostname: &str) -> Connectivity {
        Connectivity { hostname: hostname.into(), ..Connectivity::default() }
    }

    #[test]
    fn hostname_defaults_to_container_id() {
        assert_eq!(hostname(&plan(Network::None, named(""))), "web_1");
        assert_eq!(hostname(&plan(Network::None, named("web.example"))), "web.example");
        let mut long = plan(Network::None, named(""));
        long.id = "a".repeat(128).parse().unwrap();
        assert_eq!(hostname(&long).len(), 63);
    }

    #[test]
    fn hosts_knows_the_container_itself() {
        let loopback = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n";
        assert_eq!(
            hosts(&plan(Network::None, named("")), &[], "10.0.0.1 secret"),
            format!("{loopback}127.0.1.1 web_1\n")
        );
        let addresses = ["10.1.0.5".parse().unwrap(), "fd00::5".parse().unwrap()];
        let expected = format!("{loopback}10.1.0.5 web.example web\nfd00::5 web.example web\n");
        assert_eq!(hosts(&plan(Network::Cni, named("web.example")), &addresses, ""), expected);
        let host = plan(Network::Host, named(""));
        assert_eq!(hosts(&host, &[], "10.0.0.1 db # web_1"), "10.0.0.1 db # web_1\n127.0.1.1 web_1\n");
        assert_eq!(
            hosts(&host, &[], "10.0.0.1 db web_1\n"),
            "10.0.0.1 db web_1\n",
            "a name that exists already is not added"
        );
    }

    #[test]
    fn resolv_conf_prefers_request_then_network() {
        let network =
            Dns { servers: vec!["10.1.0.1".parse().unwrap()], searches: vec!["a.b".into()], options: Vec::new() };
        let with = |servers: &[&str], options: &[&str], egress| Connectivity {
            dns_servers: servers.iter().map(|server| server.parse().unwrap()).collect(),
            dns_options: options.iter().map(|&option| option.to_owned()).collect(),
            egress,
            ..Connectivity::default()
        };
        let none = Dns::default();
        let table = [
            (Network::None, with(&[], &[], false), &none, ""),
            (Network::None, with(&["10.9.9.9"], &[], false), &none, "nameserver 10.9.9.9\n"),
            (Network::Cni, with(&[], &[], false), &none, ""),
            (Network::Cni, with(&[], &[], false), &network, "nameserver 10.1.0.1\nsearch a.b\n"),
            (
                Network::Cni,
                with(&["::1"], &["ndots:1"], false),
                &network,
                "nameserver ::1\nsearch a.b\noptions ndots:1\n",
            ),
            (Network::Cni, with(&[], &[], true), &none, "nameserver 192.0.2.1\nsearch corp\noptions edns0\n"),
            (Network::Cni, with(&[], &[], true), &network, "nameserver 10.1.0.1\nsearch a.b\n"),
            (Network::Host, with(&[], &[], false), &none, HOST),
            (
                Network::Host,
                with(&[], &["debug"], false),
                &none,
                "nameserver 127.0.0.53\nnameserver 192.0.2.1\nsearch corp\noptions debug\n",
            ),
        ];
        for (kind, asked, network, expected) in table {
            let addresses = Addresses { dns: network.clone(), ..Addresses::default() };
            assert_eq!(resolv_conf(&plan(kind, asked.clone()), &addresses, HOST), expected, "{kind:?} {asked:?}");
        }
    }

    #[test]
    fn resolv_conf_names_the_gateways() {
        let name_servers = vec!["10.61.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        let addresses = Addresses { name_servers, ..Addresses::default() };
        let written = |servers: &[&str], options: &[&str], egress| {
            let asked = Connectivity {
                dns_servers: servers.iter().map(|server| server.parse().unwrap()).collect(),
                dns_options: options.iter().map(|&option| option.to_owned()).collect(),
                egress,
                ..Connectivity::default()
            };
            resolv_conf(&plan(Network::Cni, asked), &addresses, HOST)
        };
        const GATEWAYS: &str = "nameserver 10.61.0.1\nnameserver fd00::1\n";
        assert_eq!(written(&[], &[], false), format!("{GATEWAYS}options ndots:0\n"));
        assert_eq!(written(&[], &[], true), format!("{GATEWAYS}search corp\noptions ndots:0\n"));
        assert_eq!(written(&["192.0.2.9"], &["ndots:2"], true), format!("{GATEWAYS}options ndots:2\n"));
        assert_eq!(written(&["127.0.0.1"], &[], true), "nameserver 127.0.0.1\n");
    }
}
