//! Converts container status, events and log entries to API messages.

mod cell;
mod checks;
mod host_options;
mod identity;
mod pods;
mod reservations;
mod restarts;
mod sources;
mod usage;
mod volumes;

use std::collections::HashMap;

use std::time::Duration;

use executor_core::capacity::Amount;
use executor_core::lifecycle::State;
use executor_core::logline::{Entry, LogPosition, Missing, Stream};
use executor_core::placement::MountPoint;
use executor_core::plan::{
    Connectivity, ExtraHost, IdMapping, Layout, LogLimits, MAIN_PROCESS, Network, OutputSource, Plan, PlannedOutputs,
    Protocol, PublishedPort, Redaction, Rootfs, Tmpfs, UserNamespace, WritableFiles,
};
use executor_core::record::{Exit, FailureKind, StepRecord, StepState, VolumeKind, WIPE_METHOD, WipeRecord};
use executor_core::time::Timestamp;
use executor_core::usage::Usage;
use executor_proto::v1;

use crate::model::events::{Event, EventKind};
use crate::model::quarantine::Phase;
use crate::model::status::{ContainerResult, ContainerStatus};
use crate::requests::draft;

pub(super) use cell::{drain, health};
pub(super) use host_options::host_device;
pub(super) use pods::pod;
pub(super) use reservations::{reservation, reserved_container};
pub(super) use sources::provider as secret_provider;
pub(super) use volumes::host as host_volume;

/// Mount options of secret files.
const MOUNT_OPTIONS: &str = "ro,nosuid,nodev,noexec";
/// Mount options of writable files.
const WRITABLE_OPTIONS: &str = "rw,nosuid,nodev,noexec";

/// Converts a container to its API message.
pub(crate) fn container(facts: &ContainerStatus) -> v1::Container {
    v1::Container {
        id: facts.plan.id.to_string(),
        state: state(facts.state).into(),
        spec: Some(spec(facts)),
        files: files(facts),
        processes: processes(facts),
        created_at: Some(timestamp(facts.created_at)),
        started_at: facts.started_at.map(timestamp),
        finished_at: facts.end.as_ref().map(|end| timestamp(end.finished_at)),
        result: facts.end.as_deref().map(result),
        files_generation: facts.files_generation,
        files_updated_at: facts.files_updated_at.map(timestamp),
        image: match &facts.plan.rootfs {
            Rootfs::Image(image) => {
                Some(v1::ImageInUse { reference: image.reference.clone(), digest: image.digest.clone() })
            }
            Rootfs::Host | Rootfs::Dir(_) | Rootfs::Pod => None,
        },
        network_status: network_status(facts),
        id_range_start: facts.id_range_start.unwrap_or(0),
        shim_pid: if facts.state < State::Completed { u32::try_from(facts.shim_pid).unwrap_or(0) } else { 0 },
        steps: facts.steps.iter().map(|one| step(one, Some(&facts.plan))).collect(),
        volume_images: volumes::images(&facts.plan),
        egress_generation: facts.egress_generation,
        limits_generation: facts.limits_generation,
        paused: facts.is_paused(),
        ready: facts.is_ready(),
        check_statuses: checks::statuses(facts.health.as_deref()),
        startup_passed: facts.health.as_ref().is_some_and(|health| health.started),
        restart: facts.restarts.as_ref().filter(|_| facts.started_at.is_some()).map(restarts::status),
        reservation_expires_at: None,
        identity: facts.identity.as_ref().map(identity::identity),
        secret_sources: facts.sources.iter().map(sources::source).collect(),
        quarantine: facts.quarantine.map(|quarantine| v1::Quarantine {
            phase: phase_message(quarantine.phase).into(),
            since: Some(timestamp(quarantine.since)),
        }),
    }
}

fn phase_message(phase: Phase) -> v1::quarantine::Phase {
    match phase {
        Phase::Create => v1::quarantine::Phase::Create,
        Phase::Stop => v1::quarantine::Phase::Stop,
        Phase::Wipe => v1::quarantine::Phase::Wipe,
        Phase::Removal => v1::quarantine::Phase::Removal,
    }
}

/// Converts the network status to its API message. Returns `None` for a completed container, because another container
/// may already use the address.
fn network_status(facts: &ContainerStatus) -> Option<v1::NetworkStatus> {
    let on = facts.prepared.as_ref()?.network.as_ref().filter(|_| facts.state < State::Completed)?;
    Some(v1::NetworkStatus {
        addresses: on.addresses.iter().map(ToString::to_string).collect(),
        ports: facts.plan.connectivity.ports.iter().map(port).collect(),
        name: on.network.clone(),
    })
}

fn spec(facts: &ContainerStatus) -> v1::ContainerSpec {
    let plan = &facts.plan;
    let prepared = facts.prepared.as_ref();
    let main = plan.main();
    v1::ContainerSpec {
        rootfs: plan.rootfs.to_string(),
        path: main.map(|main| main.path.clone()).unwrap_or_default(),
        argument_count: main.map_or(0, |main| main.argument_count),
        dir: main.map(|main| main.dir.clone()).unwrap_or_default(),
        environment_names: main.map(|main| main.environment_names.clone()).unwrap_or_default(),
        user: plan.user.to_string(),
        uid: prepared.map(|prepared| prepared.user.uid),
        gid: prepared.map(|prepared| prepared.user.gid),
        limits: Some(limits(plan)),
        nofile: prepared.map_or(plan.limits.nofile, |prepared| prepared.nofile),
        network: network(plan.network).into(),
        grace_period: Some(duration(plan.grace)),
        labels: plan.labels.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        log_source: main.map(|main| main.log_source.clone()).unwrap_or_default(),
        suppress_log_output: main.is_some_and(|main| main.suppress_log_output),
        warnings: prepared.map(|prepared| prepared.warnings.clone()).unwrap_or_default(),
        secret_environment_names: main.map(|main| main.secret_environment_names.clone()).unwrap_or_default(),
        secret_argument_indices: main.map(|main| main.secret_arguments.clone()).unwrap_or_default(),
        redaction: match plan.redaction {
            Redaction::Auto => v1::Redaction::Auto,
            Redaction::All => v1::Redaction::All,
            Redaction::None => v1::Redaction::None,
        }
        .into(),
        runtime_token_path: plan.token_file().map(|file| file.path.display().to_string()).unwrap_or_default(),
        outputs: plan.outputs.as_ref().map(outputs),
        user_namespace: user_namespace(plan.isolation.user_namespace).into(),
        privileged: plan.isolation.privileged,
        docker_socket: plan.isolation.docker_socket,
        capabilities: Some(v1::Capabilities {
            add: plan.isolation.capabilities_added.clone(),
            drop: plan.isolation.capabilities_dropped.clone(),
        }),
        read_only_rootfs: plan.isolation.read_only_rootfs,
        custom_seccomp_profile: !plan.isolation.seccomp_profile.is_empty(),
        ports: plan.connectivity.ports.iter().map(port).collect(),
        network_name: plan.connectivity.network_name.clone(),
        egress: plan.connectivity.egress,
        hostname: plan.connectivity.hostname.clone(),
        network_aliases: plan.connectivity.network_aliases.clone(),
        dns: Some(dns(&plan.connectivity)),
        terminal: plan.terminal,
        stdin: plan.stdin,
        stop_signal: plan.stop_signal,
        file_directories: plan.file_directories.iter().map(|path| path.display().to_string()).collect(),
        remove_when_completed: plan.remove_when_completed,
        keep_until_deleted: plan.keep_until_deleted,
        tmpfs: plan.surroundings.tmpfs.iter().map(tmpfs).collect(),
        extra_hosts: plan.surroundings.extra_hosts.iter().map(extra_host).collect(),
        shm_bytes: plan.surroundings.shm_bytes,
        init: plan.surroundings.init,
        sysctls: plan.surroundings.sysctls.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        writable_files: plan.writable_files.map(|WritableFiles { bytes_max }| v1::WritableFiles { bytes_max }),
        volumes: plan.volumes.iter().map(volumes::mount).collect(),
        log_limits: Some(log_limits(plan.logging.limits)),
        log_tags: plan.logging.tags.clone().into_iter().collect(),
        egress_rules: plan.connectivity.egress_rules.iter().map(draft::egress_message).collect(),
        checks: plan.checks.as_ref().map(checks::checks),
        pod: plan.member_of().map(ToString::to_string).unwrap_or_default(),
        network_namespace: plan.connectivity.network_namespace.display().to_string(),
        restart_policy: plan.restart().map(restarts::policy),
        devices: plan.host_options.devices.iter().map(host_options::device).collect(),
        apparmor_profile: plan.host_options.apparmor_profile.clone(),
        oom_score_adj: plan.host_options.oom_score_adj,
        ulimits: plan.host_options.ulimits.iter().map(host_options::ulimit).collect(),
        extra_groups: plan.extra_groups.iter().map(ToString::to_string).collect(),
        strict_groups: plan.strict_groups,
        merge_groups: plan.merge_groups,
        keep_environment: plan.keep_environment,
        hold: plan.hold,
        termination_message: plan.termination_message.as_ref().map(|message| v1::TerminationMessage {
            path: message.path.display().to_string(),
            bytes_max: message.bytes_max,
            fallback_to_logs: message.fallback_to_logs,
        }),
        cgroup_parent: plan.host_options.cgroup_parent.display().to_string(),
        log_file: plan.logging.file.display().to_string(),
        host_pid: plan.isolation.host_pid,
        host_ipc: plan.isolation.host_ipc,
        id_map: plan.isolation.id_map.map(id_mapping),
        pid_of: plan.isolation.pid_of.as_ref().map(ToString::to_string).unwrap_or_default(),
        allow_new_privileges: plan.isolation.allow_new_privileges,
        seccomp_unconfined: plan.isolation.seccomp_unconfined,
        masked_paths: plan.isolation.masked_paths.clone().map(|paths| v1::PathList { paths }),
        readonly_paths: plan.isolation.readonly_paths.clone().map(|paths| v1::PathList { paths }),
        group_ids: prepared.map(|prepared| prepared.user.groups.clone()).unwrap_or_default(),
    }
}

fn id_mapping(mapping: IdMapping) -> v1::IdMapping {
    let IdMapping { container_id, host_id, length } = mapping;
    v1::IdMapping { container_id, host_id, length }
}

fn limits(plan: &Plan) -> v1::Limits {
    v1::Limits {
        memory_bytes: plan.limits.memory_bytes,
        pids: plan.limits.pids,
        cpu_millis: plan.limits.cpu_millis,
        disk_bytes: plan.limits.disk_bytes,
        cpu_weight: plan.limits.cpu_weight,
        io_weight: plan.limits.io_weight,
        cpuset_cpus: plan.host_options.cpus.clone(),
        cpuset_mems: plan.host_options.memory_nodes.clone(),
        swap_bytes: plan.limits.swap_bytes,
        memory_reservation_bytes: plan.limits.memory_reservation_bytes,
        unlimited_memory: plan.limits.memory_bytes == 0,
        unlimited_pids: plan.limits.pids == 0,
        cpu_period_us: plan.limits.cpu_period_us,
        cpu_quota_us: i64::try_from(plan.limits.cpu_quota_us).unwrap_or(i64::MAX),
        cpu_shares: plan.limits.cpu_shares,
        hugepage_bytes: plan.host_options.hugepage_bytes.clone().into_iter().collect(),
        unified: plan.host_options.unified.clone().into_iter().collect(),
    }
}

fn network(network: Network) -> v1::Network {
    match network {
        Network::None => v1::Network::None,
        Network::Host => v1::Network::Host,
        Network::Cni => v1::Network::Cni,
        Network::Path => v1::Network::Path,
    }
}

fn dns(connectivity: &Connectivity) -> v1::Dns {
    v1::Dns {
        servers: connectivity.dns_servers.iter().map(ToString::to_string).collect(),
        searches: connectivity.dns_searches.clone(),
        options: connectivity.dns_options.clone(),
    }
}

fn user_namespace(namespace: UserNamespace) -> v1::UserNamespace {
    match namespace {
        UserNamespace::Own => v1::UserNamespace::Own,
        UserNamespace::Host => v1::UserNamespace::Host,
    }
}

fn log_limits(limits: LogLimits) -> v1::LogLimits {
    let limit = |limit: Option<u64>| Some(limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(i64::MAX)));
    v1::LogLimits { bytes_per_second: limit(limits.bytes_per_second), lines_per_second: limit(limits.lines_per_second) }
}

fn tmpfs(tmpfs: &Tmpfs) -> v1::Tmpfs {
    v1::Tmpfs {
        path: tmpfs.path.display().to_string(),
        size_bytes: tmpfs.bytes,
        mode: Some(tmpfs.mode),
        uid: tmpfs.uid,
        gid: tmpfs.gid,
        exec: tmpfs.exec,
    }
}

fn extra_host(host: &ExtraHost) -> v1::ExtraHost {
    v1::ExtraHost { name: host.name.clone(), address: host.address.to_string() }
}

fn port(port: &PublishedPort) -> v1::PortMapping {
    v1::PortMapping {
        host_ip: port.host_ip.map(|address| address.to_string()).unwrap_or_default(),
        host_port: port.host_port.into(),
        container_port: port.container_port.into(),
        protocol: protocol(port.protocol).into(),
    }
}

pub(super) fn protocol(protocol: Protocol) -> v1::port_mapping::Protocol {
    match protocol {
        Protocol::Tcp => v1::port_mapping::Protocol::Tcp,
        Protocol::Udp => v1::port_mapping::Protocol::Udp,
        Protocol::Sctp => v1::port_mapping::Protocol::Sctp,
    }
}

fn outputs(planned: &PlannedOutputs) -> v1::Outputs {
    let (files, directory) = match &planned.source {
        OutputSource::Files(files) => (files.iter().map(|file| file.display().to_string()).collect(), String::new()),
        OutputSource::Directory(directory) => (Vec::new(), directory.display().to_string()),
    };
    v1::Outputs { files, directory, bytes_max: planned.bytes_max }
}

fn files(facts: &ContainerStatus) -> Vec<v1::SecretFile> {
    let prepared = facts.prepared.as_ref();
    // Mounts by file index, computed once because a container can have thousands of files.
    let mut mounts: Vec<Option<&MountPoint>> = vec![None; facts.plan.files.len()];
    for mount in prepared.map_or(&[][..], |prepared| &prepared.mounts) {
        let indices: &mut dyn Iterator<Item = usize> = match &mount.content {
            executor_core::placement::Content::File(index) => &mut std::iter::once(*index),
            executor_core::placement::Content::Directory(files) => &mut files.iter().map(|(index, _)| *index),
        };
        for index in indices {
            if let Some(slot) = mounts.get_mut(index) {
                *slot = Some(mount);
            }
        }
    }
    let kind = prepared.and_then(|prepared| prepared.volume).map_or(v1::MountKind::Unspecified, mount_kind);
    let options = match facts.plan.layout() {
        Layout::Generations => MOUNT_OPTIONS,
        Layout::Writable => WRITABLE_OPTIONS,
    };
    let one = |(file, mount): (&executor_core::plan::PlannedFile, Option<&MountPoint>)| v1::SecretFile {
        path: file.path.display().to_string(),
        size: file.size,
        mode: file.mode,
        uid: prepared.map_or(0, |prepared| prepared.user.uid),
        gid: prepared.map_or(0, |prepared| prepared.gid_of(file)),
        mount_point: mount.map(|mount| mount.target.display().to_string()).unwrap_or_default(),
        mount_kind: kind.into(),
        mount_options: options.to_owned(),
        public: file.public,
    };
    facts.plan.files.iter().zip(mounts).map(one).collect()
}

pub(crate) fn mount_kind(kind: VolumeKind) -> v1::MountKind {
    match kind {
        VolumeKind::TmpfsNoswap => v1::MountKind::TmpfsNoswap,
        VolumeKind::Ramfs => v1::MountKind::Ramfs,
    }
}

fn processes(facts: &ContainerStatus) -> Vec<v1::Process> {
    if facts.plan.actions.is_none() {
        return vec![main_process(facts)];
    }
    let started = facts.steps.iter().filter(|step| step.kind == "run" && (step.pid != 0 || step.exit.is_some()));
    let process = |step: &StepRecord| v1::Process {
        id: step.path.clone(),
        pid: u32::try_from(step.pid).unwrap_or(0),
        started_at: step.started_at.map(timestamp),
        finished_at: step.finished_at.map(timestamp),
    };
    started.map(process).collect()
}

fn main_process(facts: &ContainerStatus) -> v1::Process {
    let lives = facts.started_at.is_some() && facts.state < State::Wiping;
    let pid = facts.prepared.as_ref().filter(|_| lives).map_or(0, |prepared| prepared.init.pid);
    v1::Process {
        id: MAIN_PROCESS.to_owned(),
        pid: u32::try_from(pid).unwrap_or(0),
        started_at: facts.started_at.map(timestamp),
        finished_at: facts.process_finished_at().map(timestamp),
    }
}

fn result(end: &ContainerResult) -> v1::Result {
    v1::Result {
        exit: end.exit.map(exit_status),
        oom_killed: end.oom_killed,
        stopped: end.stopped,
        failure: end.failure.as_ref().map(|failure| v1::Failure {
            kind: match failure.kind {
                FailureKind::Exec => v1::failure::Kind::Exec,
                FailureKind::Prepare => v1::failure::Kind::Prepare,
                FailureKind::SupervisorLost => v1::failure::Kind::SupervisorLost,
                FailureKind::HostStopped => v1::failure::Kind::HostStopped,
                FailureKind::Action => v1::failure::Kind::Action,
                FailureKind::Unhealthy => v1::failure::Kind::Unhealthy,
                FailureKind::NotStarted => v1::failure::Kind::NotStarted,
                FailureKind::TargetEnded => v1::failure::Kind::TargetEnded,
            }
            .into(),
            message: failure.message.clone(),
            errno: failure.errno,
        }),
        timings: Some(v1::Timings {
            prepare: Some(duration(end.timings.prepare)),
            start: Some(duration(end.timings.start)),
            run: Some(duration(end.timings.run)),
            finish: Some(duration(end.timings.finish)),
        }),
        wipe: end.wipe.as_ref().map(wipe_receipt),
        outputs: end.outputs.as_ref().map(|outputs| v1::OutputsSummary {
            files: outputs.files,
            bytes: outputs.bytes,
            skipped: outputs.skipped,
            failure: outputs.failure.clone().unwrap_or_default(),
        }),
        output_incomplete: end.output_incomplete,
        usage: end.usage.as_ref().map(usage::message),
        termination_message: end.termination_message.clone(),
    }
}

fn exit_status(exit: Exit) -> v1::ExitStatus {
    use v1::exit_status::Status;
    let status = match exit {
        Exit::Code(code) => Status::Code(code),
        Exit::Signal(signal) => Status::Signal(signal),
    };
    v1::ExitStatus { status: Some(status) }
}

fn wipe_receipt(wipe: &WipeRecord) -> v1::WipeReceipt {
    v1::WipeReceipt {
        files: wipe.files,
        bytes: wipe.bytes,
        method: WIPE_METHOD.to_owned(),
        finished_at: Some(timestamp(wipe.at)),
        verified: wipe.verified,
        wiped_by: wipe.by.clone(),
    }
}

/// Converts a step to its API message, with the step's process or transfer from the plan.
fn step(step: &StepRecord, plan: Option<&Plan>) -> v1::Step {
    use v1::step::State;
    let process = plan.and_then(|plan| plan.processes.iter().find(|process| process.id == step.path));
    let files = process.map_or(&[][..], |process| &process.files);
    let transfer = plan.and_then(|plan| plan.transfers.iter().find(|transfer| transfer.id == step.path));
    v1::Step {
        path: step.path.clone(),
        kind: step.kind.clone(),
        state: match step.state {
            StepState::Pending => State::Pending,
            StepState::Running => State::Running,
            StepState::Succeeded => State::Succeeded,
            StepState::Failed => State::Failed,
            StepState::Cancelled => State::Cancelled,
            StepState::Lost => State::Lost,
        }
        .into(),
        log_source: step.log_source.clone(),
        exit: step.exit.map(exit_status),
        error: step.error.clone().unwrap_or_default(),
        started_at: step.started_at.map(timestamp),
        finished_at: step.finished_at.map(timestamp),
        wipe: step.wipe.as_ref().map(wipe_receipt),
        pid: u32::try_from(step.pid).unwrap_or(0),
        program: process.map(|process| process.path.clone()).unwrap_or_default(),
        files: files.iter().map(|file| file.path.display().to_string()).collect(),
        artifact: transfer.map(|transfer| transfer.artifact.clone()).unwrap_or_default(),
        container_path: transfer.map(|transfer| transfer.path.clone()).unwrap_or_default(),
        transferred_bytes: step.bytes.unwrap_or(0),
    }
}

/// Converts a container's counters to their API message.
pub(crate) fn stats(facts: &ContainerStatus, counted: Option<&Usage>) -> v1::ContainerStats {
    v1::ContainerStats {
        id: facts.plan.id.to_string(),
        state: state(facts.state).into(),
        usage: counted.map(usage::message),
        limits: Some(limits(&facts.plan)),
        ready: (facts.plan.checks.is_some() && facts.state == State::Running).then(|| facts.is_ready()),
    }
}

pub(crate) fn event(event: &Event) -> v1::Event {
    use v1::event::Kind;
    v1::Event {
        cursor: event.cursor,
        time: Some(timestamp(event.time)),
        container_id: event.container.to_string(),
        kind: match event.kind {
            EventKind::Reached(State::Reserved) => Kind::Reserved,
            EventKind::Reached(State::Initializing) => Kind::Initializing,
            EventKind::Reached(State::Created) => Kind::Created,
            EventKind::Reached(State::Running) => Kind::Running,
            EventKind::Reached(State::Stopping) => Kind::Stopping,
            EventKind::Reached(State::Wiping) => Kind::Wiping,
            EventKind::Reached(State::Completed) => Kind::Completed,
            EventKind::Deleted => Kind::Deleted,
            EventKind::FilesUpdated(_) => Kind::FilesUpdated,
            EventKind::StepStarted => Kind::StepStarted,
            EventKind::StepEnded => Kind::StepEnded,
            EventKind::EgressUpdated(_) => Kind::EgressUpdated,
            EventKind::LimitsUpdated(_) => Kind::LimitsUpdated,
            EventKind::Paused => Kind::Paused,
            EventKind::Resumed => Kind::Resumed,
            EventKind::Ready => Kind::Ready,
            EventKind::NotReady => Kind::NotReady,
            EventKind::Unhealthy => Kind::Unhealthy,
            EventKind::Restarting => Kind::Restarting,
            EventKind::SecretsStale => Kind::SecretsStale,
            EventKind::SecretsFresh => Kind::SecretsFresh,
            EventKind::IdentityReplaced => Kind::IdentityReplaced,
            EventKind::IdentityNotReplaced => Kind::IdentityNotReplaced,
            EventKind::PodReady => Kind::PodReady,
            EventKind::PodEnded => Kind::PodEnded,
            EventKind::PodDeleted => Kind::PodDeleted,
            EventKind::ReservationMade => Kind::ReservationMade,
            EventKind::ReservationExpired => Kind::ReservationExpired,
            EventKind::ReservationReleased => Kind::ReservationReleased,
            EventKind::Quarantined(_) => Kind::Quarantined,
            EventKind::QuarantineEnded(_) => Kind::QuarantineEnded,
        }
        .into(),
        result: event.end.as_deref().map(result),
        files_generation: if let EventKind::FilesUpdated(generation) = event.kind { generation } else { 0 },
        step: event.step.as_deref().map(|one| step(one, None)),
        egress_generation: if let EventKind::EgressUpdated(generation) = event.kind { generation } else { 0 },
        limits_generation: if let EventKind::LimitsUpdated(generation) = event.kind { generation } else { 0 },
        restart: event.restarts.as_deref().map(restarts::status),
        quarantine_phase: match event.kind {
            EventKind::Quarantined(phase) | EventKind::QuarantineEnded(phase) => phase_message(phase),
            _ => v1::quarantine::Phase::Unspecified,
        }
        .into(),
    }
}

/// Converts a gap in a log to its API message: the output between two positions is missing.
pub(crate) fn log_gap(
    from: LogPosition,
    to: LogPosition,
    missing: Missing,
    log_bytes_max: u64,
) -> v1::StreamLogsResponse {
    let gap = v1::LogGap {
        dropped_bytes: to.bytes.saturating_sub(from.bytes),
        dropped_entries: to.entries.saturating_sub(from.entries),
        log_bytes_max,
        above_limits: missing == Missing::AboveLimits,
    };
    v1::StreamLogsResponse { gap: Some(gap), offset: from.bytes, ..v1::StreamLogsResponse::default() }
}

/// Converts a log entry to its API message; `before` is the position of the log before the entry.
pub(crate) fn log_entry(entry: &Entry<'_>, before: LogPosition) -> v1::StreamLogsResponse {
    let mut data = Vec::with_capacity(entry.content.len() + 1);
    data.extend_from_slice(entry.content);
    if entry.complete {
        data.push(b'\n');
    }
    v1::StreamLogsResponse {
        time: Some(timestamp(entry.time)),
        stream: match entry.stream {
            Stream::Stdout => v1::LogStream::Stdout,
            Stream::Stderr => v1::LogStream::Stderr,
            Stream::Executor => v1::LogStream::Executor,
        }
        .into(),
        data,
        log_source: entry.source.to_owned(),
        gap: None,
        offset: before.bytes,
        sequence: before.entries + 1,
        log_tags: HashMap::new(),
    }
}

pub(crate) fn state(state: State) -> v1::State {
    match state {
        State::Reserved => v1::State::Reserved,
        State::Initializing => v1::State::Initializing,
        State::Created => v1::State::Created,
        State::Running => v1::State::Running,
        State::Stopping => v1::State::Stopping,
        State::Wiping => v1::State::Wiping,
        State::Completed => v1::State::Completed,
    }
}

pub(crate) fn capacity(amount: Amount) -> v1::Capacity {
    v1::Capacity {
        memory_bytes: amount.memory_bytes,
        pids: amount.pids,
        containers: amount.containers,
        disk_bytes: amount.disk_bytes,
    }
}

pub(crate) fn timestamp(time: Timestamp) -> prost_types::Timestamp {
    let (seconds, nanos) = (time.0 / 1_000_000_000, time.0 % 1_000_000_000);
    prost_types::Timestamp { seconds: seconds.cast_signed(), nanos: i32::try_from(nanos).unwrap_or(0) }
}

fn duration(duration: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: duration.subsec_nanos().cast_signed(),
    }
}
