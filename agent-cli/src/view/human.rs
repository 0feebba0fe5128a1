//! Formats states and results of containers for people, and the tables of `ps`, `info` and `events`.

use std::time::SystemTime;

use executor_cli_kit::exit::Outcome;
use executor_cli_kit::signals;
use executor_cli_kit::text::plain;
use executor_cli_kit::view::quantity::{age, bytes, left, time, wire_span};
use executor_cli_kit::view::style::{Role, Style};
use executor_cli_kit::view::table::{Fit, Table};
use executor_client::v1::{
    self, Container, Event, InfoResponse, MountKind, Network, OutputsSummary, State, Step, event, exit_status, failure,
    step,
};

pub(crate) const OUTPUT_INCOMPLETE: &str = "the last output may be missing";

/// Placeholder for an empty value.
const NOTHING: &str = "-";

/// Formats the lifecycle phase that did not end in time, as one word.
pub(crate) fn phase(phase: i32) -> String {
    v1::quarantine::Phase::try_from(phase)
        .map_or_else(|_| format!("unknown_{phase}"), |phase| word(phase.as_str_name(), "PHASE_"))
}

/// Formats the health of an executord on one line.
pub(crate) fn health_line(health: &v1::Health) -> String {
    if health.healthy { "healthy".into() } else { plain(&format!("NOT healthy: {}", health.reasons.join("; "))) }
}

/// Converts an enum name of the API to a word: `STATE_RUNNING` with the prefix `STATE_` becomes `running`.
pub(crate) fn word(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_ascii_lowercase()
}

pub(crate) fn state(state: i32) -> String {
    State::try_from(state).map_or_else(|_| format!("unknown_{state}"), |state| word(state.as_str_name(), "STATE_"))
}

/// Formats a container's state, with details in parentheses: `running (not ready)`. The details are the expiry of a
/// reservation, a quarantine, a pause, a pending restart, or the health, stale secrets and an old certificate.
pub(crate) fn state_with_health(container: &Container, now: SystemTime) -> String {
    let state = state(container.state);
    if container.reservation_expires_at.is_some() {
        return format!("{state} (expires {})", left(container.reservation_expires_at.as_ref(), now));
    }
    if let Some(quarantine) = &container.quarantine {
        return format!("{state} (quarantine: {})", phase(quarantine.phase));
    }
    if container.paused {
        return format!("{state} (paused)");
    }
    if let Some(restart) = container.restart.as_ref().filter(|restart| restart.next_start_at.is_some()) {
        return format!("{state} (restart {} pending)", restart.count + 1);
    }
    let stale = container.state() == State::Running && container.secret_sources.iter().any(|source| source.stale);
    let has_old = container.identity.as_ref().is_some_and(|identity| !identity.problem.is_empty());
    let has_old = container.state() == State::Running && has_old;
    let words = health(container).into_iter().chain(stale.then_some("stale secrets"));
    let words: Vec<&str> = words.chain(has_old.then_some("old certificate")).collect();
    if words.is_empty() { state } else { format!("{state} ({})", words.join(", ")) }
}

/// Returns the health of a container: `ready`, `not ready` or `starting`. `None` if the container is not running or has
/// no checks.
pub(crate) fn health(container: &Container) -> Option<&'static str> {
    let checks = container.spec.as_ref()?.checks.as_ref()?;
    if container.state() != State::Running {
        return None;
    }
    let starts = !checks.startup.is_empty() || !checks.liveness.is_empty();
    Some(match (container.ready, container.startup_passed || !starts) {
        (true, _) => "ready",
        (false, true) => "not ready",
        (false, false) => "starting",
    })
}

pub(crate) fn network(network: i32) -> String {
    Network::try_from(network).map_or_else(|_| format!("unknown_{network}"), |n| word(n.as_str_name(), "NETWORK_"))
}

pub(crate) fn mount_kind(kind: i32) -> String {
    MountKind::try_from(kind).map_or_else(|_| format!("unknown_{kind}"), |kind| word(kind.as_str_name(), "MOUNT_KIND_"))
}

pub(crate) fn event_kind(kind: i32) -> String {
    event::Kind::try_from(kind).map_or_else(|_| format!("unknown_{kind}"), |kind| word(kind.as_str_name(), "KIND_"))
}

/// Formats a summary of outputs: `3 files, 12 KiB; 1 not captured`.
pub(crate) fn outputs(summary: &OutputsSummary) -> String {
    if !summary.failure.is_empty() {
        return format!("NOT captured: {}", summary.failure);
    }
    let files = if summary.files == 1 { "1 file".to_owned() } else { format!("{} files", summary.files) };
    let skipped = if summary.skipped == 0 { String::new() } else { format!("; {} not captured", summary.skipped) };
    format!("{files}, {}{skipped}", bytes(summary.bytes))
}

/// Formats the result of a container for a column: `0`, `SIGKILL (oom)`, `not found`.
pub(crate) fn ending(container: &Container) -> String {
    let Some(result) = &container.result else { return NOTHING.into() };
    let why = match result.failure.as_ref().map(|failure| failure.kind()) {
        _ if result.oom_killed => " (oom)",
        Some(failure::Kind::Unhealthy) => " (unhealthy)",
        Some(failure::Kind::TargetEnded) => " (target exited)",
        _ => "",
    };
    match Outcome::new(Some(result)) {
        Outcome::Exited(code) => format!("{code}{why}"),
        Outcome::Signaled(signal) => format!("{}{why}", signals::name(signal)),
        Outcome::NotExecuted(2) => "not found".into(),
        Outcome::NotExecuted(_) => "not executable".into(),
        Outcome::Failed(failure::Kind::Prepare) => "not prepared".into(),
        Outcome::Failed(failure::Kind::SupervisorLost) => "lost".into(),
        Outcome::Failed(failure::Kind::HostStopped) => "host stopped".into(),
        Outcome::Failed(failure::Kind::NotStarted) => "not started".into(),
        Outcome::Failed(_) => "failed".into(),
        Outcome::Unknown => "unknown".into(),
    }
}

/// Formats labels, sorted by name.
pub(crate) fn labels(labels: &std::collections::HashMap<String, String>) -> String {
    let mut sorted: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    sorted.sort_unstable();
    sorted.join(",")
}

/// Formats the published ports of a container like docker: `8080->80/tcp`.
pub(crate) fn ports(container: &Container) -> String {
    let ports = container.network_status.iter().flat_map(|on| &on.ports);
    ports.map(executor_cli_kit::network::leads_to).collect::<Vec<_>>().join(", ")
}

/// Formats the addresses of a container, without prefix lengths.
pub(crate) fn addresses(container: &Container) -> String {
    let addresses = container.network_status.iter().flat_map(|on| &on.addresses);
    let bare = |address: &String| address.split('/').next().unwrap_or_default().to_owned();
    addresses.map(bare).collect::<Vec<_>>().join(", ")
}

/// Returns the name of a container's network.
pub(crate) fn network_name(container: &Container) -> String {
    let Some(spec) = &container.spec else { return String::new() };
    match (&*spec.network_name, &container.network_status) {
        ("", Some(status)) => status.name.clone(),
        ("", None) => network(spec.network),
        (name, _) => name.to_owned(),
    }
}

/// Number of characters of a generated id that `ps` shows on a narrow terminal. Commands for containers accept a prefix
/// of an id.
const SHORT_ID: usize = 13;

/// Formats the table of `ps`. With `width`, lines are shortened to this many characters, if the length of the ids
/// allows it.
pub(crate) fn containers(containers: &[Container], now: SystemTime, style: Style, width: Option<usize>) -> String {
    let table = containers_table(containers, now, false);
    let Some(width) = width.filter(|width| table.width() > *width) else { return table.render(style) };
    let mut table = containers_table(containers, now, true);
    let of_pod = table.columns() > CONTAINER_FITS.len();
    let fits: Vec<Fit> = CONTAINER_FITS.into_iter().chain(of_pod.then_some(Fit::Drop(3))).collect();
    table.fit(width, &fits);
    table.render(style)
}

/// Fitting of each column of `ps` to a narrow terminal. Labels are dropped first; the state is always shown.
const CONTAINER_FITS: [Fit; 9] = [
    Fit::Whole,
    Fit::Cut,
    Fit::Drop(2),
    Fit::Drop(1),
    Fit::Whole,
    Fit::Drop(0),
    Fit::Drop(4),
    Fit::Drop(5),
    Fit::Drop(6),
];

fn containers_table(containers: &[Container], now: SystemTime, with_short_ids: bool) -> Table {
    let id = |id: &str| match uuid::Uuid::parse_str(id) {
        Ok(_) if with_short_ids => id.chars().take(SHORT_ID).collect(),
        _ => id.to_owned(),
    };
    let mut heading = vec!["ID", "STATE", "ROOTFS", "COMMAND", "AGE", "EXIT", "ADDRESS", "PORTS", "LABELS"];
    // Omit the column if no container is in a pod, to save space.
    let in_pods = containers.iter().filter_map(|one| one.spec.as_ref()).any(|spec| !spec.pod.is_empty());
    if in_pods {
        heading.push("POD");
    }
    let mut table = Table::with_heading(0, &heading);
    let or_nothing = |text: String| if text.is_empty() { NOTHING.to_owned() } else { text };
    for container in containers {
        let spec = container.spec.clone().unwrap_or_default();
        let exit_role = container.result.as_ref().map_or(Role::Faint, |r| Role::from_outcome(Outcome::new(Some(r))));
        let pod = in_pods.then(|| (or_nothing(spec.pod.clone()), Role::Plain));
        let cells = [
            (id(&container.id), Role::Plain),
            (state_with_health(container, now), Role::from_state(container.state())),
            (spec.rootfs, Role::Plain),
            (spec.path, Role::Plain),
            (age(container.created_at.as_ref(), now), Role::Plain),
            (ending(container), exit_role),
            (or_nothing(addresses(container)), Role::Plain),
            (or_nothing(ports(container)), Role::Plain),
            (labels(&spec.labels), Role::Faint),
        ];
        table.row(cells.into_iter().chain(pod));
    }
    table
}

/// Formats the image policy on one line.
fn image_policy(policy: &v1::ImagePolicy) -> (String, Role) {
    if !policy.set {
        return ("every image may run: the configuration sets no policy (images.allow)".into(), Role::Attention);
    }
    let repositories = if policy.allow.is_empty() { "no repository".into() } else { policy.allow.join(", ") };
    let imports = if policy.allow_import { "imports" } else { "no imports" };
    let archives = if policy.allow_archives { "archives" } else { "no archives" };
    (format!("{repositories}; {imports}; {archives}"), Role::Plain)
}

pub(crate) fn info(info: &InfoResponse, socket: &str, now: SystemTime, style: Style) -> String {
    let mut text = style.paint(Role::Heading, &format!("executord {}\n", plain(&info.version)));
    let mut table = Table::bare(2);
    table.pair("socket", socket);
    let pid = |pid: u32| if pid == 0 { String::new() } else { format!(", pid {pid}") };
    let launcher = match info.launcher_connected {
        true => (format!("connected{}", pid(info.launcher_pid)), Role::Good),
        false => ("NOT connected".to_owned(), Role::Bad),
    };
    table.row([("launcher".into(), Role::Faint), launcher]);
    if let Some(health) = &info.health {
        let role = if health.healthy { Role::Good } else { Role::Bad };
        table.row([("health".into(), Role::Faint), (health_line(health), role)]);
        if let Some(at) = &health.self_test_at {
            let took = health.self_test_took.map(wire_span).unwrap_or_default();
            table.pair("self-test", format!("{} ago, in {took}", age(Some(at), now)));
        }
    }
    table.pair("started", format!("{} ({} ago)", time(info.started_at.as_ref()), age(info.started_at.as_ref(), now)));
    table.pair("serves as", format!("uid {}{}", info.uid, pid(info.pid)));
    table.pair("kernel", info.kernel.clone());
    table.pair("cgroups", info.cgroups.clone());
    table.pair("secret files on", mount_kind(info.secret_mount_kind));
    table.pair("newest event", info.cursor.to_string());
    table.pair("run directory", &*info.run_dir);
    table.pair("state directory", &*info.state_dir);
    table.pair("files root", &*info.files_root);
    if let Some(policy) = &info.image_policy {
        table.row([("images".into(), Role::Faint), image_policy(policy)]);
        for rule in &policy.signed {
            let keys =
                if rule.keys.len() == 1 { "1 key".to_owned() } else { format!("any of {} keys", rule.keys.len()) };
            let named = if rule.repository { ", for their own repository" } else { "" };
            table.pair("signed", format!("{} by {keys}{named}", rule.images.join(", ")));
        }
    }
    for v1::HostVolume { name, path, read_only } in &info.volumes {
        table.pair("volume", format!("{name}: {path}{}", if *read_only { ", read-only" } else { "" }));
    }
    for path in &info.host_paths {
        table.pair("paths of the host", format!("below {path}"));
    }
    for v1::HostDevice { name, path, permissions } in &info.devices {
        table.pair("device", format!("{name}: {path} ({permissions})"));
    }
    if !info.device_paths.is_empty() {
        table.pair("devices by path", info.device_paths.join(", "));
    }
    if !info.log_dirs.is_empty() {
        table.pair("log directories", info.log_dirs.join(", "));
    }
    if !info.cdi_devices.is_empty() {
        table.pair("CDI devices", info.cdi_devices.join(", "));
    }
    if !info.apparmor_profiles.is_empty() {
        table.pair("AppArmor profiles", info.apparmor_profiles.join(", "));
    }
    for provider in &info.secret_providers {
        let v1::SecretProvider { name, r#type, poll, problem } = provider;
        let every = poll.as_ref().map_or(0, |poll| poll.seconds);
        let problem = if problem.is_empty() { String::new() } else { format!("; {}", plain(problem)) };
        table.pair("secret provider", format!("{name}: {type}, every {every} s{problem}"));
    }
    if let Some(v1::WarmPool { configured, ready, used, missed }) = info.warm_pool {
        let counts = format!("{ready} of {configured} ready; {used} used, {missed} missed");
        table.pair("warm pool", if configured == 0 { "off".to_owned() } else { counts });
    }
    let mut states: Vec<String> = info.containers.iter().map(|(state, count)| format!("{count} {state}")).collect();
    states.sort_unstable();
    table.pair("containers", if states.is_empty() { "none".into() } else { states.join(", ") });
    if info.quarantined > 0 {
        table.row([("in quarantine".into(), Role::Faint), (info.quarantined.to_string(), Role::Bad)]);
    }
    if info.reservations > 0 {
        table.pair("reservations", info.reservations.to_string());
    }
    text.push_str(&table.render(style));
    let (total, left) = (info.total.unwrap_or_default(), info.remaining.unwrap_or_default());
    let (allocated, reserved) = (info.allocated.unwrap_or_default(), info.reserved.unwrap_or_default());
    let amounts = [total, allocated, reserved, left];
    let mut capacity = Table::with_heading(2, &["CAPACITY", "TOTAL", "ALLOCATED", "RESERVED", "LEFT"]);
    let mut row = |name: &str, text: fn(&v1::Capacity) -> String| {
        let cells = std::iter::once(name.to_owned()).chain(amounts.iter().map(text));
        capacity.row(cells.map(|text| (text, Role::Plain)));
    };
    row("memory", |amount| bytes(amount.memory_bytes));
    row("disk", |amount| bytes(amount.disk_bytes));
    row("processes", |amount| amount.pids.to_string());
    row("containers", |amount| amount.containers.to_string());
    text.push('\n');
    text.push_str(&capacity.render(style));
    text
}

/// Formats a line of `events`. Columns have fixed widths, because lines are printed one by one.
pub(crate) fn event(event: &Event, style: Style) -> String {
    let ended = Container { result: event.result.clone(), ..Container::default() };
    let kind = event_kind(event.kind);
    let role = match event.kind() {
        event::Kind::Running | event::Kind::Ready | event::Kind::PodReady | event::Kind::SecretsFresh => Role::Good,
        event::Kind::NotReady
        | event::Kind::SecretsStale
        | event::Kind::IdentityNotReplaced
        | event::Kind::Unhealthy
        | event::Kind::Restarting
        | event::Kind::ReservationExpired
        | event::Kind::Quarantined
        | event::Kind::Stopping
        | event::Kind::Wiping => Role::Attention,
        event::Kind::Completed | event::Kind::Deleted | event::Kind::PodEnded | event::Kind::PodDeleted => Role::Faint,
        _ => Role::Plain,
    };
    let mut line = format!("{:>8}  {}  ", event.cursor, time(event.time.as_ref()));
    style.paint_onto(&mut line, role, &format!("{kind:<14}"));
    line.push_str(&format!("  {}", plain(&event.container_id)));
    if let Some(step) = &event.step {
        line.push_str(&step_line(step, style));
    }
    if event.files_generation > 0 {
        line.push_str(&format!("  generation {}", event.files_generation));
    }
    for generation in [event.egress_generation, event.limits_generation].into_iter().filter(|number| *number > 0) {
        line.push_str(&format!("  generation {generation}"));
    }
    if event.quarantine_phase != 0 {
        line.push_str(&format!("  {}", phase(event.quarantine_phase)));
    }
    if let Some(restart) = &event.restart {
        line.push_str(&format!("  {}", plain(&restart.last_reason)));
    }
    if let Some(result) = &event.result {
        let how = match Outcome::new(Some(result)) {
            Outcome::Exited(_) => format!("  exit {}", ending(&ended)),
            _ => format!("  {}", ending(&ended)),
        };
        style.paint_onto(&mut line, Role::from_outcome(Outcome::new(Some(result))), &how);
        if let Some(failure) = &result.failure {
            line.push_str(&format!("  {}", plain(&failure.message)));
        }
    }
    line.push('\n');
    line
}

/// Formats the state of a step as one word, followed by the exit status of its process.
pub(crate) fn step_ending(step: &Step) -> String {
    let state = word(step.state().as_str_name(), "STATE_");
    match step.exit.and_then(|exit| exit.status) {
        Some(exit_status::Status::Code(code)) => format!("{state} ({code})"),
        Some(exit_status::Status::Signal(signal)) => format!("{state} ({})", signals::name(signal)),
        None => state,
    }
}

/// Returns the colour for a step's state.
pub(crate) fn step_role(step: &Step) -> Role {
    match step.state() {
        step::State::Failed | step::State::Lost => Role::Bad,
        step::State::Cancelled => Role::Attention,
        step::State::Running | step::State::Succeeded => Role::Good,
        step::State::Pending | step::State::Unspecified => Role::Faint,
    }
}

/// Formats the part of an event's line that describes the step.
fn step_line(step: &Step, style: Style) -> String {
    let mut text = format!("  {}  ", plain(&step.path));
    style.paint_onto(&mut text, step_role(step), &step_ending(step));
    if !step.error.is_empty() {
        text.push_str(&format!("  {}", plain(&step.error)));
    }
    text
}

#[cfg(test)]
mod tests;
