//! Formats pods for `pod ls` and `pod inspect`.

use std::time::SystemTime;

use executor_cli_kit::network::written;
use executor_cli_kit::view::quantity::{age, bytes, time};
use executor_cli_kit::view::style::{Role, Style};
use executor_cli_kit::view::table::Table;
use executor_client::v1::{Pod, empty_volume, pod};

use super::human::{network, state, word};
use crate::egress;

/// Placeholder for an empty value.
const NOTHING: &str = "-";

/// Formats a pod's state as one word.
pub(super) fn stage(pod: &Pod) -> String {
    pod::State::try_from(pod.state)
        .map_or_else(|_| format!("unknown_{}", pod.state), |state| word(state.as_str_name(), "STATE_"))
}

fn role(pod: &Pod) -> Role {
    match pod.state() {
        pod::State::Ready => Role::Good,
        pod::State::Stopping => Role::Attention,
        pod::State::Ended if pod.failure.is_some() => Role::Bad,
        _ => Role::Faint,
    }
}

/// Formats the network of a pod: the kind, the name of a network of the node, or the path of a network namespace.
fn network_name(pod: &Pod) -> String {
    let spec = pod.spec.clone().unwrap_or_default();
    match (&pod.network_status, &*spec.network_name, &*spec.network_namespace) {
        (Some(status), _, _) => status.name.clone(),
        (None, "", "") => network(spec.network),
        (None, "", path) => path.to_owned(),
        (None, name, _) => name.to_owned(),
    }
}

/// Formats the table of `pod ls`.
pub(crate) fn table(pods: &[Pod], now: SystemTime, style: Style) -> String {
    let mut table = Table::with_heading(0, &["ID", "STATE", "MEMBERS", "NETWORK", "ADDRESS", "AGE"]);
    for pod in pods {
        let addresses = pod.network_status.as_ref().map(|status| status.addresses.join(",")).unwrap_or_default();
        table.row([
            (pod.id.clone(), Role::Plain),
            (stage(pod), role(pod)),
            (pod.members.len().to_string(), Role::Plain),
            (network_name(pod), Role::Plain),
            (if addresses.is_empty() { NOTHING.into() } else { addresses }, Role::Plain),
            (age(pod.created_at.as_ref(), now), Role::Plain),
        ]);
    }
    table.render(style)
}

/// Formats the output of `pod inspect`.
pub(crate) fn inspect(pod: &Pod, now: SystemTime, style: Style) -> String {
    let spec = pod.spec.clone().unwrap_or_default();
    let mut table = Table::bare(0);
    table.pair("id", pod.id.clone());
    table.row([("state".into(), Role::Faint), (stage(pod), role(pod))]);
    if let Some(failure) = &pod.failure {
        table.pair("failure", failure.message.clone());
    }
    table.pair("created", format!("{} ({} ago)", time(pod.created_at.as_ref()), age(pod.created_at.as_ref(), now)));
    if pod.ended_at.is_some() {
        table.pair("ended", time(pod.ended_at.as_ref()));
    }
    table.pair("network", network_name(pod));
    let status = pod.network_status.clone().unwrap_or_default();
    let dns = spec.dns.clone().unwrap_or_default();
    let lists = [
        ("addresses", status.addresses),
        ("published ports", spec.ports.iter().map(written).collect()),
        ("host name", vec![spec.hostname.clone()]),
        ("network aliases", spec.network_aliases.clone()),
        ("hosts", spec.extra_hosts.iter().map(|host| format!("{} is {}", host.name, host.address)).collect()),
        ("name servers", dns.servers),
        ("search domains", dns.searches),
        ("resolver options", dns.options),
        ("egress", spec.egress_rules.iter().map(egress::format_rule).collect()),
        ("cgroup parent", Some(spec.cgroup_parent.clone()).filter(|path| !path.is_empty()).into_iter().collect()),
        ("warnings", spec.warnings.clone()),
    ];
    for (name, words) in lists.into_iter().filter(|(_, words)| !words.is_empty()) {
        table.pair(name, words.join(", "));
    }
    if spec.egress && spec.egress_rules.is_empty() {
        table.pair("egress", "every destination");
    }
    let processes = match (spec.host_pid, spec.share_processes) {
        (true, _) => "the host's",
        (_, true) => "shared by the members",
        (false, false) => "each member's own",
    };
    table.pair("processes", processes);
    if spec.host_ipc {
        table.pair("IPC", "the host's");
    }
    if spec.keep_until_deleted {
        table.pair("kept", "until it is deleted");
    }
    table.pair("user namespace", word(spec.user_namespace().as_str_name(), "USER_NAMESPACE_"));
    table.pair("/dev/shm", bytes(spec.shm_bytes));
    let mut sysctls: Vec<String> = spec.sysctls.iter().map(|(name, value)| format!("{name}={value}")).collect();
    sysctls.sort_unstable();
    let mut labels: Vec<String> = spec.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    labels.sort_unstable();
    for (name, words) in [("sysctls", sysctls), ("labels", labels)] {
        if !words.is_empty() {
            table.pair(name, words.join(", "));
        }
    }
    for volume in &spec.volumes {
        let empty = volume.empty.unwrap_or_default();
        let medium = if empty.medium() == empty_volume::Medium::Memory { "in memory" } else { "on disk" };
        let size = if empty.size_bytes == 0 { String::new() } else { format!(", at most {}", bytes(empty.size_bytes)) };
        table.pair("volume", format!("{}: {medium}{size}", volume.name));
    }
    for member in &pod.members {
        table.pair("member", format!("{} ({})", member.id, state(member.state)));
    }
    table.render(style)
}
