//! Maps an API field that a violation names to the flag that set it.

/// Returns the flag of a field: `--file (number 2)` for `action.run.volume_mounted_files[1].path`. A field without a
/// flag is returned unchanged.
pub fn flag(field: &str, doing: &str) -> String {
    let inner = field.strip_prefix("action.run.").or_else(|| field.strip_prefix("start.")).unwrap_or(field);
    let (list, index) = element(inner);
    let flag = match list {
        "volume_mounted_files" | "files" => "--file",
        "provider_tokens" => "--provider-token",
        "removed_paths" => "--remove",
        "expected_generation" => "--expect-generation",
        "env" => "--env",
        "args" => "ARG",
        "secret_environment" => "--secret-env",
        "secret_arguments" => "--secret-arg",
        "redaction" => "--redact",
        "runtime_token_path" => "--runtime-token",
        "path" if doing.starts_with("cp ") => "ID:PATH",
        "path" => "CMD",
        "dir" => "--dir",
        "user" => "--user",
        "log_source" => "--log-source",
        "suppress_log_output" => "--no-logs",
        "resource_limits.nofile" => "--nofile",
        "labels" => "--label",
        "rootfs" => "--rootfs",
        "limits.memory_bytes" | "limits.unlimited_memory" => "--memory",
        "limits.pids" | "limits.unlimited_pids" => "--pids",
        "limits.cpu_period_us" => "--cpu-period",
        "limits.cpu_quota_us" => "--cpu-quota",
        "limits.cpu_shares" => "--cpu-shares",
        "limits.hugepage_bytes" => "--hugepages",
        "limits.unified" => "--cgroup-conf",
        "cgroup_parent" => "--cgroup-parent",
        "host_pid" | "pid_of" => "--pid",
        "host_ipc" => "--ipc",
        "id_map" | "id_map.container_id" | "id_map.host_id" | "id_map.length" => "--id-map",
        "limits.cpu_millis" => "--cpus",
        "limits.disk_bytes" => "--disk",
        "limits.cpu_weight" => "--cpu-weight",
        "limits.io_weight" => "--io-weight",
        "limits.cpuset_cpus" => "--cpuset-cpus",
        "limits.cpuset_mems" => "--cpuset-mems",
        "limits.swap_bytes" => "--memory-swap",
        "limits.memory_reservation_bytes" => "--memory-reservation",
        "devices" => "--device",
        "apparmor_profile" => "--apparmor-profile",
        "oom_score_adj" => "--oom-score-adj",
        "ulimits" => "--ulimit",
        "stop_signal" => "--stop-signal",
        "extra_groups" => "--group-add",
        "strict_groups" => "--strict-groups",
        "merge_groups" => "--merge-groups",
        "keep_environment" => "--keep-env",
        "hold" => "--hold",
        "container_environment" => "--container-env",
        "leave_processes" => "--leave-processes",
        "termination_message" | "termination_message.path" => "--termination-message",
        "termination_message.bytes_max" => "--termination-message-max",
        "termination_message.fallback_to_logs" => "--termination-message-from-logs",
        "from_sequence" => "--from",
        "interval" => "--interval",
        "ids" => "ID",
        "names" => "NAME",
        "user_namespace" => "--userns",
        "privileged" => "--privileged",
        "capabilities" | "capabilities.add" => "--cap-add",
        "capabilities.drop" => "--cap-drop",
        "read_only_rootfs" => "--read-only",
        "seccomp_profile" => "--seccomp-profile",
        "allow_new_privileges" => "--security-opt no-new-privileges=false",
        "seccomp_unconfined" => "--security-opt seccomp=unconfined",
        "masked_paths" | "masked_paths.paths" | "readonly_paths" | "readonly_paths.paths" => {
            "--security-opt systempaths=unconfined"
        }
        "terminal" => "--tty",
        "stdin" => "--interactive",
        "remove_when_completed" => "--rm",
        "keep_until_deleted" => "--keep-until-deleted",
        "tail" => "--tail",
        "tmpfs" => "--tmpfs",
        "volumes" => "--volume, --mount",
        "platform" => "--platform",
        "init" => "--init",
        "shm_bytes" => "--shm-size",
        "sysctls" => "--sysctl",
        "extra_hosts" => "--add-host",
        "window" | "window.rows" | "window.columns" => "the terminal's window",
        "dns" => "--dns, --dns-search, --dns-option",
        "limits" => "--memory, --pids, --cpus, --disk",
        "action" | "action.run" | "start" => "the command",
        "grace_period" => "--grace",
        "network" | "network_name" => "--network",
        "ports" => "--publish",
        "egress" if doing.starts_with("egress ") => "--open, --egress-rules",
        "egress" => "--egress",
        "egress_rules" => "--egress-rules",
        "log_limits.bytes_per_second" => "--log-rate",
        "log_limits.lines_per_second" => "--log-lines",
        "log_tags" => "--log-tag",
        "log_file" => "--log-file",
        "hostname" => "--hostname",
        "network_aliases" => "--network-alias",
        "cni" | "cni.arguments" => "--cni-arg",
        "cni.bandwidth" | "cni.bandwidth.ingress_burst" | "cni.bandwidth.egress_burst" => "--cni-bandwidth",
        "cni.cgroup_path" => "--cni-cgroup-path",
        "cni.pod_annotations" => "--cni-annotation",
        "restart_policy" | "restart_policy.mode" | "restart_policy.max_retries" => "--restart",
        "restart_policy.min_delay" => "--restart-delay",
        "restart_policy.max_delay" => "--restart-delay-max",
        "dns.servers" => "--dns",
        "dns.searches" => "--dns-search",
        "dns.options" => "--dns-option",
        "pull_policy" => "--pull",
        "registry_credentials" | "credentials" => "--registry-user, --registry-password",
        "reference" | "image" => "IMAGE",
        "header.reference" => "--name",
        "header.form" => "--form",
        "header" | "data" => "FILE",
        "unused_for" => "--unused-for",
        "id" if doing.starts_with("run ") => "--id",
        "id" => "ID",
        "since" => "--since",
        "signal" if doing.starts_with("stop ") => "--signal",
        "signal" => "SIGNAL",
        "after_cursor" => "--after",
        "states" => "--state",
        "outputs.files" => "--output",
        "outputs.directory" => "--output-dir",
        "outputs.bytes_max" => "--output-max",
        "outputs" => "--output, --output-dir",
        "" => "the request",
        _ => return crate::text::plain(field),
    };
    match index {
        None => flag.to_owned(),
        Some(index) => match index.parse::<usize>() {
            // Count from 0, as --secret-arg does.
            Ok(number) if list == "args" => format!("{flag} (index {number}, counted from 0)"),
            // Count elements of other lists from 1.
            Ok(number) => format!("{flag} (number {})", number.saturating_add(1)),
            Err(_) => format!("{flag} {}", crate::text::plain(index)),
        },
    }
}

/// Fields in executord's messages, and their flags.
const WORDS: [(&str, &str); 5] = [
    ("MODE_ON_FAILURE", "on-failure"),
    ("`stdin`", "--interactive"),
    ("`terminal`", "--tty"),
    ("`privileged`", "--privileged"),
    ("user_namespace `host`", "--userns host"),
];

/// Sanitizes a message of executord for the terminal, and replaces fields with their flags.
pub(crate) fn replace_field_names(text: &str) -> String {
    let text = WORDS.iter().fold(crate::text::plain(text), |text, (field, flag)| text.replace(field, flag));
    elements(&text)
}

/// Replaces the field names of secret files (`action.run.volume_mounted_files[1]`) inside a sentence with their flags.
fn elements(text: &str) -> String {
    const FILES: &str = "action.run.volume_mounted_files[";
    let mut parts = text.split(FILES);
    let mut words = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(']') {
            Some((index, rest)) if index.parse::<usize>().is_ok() => {
                words += &flag(&format!("{FILES}{index}]"), "");
                words += rest;
            }
            _ => words.extend([FILES, part]),
        }
    }
    words
}

/// Splits `env[3].name` into `env` and `3`. The text after the bracket is dropped, because it has the same flag.
fn element(field: &str) -> (&str, Option<&str>) {
    let Some((list, rest)) = field.split_once('[') else {
        return (field, None);
    };
    // A number ends at the first bracket, as in `egress_rules[0].ports[1]`; a name may contain brackets.
    let first = rest.split_once(']').map(|(index, _)| index).filter(|index| index.parse::<usize>().is_ok());
    let index = first.or_else(|| rest.rsplit_once(']').map(|(index, _)| index)).unwrap_or(rest);
    (list, Some(index.trim_matches('"')))
}

#[cfg(test)]
mod tests {
    use super::{flag, replace_field_names};

    #[test]
    fn words_become_flags() {
        assert_eq!(replace_field_names("was not run with `stdin`"), "was not run with --interactive");
        assert_eq!(flag("id", "run web-1"), "--id");
        let twice =
            "`/a` is also the path of action.run.volume_mounted_files[0], not of action.run.volume_mounted_files[x";
        let said = replace_field_names(twice);
        assert!(said.contains("path of --file (number 1), not of action.run.volume_mounted_files[x"), "{said}");
    }

    #[test]
    fn fields_become_flags() {
        let table = [
            ("id", "ID"),
            ("rootfs", "--rootfs"),
            ("action.run.path", "CMD"),
            ("action.run.args[0]", "ARG (index 0, counted from 0)"),
            ("action.run.args", "ARG"),
            ("action.run.secret_environment[0].name", "--secret-env (number 1)"),
            ("action.run.secret_arguments[1].index", "--secret-arg (number 2)"),
            ("runtime_token_path", "--runtime-token"),
            ("action.run.env[3].name", "--env (number 4)"),
            ("action.run.env[3].value", "--env (number 4)"),
            ("volume_mounted_files", "--file"),
            ("volume_mounted_files[2].path", "--file (number 3)"),
            ("action.run.volume_mounted_files[0]", "--file (number 1)"),
            ("action.run.resource_limits.nofile", "--nofile"),
            ("files[1].path", "--file (number 2)"),
            ("removed_paths[0]", "--remove (number 1)"),
            ("labels[app]", "--label app"),
            ("labels[\"app\"]", "--label app"),
            ("grace_period", "--grace"),
            ("limits.cpu_millis", "--cpus"),
            ("ports[1].host_port", "--publish (number 2)"),
            ("dns.servers[0]", "--dns (number 1)"),
            ("outputs.files[1]", "--output (number 2)"),
            ("action", "the command"),
            ("capabilities.add[0]", "--cap-add (number 1)"),
            ("limits.disk_bytes", "--disk"),
            ("egress_rules[1].destinations[0]", "--egress-rules (number 2)"),
            ("log_tags[a]", "--log-tag a"),
            ("restart_policy.min_delay", "--restart-delay"),
            ("start.window.rows", "the terminal's window"),
            ("new.field[1]", "new.field[1]"),
        ];
        for (field, expected) in table {
            assert_eq!(flag(field, "x"), expected, "{field}");
        }
    }
}
