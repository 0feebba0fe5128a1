//! Computes the digest of a request, which identifies a repeated request.
//!
//! Every field that defines the container is hashed, including secrets. The id, tokens and other fields that a
//! repeated request may change are not hashed. Each part is hashed with its length, and each list with its number of
//! entries, so that no two requests have the same encoding.

mod cni;

use std::collections::{BTreeMap, HashMap};

use executor_proto::v1::{
    Action, Capabilities, Check, Checks, CreatePodRequest, DeviceMount, Dns, DownloadAction, EgressRule,
    EmitProgressAction, EmptyVolume, EnvironmentVariable, ExecCheck, ExtraHost, File, HostPath, HttpCheck, HttpHeader,
    IdMapping, Identity, ImageVolume, Limits, LogLimits, NamedVolume, Outputs, PathList, PodVolume, PodVolumeName,
    PortMapping, PortRange, RestartPolicy, RunAction, RunRequest, SecretArgument, SecretReference, Sidecar, TcpCheck,
    TerminationMessage, TimeoutAction, Tmpfs, Ulimit, UploadAction, VolumeMount, WindowSize, WritableFiles,
    check::Kind, volume_mount::Source,
};
use executor_secrets::TagKey;

/// Returns the digest of a request, in hexadecimal.
pub fn request_digest(key: &TagKey, request: &RunRequest) -> String {
    // List every field by name, so that the compiler reports a new field that is missing here.
    let RunRequest {
        id: _,
        action,
        rootfs,
        limits,
        labels,
        grace_period,
        network,
        volume_mounted_files,
        redaction,
        runtime_token_path,
        outputs,
        // Image pull settings are not part of the digest.
        registry_credentials: _,
        pull_policy: _,
        // A retry can have newer tokens.
        provider_tokens: _,
        user_namespace,
        privileged,
        capabilities,
        read_only_rootfs,
        seccomp_profile,
        ports,
        network_name,
        egress,
        hostname,
        dns,
        terminal,
        window,
        stdin,
        stop_signal,
        file_directories,
        docker_socket,
        // `await_reader` is not part of the digest.
        await_reader: _,
        // The source of the capacity is not part of the digest.
        reserved: _,
        remove_when_completed,
        keep_until_deleted,
        tmpfs,
        extra_hosts,
        shm_bytes,
        sysctls,
        init,
        // Not part of the digest, because only this host's platform is accepted.
        platform: _,
        writable_files,
        setup,
        sidecars,
        environment,
        log_source,
        volumes,
        log_limits,
        log_tags,
        egress_rules,
        checks,
        devices,
        apparmor_profile,
        oom_score_adj,
        ulimits,
        extra_groups,
        strict_groups,
        merge_groups,
        keep_environment,
        hold,
        termination_message,
        restart_policy,
        monitor,
        pod,
        network_namespace,
        identity,
        nonce,
        network_aliases,
        cgroup_parent,
        log_file,
        host_pid,
        host_ipc,
        pid_of,
        id_map,
        allow_new_privileges,
        seccomp_unconfined,
        masked_paths,
        readonly_paths,
    } = request;
    let no_limits = Limits::default();
    let mut parts = DigestParts::default();
    [nonce, rootfs].into_iter().for_each(|text| parts.text(text));
    parts.limits(limits.as_ref().unwrap_or(&no_limits));
    parts.map(labels);
    parts.map(sysctls);
    parts.numbers(&[*shm_bytes, tmpfs.len() as u64, extra_hosts.len() as u64]);
    for Tmpfs { path, size_bytes, mode, uid, gid, exec } in tmpfs {
        parts.text(path);
        let mode = mode.map_or(u64::MAX, u64::from);
        parts.numbers(&[*size_bytes, mode, u64::from(*uid), u64::from(*gid), u64::from(*exec)]);
    }
    parts.numbers(&[volumes.len() as u64]);
    volumes.iter().for_each(|volume| parts.volume(volume));
    parts.hosts(extra_hosts);
    parts.duration(grace_period.as_ref());
    parts.numbers(&[u64::from(network.cast_unsigned())]);
    parts.files(volume_mounted_files);
    parts.texts(file_directories);
    parts.numbers(writable_files.map(|WritableFiles { bytes_max }| bytes_max).as_slice());
    parts.numbers(&[u64::from(redaction.cast_unsigned())]);
    parts.text(runtime_token_path);
    match outputs {
        None => parts.numbers(&[]),
        Some(Outputs { files, directory, bytes_max }) => {
            parts.numbers(&[files.len() as u64, *bytes_max]);
            files.iter().for_each(|path| parts.text(path));
            parts.text(directory);
        }
    }
    let flags =
        [*docker_socket, *privileged, *read_only_rootfs, *egress, *terminal, *stdin, *remove_when_completed, *init];
    parts.numbers(&flags.map(u64::from));
    let window = window.as_ref().map(|WindowSize { rows, columns }| [*rows, *columns].map(u64::from));
    parts.numbers(window.as_ref().map_or(&[], |sides| &sides[..]));
    parts.numbers(&[u64::from(user_namespace.cast_unsigned()), u64::from(*stop_signal)]);
    [seccomp_profile, network_name, hostname].into_iter().for_each(|text| parts.text(text));
    if let Some(Capabilities { add, drop }) = capabilities {
        parts.texts(add);
        parts.texts(drop);
    } else {
        parts.numbers(&[]);
    }
    parts.ports(ports);
    parts.dns(dns.as_ref());
    parts.variables(environment);
    parts.text(log_source);
    parts.action(setup.as_ref());
    parts.action(action.as_ref());
    parts.numbers(&[sidecars.len() as u64]);
    for Sidecar { action, disk_mb, memory_mb, pids } in sidecars {
        parts.action(action.as_ref());
        parts.numbers(&[u64::from(disk_mb.cast_unsigned()), u64::from(memory_mb.cast_unsigned()), *pids]);
    }
    let LogLimits { bytes_per_second, lines_per_second } = log_limits.unwrap_or_default();
    for limit in [bytes_per_second, lines_per_second] {
        parts.numbers(limit.map(i64::cast_unsigned).as_slice());
    }
    parts.map(log_tags);
    parts.egress_rules(egress_rules);
    parts.checks(checks.as_ref());
    parts.numbers(&[devices.len() as u64, ulimits.len() as u64]);
    for DeviceMount { host_path, name, path, permissions } in devices {
        [host_path, name, path, permissions].into_iter().for_each(|text| parts.text(text));
    }
    parts.text(apparmor_profile);
    parts.numbers(oom_score_adj.map(|score| i64::from(score).cast_unsigned()).as_slice());
    for Ulimit { name, soft, hard } in ulimits {
        parts.text(name);
        parts.numbers(&[soft.cast_unsigned(), hard.cast_unsigned()]);
    }
    parts.texts(extra_groups);
    parts.numbers(&[u64::from(*keep_environment)]);
    match termination_message {
        None => parts.numbers(&[]),
        Some(TerminationMessage { path, bytes_max, fallback_to_logs }) => {
            parts.numbers(&[u64::from(*bytes_max), u64::from(*fallback_to_logs)]);
            parts.text(path);
        }
    }
    match restart_policy {
        None => parts.numbers(&[]),
        Some(RestartPolicy { mode, max_retries, min_delay, max_delay }) => {
            parts.numbers(&[u64::from(mode.cast_unsigned()), u64::from(*max_retries)]);
            [min_delay, max_delay].into_iter().for_each(|delay| parts.duration(delay.as_ref()));
        }
    }
    parts.action(monitor.as_ref());
    parts.text(pod);
    parts.text(network_namespace);
    match identity {
        None => parts.numbers(&[]),
        Some(Identity { organizational_units, dns_names, ip_addresses, spiffe_id, ttl }) => {
            parts.numbers(&[1]);
            [organizational_units, dns_names, ip_addresses].into_iter().for_each(|list| parts.texts(list));
            parts.text(spiffe_id);
            parts.duration(ttl.as_ref());
        }
    }
    parts.texts(network_aliases);
    parts.text(cgroup_parent);
    parts.numbers(&[*hold, *strict_groups, *merge_groups, *keep_until_deleted].map(u64::from));
    parts.text(log_file);
    parts.numbers(&[*host_pid, *host_ipc].map(u64::from));
    parts.text(pid_of);
    parts.id_map(id_map.as_ref());
    parts.numbers(&[*allow_new_privileges, *seccomp_unconfined].map(u64::from));
    for list in [masked_paths, readonly_paths] {
        parts.numbers(&[u64::from(list.is_some())]);
        parts.texts(list.as_ref().map_or(&[], |PathList { paths }| &paths[..]));
    }
    parts.tag(key)
}

/// Returns the digest of a pod request, in hexadecimal.
pub fn pod_digest(key: &TagKey, request: &CreatePodRequest) -> String {
    let CreatePodRequest {
        id: _,
        labels,
        network,
        network_name,
        network_namespace,
        ports,
        egress,
        egress_rules,
        hostname,
        dns,
        extra_hosts,
        sysctls,
        shm_bytes,
        user_namespace,
        share_processes,
        volumes,
        network_aliases,
        cgroup_parent,
        host_pid,
        host_ipc,
        id_map,
        keep_until_deleted,
        cni,
    } = request;
    let mut parts = DigestParts::default();
    parts.text("pod");
    parts.map(labels);
    parts.map(sysctls);
    let numbers = [network, user_namespace].map(|number| u64::from(number.cast_unsigned()));
    parts.numbers(&numbers);
    parts.numbers(&[u64::from(*egress), u64::from(*share_processes), *shm_bytes, extra_hosts.len() as u64]);
    [network_name, network_namespace, hostname].into_iter().for_each(|text| parts.text(text));
    parts.hosts(extra_hosts);
    parts.ports(ports);
    parts.dns(dns.as_ref());
    parts.egress_rules(egress_rules);
    parts.numbers(&[volumes.len() as u64]);
    for PodVolume { name, empty } in volumes {
        parts.text(name);
        let empty = empty.unwrap_or_default();
        let mode = empty.mode.map_or(u64::MAX, u64::from);
        parts.numbers(&[u64::from(empty.medium.cast_unsigned()), empty.size_bytes, mode]);
    }
    parts.texts(network_aliases);
    parts.text(cgroup_parent);
    parts.numbers(&[*host_pid, *host_ipc, *keep_until_deleted].map(u64::from));
    parts.id_map(id_map.as_ref());
    parts.cni(cni.as_ref());
    parts.tag(key)
}

/// Parts of the digest, in order. Strings and contents are borrowed from the request; numbers are in a separate buffer.
#[derive(Default)]
struct DigestParts<'a> {
    order: Vec<DigestPart<'a>>,
    numbers: Vec<u8>,
}

enum DigestPart<'a> {
    Bytes(&'a [u8]),
    Numbers(usize, usize),
}

impl<'a> DigestParts<'a> {
    fn id_map(&mut self, mapping: Option<&IdMapping>) {
        let mapping = mapping.map(|IdMapping { container_id, host_id, length }| [container_id, host_id, length]);
        self.numbers(mapping.map(|ids| ids.map(|id| u64::from(*id))).as_ref().map_or(&[], |ids| &ids[..]));
    }

    fn tag(&self, key: &TagKey) -> String {
        let DigestParts { order, numbers } = self;
        key.tag(order.iter().map(|part| match part {
            DigestPart::Bytes(bytes) => bytes,
            DigestPart::Numbers(start, end) => &numbers[*start..*end],
        }))
    }

    fn text(&mut self, text: &'a str) {
        self.order.push(DigestPart::Bytes(text.as_bytes()));
    }

    fn map(&mut self, map: &'a HashMap<String, String>) {
        let sorted: BTreeMap<&String, &String> = map.iter().collect();
        self.numbers(&[sorted.len() as u64]);
        for (name, value) in sorted {
            self.text(name);
            self.text(value);
        }
    }

    fn texts(&mut self, texts: &'a [String]) {
        self.numbers(&[texts.len() as u64]);
        texts.iter().for_each(|text| self.text(text));
    }

    fn numbers(&mut self, numbers: &[u64]) {
        let start = self.numbers.len();
        numbers.iter().for_each(|number| self.numbers.extend_from_slice(&number.to_le_bytes()));
        self.order.push(DigestPart::Numbers(start, self.numbers.len()));
    }

    fn duration(&mut self, duration: Option<&prost_types::Duration>) {
        match duration {
            None => self.numbers(&[]),
            Some(time) => self.numbers(&[time.seconds.cast_unsigned(), u64::from(time.nanos.cast_unsigned())]),
        }
    }

    fn limits(&mut self, limits: &'a Limits) {
        let Limits {
            memory_bytes,
            pids,
            cpu_millis,
            disk_bytes,
            cpu_weight,
            io_weight,
            cpuset_cpus,
            cpuset_mems,
            swap_bytes,
            memory_reservation_bytes,
            unlimited_memory,
            unlimited_pids,
            cpu_period_us,
            cpu_quota_us,
            cpu_shares,
            hugepage_bytes,
            unified,
        } = limits;
        self.numbers(&[*memory_bytes, *pids, *cpu_millis, *disk_bytes, u64::from(*cpu_weight), u64::from(*io_weight)]);
        self.text(cpuset_cpus);
        self.text(cpuset_mems);
        self.numbers(swap_bytes.map(i64::cast_unsigned).as_slice());
        self.numbers(&[*memory_reservation_bytes, u64::from(*unlimited_memory), u64::from(*unlimited_pids)]);
        self.numbers(&[*cpu_period_us, cpu_quota_us.cast_unsigned(), u64::from(*cpu_shares)]);
        let sorted: BTreeMap<&String, &u64> = hugepage_bytes.iter().collect();
        self.numbers(&[sorted.len() as u64]);
        for (size, bytes) in sorted {
            self.text(size);
            self.numbers(&[*bytes]);
        }
        self.map(unified);
    }

    fn checks(&mut self, checks: Option<&'a Checks>) {
        let Some(Checks { startup, liveness, readiness, start_timeout }) = checks else { return self.numbers(&[]) };
        self.duration(start_timeout.as_ref());
        for list in [startup, liveness, readiness] {
            self.numbers(&[list.len() as u64]);
            list.iter().for_each(|check| self.check(check));
        }
    }

    fn check(&mut self, check: &'a Check) {
        let Check { kind, interval, timeout, initial_delay, healthy_threshold, unhealthy_threshold } = check;
        [interval, timeout, initial_delay].into_iter().for_each(|time| self.duration(time.as_ref()));
        self.numbers(&[u64::from(*healthy_threshold), u64::from(*unhealthy_threshold)]);
        match kind {
            None => self.numbers(&[]),
            Some(Kind::Tcp(TcpCheck { port })) => self.numbers(&[1, u64::from(*port)]),
            Some(Kind::Http(HttpCheck { port, path, headers, statuses })) => {
                self.numbers(&[2, u64::from(*port), headers.len() as u64, statuses.len() as u64]);
                self.text(path);
                for HttpHeader { name, value } in headers {
                    self.text(name);
                    self.text(value);
                }
                statuses.iter().for_each(|status| self.numbers(&[u64::from(*status)]));
            }
            Some(Kind::Exec(ExecCheck { path, args, dir, user, container_environment })) => {
                self.numbers(&[3, u64::from(*container_environment)]);
                [path, dir, user].into_iter().for_each(|text| self.text(text));
                self.texts(args);
            }
        }
    }

    fn ports(&mut self, ports: &'a [PortMapping]) {
        self.numbers(&[ports.len() as u64]);
        for PortMapping { host_ip, host_port, container_port, protocol } in ports {
            self.text(host_ip);
            self.numbers(&[u64::from(*host_port), u64::from(*container_port), u64::from(protocol.cast_unsigned())]);
        }
    }

    fn dns(&mut self, dns: Option<&'a Dns>) {
        let Some(Dns { servers, searches, options }) = dns else { return self.numbers(&[]) };
        [servers, searches, options].into_iter().for_each(|list| self.texts(list));
    }

    fn hosts(&mut self, hosts: &'a [ExtraHost]) {
        for ExtraHost { name, address } in hosts {
            self.text(name);
            self.text(address);
        }
    }

    fn egress_rules(&mut self, egress_rules: &'a [EgressRule]) {
        self.numbers(&[egress_rules.len() as u64]);
        for EgressRule { protocol, destinations, ports, icmp_type, icmp_code, log } in egress_rules {
            self.numbers(&[u64::from(protocol.cast_unsigned()), u64::from(*log), ports.len() as u64]);
            self.texts(destinations);
            for PortRange { first, last } in ports {
                self.numbers(&[u64::from(*first), u64::from(*last)]);
            }
            for number in [icmp_type, icmp_code] {
                self.numbers(number.map(|number| u64::from(number.cast_unsigned())).as_slice());
            }
        }
    }

    fn files(&mut self, files: &'a [File]) {
        self.numbers(&[files.len() as u64]);
        for File { path, content, public, mode, group, from } in files {
            self.reference(from.as_ref());
            self.text(path);
            self.order.push(DigestPart::Bytes(content));
            self.numbers(&[u64::from(*public)]);
            self.numbers(mode.map(u64::from).as_slice());
            // An unset group and an empty group have the same digest.
            self.text(group.as_deref().unwrap_or_default());
        }
    }

    fn volume(&mut self, volume: &'a VolumeMount) {
        let VolumeMount { path, source, sub_path, read_only } = volume;
        self.text(path);
        self.text(sub_path);
        self.numbers(&[u64::from(*read_only)]);
        match source {
            None => self.numbers(&[]),
            Some(Source::Empty(EmptyVolume { medium, size_bytes, mode, gid })) => {
                let [mode, gid] = [mode, gid].map(|number| number.map_or(u64::MAX, u64::from));
                self.numbers(&[0, u64::from(medium.cast_unsigned()), *size_bytes, mode, gid]);
            }
            Some(Source::Host(NamedVolume { name })) => {
                self.numbers(&[1]);
                self.text(name);
            }
            Some(Source::Image(ImageVolume { reference })) => {
                self.numbers(&[2]);
                self.text(reference);
            }
            Some(Source::Pod(PodVolumeName { name })) => {
                self.numbers(&[3]);
                self.text(name);
            }
            Some(Source::HostPath(asked)) => {
                let HostPath { path, propagation, recursive, recursive_read_only, suid, dev, follow_links } = asked;
                let flags = [recursive, recursive_read_only, suid, dev, follow_links].map(|flag| u64::from(*flag));
                self.numbers(&[4, u64::from(propagation.cast_unsigned())]);
                self.numbers(&flags);
                self.text(path);
            }
        }
    }

    fn run(&mut self, run: &'a RunAction) {
        let RunAction {
            path,
            args,
            dir,
            env,
            resource_limits,
            user,
            log_source,
            suppress_log_output,
            volume_mounted_files,
            secret_environment,
            secret_arguments,
        } = run;
        self.text(path);
        self.numbers(&[args.len() as u64]);
        args.iter().for_each(|arg| self.text(arg));
        self.text(dir);
        self.variables(env);
        // `nproc` is ignored, as in BBS.
        match resource_limits.as_ref().and_then(|limits| limits.nofile) {
            None => self.numbers(&[]),
            Some(nofile) => self.numbers(&[nofile]),
        }
        self.text(user);
        self.text(log_source);
        self.numbers(&[u64::from(*suppress_log_output)]);
        self.files(volume_mounted_files);
        self.variables(secret_environment);
        self.numbers(&[secret_arguments.len() as u64]);
        for SecretArgument { index, value, from } in secret_arguments {
            self.reference(from.as_ref());
            self.numbers(&[u64::from(*index)]);
            self.text(value);
        }
    }

    /// Hashes an action with its descendants. Each kind starts with its field number, and 0 ends the action.
    fn action(&mut self, action: Option<&'a Action>) {
        let Some(Action { download, upload, run, timeout, emit_progress, r#try, parallel, serial, codependent }) =
            action
        else {
            return self.numbers(&[]);
        };
        if let Some(DownloadAction {
            artifact,
            from,
            to,
            cache_key,
            log_source,
            user,
            checksum_algorithm,
            checksum_value,
        }) = download
        {
            self.numbers(&[1]);
            let texts = [artifact, from, to, cache_key, log_source, user, checksum_algorithm, checksum_value];
            texts.into_iter().for_each(|text| self.text(text));
        }
        if let Some(UploadAction { artifact, from, to, log_source, user }) = upload {
            self.numbers(&[2]);
            [artifact, from, to, log_source, user].into_iter().for_each(|text| self.text(text));
        }
        if let Some(run) = run {
            self.numbers(&[3]);
            self.run(run);
        }
        if let Some(timeout) = timeout {
            #[expect(deprecated, reason = "hashed if a client sets it")]
            let TimeoutAction { action, deprecated_timeout_ns, log_source, timeout_ms } = &**timeout;
            self.numbers(&[4, timeout_ms.cast_unsigned(), deprecated_timeout_ns.cast_unsigned()]);
            self.text(log_source);
            self.action(action.as_deref());
        }
        if let Some(progress) = emit_progress {
            let EmitProgressAction { action, start_message, success_message, failure_message_prefix, log_source } =
                &**progress;
            self.numbers(&[5]);
            let texts = [start_message, success_message, failure_message_prefix, log_source];
            texts.into_iter().for_each(|text| self.text(text));
            self.action(action.as_deref());
        }
        if let Some(attempt) = r#try {
            self.numbers(&[6]);
            self.text(&attempt.log_source);
            self.action(attempt.action.as_deref());
        }
        let lists = [
            (7, parallel.as_ref().map(|list| (&list.log_source, &list.actions))),
            (8, serial.as_ref().map(|list| (&list.log_source, &list.actions))),
            (9, codependent.as_ref().map(|list| (&list.log_source, &list.actions))),
        ];
        for (number, list) in lists {
            let Some((log_source, actions)) = list else { continue };
            self.numbers(&[number, actions.len() as u64]);
            self.text(log_source);
            actions.iter().for_each(|action| self.action(Some(action)));
        }
        self.numbers(&[0]);
    }

    fn reference(&mut self, reference: Option<&'a SecretReference>) {
        self.numbers(&[u64::from(reference.is_some())]);
        if let Some(SecretReference { provider, path, key, version }) = reference {
            [provider, path, key, version].into_iter().for_each(|text| self.text(text));
        }
    }

    fn variables(&mut self, variables: &'a [EnvironmentVariable]) {
        self.numbers(&[variables.len() as u64]);
        for variable in variables {
            self.reference(variable.from.as_ref());
            self.text(&variable.name);
            self.order.push(DigestPart::Bytes(variable.content()));
        }
    }
}

#[cfg(test)]
mod tests;
