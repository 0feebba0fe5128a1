//! Validates the network of a container: its kind, published ports, host name and name servers.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::ViolationReason::{Conflict, Duplicate, InvalidFormat, NotAllowed, OutOfRange, Required, TooMany};
use super::{Policy, Report, Violation, cni, egress, shorten, surroundings};
use crate::plan::{Connectivity, Isolation, Network, Plan};
use crate::update::EgressUpdate;

/// Maximum number of published ports.
const PORTS_MAX: usize = 256;

/// Maximum number of name servers: the limit of resolv.conf(5).
const SERVERS_MAX: usize = 3;
/// Maximum number of search domains, and of resolver options.
const WORDS_MAX: usize = 32;
/// Maximum length of the name of a network, in bytes.
const NETWORK_NAME_MAX: usize = 128;
/// Maximum length of a host name, in bytes: the kernel's limit (`__NEW_UTS_LEN`).
const HOSTNAME_MAX: usize = 64;
/// Maximum length of a label of a host name, in bytes.
const LABEL_MAX: usize = 63;
/// Maximum number of network aliases.
const ALIASES_MAX: usize = 16;
/// Maximum number of entries in the operator's list of network namespaces.
const NAMESPACES_MAX: usize = 1000;
/// Last component of a list entry that allows everything in its directory.
const ANY_NAME: &str = "*";
/// Maximum length of a domain name, in bytes.
const DOMAIN_MAX: usize = 253;
/// Capabilities with which a process could remove the egress filter, or bypass it.
const BYPASS_CAPABILITIES: [&str; 4] = ["ALL", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_SYS_ADMIN"];

/// Checks the requested network settings against the kind of network and the policy.
pub(super) fn check(
    connectivity: &Connectivity,
    network: Network,
    isolation: &Isolation,
    policy: &Policy,
    report: &mut Report,
) {
    if network == Network::Cni {
        check_egress(connectivity, isolation, policy, report);
    } else {
        refuse_without_cni(connectivity, report);
    }
    egress::check(&connectivity.egress_rules, report);
    check_network_name(&connectivity.network_name, report);
    check_ports(connectivity, policy, report);
    check_hostname(&connectivity.hostname, report);
    check_aliases(&connectivity.network_aliases, report);
    check_dns(connectivity, report);
    check_network_namespace(&connectivity.network_namespace, network, policy, report);
    if let Some(options) = &connectivity.cni {
        cni::check(options, policy, report);
    }
}

/// Checks the path of a network namespace to join. The path must be set for the network `path`, must not be set for
/// other kinds of network, and must be allowed by the operator's list.
fn check_network_namespace(path: &Path, network: Network, policy: &Policy, report: &mut Report) {
    const FIELD: &str = "network_namespace";
    if path.as_os_str().is_empty() {
        if network == Network::Path {
            report.add(
                FIELD,
                Required.because("is empty; the network `path` (NETWORK_PATH) needs the path of a network namespace"),
            );
        }
        return;
    }
    if network != Network::Path {
        report.add(FIELD, Conflict.because("can only be set with the network `path` (NETWORK_PATH)"));
    }
    match surroundings::plain_path(path) {
        Err(why) => report.add(FIELD, why),
        Ok(()) if !policy.network_namespaces.iter().any(|allowed| allows_namespace(allowed, path)) => {
            let why = format!(
                "`{}` is not allowed by this daemon's configuration (network_namespaces)",
                shorten(&path.display().to_string())
            );
            report.add(FIELD, NotAllowed.because(why));
        }
        Ok(()) => {}
    }
}

/// Returns true if an entry of the operator's list allows a network namespace.
fn allows_namespace(allowed: &Path, path: &Path) -> bool {
    match allowed.file_name() {
        Some(name) if name == ANY_NAME => allowed.parent() == path.parent(),
        _ => allowed == path,
    }
}

/// Checks the operator's list of network namespaces.
///
/// # Errors
/// Returns the entry and the reason if an entry is invalid.
pub fn check_network_namespaces(list: &[PathBuf]) -> Result<(), String> {
    if list.len() > NAMESPACES_MAX {
        return Err(format!("has {} entries; at most {NAMESPACES_MAX} are allowed", list.len()));
    }
    for path in list {
        surroundings::plain_path(path).map_err(|why| format!("{:?} {why}", path.display().to_string()))?;
        if path.parent() == Some(Path::new("/")) {
            return Err(format!("{:?} would allow everything in the root directory", path.display().to_string()));
        }
    }
    Ok(())
}

/// Validates an update of a container's egress, and returns the updated plan.
///
/// # Errors
/// Returns all violations if the update is invalid.
pub fn validate_egress(update: &EgressUpdate, plan: &Plan, policy: &Policy) -> Result<Plan, Vec<Violation>> {
    let mut report = Report::default();
    let mut updated = plan.clone();
    (updated.connectivity.egress, updated.connectivity.egress_rules) = (update.egress, update.rules.clone());
    if plan.pod.is_some() {
        report.add("egress", Conflict.because("cannot be changed for a pod or its members after the pod is created"));
    } else if plan.network == Network::Cni {
        check_egress(&updated.connectivity, &plan.isolation, policy, &mut report);
    } else {
        report.add("egress", Conflict.because("requires the network `cni` (NETWORK_CNI)"));
    }
    egress::check(&update.rules, &mut report);
    if report.0.is_empty() { Ok(updated) } else { Err(report.0) }
}

/// Rejects settings that require a built-in network or a CNI network.
fn refuse_without_cni(asked: &Connectivity, report: &mut Report) {
    let fields = [
        ("network_name", !asked.network_name.is_empty()),
        ("network_aliases", !asked.network_aliases.is_empty()),
        ("ports", !asked.ports.is_empty()),
        ("egress", asked.egress),
        ("egress_rules", !asked.egress_rules.is_empty()),
        ("cni", asked.cni.is_some()),
    ];
    for (field, _) in fields.into_iter().filter(|(_, set)| *set) {
        report.add(field, Conflict.because("requires the network `cni` (NETWORK_CNI)"));
    }
}

/// Checks that egress is allowed, and that no privilege bypasses the egress rules or the block on egress.
fn check_egress(asked: &Connectivity, isolation: &Isolation, policy: &Policy, report: &mut Report) {
    if asked.egress {
        if !policy.allow_egress {
            report.add("egress", NotAllowed.because("is not allowed by this daemon's configuration (allow_egress)"));
        }
        if asked.egress_rules.is_empty() {
            return;
        }
    } else if !asked.egress_rules.is_empty() {
        report.add("egress_rules", Conflict.because("needs `egress`"));
    }
    let why = if asked.egress {
        "could bypass the egress rules; set `egress` without `egress_rules`"
    } else {
        "could bypass the block on egress; set `egress`"
    };
    for name in isolation.capabilities_added.iter().filter(|name| BYPASS_CAPABILITIES.contains(&name.as_str())) {
        report.add("capabilities.add", Conflict.because(format!("{name} {why}")));
    }
    if isolation.privileged {
        report.add("privileged", Conflict.because(format!("a privileged container {why}")));
    }
}

fn check_network_name(name: &str, report: &mut Report) {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    if name.len() > NETWORK_NAME_MAX || name.starts_with('.') || !name.bytes().all(allowed) {
        let why = format!(
            "\"{}\" is not a valid network name: use at most {NETWORK_NAME_MAX} letters, digits, `.`, `_` and `-`, not \
             beginning with `.`",
            shorten(name)
        );
        report.add("network_name", InvalidFormat.because(why));
    }
}

fn check_hostname(hostname: &str, report: &mut Report) {
    if hostname.is_empty() {
        return;
    }
    if hostname.len() > HOSTNAME_MAX || !hostname.split('.').all(is_host_label) {
        let why = format!(
            "\"{}\" is not a valid host name: use at most {HOSTNAME_MAX} bytes, in labels of 1 to {LABEL_MAX} letters, \
             digits and `-`, without `-` at either end of a label",
            shorten(hostname)
        );
        report.add("hostname", InvalidFormat.because(why));
    }
}

/// Returns true for a label of a host name (RFC 1123, section 2.1).
pub fn is_host_label(part: &str) -> bool {
    !part.is_empty()
        && part.len() <= LABEL_MAX
        && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        && !part.starts_with('-')
        && !part.ends_with('-')
}

fn check_aliases(aliases: &[String], report: &mut Report) {
    const FIELD: &str = "network_aliases";
    if aliases.len() > ALIASES_MAX {
        report.add(FIELD, TooMany.because(format!("has {} entries; at most {ALIASES_MAX} are allowed", aliases.len())));
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, alias) in aliases.iter().enumerate() {
        let at = format!("{FIELD}[{index}]");
        if !is_host_label(alias) {
            let why = format!(
                "\"{}\" is not a DNS label: use 1 to {LABEL_MAX} letters, digits and `-`, without `-` at either end",
                shorten(alias)
            );
            report.add(at, InvalidFormat.because(why));
        } else if !seen.insert(alias.to_ascii_lowercase()) {
            report.add(at, Duplicate.because(format!("\"{alias}\" is given twice; remove one")));
        }
    }
}

fn check_dns(asked: &Connectivity, report: &mut Report) {
    if asked.dns_servers.len() > SERVERS_MAX {
        let why = format!("has {} entries; at most {SERVERS_MAX} are allowed", asked.dns_servers.len());
        report.add("dns.servers", TooMany.because(why));
    }
    for (field, words) in [("dns.searches", &asked.dns_searches), ("dns.options", &asked.dns_options)] {
        if words.len() > WORDS_MAX {
            report.add(field, TooMany.because(format!("has {} entries; at most {WORDS_MAX} are allowed", words.len())));
            continue;
        }
        for (index, word) in words.iter().enumerate() {
            if word.is_empty() || word.len() > DOMAIN_MAX || !word.bytes().all(|b| b.is_ascii_graphic()) {
                let why = format!("is {} bytes; use 1 to {DOMAIN_MAX} visible ASCII characters", word.len());
                report.add(format!("{field}[{index}]"), InvalidFormat.because(why));
            }
        }
    }
}

/// Checks the published ports of a request.
fn check_ports(asked: &Connectivity, policy: &Policy, report: &mut Report) {
    if asked.ports.len() > PORTS_MAX {
        report.add(
            "ports",
            TooMany.because(format!("has {} entries; at most {PORTS_MAX} are allowed", asked.ports.len())),
        );
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, port) in asked.ports.iter().enumerate() {
        for (field, number) in [("host_port", port.host_port), ("container_port", port.container_port)] {
            if number == 0 {
                report.add(format!("ports[{index}].{field}"), OutOfRange.because("is 0; 1 to 65535 is allowed"));
            }
        }
        if port.host_port > 0 && !policy.ports_allowed.iter().any(|rule| rule.allows(port)) {
            let why = format!("{} is not allowed by this daemon's configuration (ports_allowed)", port.on_host());
            report.add(format!("ports[{index}].host_port"), NotAllowed.because(why));
        }
        if !seen.insert((port.host_ip, port.host_port, port.protocol)) {
            let (port, protocol) = (port.host_port, port.protocol.name());
            let why = format!("{port}/{protocol} is published twice");
            report.add(format!("ports[{index}].host_port"), Duplicate.because(why));
        }
    }
}
