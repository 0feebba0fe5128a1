//! Formats the output of `inspect` for people, in sections with aligned lines. Secret files have only paths and modes,
//! because the API provides neither values nor digests.

mod checks;
mod identity;
mod isolation;
mod network;
mod sources;

use std::collections::BTreeMap;
use std::time::SystemTime;

use executor_cli_kit::exit::Outcome;
use executor_cli_kit::signals;
use executor_cli_kit::text::plain;
use executor_cli_kit::view::quantity::{age, bytes, time, wire_span};
use executor_cli_kit::view::style::{Role, Style};
use executor_cli_kit::view::table::Table;
use executor_client::v1::restart_policy::Mode;
use executor_client::v1::{
    self, Container, ContainerSpec, MountKind, Redaction, Result as Ending, SecretFile, WipeReceipt,
};

use super::human::{self, ending};
use super::stats::seconds;
use super::steps;

/// Number of ids of a user namespace.
const ID_RANGE: u32 = 65_536;

pub(crate) fn container(container: &Container, now: SystemTime, style: Style) -> String {
    let spec = container.spec.clone().unwrap_or_default();
    let mut text = style.paint(Role::Heading, &plain(&container.id));
    text.push_str("  ");
    style.paint_onto(&mut text, Role::from_state(container.state()), &human::state_with_health(container, now));
    text.push('\n');
    text.push_str(&program(container, &spec, now).render(style));
    section(&mut text, style, "LIMITS", &limits(&spec).render(style));
    let isolation = isolation::table(&spec);
    if !isolation.is_empty() {
        section(&mut text, style, "ISOLATION", &isolation.render(style));
    }
    if !spec.warnings.is_empty() {
        let mut warnings = Table::bare(2);
        for warning in &spec.warnings {
            warnings.row([(warning.clone(), Role::Attention)]);
        }
        section(&mut text, style, "WARNINGS", &warnings.render(style));
    }
    let checks = checks::table(container, now);
    if !checks.is_empty() {
        section(&mut text, style, "CHECKS", &checks.render(style));
    }
    if !container.files.is_empty() {
        section(&mut text, style, "SECRET FILES", &files(&container.files).render(style));
    }
    if !container.secret_sources.is_empty() {
        section(
            &mut text,
            style,
            "SECRETS BY REFERENCE",
            &sources::table(&container.secret_sources, now).render(style),
        );
    }
    if let Some(one) = &container.identity {
        section(&mut text, style, "IDENTITY", &identity::table(one, now).render(style));
    }
    if !container.steps.is_empty() {
        section(&mut text, style, "STEPS", &steps::table(&container.steps, now).render(style));
    }
    if let Some(result) = &container.result {
        section(&mut text, style, "RESULT", &result_of(container, result).render(style));
        if let Some(wipe) = &result.wipe {
            section(&mut text, style, "WIPE RECEIPT", &receipt(wipe).render(style));
        }
    }
    text
}

fn section(text: &mut String, style: Style, title: &str, body: &str) {
    text.push('\n');
    style.paint_onto(text, Role::Heading, title);
    text.push('\n');
    text.push_str(body);
}

fn program(container: &Container, spec: &ContainerSpec, now: SystemTime) -> Table {
    let mut table = Table::bare(2);
    let arguments = match spec.argument_count {
        0 => String::new(),
        1 => " with 1 argument".into(),
        count => format!(" with {count} arguments"),
    };
    // The command is shown only if there is a single program, restarted or not.
    if container.steps.is_empty() || !spec.path.is_empty() {
        table.pair("command", format!("{}{arguments}", spec.path));
    }
    if let Some(quarantine) = &container.quarantine {
        let since = quarantine.since.as_ref();
        let text = format!(
            "stuck in phase {} since {} ({} ago)",
            human::phase(quarantine.phase),
            time(since),
            age(since, now)
        );
        table.row([("quarantine".into(), Role::Faint), (text, Role::Bad)]);
    }
    table.pair("rootfs", spec.rootfs.clone());
    if let Some(image) = &container.image {
        table.pair("image", image.digest.clone());
    }
    table.pair("directory", if spec.dir.is_empty() { "/" } else { &spec.dir });
    let asked = if spec.user.is_empty() { "root" } else { &spec.user };
    let user = match (spec.uid, spec.gid) {
        (Some(uid), Some(gid)) => format!("{asked} (uid {uid}, gid {gid})"),
        _ => asked.to_owned(),
    };
    table.pair("user", user);
    if !spec.extra_groups.is_empty() {
        table.pair("added groups", spec.extra_groups.join(", "));
    }
    if spec.strict_groups {
        table.pair("groups of /etc/group", "not added");
    } else if spec.merge_groups {
        table.pair("groups of /etc/group", "added");
    }
    if let Some(last) = container.id_range_start.checked_add(ID_RANGE - 1).filter(|_| container.id_range_start != 0) {
        table.pair("ids on the host", format!("{} to {last}", container.id_range_start));
    }
    if !spec.pod.is_empty() {
        table.pair("pod", spec.pod.clone());
    }
    if spec.keep_until_deleted {
        table.pair("kept", "until it is deleted");
    }
    table.pair("network", network::kind(container, spec));
    network::pairs(&mut table, container, spec);
    let names = spec.environment_names.join(", ");
    table.pair("environment", if names.is_empty() { "-".into() } else { names });
    secrets(&mut table, spec);
    let mut labels = spec.labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>();
    labels.sort_unstable();
    table.pair("labels", if labels.is_empty() { "-".into() } else { labels.join(", ") });
    if !spec.log_source.is_empty() {
        table.pair("log source", spec.log_source.clone());
    }
    logging(&mut table, spec);
    if spec.suppress_log_output {
        table.pair("output", "is not kept");
    }
    if let Some(message) = &spec.termination_message {
        table.pair("termination message", format!("{} (at most {})", message.path, bytes(message.bytes_max.into())));
    }
    if let Some(outputs) = &spec.outputs {
        let of =
            if outputs.directory.is_empty() { outputs.files.join(", ") } else { format!("{}/", outputs.directory) };
        table.pair("outputs", format!("{of} (at most {})", bytes(outputs.bytes_max)));
    }
    if container.shim_pid != 0 {
        table.pair("shim", format!("pid {}", container.shim_pid));
    }
    for process in container.processes.iter().filter(|process| process.pid != 0) {
        table.pair(&format!("process {}", process.id), format!("pid {}", process.pid));
    }
    let ago = |at| format!("{} ({} ago)", time(at), age(at, now));
    table.pair("created", ago(container.created_at.as_ref()));
    for (name, at) in [("started", &container.started_at), ("finished", &container.finished_at)] {
        if at.is_some() {
            table.pair(name, ago(at.as_ref()));
        }
    }
    restarts(&mut table, container, spec, now);
    if container.files_generation > 0 {
        let replaced = container.files_updated_at.as_ref();
        let when = replaced.map_or_else(|| "never replaced".into(), |at| format!("replaced {}", ago(Some(at))));
        table.pair("files", format!("generation {}, {when}", container.files_generation));
    }
    table
}

/// Adds the restart policy and the state of the restarts, if the container has a policy.
fn restarts(table: &mut Table, container: &Container, spec: &ContainerSpec, now: SystemTime) {
    let Some(policy) = &spec.restart_policy else { return };
    let name = match (policy.mode(), policy.max_retries) {
        (Mode::Always, _) => "always".to_owned(),
        (Mode::OnFailure, 0) => "on failure".to_owned(),
        (Mode::OnFailure, 1) => "on failure, once".to_owned(),
        (Mode::OnFailure, most) => format!("on failure, {most} times"),
        (Mode::No, _) => "no".to_owned(),
    };
    let delays = [policy.min_delay, policy.max_delay].map(|delay| delay.map_or_else(|| "-".into(), wire_span));
    table.pair("restart policy", format!("{name}, after {} to {}", delays[0], delays[1]));
    let Some(status) = &container.restart else { return };
    let next = status.next_start_at.as_ref().map(|at| format!(", next at {}", time(Some(at))));
    table.pair("restarts", format!("{}{}", status.count, next.unwrap_or_default()));
    if status.last_finished_at.is_some() {
        let (finished, reason) = (status.last_finished_at.as_ref(), &status.last_reason);
        table.pair("last exit", format!("{reason}, {} ({} ago)", time(finished), age(finished, now)));
    }
}

/// Adds the log limits, log tags and log file, if there are any.
fn logging(table: &mut Table, spec: &ContainerSpec) {
    let limits = spec.log_limits.unwrap_or_default();
    let limit = |limit: Option<i64>| limit.and_then(|limit| u64::try_from(limit).ok());
    let rate = limit(limits.bytes_per_second).map(|rate| format!("{} per second", bytes(rate)));
    let lines = limit(limits.lines_per_second).map(|lines| format!("{lines} lines per second"));
    let limits: Vec<String> = rate.into_iter().chain(lines).collect();
    if !limits.is_empty() {
        table.pair("log limits", limits.join(", "));
    }
    if !spec.log_tags.is_empty() {
        let mut tags = spec.log_tags.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>();
        tags.sort_unstable();
        table.pair("log tags", tags.join(", "));
    }
    if !spec.log_file.is_empty() {
        table.pair("log file", &*spec.log_file);
    }
}

/// Adds secret inputs that are not files, and the handling of secrets, if there are any.
fn secrets(table: &mut Table, spec: &ContainerSpec) {
    if !spec.secret_environment_names.is_empty() {
        table.pair("secret environment", spec.secret_environment_names.join(", "));
    }
    if !spec.secret_argument_indices.is_empty() {
        let indices: Vec<String> = spec.secret_argument_indices.iter().map(u32::to_string).collect();
        table.pair("secret arguments", format!("{} (counted from 0)", indices.join(", ")));
    }
    if spec.keep_environment {
        table.pair("environment kept", "until the container ends");
    }
    if !spec.runtime_token_path.is_empty() {
        table.pair("runtime token", spec.runtime_token_path.clone());
    }
    if let Some(writable) = &spec.writable_files {
        table.pair(
            "secret files",
            format!("writable, at most {} in addition to the files of the request", bytes(writable.bytes_max)),
        );
    }
    match spec.redaction() {
        Redaction::Auto => {}
        Redaction::All => table.pair("masked", "secrets of 4 bytes or more"),
        Redaction::None => table.pair("masked", "nothing"),
    }
}

fn limits(spec: &ContainerSpec) -> Table {
    let limits = spec.limits.clone().unwrap_or_default();
    let or_none = |value: u64, text: String| if value == 0 { "none".to_owned() } else { text };
    let mut table = Table::bare(2);
    table.pair("memory", or_none(limits.memory_bytes, bytes(limits.memory_bytes)));
    match limits.swap_bytes {
        None => {}
        Some(-1) => table.pair("swap", "no limit"),
        Some(0) => table.pair("swap", "none"),
        Some(swap) => table.pair("swap", format!("{} in addition to memory", bytes(swap.unsigned_abs()))),
    }
    if limits.memory_reservation_bytes != 0 {
        table.pair("memory, reserved", bytes(limits.memory_reservation_bytes));
    }
    table.pair("processes", or_none(limits.pids, limits.pids.to_string()));
    table.pair("processors", or_none(limits.cpu_millis, thousandths(limits.cpu_millis)));
    if limits.cpu_quota_us > 0 {
        let period = if limits.cpu_period_us == 0 { 100_000 } else { limits.cpu_period_us };
        table.pair("CPU quota", format!("{} of {period} µs", limits.cpu_quota_us));
    }
    table.pair("open files", or_none(spec.nofile, spec.nofile.to_string()));
    table.pair("disk", or_none(limits.disk_bytes, bytes(limits.disk_bytes)));
    for (name, list) in [("cpuset, processors", &limits.cpuset_cpus), ("cpuset, memory nodes", &limits.cpuset_mems)] {
        if !list.is_empty() {
            table.pair(name, &**list);
        }
    }
    let weights =
        [("CPU weight", limits.cpu_weight), ("CPU shares", limits.cpu_shares), ("disk weight", limits.io_weight)];
    for (name, weight) in weights {
        if weight != 0 {
            table.pair(name, weight.to_string());
        }
    }
    let pages: BTreeMap<_, _> = limits.hugepage_bytes.iter().collect();
    pages.into_iter().for_each(|(size, most)| table.pair("huge pages", format!("{size}: {}", bytes(*most))));
    let files: BTreeMap<_, _> = limits.unified.iter().collect();
    files.into_iter().for_each(|(file, value)| table.pair("cgroup file", format!("{file} {value}")));
    if !spec.cgroup_parent.is_empty() {
        table.pair("cgroup parent", &*spec.cgroup_parent);
    }
    for v1::Ulimit { name, soft, hard } in &spec.ulimits {
        let limit = |limit: i64| if limit == -1 { "none".to_owned() } else { limit.to_string() };
        table.pair("ulimit", format!("{name} soft {}, hard {}", limit(*soft), limit(*hard)));
    }
    if let Some(score) = spec.oom_score_adj {
        table.pair("out-of-memory score", format!("{score:+}"));
    }
    table.pair("grace period", spec.grace_period.map_or_else(|| "-".into(), wire_span));
    table
}

/// Formats thousandths: `0.5` for 500, `2` for 2000.
fn thousandths(millis: u64) -> String {
    let text = format!("{}.{:03}", millis / 1000, millis % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn files(files: &[SecretFile]) -> Table {
    let mut table = Table::with_heading(2, &["PATH", "SIZE", "MODE", "OWNER", "MOUNTED AT", "ON", "OPTIONS"]);
    for file in files {
        let kind = match file.mount_kind() {
            MountKind::TmpfsNoswap => "tmpfs, never swapped",
            MountKind::Ramfs => "ramfs, never swapped",
            MountKind::Unspecified => "-",
        };
        let cells = [
            file.path.clone(),
            bytes(file.size),
            format!("{:04o}", file.mode),
            format!("{}:{}", file.uid, file.gid),
            file.mount_point.clone(),
            kind.to_owned(),
            format!("{}{}", file.mount_options, if file.public { " (public)" } else { "" }),
        ];
        table.row(cells.map(|text| (text, Role::Plain)));
    }
    table
}

fn result_of(container: &Container, result: &Ending) -> Table {
    let outcome = Outcome::new(Some(result));
    let mut table = Table::bare(2);
    let how = match outcome {
        Outcome::Exited(code) => format!("exited with {code}"),
        Outcome::Signaled(signal) => format!("killed by {} ({signal})", signals::name(signal)),
        _ => ending(container),
    };
    table.row([("result".into(), Role::Faint), (how, Role::from_outcome(outcome))]);
    if result.oom_killed {
        table.row([
            ("memory".into(), Role::Faint),
            ("limit reached: the kernel killed a process (OOM)".into(), Role::Bad),
        ]);
    }
    if result.stopped {
        table.pair("stopped", "a stop was requested");
    }
    if let Some(failure) = &result.failure {
        table.row([("failure".into(), Role::Faint), (failure.message.clone(), Role::Bad)]);
    }
    for line in result.termination_message.lines() {
        table.pair("message", line);
    }
    if result.output_incomplete {
        table.row([("log".into(), Role::Faint), (human::OUTPUT_INCOMPLETE.into(), Role::Bad)]);
    }
    if let Some(outputs) = &result.outputs {
        let role = if outputs.failure.is_empty() { Role::Plain } else { Role::Bad };
        table.row([("outputs".into(), Role::Faint), (human::outputs(outputs), role)]);
    }
    if let Some(usage) = &result.usage {
        if let Some(cpu) = usage.cpu {
            table.pair("processor time", seconds(cpu.total_ns));
        }
        if let Some(most) = usage.memory.and_then(|memory| memory.max_bytes) {
            table.pair("most memory", bytes(most));
        }
    }
    if let Some(timings) = &result.timings {
        for (name, duration) in [
            ("time to prepare", timings.prepare),
            ("time to start", timings.start),
            ("time it ran", timings.run),
            ("time to finish", timings.finish),
        ] {
            if let Some(duration) = duration {
                table.pair(name, wire_span(duration));
            }
        }
    }
    table
}

fn receipt(wipe: &WipeReceipt) -> Table {
    let mut table = Table::bare(2);
    let files = if wipe.files == 1 { "1 file".to_owned() } else { format!("{} files", wipe.files) };
    table.pair("wiped", format!("{files}, {}", bytes(wipe.bytes)));
    table.pair("how", wipe.method.clone());
    let verified =
        if wipe.verified { ("every byte was read back as zero", Role::Good) } else { ("NOT verified", Role::Bad) };
    table.row([("verified".into(), Role::Faint), (verified.0.into(), verified.1)]);
    table.pair("by", wipe.wiped_by.clone());
    table.pair("at", time(wipe.finished_at.as_ref()));
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use executor_client::v1::{ExitStatus, Limits, Outputs, OutputsSummary, State, Timings, exit_status};
    use prost_types::{Duration, Timestamp};

    #[test]
    fn a_completed_container() {
        let at = |seconds| Some(Timestamp { seconds, nanos: 0 });
        let shown = Container {
            id: "web-1".into(),
            state: State::Completed.into(),
            spec: Some(ContainerSpec {
                rootfs: "host".into(),
                path: "/bin/sh".into(),
                argument_count: 2,
                environment_names: vec!["PATH".into(), "TOKEN".into()],
                user: "vcap".into(),
                uid: Some(1000),
                gid: Some(1000),
                limits: Some(Limits { memory_bytes: 64 << 20, pids: 20, cpu_millis: 1250, ..Limits::default() }),
                nofile: 1024,
                grace_period: Some(Duration { seconds: 10, nanos: 0 }),
                outputs: Some(Outputs { directory: "/srv".into(), bytes_max: 64 << 20, ..Outputs::default() }),
                secret_environment_names: vec!["PW".into()],
                secret_argument_indices: vec![0, 1],
                redaction: Redaction::All.into(),
                runtime_token_path: "/etc/cf-service-bindings/token".into(),
                warnings: vec!["nofile was clamped to 1024".into()],
                ..ContainerSpec::default()
            }),
            files: vec![SecretFile {
                path: "/etc/cf-service-bindings/db/password".into(),
                size: 12,
                mode: 0o600,
                uid: 1000,
                gid: 1000,
                mount_point: "/etc/cf-service-bindings".into(),
                mount_kind: MountKind::TmpfsNoswap.into(),
                mount_options: "ro,nosuid,nodev,noexec".into(),
                public: true,
            }],
            files_generation: 3,
            files_updated_at: at(11),
            created_at: at(10),
            started_at: at(11),
            finished_at: at(12),
            result: Some(Ending {
                exit: Some(ExitStatus { status: Some(exit_status::Status::Code(3)) }),
                outputs: Some(OutputsSummary { files: 1, bytes: 2048, skipped: 2, failure: String::new() }),
                timings: Some(Timings { run: Some(Duration { seconds: 1, nanos: 0 }), ..Timings::default() }),
                wipe: Some(WipeReceipt {
                    files: 1,
                    bytes: 12,
                    method: "overwritten in place, read back, punched, unlinked".into(),
                    finished_at: at(12),
                    verified: true,
                    wiped_by: "shim".into(),
                }),
                ..Ending::default()
            }),
            ..Container::default()
        };
        let now = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(72);
        let expected = "\
web-1  completed
  command              /bin/sh with 2 arguments
  rootfs               host
  directory            /
  user                 vcap (uid 1000, gid 1000)
  network              none
  environment          PATH, TOKEN
  secret environment   PW
  secret arguments     0, 1 (counted from 0)
  runtime token        /etc/cf-service-bindings/token
  masked               secrets of 4 bytes or more
  labels               -
  outputs              /srv/ (at most 64 MiB)
  created              1970-01-01T00:00:10.000Z (1m ago)
  started              1970-01-01T00:00:11.000Z (1m ago)
  finished             1970-01-01T00:00:12.000Z (1m ago)
  files                generation 3, replaced 1970-01-01T00:00:11.000Z (1m ago)

LIMITS
  memory         64 MiB
  processes      20
  processors     1.25
  open files     1024
  disk           none
  grace period   10 s

WARNINGS
  nofile was clamped to 1024

SECRET FILES
  PATH                                   SIZE       MODE   OWNER       MOUNTED AT                 ON                     OPTIONS
  /etc/cf-service-bindings/db/password   12 bytes   0600   1000:1000   /etc/cf-service-bindings   tmpfs, never swapped   ro,nosuid,nodev,noexec (public)

RESULT
  result        exited with 3
  outputs       1 file, 2 KiB; 2 not captured
  time it ran   1 s

WIPE RECEIPT
  wiped      1 file, 12 bytes
  how        overwritten in place, read back, punched, unlinked
  verified   every byte was read back as zero
  by         shim
  at         1970-01-01T00:00:12.000Z
";
        assert_eq!(container(&shown, now, Style::PLAIN), expected);
    }
}
