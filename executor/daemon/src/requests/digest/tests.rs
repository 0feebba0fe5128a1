//! Tests that every hashed field of a request changes the digest, and that the id does not.

use executor_proto::v1::{CodependentAction, ParallelAction, ResourceLimits, SerialAction};

use super::*;

fn request(change: impl Fn(&mut RunRequest, &mut RunAction)) -> RunRequest {
    let mut request = RunRequest { id: "a".into(), ..Default::default() };
    let mut run = RunAction { path: "/bin/sh".into(), args: vec!["ab".into(), "c".into()], ..Default::default() };
    change(&mut request, &mut run);
    request.action = Some(Action { run: Some(run), ..Default::default() });
    request
}

fn file(path: &str, content: &str) -> File {
    File { path: path.into(), content: content.into(), ..File::default() }
}

fn volume(source: Source) -> VolumeMount {
    VolumeMount { source: Some(source), ..Default::default() }
}

fn probe(kind: Kind) -> Option<Checks> {
    Some(Checks { startup: vec![Check { kind: Some(kind), ..Default::default() }], ..Default::default() })
}

fn each(change: impl Fn(&mut Check)) -> Option<Checks> {
    let mut check = Check::default();
    change(&mut check);
    Some(Checks { startup: vec![check], ..Default::default() })
}

type RequestChange = fn(&mut RunRequest, &mut RunAction);

#[test]
fn every_field_but_the_id_counts() {
    let changes: [RequestChange; 203] = [
        |_, _| (),
        |r, _| r.rootfs = "host".into(),
        |r, _| r.nonce = "a".into(),
        |r, _| r.limits = Some(Limits { memory_bytes: 1, ..Default::default() }),
        |r, _| r.limits = Some(Limits { pids: 1, ..Default::default() }),
        |r, _| drop(r.labels.insert("a".into(), "b".into())),
        |r, _| drop(r.labels.insert("ab".into(), String::new())),
        |r, _| r.grace_period = Some(prost_types::Duration::default()),
        |r, _| r.network = 1,
        |r, _| r.volume_mounted_files.push(file("x", "y")),
        |r, _| r.volume_mounted_files.push(file("xy", "")),
        |_, a| a.volume_mounted_files.push(file("x", "y")),
        |_, a| a.path = "/bin/shx".into(),
        |_, a| a.args = vec!["a".into(), "bc".into()],
        |_, a| a.args = vec!["abc".into()],
        |_, a| a.dir = "/".into(),
        |_, a| {
            a.env.push(EnvironmentVariable { name: "A".into(), value: "B".into(), ..EnvironmentVariable::default() });
        },
        |_, a| a.env.push(EnvironmentVariable::from_bytes("A", b"B\xff".to_vec())),
        |_, a| a.resource_limits = Some(ResourceLimits { nofile: Some(0), ..Default::default() }),
        |_, a| a.user = "root".into(),
        |_, a| a.log_source = "root".into(),
        |_, a| a.suppress_log_output = true,
        |r, _| r.volume_mounted_files.push(File { public: true, ..file("x", "y") }),
        |r, _| r.volume_mounted_files.push(File { mode: Some(0o600), ..file("x", "y") }),
        |r, _| r.volume_mounted_files.push(File { mode: Some(0), ..file("x", "y") }),
        |r, _| r.volume_mounted_files.push(File { from: Some(SecretReference::default()), ..file("x", "y") }),
        |r, _| {
            let from = Some(SecretReference { path: "a".into(), ..Default::default() });
            r.volume_mounted_files.push(File { from, ..file("x", "y") });
        },
        |r, _| {
            let from = Some(SecretReference { version: "a".into(), ..Default::default() });
            r.volume_mounted_files.push(File { from, ..file("x", "y") });
        },
        |_, a| {
            let from = Some(SecretReference { key: "a".into(), ..Default::default() });
            a.secret_environment.push(EnvironmentVariable { from, ..Default::default() });
        },
        |_, a| {
            let from = Some(SecretReference { provider: "a".into(), ..Default::default() });
            a.secret_arguments.push(SecretArgument { from, ..Default::default() });
        },
        |r, _| r.volume_mounted_files.push(File { group: Some("0".into()), ..file("x", "y") }),
        |r, _| r.file_directories.push("/x".into()),
        |r, _| r.writable_files = Some(WritableFiles::default()),
        |r, _| r.writable_files = Some(WritableFiles { bytes_max: 5000 }),
        |r, _| r.redaction = 1,
        |r, _| r.runtime_token_path = "x".into(),
        |r, _| r.outputs = Some(Outputs::default()),
        |r, _| r.outputs = Some(Outputs { files: vec!["/x".into()], ..Default::default() }),
        |r, _| r.outputs = Some(Outputs { directory: "/x".into(), ..Default::default() }),
        |r, _| r.outputs = Some(Outputs { bytes_max: 1, ..Default::default() }),
        |_, a| {
            a.secret_environment.push(EnvironmentVariable {
                name: "A".into(),
                value: "B".into(),
                ..EnvironmentVariable::default()
            });
        },
        |_, a| a.secret_arguments.push(SecretArgument { index: 0, value: "B".into(), ..SecretArgument::default() }),
        |r, _| r.limits = Some(Limits { disk_bytes: 1, ..Default::default() }),
        |r, _| r.identity = Some(Identity::default()),
        |r, _| r.identity = Some(Identity { organizational_units: vec!["a".into()], ..Default::default() }),
        |r, _| r.identity = Some(Identity { dns_names: vec!["a".into()], ..Default::default() }),
        |r, _| r.identity = Some(Identity { ip_addresses: vec!["a".into()], ..Default::default() }),
        |r, _| r.identity = Some(Identity { spiffe_id: "a".into(), ..Default::default() }),
        |r, _| r.identity = Some(Identity { ttl: Some(prost_types::Duration::default()), ..Default::default() }),
        |r, _| r.limits = Some(Limits { cpu_weight: 1, ..Default::default() }),
        |r, _| r.limits = Some(Limits { io_weight: 1, ..Default::default() }),
        |r, _| r.limits = Some(Limits { cpuset_cpus: "0".into(), ..Default::default() }),
        |r, _| r.limits = Some(Limits { cpuset_mems: "0".into(), ..Default::default() }),
        |r, _| r.limits = Some(Limits { swap_bytes: Some(0), ..Default::default() }),
        |r, _| r.limits = Some(Limits { memory_reservation_bytes: 1, ..Default::default() }),
        |r, _| r.limits = Some(Limits { unlimited_memory: true, ..Default::default() }),
        |r, _| r.limits = Some(Limits { unlimited_pids: true, ..Default::default() }),
        |r, _| r.limits = Some(Limits { cpu_period_us: 1, ..Default::default() }),
        |r, _| r.limits = Some(Limits { cpu_quota_us: 1, ..Default::default() }),
        |r, _| r.limits = Some(Limits { cpu_shares: 1, ..Default::default() }),
        |r, _| r.limits = Some(Limits { hugepage_bytes: [("a".into(), 0)].into(), ..Default::default() }),
        |r, _| r.limits = Some(Limits { hugepage_bytes: [("a".into(), 1)].into(), ..Default::default() }),
        |r, _| r.limits = Some(Limits { unified: [("a".into(), "b".into())].into(), ..Default::default() }),
        |r, _| r.cgroup_parent = "/a".into(),
        |r, _| r.log_file = "/a".into(),
        |r, _| r.host_pid = true,
        |r, _| r.host_ipc = true,
        |r, _| r.pid_of = "a".into(),
        |r, _| r.id_map = Some(IdMapping::default()),
        |r, _| r.id_map = Some(IdMapping { container_id: 1, ..Default::default() }),
        |r, _| r.id_map = Some(IdMapping { host_id: 1, ..Default::default() }),
        |r, _| r.id_map = Some(IdMapping { length: 1, ..Default::default() }),
        |r, _| r.allow_new_privileges = true,
        |r, _| r.seccomp_unconfined = true,
        |r, _| r.masked_paths = Some(PathList::default()),
        |r, _| r.masked_paths = Some(PathList { paths: vec!["/a".into()] }),
        |r, _| r.readonly_paths = Some(PathList::default()),
        |r, _| r.readonly_paths = Some(PathList { paths: vec!["/a".into()] }),
        |r, _| r.devices.push(DeviceMount::default()),
        |r, _| r.devices.push(DeviceMount { name: "a".into(), ..Default::default() }),
        |r, _| r.devices.push(DeviceMount { host_path: "a".into(), ..Default::default() }),
        |r, _| r.devices.push(DeviceMount { path: "a".into(), ..Default::default() }),
        |r, _| r.devices.push(DeviceMount { permissions: "a".into(), ..Default::default() }),
        |r, _| r.apparmor_profile = "a".into(),
        |r, _| r.oom_score_adj = Some(0),
        |r, _| r.ulimits.push(Ulimit::default()),
        |r, _| r.ulimits.push(Ulimit { name: "a".into(), ..Default::default() }),
        |r, _| r.ulimits.push(Ulimit { soft: 1, ..Default::default() }),
        |r, _| r.ulimits.push(Ulimit { hard: 1, ..Default::default() }),
        |r, _| r.user_namespace = 1,
        |r, _| r.privileged = true,
        |r, _| r.docker_socket = true,
        |r, _| r.capabilities = Some(Capabilities::default()),
        |r, _| r.capabilities = Some(Capabilities { add: vec!["KILL".into()], drop: vec![] }),
        |r, _| r.capabilities = Some(Capabilities { add: vec![], drop: vec!["KILL".into()] }),
        |r, _| r.read_only_rootfs = true,
        |r, _| r.seccomp_profile = "{}".into(),
        |r, _| r.ports.push(PortMapping::default()),
        |r, _| r.ports.push(PortMapping { host_port: 1, ..Default::default() }),
        |r, _| r.network_name = "n".into(),
        |r, _| r.egress = true,
        |r, _| r.log_limits = Some(LogLimits { bytes_per_second: Some(0), lines_per_second: None }),
        |r, _| r.log_limits = Some(LogLimits { bytes_per_second: None, lines_per_second: Some(0) }),
        |r, _| r.log_tags = [("a".to_owned(), "b".to_owned())].into(),
        |r, _| r.egress_rules = vec![EgressRule::default()],
        |r, _| r.egress_rules = vec![EgressRule { icmp_type: Some(0), ..EgressRule::default() }],
        |r, _| r.egress_rules = vec![EgressRule { icmp_code: Some(0), ..EgressRule::default() }],
        |r, _| r.egress_rules = vec![EgressRule { ports: vec![PortRange::default()], ..EgressRule::default() }],
        |r, _| r.egress_rules = vec![EgressRule { destinations: vec!["a".into()], ..EgressRule::default() }],
        |r, _| r.hostname = "n".into(),
        |r, _| r.network_aliases = vec!["n".into()],
        |r, _| r.dns = Some(Dns::default()),
        |r, _| r.dns = Some(Dns { servers: vec!["::1".into()], ..Default::default() }),
        |r, _| r.dns = Some(Dns { searches: vec!["::1".into()], ..Default::default() }),
        |r, _| r.dns = Some(Dns { options: vec!["::1".into()], ..Default::default() }),
        |r, _| r.terminal = true,
        |r, _| r.window = Some(WindowSize::default()),
        |r, _| r.window = Some(WindowSize { rows: 1, columns: 0 }),
        |r, _| r.window = Some(WindowSize { rows: 0, columns: 1 }),
        |r, _| r.stdin = true,
        |r, _| r.stop_signal = 2,
        |r, _| r.remove_when_completed = true,
        |r, _| r.keep_until_deleted = true,
        |r, _| r.extra_groups.push("x".into()),
        |r, _| r.strict_groups = true,
        |r, _| r.merge_groups = true,
        |r, _| r.keep_environment = true,
        |r, _| r.hold = true,
        |r, _| r.termination_message = Some(TerminationMessage::default()),
        |r, _| r.termination_message = Some(TerminationMessage { path: "/x".into(), ..Default::default() }),
        |r, _| r.termination_message = Some(TerminationMessage { bytes_max: 1, ..Default::default() }),
        |r, _| r.termination_message = Some(TerminationMessage { fallback_to_logs: true, ..Default::default() }),
        |r, _| r.shm_bytes = 1,
        |r, _| r.init = true,
        |r, _| r.sysctls = [("a".to_owned(), "b".to_owned())].into(),
        |r, _| r.extra_hosts.push(ExtraHost::default()),
        |r, _| r.extra_hosts.push(ExtraHost { name: "a".into(), ..Default::default() }),
        |r, _| r.extra_hosts.push(ExtraHost { address: "a".into(), ..Default::default() }),
        |r, _| r.volumes.push(VolumeMount::default()),
        |r, _| r.volumes.push(VolumeMount { path: "a".into(), ..Default::default() }),
        |r, _| r.volumes.push(VolumeMount { sub_path: "a".into(), ..Default::default() }),
        |r, _| r.volumes.push(VolumeMount { read_only: true, ..Default::default() }),
        |r, _| r.volumes.push(volume(Source::Empty(EmptyVolume::default()))),
        |r, _| r.volumes.push(volume(Source::Empty(EmptyVolume { medium: 1, ..Default::default() }))),
        |r, _| r.volumes.push(volume(Source::Empty(EmptyVolume { size_bytes: 1, ..Default::default() }))),
        |r, _| r.volumes.push(volume(Source::Empty(EmptyVolume { mode: Some(0), ..Default::default() }))),
        |r, _| r.volumes.push(volume(Source::Host(NamedVolume { name: "a".into() }))),
        |r, _| r.volumes.push(volume(Source::HostPath(HostPath { path: "a".into(), ..Default::default() }))),
        |r, _| r.volumes.push(volume(Source::HostPath(HostPath { propagation: 1, ..Default::default() }))),
        |r, _| r.volumes.push(volume(Source::HostPath(HostPath { recursive: true, ..Default::default() }))),
        |r, _| r.volumes.push(volume(Source::HostPath(HostPath { recursive_read_only: true, ..Default::default() }))),
        |r, _| r.volumes.push(volume(Source::HostPath(HostPath { suid: true, ..Default::default() }))),
        |r, _| r.volumes.push(volume(Source::HostPath(HostPath { dev: true, ..Default::default() }))),
        |r, _| r.volumes.push(volume(Source::HostPath(HostPath { follow_links: true, ..Default::default() }))),
        |r, _| r.volumes.push(volume(Source::Image(ImageVolume { reference: "a".into() }))),
        |r, _| r.tmpfs.push(Tmpfs::default()),
        |r, _| r.tmpfs.push(Tmpfs { path: "a".into(), ..Default::default() }),
        |r, _| r.tmpfs.push(Tmpfs { size_bytes: 1, ..Default::default() }),
        |r, _| r.tmpfs.push(Tmpfs { mode: Some(0), ..Default::default() }),
        |r, _| r.tmpfs.push(Tmpfs { exec: true, ..Default::default() }),
        |r, _| r.log_source = "root".into(),
        |r, _| {
            r.environment.push(EnvironmentVariable {
                name: "A".into(),
                value: "B".into(),
                ..EnvironmentVariable::default()
            });
        },
        |r, _| r.setup = Some(Action::default()),
        |r, a| r.setup = Some(Action { run: Some(a.clone()), ..Action::default() }),
        |r, _| r.sidecars.push(Sidecar::default()),
        |r, _| r.sidecars.push(Sidecar { action: Some(Action::default()), ..Default::default() }),
        |r, _| r.sidecars.push(Sidecar { disk_mb: 1, ..Default::default() }),
        |r, _| r.sidecars.push(Sidecar { memory_mb: 1, ..Default::default() }),
        |r, _| r.sidecars.push(Sidecar { pids: 1, ..Default::default() }),
        |r, _| r.restart_policy = Some(RestartPolicy::default()),
        |r, _| r.restart_policy = Some(RestartPolicy { mode: 1, ..Default::default() }),
        |r, _| r.restart_policy = Some(RestartPolicy { max_retries: 1, ..Default::default() }),
        |r, _| r.restart_policy = Some(RestartPolicy { min_delay: Some(Default::default()), ..Default::default() }),
        |r, _| r.restart_policy = Some(RestartPolicy { max_delay: Some(Default::default()), ..Default::default() }),
        |r, _| r.monitor = Some(Action::default()),
        |r, _| r.setup = Some(Action { serial: Some(SerialAction::default()), ..Action::default() }),
        |r, _| r.setup = Some(Action { parallel: Some(ParallelAction::default()), ..Action::default() }),
        |r, _| r.setup = Some(Action { codependent: Some(CodependentAction::default()), ..Action::default() }),
        |r, _| r.setup = Some(Action { r#try: Some(Box::default()), ..Action::default() }),
        |r, _| r.setup = Some(Action { timeout: Some(Box::default()), ..Action::default() }),
        |r, _| r.setup = Some(Action { emit_progress: Some(Box::default()), ..Action::default() }),
        |r, _| r.setup = Some(Action { upload: Some(UploadAction::default()), ..Action::default() }),
        |r, _| r.setup = Some(Action { download: Some(DownloadAction::default()), ..Action::default() }),
        |r, _| {
            let timeout = TimeoutAction { timeout_ms: 1, ..Default::default() };
            r.setup = Some(Action { timeout: Some(Box::new(timeout)), ..Action::default() });
        },
        |r, _| r.checks = Some(Checks::default()),
        |r, _| r.checks = Some(Checks { startup: vec![Check::default()], ..Default::default() }),
        |r, _| r.checks = Some(Checks { liveness: vec![Check::default()], ..Default::default() }),
        |r, _| r.checks = Some(Checks { readiness: vec![Check::default()], ..Default::default() }),
        |r, _| r.checks = Some(Checks { start_timeout: Some(Default::default()), ..Default::default() }),
        |r, _| r.checks = probe(Kind::Tcp(TcpCheck { port: 1 })),
        |r, _| r.checks = probe(Kind::Http(HttpCheck { port: 1, ..Default::default() })),
        |r, _| r.checks = probe(Kind::Http(HttpCheck { path: "a".into(), ..Default::default() })),
        |r, _| r.checks = probe(Kind::Http(HttpCheck { statuses: vec![200], ..Default::default() })),
        |r, _| {
            r.checks = probe(Kind::Http(HttpCheck { headers: vec![HttpHeader::default()], ..Default::default() }));
        },
        |r, _| r.checks = probe(Kind::Exec(ExecCheck { path: "a".into(), ..Default::default() })),
        |r, _| r.checks = probe(Kind::Exec(ExecCheck { args: vec!["a".into()], ..Default::default() })),
        |r, _| r.checks = probe(Kind::Exec(ExecCheck { dir: "a".into(), ..Default::default() })),
        |r, _| r.checks = probe(Kind::Exec(ExecCheck { user: "a".into(), ..Default::default() })),
        |r, _| r.checks = each(|check| check.interval = Some(Default::default())),
        |r, _| r.checks = each(|check| check.timeout = Some(Default::default())),
        |r, _| r.checks = each(|check| check.initial_delay = Some(Default::default())),
        |r, _| r.checks = each(|check| check.healthy_threshold = 1),
        |r, _| r.checks = each(|check| check.unhealthy_threshold = 1),
    ];
    let key = TagKey::random().unwrap();
    let tags: Vec<String> = changes.iter().map(|change| request_digest(&key, &request(change))).collect();
    for (index, tag) in tags.iter().enumerate() {
        assert_eq!(tags.iter().filter(|other| *other == tag).count(), 1, "change {index}");
    }
    assert_eq!(tags[0], request_digest(&key, &request(|r, _| r.id = "another".into())));
}
