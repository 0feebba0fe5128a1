//! Networks and names.

use super::ViolationReason::{Conflict, InvalidFormat, NotAllowed, TooMany};
use super::{Policy, Report, ports, shorten};
use crate::plan::{Connectivity, Isolation, Network};

/// Most name servers: what resolv.conf(5) takes.
const SERVERS_MAX: usize = 3;
/// Most domains to search, and most options.
const WORDS_MAX: usize = 32;
/// Longest host name: the kernel's limit (`__NEW_UTS_LEN`).
const HOSTNAME_MAX: usize = 64;
/// Longest domain name.
const DOMAIN_MAX: usize = 253;
/// With one of these a process could lift what keeps it from beyond its own network, or send past it.
const UNBOUND: [&str; 4] = ["ALL", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_SYS_ADMIN"];

/// Checks what is asked for against the kind of network and the policy.
pub(super) fn check(
    asked: &Connectivity,
    network: Network,
    isolation: &Isolation,
    policy: &Policy,
    report: &mut Report,
) {
    let needs_cni = |what: &str| Conflict.because(format!("{what} needs a network of CNI"));
    if network != Network::Cni {
        if !asked.network_name.is_empty() {
            report.add("network_name", needs_cni("a network's name"));
        }
        if !asked.ports.is_empty() {
            report.add("ports", needs_cni("a published port"));
        }
        if asked.egress {
            report.add("egress", needs_cni("egress"));
        }
    } else if asked.egress && !policy.allow_egress {
        report.add("egress", NotAllowed.because("is not allowed by this daemon's configuration (allow_egress)"));
    } else if !asked.egress {
        let why = "would let the container reach beyond its network: that needs egress to be allowed, too";
        for name in isolation.capabilities_added.iter().filter(|name| UNBOUND.contains(&name.as_str())) {
            report.add("capabilities.add", Conflict.because(format!("{name} {why}")));
        }
        if isolation.privileged {
            report.add("privileged", Conflict.because(why));
        }
    }
    let name = &asked.network_name;
    if name.len() > 128
        || name.starts_with('.')
        || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
    {
        report.add("network_name", InvalidFormat.because(format!("{:?} is no name of a network", shorten(name))));
    }
    ports::check(asked, policy, report);
    let label = |part: &str| {
        !part.is_empty()
            && part.len() <= 63
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    let hostname = &asked.hostname;
    if !hostname.is_empty() {
        if network == Network::Host {
            report.add("hostname", Conflict.because("cannot be set with the host's network"));
        }
        if hostname.len() > HOSTNAME_MAX || !hostname.split('.').all(label) {
            let why = format!("{:?} is no host name of at most {HOSTNAME_MAX} bytes", shorten(hostname));
            report.add("hostname", InvalidFormat.because(why));
        }
    }
    if asked.dns_servers.len() > SERVERS_MAX {
        let why = format!("has {} entries; at most {SERVERS_MAX}", asked.dns_servers.len());
        report.add("dns.servers", TooMany.because(why));
    }
    for (field, words) in [("dns.searches", &asked.dns_searches), ("dns.options", &asked.dns_options)] {
        if words.len() > WORDS_MAX {
            report.add(field, TooMany.because(format!("has {} entries; at most {WORDS_MAX}", words.len())));
            continue;
        }
        for (index, word) in words.iter().enumerate() {
            if word.is_empty() || word.len() > DOMAIN_MAX || !word.bytes().all(|b| b.is_ascii_graphic()) {
                let why = format!("is no word of 1 to {DOMAIN_MAX} visible characters");
                report.add(format!("{field}[{index}]"), InvalidFormat.because(why));
            }
        }
    }
}
