//! Lowers sandboxes: rules C17 to C22.

use std::collections::{BTreeMap, HashMap};

use executor_client::v1::port_mapping::Protocol;
use executor_client::v1::{CreatePodRequest, Dns, IdMapping, Network, PortMapping, UserNamespace};
use executor_core::validate::is_host_label;
use executor_cri_api::v1::{
    DnsConfig, LinuxSandboxSecurityContext, NamespaceMode, NamespaceOption, PodSandboxConfig, Protocol as CriProtocol,
    UserNamespace as CriUserNamespace,
};
use tonic::Status;

use super::{LABEL, check_texts, digest, network};
use crate::config::UserNamespaces;
use crate::failure::Violations;

/// Name of the runtime and of its default handler.
pub(crate) const HANDLER: &str = "executor";
/// Handler of pods that use the host's ids unless they request a user namespace (rule C56).
pub(crate) const HOST_HANDLER: &str = "executor-host";
/// Maximum length of a handler's name in a message, in characters.
const HANDLER_SHOWN_MAX: usize = 100;
/// Default sysctls of a pod with its own network: every user can listen on any port, and send echo requests (rule C19).
const OPEN: [(&str, &str); 2] =
    [("net.ipv4.ip_unprivileged_port_start", "0"), ("net.ipv4.ping_group_range", "0 2147483647")];
/// Groups that may send echo requests in a user namespace, which has 65,536 ids.
const OWN_GROUPS: &str = "0 65535";

/// Settings of the host that a sandbox can have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Host {
    /// Content of /etc/resolv.conf.
    pub(crate) resolv_conf: String,
    /// Host name; empty if executord would refuse it.
    pub(crate) hostname: String,
}

impl Host {
    pub(crate) fn read() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let hostname = read("/proc/sys/kernel/hostname").trim().to_owned();
        let hostname = if is_host_name(&hostname) { hostname } else { String::new() };
        Self { resolv_conf: read("/etc/resolv.conf"), hostname }
    }
}

/// Returns true if a name is a host name of RFC 1123, section 2.1. A host can have other names, for example with an
/// underscore.
fn is_host_name(name: &str) -> bool {
    name.split('.').all(is_host_label)
}

/// Returns the namespace options of a sandbox. Without options, containers share the namespaces of the pod.
pub(crate) fn namespaces(config: &PodSandboxConfig) -> NamespaceOption {
    security(config).namespace_options.unwrap_or_default()
}

/// Returns true if the request maps the users of a sandbox to other ids.
pub(super) fn has_id_map(config: &PodSandboxConfig) -> bool {
    namespaces(config).userns_options.is_some_and(|options| options.mode() == NamespaceMode::Pod)
}

/// Returns the security context of a sandbox.
pub(crate) fn security(config: &PodSandboxConfig) -> LinuxSandboxSecurityContext {
    config.linux.clone().unwrap_or_default().security_context.unwrap_or_default()
}

/// Lowers a sandbox to a pod.
///
/// # Errors
/// Returns INVALID_ARGUMENT with every violation if a field is invalid or not supported.
pub(crate) fn lower(
    id: &str,
    config: &PodSandboxConfig,
    handler: &str,
    host: &Host,
    user_namespaces: UserNamespaces,
) -> Result<CreatePodRequest, Status> {
    let mut violations = Violations::default();
    let metadata = config.metadata.clone().unwrap_or_default();
    for (field, value) in [("name", &metadata.name), ("uid", &metadata.uid), ("namespace", &metadata.namespace)] {
        if value.is_empty() {
            violations.add(&format!("config.metadata.{field}"), "required");
        }
    }
    check_texts(&config.labels, &config.annotations, &mut violations);
    if !matches!(handler, "" | HANDLER | HOST_HANDLER) {
        let name: String = handler.chars().take(HANDLER_SHOWN_MAX).collect();
        let why = format!("there is no handler {name:?}; use {HANDLER:?}, {HOST_HANDLER:?} or an empty name");
        violations.add("runtime_handler", why);
    }
    let (linux, security, options) = (config.linux.clone().unwrap_or_default(), security(config), namespaces(config));
    let context = "config.linux.security_context";
    if security.run_as_group.is_some() && security.run_as_user.is_none() {
        violations.add(&format!("{context}.run_as_group"), "requires run_as_user");
    }
    let field = |name: &str| format!("{context}.namespace_options.{name}");
    let is_host = match options.network() {
        NamespaceMode::Pod => false,
        NamespaceMode::Node => true,
        _ => {
            violations.add(&field("network"), "must be POD or NODE");
            false
        }
    };
    if options.pid() == NamespaceMode::Target {
        violations.add(&field("pid"), "must be POD, CONTAINER or NODE for a sandbox");
    }
    if !matches!(options.ipc(), NamespaceMode::Pod | NamespaceMode::Node) {
        violations.add(&field("ipc"), "must be POD or NODE");
    }
    let id_map = id_map(options.userns_options.as_ref(), &field("userns_options"), &mut violations);
    let is_in_host = is_host || options.pid() == NamespaceMode::Node || options.ipc() == NamespaceMode::Node;
    let can_have_own_ids = !is_in_host && !security.privileged && handler != HOST_HANDLER;
    let has_own_ids = id_map.is_some() || (user_namespaces == UserNamespaces::All && can_have_own_ids);
    let user_namespace = if has_own_ids { UserNamespace::Own } else { UserNamespace::Host };
    let ports = if is_host { Vec::new() } else { ports(config, &mut violations) };
    let cni = network::options(id, config, &mut violations);
    violations.check()?;

    // The kubelet sends no host name for a pod on the host's network: use the name of the host (rule C19).
    let hostname = match is_host && config.hostname.is_empty() {
        true => host.hostname.clone(),
        false => config.hostname.clone(),
    };
    Ok(CreatePodRequest {
        id: id.to_owned(),
        labels: HashMap::from([(LABEL.to_owned(), digest(config))]),
        network: if is_host { Network::Host } else { Network::Cni }.into(),
        ports,
        egress: !is_host,
        hostname,
        dns: Some(dns(config.dns_config.as_ref(), host)),
        sysctls: sysctls(&linux.sysctls, is_host, has_own_ids),
        user_namespace: user_namespace.into(),
        share_processes: options.pid() == NamespaceMode::Pod,
        cgroup_parent: linux.cgroup_parent,
        host_pid: options.pid() == NamespaceMode::Node,
        host_ipc: options.ipc() == NamespaceMode::Node,
        id_map,
        keep_until_deleted: true,
        cni: (!is_host).then_some(cni),
        ..CreatePodRequest::default()
    })
}

/// Lowers the id mapping of a user namespace (rule C18).
fn id_map(options: Option<&CriUserNamespace>, field: &str, violations: &mut Violations) -> Option<IdMapping> {
    let options = options?;
    match options.mode() {
        NamespaceMode::Node if options.uids.is_empty() && options.gids.is_empty() => return None,
        NamespaceMode::Node => violations.add(field, "the mode NODE has no mappings"),
        NamespaceMode::Pod if options.uids != options.gids => {
            violations.add(field, "the mappings of users and of groups must be equal");
        }
        NamespaceMode::Pod => match &options.uids[..] {
            [mapping] if mapping.container_id == 0 => {
                let (host_id, length) = (mapping.host_id, mapping.length);
                return Some(IdMapping { container_id: 0, host_id, length });
            }
            [_] => violations.add(field, "the mapping must begin with id 0 of the container"),
            several => violations.add(field, format!("has {} mappings; exactly one is supported", several.len())),
        },
        NamespaceMode::Container | NamespaceMode::Target => violations.add(field, "the mode must be POD or NODE"),
    }
    None
}

fn ports(config: &PodSandboxConfig, violations: &mut Violations) -> Vec<PortMapping> {
    let mut ports = Vec::new();
    for (index, mapping) in config.port_mappings.iter().enumerate() {
        if mapping.host_port <= 0 {
            continue; // only declared
        }
        let port = |port: i32| u16::try_from(port).ok().filter(|&port| port > 0).map(u32::from);
        let (Some(host_port), Some(container_port)) = (port(mapping.host_port), port(mapping.container_port)) else {
            violations.add(&format!("config.port_mappings[{index}]"), "ports must be from 1 to 65535");
            continue;
        };
        let protocol = match mapping.protocol() {
            CriProtocol::Tcp => Protocol::Tcp,
            CriProtocol::Udp => Protocol::Udp,
            CriProtocol::Sctp => Protocol::Sctp,
        };
        let host_ip = mapping.host_ip.clone();
        ports.push(PortMapping { host_ip, host_port, container_port, protocol: protocol.into() });
    }
    ports
}

/// Returns the settings of resolv.conf (rule C19): the request's settings, or the host's if the request has none.
fn dns(given: Option<&DnsConfig>, host: &Host) -> Dns {
    match given {
        Some(DnsConfig { servers, searches, options })
            if !servers.is_empty() || !searches.is_empty() || !options.is_empty() =>
        {
            Dns { servers: servers.clone(), searches: searches.clone(), options: options.clone() }
        }
        _ => read_resolv_conf(&host.resolv_conf),
    }
}

/// Parses resolv.conf(5). The last line with `search` or `domain` is used.
fn read_resolv_conf(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines() {
        let mut words = line.split_whitespace().map(str::to_owned);
        match words.next().as_deref() {
            Some("nameserver") => dns.servers.extend(words.next()),
            Some("search" | "domain") => dns.searches = words.collect(),
            Some("options") => dns.options.extend(words),
            _ => {}
        }
    }
    dns
}

fn sysctls(given: &BTreeMap<String, String>, is_host: bool, has_own_ids: bool) -> HashMap<String, String> {
    let mut sysctls = HashMap::new();
    if !is_host {
        sysctls.extend(OPEN.map(|(name, value)| (name.to_owned(), value.to_owned())));
        if has_own_ids {
            sysctls.insert(OPEN[1].0.to_owned(), OWN_GROUPS.to_owned());
        }
    }
    // The kernel accepts slashes instead of dots in these names.
    sysctls.extend(given.iter().map(|(name, value)| (name.replace('/', "."), value.clone())));
    sysctls
}

#[cfg(test)]
mod tests {
    use super::*;
    use executor_cri_api::v1::{
        IdMapping as CriMapping, LinuxPodSandboxConfig, PodSandboxMetadata, PortMapping as CriPort,
    };

    fn config(options: NamespaceOption) -> PodSandboxConfig {
        let security = LinuxSandboxSecurityContext { namespace_options: Some(options), ..Default::default() };
        PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: "web".into(),
                uid: "u".into(),
                namespace: "default".into(),
                attempt: 0,
            }),
            hostname: "web".into(),
            linux: Some(LinuxPodSandboxConfig { security_context: Some(security), ..Default::default() }),
            ..PodSandboxConfig::default()
        }
    }

    fn host() -> Host {
        let resolv_conf = "# c\nnameserver 192.0.2.1\nsearch a b\nsearch c d\noptions ndots:5\n".into();
        Host { resolv_conf, hostname: "node-1.example".into() }
    }

    fn lowered(config: &PodSandboxConfig) -> Result<CreatePodRequest, String> {
        lower("id", config, "", &host(), UserNamespaces::Requested).map_err(|status| status.message().to_owned())
    }

    fn user_namespace(mode: NamespaceMode, ids: &[u32]) -> PodSandboxConfig {
        let mapping = |&container_id: &u32| CriMapping { container_id, host_id: 655_360, length: 65_536 };
        let maps: Vec<_> = ids.iter().map(mapping).collect();
        let options = CriUserNamespace { mode: mode.into(), uids: maps.clone(), gids: maps };
        config(NamespaceOption { userns_options: Some(options), ..Default::default() })
    }

    /// Rule C17: without options, the containers of a pod share their processes.
    #[test]
    fn namespaces_are_of_the_pod() {
        let pod = lowered(&config(NamespaceOption::default())).unwrap();
        assert!(pod.share_processes && !pod.host_pid && !pod.host_ipc);
        assert_eq!((pod.network(), pod.user_namespace()), (Network::Cni, UserNamespace::Host));
        let node = NamespaceMode::Node.into();
        let options = NamespaceOption { network: node, pid: node, ipc: node, ..Default::default() };
        let mut config = config(options);
        config.hostname.clear();
        let pod = lowered(&config).unwrap();
        assert!(!pod.share_processes && pod.host_pid && pod.host_ipc && pod.sysctls.is_empty() && !pod.egress);
        assert_eq!((pod.network(), &*pod.hostname), (Network::Host, "node-1.example"));
    }

    #[test]
    fn unusual_host_names_are_left_out() {
        for (name, is_valid) in [("Node-1.a", true), ("", false), ("a_b", false), ("a..b", false), ("-a", false)] {
            assert_eq!(is_host_name(name), is_valid, "{name}");
        }
    }

    /// Rule C18: one range that begins with id 0 is mapped, and other mappings are refused.
    #[test]
    fn one_range_of_ids_is_mapped() {
        let pod = lowered(&user_namespace(NamespaceMode::Pod, &[0])).unwrap();
        assert_eq!(pod.id_map, Some(IdMapping { container_id: 0, host_id: 655_360, length: 65_536 }));
        assert_eq!(pod.sysctls["net.ipv4.ping_group_range"], "0 65535");
        assert!(lowered(&user_namespace(NamespaceMode::Node, &[])).unwrap().id_map.is_none());
        for (mode, ids, reason) in [
            (NamespaceMode::Pod, &[0, 1][..], "2 mappings"),
            (NamespaceMode::Pod, &[1], "begin with id 0"),
            (NamespaceMode::Pod, &[], "0 mappings"),
            (NamespaceMode::Container, &[0], "must be POD or NODE"),
            (NamespaceMode::Target, &[0], "must be POD or NODE"),
            (NamespaceMode::Node, &[0], "has no mappings"),
        ] {
            let error = lowered(&user_namespace(mode, ids)).unwrap_err();
            assert!(error.contains(reason) && error.contains("userns_options"), "{error}");
        }
    }

    /// Rule C56: with the setting `all`, every pod outside of the host's namespaces has its own user namespace.
    #[test]
    fn all_pods_can_have_own_ids() {
        let of = |config: &PodSandboxConfig, handler, setting| {
            let pod = lower("id", config, handler, &host(), setting).unwrap();
            (pod.user_namespace(), pod.id_map.is_some(), pod.sysctls.get("net.ipv4.ping_group_range").cloned())
        };
        let own = |is_given| (UserNamespace::Own, is_given, Some("0 65535".to_owned()));
        let (all, node) = (UserNamespaces::All, NamespaceMode::Node);
        let ordinary = user_namespace(node, &[]);
        assert_eq!(of(&ordinary, HANDLER, all), own(false));
        assert_eq!(of(&user_namespace(NamespaceMode::Pod, &[0]), HOST_HANDLER, all), own(true));
        assert_eq!(of(&ordinary, HANDLER, UserNamespaces::Requested).0, UserNamespace::Host);
        assert_eq!(of(&ordinary, HOST_HANDLER, all).0, UserNamespace::Host);
        let in_host = |change: fn(&mut NamespaceOption)| {
            let mut options = NamespaceOption::default();
            change(&mut options);
            config(options)
        };
        let mut privileged = config(NamespaceOption::default());
        privileged.linux.as_mut().unwrap().security_context.as_mut().unwrap().privileged = true;
        for config in [
            privileged,
            in_host(|options| options.network = NamespaceMode::Node.into()),
            in_host(|options| options.pid = NamespaceMode::Node.into()),
            in_host(|options| options.ipc = NamespaceMode::Node.into()),
        ] {
            assert_eq!(of(&config, "", all).0, UserNamespace::Host, "{config:?}");
        }
    }

    /// Rule C19: resolv.conf has the request's settings, or the host's.
    #[test]
    fn name_servers_are_given_or_the_hosts() {
        let mut config = config(NamespaceOption::default());
        let dns = lowered(&config).unwrap().dns.unwrap();
        assert_eq!((dns.servers, dns.searches), (vec!["192.0.2.1".to_owned()], vec!["c".to_owned(), "d".into()]));
        config.dns_config = Some(DnsConfig { servers: vec!["192.0.2.9".into()], ..DnsConfig::default() });
        let dns = lowered(&config).unwrap().dns.unwrap();
        assert_eq!((dns.servers, dns.options), (vec!["192.0.2.9".to_owned()], vec![]));
    }

    /// Rule C19: sysctls of the request take precedence over the defaults.
    #[test]
    fn sysctls_of_the_request_win() {
        let mut config = config(NamespaceOption::default());
        let given = [("net.ipv4.ip_unprivileged_port_start", "1024"), ("kernel/shm_rmid_forced", "1")];
        config.linux.as_mut().unwrap().sysctls = given.map(|(name, value)| (name.into(), value.into())).into();
        let sysctls = lowered(&config).unwrap().sysctls;
        assert_eq!(sysctls["net.ipv4.ip_unprivileged_port_start"], "1024");
        assert_eq!(sysctls["kernel.shm_rmid_forced"], "1");
        assert_eq!(sysctls["net.ipv4.ping_group_range"], "0 2147483647");
    }

    /// Rule C22: a port without a host port is only declared.
    #[test]
    fn host_ports_are_published() {
        let mut config = config(NamespaceOption::default());
        let port = |container_port, host_port| CriPort { container_port, host_port, ..CriPort::default() };
        config.port_mappings = vec![port(80, 0), port(80, 12_000)];
        let ports = lowered(&config).unwrap().ports;
        assert_eq!((ports.len(), ports[0].host_port, ports[0].container_port), (1, 12_000, 80));
        config.port_mappings = vec![port(0, 80), port(80, 70_000)];
        let error = lowered(&config).unwrap_err();
        assert!(error.contains("port_mappings[0]") && error.contains("port_mappings[1]"), "{error}");
    }

    /// Rule C21: one status has all violations.
    #[test]
    fn unknown_handlers_are_refused() {
        let mut config = config(NamespaceOption::default());
        config.linux.as_mut().unwrap().security_context.as_mut().unwrap().run_as_group = Some(Default::default());
        let status = lower("id", &config, "gvisor", &host(), UserNamespaces::All).unwrap_err();
        let message = status.message();
        assert!(
            message.contains("runtime_handler: there is no handler \"gvisor\"")
                && message.contains("requires run_as_user"),
            "{message}"
        );
    }
}
