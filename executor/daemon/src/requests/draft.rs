//! Creates drafts of requests, the input of validation. Drafts borrow from the message, so that no secret is copied.

mod actions;
mod checks;
mod connectivity;
mod egress;
mod host_options;
mod monitor;
mod pods;
mod volumes;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;
use std::time::Duration;

use executor_core::ident::BadContainerId;
use executor_core::limits::GRACE_MAX;
use executor_core::plan::{
    ExtraHost, IdMapping, Isolation, Network, Redaction, Surroundings, TMPFS_MODE_DEFAULT, TerminationMessage, Tmpfs,
    UserNamespace,
};
use executor_core::validate::ViolationReason::{InvalidFormat, OutOfRange, TooLong, UnknownValue};
use executor_core::validate::{Draft, DraftFile, DraftLogging, DraftOutputs, Unlimited, Violation};
use executor_proto::v1::{self, EnvironmentVariable, File, Outputs, RunAction, RunRequest};

/// Maximum length of a nonce, in bytes.
const NONCE_MAX: usize = 128;

/// Empty run action for the draft of an action tree, whose processes have their own fields.
static NO_RUN: LazyLock<RunAction> = LazyLock::new(RunAction::default);

pub(crate) use monitor::rename as rename_monitor;

pub(crate) use egress::{message as egress_message, rules as egress_rules};
pub(crate) use pods::{join, pod};

/// Creates the draft of a request. Also returns the violations of fields that cannot be converted, so that they are
/// reported together with the violations that validation finds.
pub(crate) fn from_request(request: &RunRequest) -> (Draft<'_>, Vec<Violation>) {
    let mut violations = Vec::new();
    // The fields of a single run action are copied to the draft itself. The action becomes a tree only if the request
    // has a restart policy.
    let single = request.single_run();
    let (tree, steps, transfers) = match single {
        Some(run) => {
            let tree = actions::from_single_run(request, run, &mut violations);
            tree.map(|(tree, steps)| (Some(tree), steps, Vec::new())).unwrap_or_default()
        }
        None => actions::from_request(request, &mut violations),
    };
    let is_missing = single.is_none() && tree.is_none();
    let run = single.unwrap_or(&NO_RUN);
    let (grace, network) = (duration("grace_period", request.grace_period.as_ref()), network(request.network));
    let redaction = redaction(request.redaction);
    violations.extend(grace.as_ref().err().cloned());
    violations.extend(network.as_ref().err().cloned());
    violations.extend(redaction.as_ref().err().cloned());
    let isolation = isolation(request, &mut violations);
    violations.extend(platform("platform", &request.platform).err());
    if request.nonce.len() > NONCE_MAX {
        let why = format!("is {} bytes; the maximum is {NONCE_MAX}", request.nonce.len());
        violations.push(Violation::new("nonce", TooLong.because(why)));
    }
    let connectivity = connectivity::from_request(request, &mut violations);
    let surroundings = surroundings(request, &mut violations);
    let volumes = volumes::from_request(request, &mut violations);
    let checks = request.checks.as_ref().map(|asked| checks::from_request(asked, &mut violations));
    let checks = match &request.monitor {
        Some(monitor) => Some(monitor::add(monitor, request.keep_environment, checks, &mut violations)),
        None => checks,
    };
    let limits = request.limits.clone().unwrap_or_default();
    let draft = Draft {
        id: &request.id,
        rootfs: &request.rootfs,
        // A missing action is reported as its own violation.
        path: if is_missing { "/" } else { &run.path },
        args: run.args.iter().map(String::as_str).collect(),
        dir: &run.dir,
        env: variables(&run.env),
        secret_env: variables(&run.secret_environment),
        secret_args: run.secret_arguments.iter().map(|argument| (argument.index, &*argument.value)).collect(),
        user: &run.user,
        nofile: run.resource_limits.as_ref().and_then(|limits| limits.nofile),
        memory_bytes: limits.memory_bytes,
        pids: limits.pids,
        cpu_millis: limits.cpu_millis,
        labels: request.labels.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        grace: grace.unwrap_or_default(),
        network: network.ok(),
        log_source: if run.log_source.is_empty() { &request.log_source } else { &run.log_source },
        suppress_log_output: run.suppress_log_output,
        files: files(request).map(|(field, of)| file(field, of)).collect(),
        file_directories: request.file_directories.iter().map(String::as_str).collect(),
        writable_files: request.writable_files.map(|asked| asked.bytes_max),
        token_path: &request.runtime_token_path,
        redaction: redaction.unwrap_or_default(),
        outputs: request.outputs.as_ref().map(outputs),
        image: None,
        disk_bytes: limits.disk_bytes,
        cpu_weight: limits.cpu_weight,
        io_weight: limits.io_weight,
        isolation,
        connectivity,
        surroundings,
        volumes,
        host_options: host_options::from_request(request, &limits),
        swap_bytes: limits.swap_bytes,
        memory_reservation_bytes: limits.memory_reservation_bytes,
        unlimited: Unlimited { memory: limits.unlimited_memory, pids: limits.unlimited_pids },
        cpu_period_us: limits.cpu_period_us,
        cpu_quota_us: limits.cpu_quota_us,
        cpu_shares: limits.cpu_shares,
        terminal: request.terminal,
        window: request.window.map_or((0, 0), |window| (window.rows, window.columns)),
        stdin: request.stdin,
        await_reader: request.await_reader,
        stop_signal: request.stop_signal,
        remove_when_completed: request.remove_when_completed,
        keep_until_deleted: request.keep_until_deleted,
        shared_env: variables(&request.environment),
        actions: tree,
        steps,
        transfers,
        logging: logging(request),
        checks,
        extra_groups: request.extra_groups.iter().map(String::as_str).collect(),
        strict_groups: request.strict_groups,
        merge_groups: request.merge_groups,
        keep_environment: request.keep_environment,
        hold: request.hold,
        termination_message: request.termination_message.as_ref().map(|asked| TerminationMessage {
            path: asked.path.clone().into(),
            bytes_max: asked.bytes_max,
            fallback_to_logs: asked.fallback_to_logs,
        }),
        pod: None,
    };
    (draft, violations)
}

/// Returns the log's limits, tags and file.
fn logging(request: &RunRequest) -> DraftLogging {
    let limits = request.log_limits.unwrap_or_default();
    DraftLogging {
        bytes_per_second: limits.bytes_per_second,
        lines_per_second: limits.lines_per_second,
        tags: request.log_tags.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        file: request.log_file.clone().into(),
    }
}

/// Returns tmpfs mounts, kernel settings and host names of a request.
fn surroundings(request: &RunRequest, violations: &mut Vec<Violation>) -> Surroundings {
    // A host without a valid address keeps its position, because violations refer to indices.
    let host = |(index, host): (usize, &v1::ExtraHost)| {
        let field = format!("extra_hosts[{index}].address");
        let address = connectivity::address(&field, &host.address, violations);
        ExtraHost { name: host.name.clone(), address: address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)) }
    };
    Surroundings {
        extra_hosts: request.extra_hosts.iter().enumerate().map(host).collect(),
        tmpfs: request.tmpfs.iter().map(tmpfs).collect(),
        shm_bytes: request.shm_bytes,
        init: request.init,
        sysctls: request.sysctls.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
    }
}

fn tmpfs(asked: &v1::Tmpfs) -> Tmpfs {
    Tmpfs {
        path: asked.path.clone().into(),
        bytes: asked.size_bytes,
        mode: asked.mode.unwrap_or(TMPFS_MODE_DEFAULT),
        uid: asked.uid,
        gid: asked.gid,
        exec: asked.exec,
    }
}

fn isolation(request: &RunRequest, violations: &mut Vec<Violation>) -> Isolation {
    let capabilities = request.capabilities.clone().unwrap_or_default();
    let user_namespace = match request.user_namespace {
        0 => UserNamespace::Own,
        1 => UserNamespace::Host,
        number => {
            let why = format!("is {number}; 0 (own) and 1 (host) are allowed");
            violations.push(Violation::new("user_namespace", UnknownValue.because(why)));
            UserNamespace::Own
        }
    };
    let pid_of = (!request.pid_of.is_empty()).then(|| request.pid_of.parse());
    let pid_of = pid_of.transpose().unwrap_or_else(|bad: BadContainerId| {
        violations.push(Violation::new("pid_of", InvalidFormat.because(bad.to_string())));
        None
    });
    Isolation {
        user_namespace,
        privileged: request.privileged,
        docker_socket: request.docker_socket,
        capabilities_added: capabilities.add,
        capabilities_dropped: capabilities.drop,
        read_only_rootfs: request.read_only_rootfs,
        seccomp_profile: request.seccomp_profile.clone(),
        host_pid: request.host_pid,
        host_ipc: request.host_ipc,
        pid_of,
        id_map: request.id_map.map(|v1::IdMapping { container_id, host_id, length }| IdMapping {
            container_id,
            host_id,
            length,
        }),
        allow_new_privileges: request.allow_new_privileges,
        seccomp_unconfined: request.seccomp_unconfined,
        masked_paths: request.masked_paths.as_ref().map(|list| list.paths.clone()),
        readonly_paths: request.readonly_paths.as_ref().map(|list| list.paths.clone()),
    }
}

pub(crate) fn variables(variables: &[EnvironmentVariable]) -> Vec<(&str, &[u8])> {
    variables.iter().map(|variable| (&*variable.name, variable.content())).collect()
}

pub(crate) fn file(field: String, file: &File) -> DraftFile<'_> {
    DraftFile {
        field,
        path: &file.path,
        size: file.content.len() as u64,
        public: file.public,
        mode: file.mode,
        group: file.group.as_deref(),
    }
}

fn outputs(outputs: &Outputs) -> DraftOutputs<'_> {
    DraftOutputs {
        files: outputs.files.iter().map(String::as_str).collect(),
        directory: &outputs.directory,
        bytes_max: outputs.bytes_max,
    }
}

fn redaction(number: i32) -> Result<Redaction, Violation> {
    match number {
        0 => Ok(Redaction::Auto),
        1 => Ok(Redaction::All),
        2 => Ok(Redaction::None),
        _ => {
            let why = format!("is {number}; 0 (auto), 1 (all) and 2 (none) are allowed");
            Err(Violation::new("redaction", UnknownValue.because(why)))
        }
    }
}

/// Returns every file of the container with the name of its field: first the files of a single run action, then the
/// files of the request.
pub(crate) fn files(request: &RunRequest) -> impl Iterator<Item = (String, &File)> {
    let action = request.single_run();
    let of_action = action.map_or(&[][..], |run| &run.volume_mounted_files).iter().enumerate();
    let own = request.volume_mounted_files.iter().enumerate();
    of_action
        .map(|(index, file)| (format!("action.run.volume_mounted_files[{index}]"), file))
        .chain(own.map(|(index, file)| (format!("volume_mounted_files[{index}]"), file)))
}

fn network(number: i32) -> Result<Network, Violation> {
    match number {
        0 => Ok(Network::None),
        1 => Ok(Network::Host),
        2 => Ok(Network::Cni),
        110 => Ok(Network::Path),
        _ => {
            let why = format!("is {number}; 0 (none), 1 (host), 2 (cni) and 110 (path) are allowed");
            Err(Violation::new("network", UnknownValue.because(why)))
        }
    }
}

/// Checks that an image's platform runs on this host.
pub(crate) fn platform(field: &str, text: &str) -> Result<(), Violation> {
    let (arch, variants): (&str, &[&str]) = match std::env::consts::ARCH {
        "x86_64" => ("amd64", &["v1"]),
        "aarch64" => ("arm64", &["v8"]),
        other => (other, &[]),
    };
    let word = text.to_ascii_lowercase();
    let parts: Vec<&str> = word.split('/').collect();
    let arch_of = |name: &str| match name {
        "x86_64" | "x86-64" => "amd64".to_owned(),
        "aarch64" => "arm64".to_owned(),
        name => name.to_owned(),
    };
    let runs = match &parts[..] {
        [""] | ["linux"] => true,
        [one] | ["linux", one] => arch_of(one) == arch,
        ["linux", one, variant] => arch_of(one) == arch && variants.contains(variant),
        _ => false,
    };
    if runs {
        return Ok(());
    }
    let shown: String = text.chars().filter(|c| c.is_ascii_graphic()).take(60).collect();
    Err(Violation::new(field, format!("`{shown}` does not run on this machine, which is linux/{arch}")))
}

/// Converts a protobuf duration, which can be negative or malformed.
pub(crate) fn duration(field: &str, duration: Option<&prost_types::Duration>) -> Result<Option<Duration>, Violation> {
    let Some(duration) = duration else { return Ok(None) };
    let (seconds, nanos) = (u64::try_from(duration.seconds), u32::try_from(duration.nanos));
    match (seconds, nanos) {
        (Ok(seconds), Ok(nanos)) if nanos < 1_000_000_000 => {
            let duration = Duration::new(seconds, nanos);
            if duration > GRACE_MAX {
                let (is, most) = (duration.as_secs(), GRACE_MAX.as_secs());
                return Err(Violation::new(
                    field,
                    OutOfRange.because(format!("is {is} s; at most {most} s are allowed")),
                ));
            }
            Ok(Some(duration))
        }
        _ => {
            let why = format!(
                "is {} s and {} ns; seconds must be 0 or more, nanoseconds 0 to 999999999",
                duration.seconds, duration.nanos
            );
            Err(Violation::new(field, OutOfRange.because(why)))
        }
    }
}

#[cfg(test)]
mod tests {
    use executor_proto::v1::{Action, SerialAction, TimeoutAction};

    use super::*;

    #[test]
    fn request_requires_exactly_one_action() {
        let first = |action: Option<Action>| {
            let request = RunRequest { action, ..Default::default() };
            let (_, violations) = from_request(&request);
            violations[0].clone()
        };
        assert_eq!((first(None).field.as_str(), first(Some(Action::default())).field.as_str()), ("action", "action"));
        let two = Action {
            timeout: Some(Box::new(TimeoutAction::default())),
            run: Some(RunAction::default()),
            serial: Some(SerialAction::default()),
            ..Default::default()
        };
        assert!(first(Some(two)).description.contains("run, timeout, serial"));
    }

    #[test]
    fn host_platforms_are_accepted() {
        let here = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
        let runs = |text: &str| platform("platform", text).is_ok();
        for text in ["", "linux", here, &format!("linux/{here}"), &format!("Linux/{}", std::env::consts::ARCH)] {
            assert!(runs(text), "{text}");
        }
        for text in
            ["windows", "windows/amd64", "linux/riscv64", "s390x", "linux/amd64/v4", "linux/386", "/", "a/b/c/d"]
        {
            assert!(!runs(text), "{text}");
        }
        let reported = platform("platform", "linux/s390x").unwrap_err();
        assert!(
            reported.description.contains("`linux/s390x` does not run on this machine, which is linux/"),
            "{reported}"
        );
    }

    #[test]
    fn numbers_of_the_wire_are_bounded() {
        let action = Some(Action { run: Some(RunAction::default()), ..Default::default() });
        for (seconds, nanos) in [(-1, 0), (0, -1), (0, 1_000_000_000), (604_801, 0), (i64::MAX, 0)] {
            let grace_period = Some(prost_types::Duration { seconds, nanos });
            let request =
                RunRequest { action: action.clone(), grace_period, network: 7, redaction: 3, ..Default::default() };
            let (_, violations) = from_request(&request);
            let fields: Vec<&str> = violations.iter().map(|violation| &*violation.field).collect();
            assert_eq!(fields, ["grace_period", "network", "redaction"], "{seconds} s {nanos} ns");
        }
    }

    #[test]
    fn files_keep_their_fields() {
        let file = |path: &str| File { path: path.into(), content: vec![1, 2], ..File::default() };
        let run = RunAction { volume_mounted_files: vec![file("a"), file("b")], ..Default::default() };
        let request = RunRequest {
            action: Some(Action { run: Some(run), ..Default::default() }),
            volume_mounted_files: vec![file("c")],
            ..Default::default()
        };
        let (draft, _) = from_request(&request);
        let fields: Vec<_> = draft.files.iter().map(|file| (&*file.field, file.path, file.size)).collect();
        let expected = [
            ("action.run.volume_mounted_files[0]", "a", 2),
            ("action.run.volume_mounted_files[1]", "b", 2),
            ("volume_mounted_files[0]", "c", 2),
        ];
        assert_eq!(fields, expected);
    }
}
