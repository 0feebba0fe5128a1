//! Converts Diego's monitor, an action whose programs must all succeed repeatedly, to liveness checks.
//!
//! The container counts as started when all programs have succeeded once. If a program fails after that, the container
//! is stopped, and the result contains the failures of all programs. Diego's executor does the same with a monitor of
//! `run` actions in `parallel`. Programs in `serial` must also all succeed. They run one after another, as all checks
//! do, and the first failure is decisive.

use std::time::Duration;

use executor_core::plan::{Check, Checks, ExecProbe, MonitorForm, Probe, START_TIMEOUT_DEFAULT};
use executor_core::validate::Violation;
use executor_core::validate::ViolationReason::{Conflict, NotAllowed, Required, TooMany};
use executor_proto::v1::{Action, RunAction};

use super::actions::{ActionKind, action_kind, timeout_of};

/// Maximum number of programs of a monitor. Checks of one kind have the same limit.
const PROGRAMS_MAX: usize = 4;
/// Maximum depth of a monitor's actions.
const DEPTH_MAX: usize = 8;
/// Maximum time of a monitor's program. A check has the same limit.
const PROGRAM_TIMEOUT_MAX: Duration = Duration::from_secs(60);

struct Program<'a> {
    /// Path of the program's run action in the request.
    path: String,
    run: &'a RunAction,
    limit: Duration,
    /// Log source of the program, or of its nearest ancestor that has one.
    log_source: &'a str,
    /// True if the program is below a `serial` action.
    is_serial: bool,
}

/// Properties that an action inherits from the actions above it.
#[derive(Clone, Copy)]
struct Inherited<'a> {
    limit: Duration,
    depth: usize,
    log_source: &'a str,
    is_serial: bool,
}

impl<'a> Inherited<'a> {
    fn root(limit: Duration) -> Self {
        Self { limit, depth: 1, log_source: "", is_serial: false }
    }

    /// Returns the properties that descendants of an action with this log source inherit.
    fn below(self, log_source: &'a str) -> Self {
        let log_source = if log_source.is_empty() { self.log_source } else { log_source };
        Self { depth: self.depth + 1, log_source, ..self }
    }
}

/// Adds a monitor to the checks of a request. Unsupported parts become violations. If `keeps_environment` is true, the
/// container retains its environment, and the monitor's programs receive it.
pub(super) fn add(
    monitor: &Action,
    keeps_environment: bool,
    checks: Option<Checks>,
    violations: &mut Vec<Violation>,
) -> Checks {
    let mut checks = checks.unwrap_or_default();
    if !checks.startup.is_empty() || !checks.liveness.is_empty() {
        let why = "cannot be set together with checks.startup and checks.liveness, which it replaces";
        violations.push(Violation::new("monitor", Conflict.because(why)));
        return checks;
    }
    let start = if checks.start_timeout.is_zero() { START_TIMEOUT_DEFAULT } else { checks.start_timeout };
    let mut programs = Vec::new();
    read("monitor", monitor, Inherited::root(PROGRAM_TIMEOUT_MAX.min(start)), &mut programs, violations);
    if programs.len() > PROGRAMS_MAX {
        let why = format!("has {} run actions; at most {PROGRAMS_MAX} are allowed", programs.len());
        violations.push(Violation::new("monitor", TooMany.because(why)));
        return checks;
    }
    for program in &programs {
        refuse_unused(program, violations);
    }
    let has_serial = programs.iter().any(|program| program.is_serial);
    checks.monitor = if has_serial { MonitorForm::Serial } else { MonitorForm::Parallel };
    checks.liveness = programs.iter().map(|program| check(program, keeps_environment)).collect();
    checks
}

/// Maps violations of the generated checks to the monitor's fields.
pub(crate) fn rename(monitor: &Action, violations: &mut [Violation]) {
    let mut programs = Vec::new();
    read("monitor", monitor, Inherited::root(PROGRAM_TIMEOUT_MAX), &mut programs, &mut Vec::new());
    for violation in violations {
        let Some(rest) = violation.field.strip_prefix("checks.liveness[") else { continue };
        let Some((index, field)) = rest.split_once(']') else { continue };
        if let Some(program) = index.parse().ok().and_then(|index: usize| programs.get(index)) {
            let field = field.strip_prefix(".exec").unwrap_or(field);
            violation.field = format!("{}{field}", program.path);
        }
    }
}

/// Collects the programs of a monitor's action and its descendants.
fn read<'a>(
    path: &str,
    action: &'a Action,
    above: Inherited<'a>,
    programs: &mut Vec<Program<'a>>,
    violations: &mut Vec<Violation>,
) {
    let mut refuse = |fault: executor_core::validate::FieldFault| violations.push(Violation::new(path, fault));
    if above.depth > DEPTH_MAX {
        let depth = above.depth;
        return refuse(TooMany.because(format!("is nested {depth} levels deep; at most {DEPTH_MAX} are allowed")));
    }
    let (name, above, list) = match action_kind(action) {
        Err(names) if names.is_empty() => {
            return refuse(Required.because("is not set: set one action, such as `run`"));
        }
        Err(names) => {
            return refuse(
                Conflict.because(format!("sets more than one action ({}); set exactly one", names.join(", "))),
            );
        }
        Ok((_, ActionKind::Run(run))) => {
            let Inherited { limit, log_source, is_serial, .. } = above.below(&run.log_source);
            return programs.push(Program { path: format!("{path}.run"), run, limit, log_source, is_serial });
        }
        Ok((_, ActionKind::Timeout(asked))) => {
            let limit = timeout_of(path, asked, violations).min(above.limit);
            let above = Inherited { limit, ..above.below(&asked.log_source) };
            let path = format!("{path}.timeout.action");
            let why = Required.because("is not set: set one action, such as `run`");
            match &asked.action {
                Some(action) => read(&path, action, above, programs, violations),
                None => violations.push(Violation::new(path, why)),
            }
            return;
        }
        Ok((name, ActionKind::Parallel(parallel))) => (name, above.below(&parallel.log_source), &parallel.actions),
        Ok((name, ActionKind::Serial(serial))) => {
            (name, Inherited { is_serial: true, ..above.below(&serial.log_source) }, &serial.actions)
        }
        Ok((name, _)) => {
            let why = format!("`{name}` cannot be part of a monitor; use run, parallel, serial and timeout");
            return refuse(NotAllowed.because(why));
        }
    };
    if list.is_empty() {
        let why = Required.because("is empty; it must have at least one action");
        violations.push(Violation::new(format!("{path}.{name}.actions"), why));
    }
    for (index, action) in list.iter().enumerate() {
        read(&format!("{path}.{name}.actions[{index}]"), action, above, programs, violations);
    }
}

/// Rejects fields that a check does not support. Checks are stored with the container in readable form, so they must
/// not contain an environment.
fn refuse_unused(program: &Program<'_>, violations: &mut Vec<Violation>) {
    let RunAction { env, volume_mounted_files, secret_environment, secret_arguments, .. } = program.run;
    let unused = [
        ("env", env.is_empty()),
        ("volume_mounted_files", volume_mounted_files.is_empty()),
        ("secret_environment", secret_environment.is_empty()),
        ("secret_arguments", secret_arguments.is_empty()),
    ];
    for (field, _) in unused.into_iter().filter(|(_, is_empty)| !is_empty) {
        let why = "must be empty in a monitor: its programs are stored with the container, and have the environment of an ExecCheck";
        violations.push(Violation::new(format!("{}.{field}", program.path), NotAllowed.because(why)));
    }
}

fn check(program: &Program<'_>, container_environment: bool) -> Check {
    let RunAction { path, args, dir, user, .. } = program.run;
    let probe = ExecProbe {
        path: path.clone(),
        args: args.clone(),
        dir: dir.clone(),
        user: user.clone(),
        container_environment,
    };
    Check {
        probe: Probe::Exec(probe),
        interval: Duration::ZERO,
        timeout: program.limit,
        initial_delay: Duration::ZERO,
        healthy_threshold: 1,
        unhealthy_threshold: 1,
        log_source: program.log_source.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use executor_proto::v1::{EnvironmentVariable, ParallelAction, SerialAction, TimeoutAction, TryAction};

    use super::*;

    fn run(path: &str) -> Action {
        Action { run: Some(RunAction { path: path.into(), ..Default::default() }), ..Default::default() }
    }

    fn parallel(actions: Vec<Action>) -> Action {
        Action { parallel: Some(ParallelAction { actions, ..Default::default() }), ..Default::default() }
    }

    fn limited(action: Action, timeout_ms: i64) -> Action {
        let timeout = TimeoutAction { action: Some(Box::new(action)), timeout_ms, ..Default::default() };
        Action { timeout: Some(Box::new(timeout)), ..Default::default() }
    }

    #[test]
    fn cloud_foundry_monitor_becomes_port_checks() {
        let monitor = limited(parallel(vec![run("/healthcheck"), limited(run("b"), 5_000)]), 600_000);
        let mut violations = Vec::new();
        let checks = add(&monitor, false, None, &mut violations);
        assert_eq!(violations, []);
        let limits: Vec<Duration> = checks.liveness.iter().map(|check| check.timeout).collect();
        assert_eq!(limits, [PROGRAM_TIMEOUT_MAX, Duration::from_secs(5)]);
        assert!(checks.liveness.iter().all(|check| (check.healthy_threshold, check.unhealthy_threshold) == (1, 1)));
        let mut found = [Violation::new("checks.liveness[1].exec.path", "x"), Violation::new("checks.liveness", "y")];
        rename(&monitor, &mut found);
        let fields = found.map(|violation| violation.field);
        let second = "monitor.timeout.action.parallel.actions[1].timeout.action.run.path";
        assert_eq!(fields, [second, "checks.liveness"]);
        let brief = Checks { start_timeout: Duration::from_secs(7), ..Checks::default() };
        assert_eq!(add(&monitor, false, Some(brief), &mut violations).liveness[0].timeout, Duration::from_secs(7));
    }

    #[test]
    fn log_sources_are_passed_down() {
        let with = |path: &str, source: &str| {
            let run = RunAction { path: path.into(), log_source: source.into(), ..Default::default() };
            Action { run: Some(run), ..Default::default() }
        };
        let mut monitor = parallel(vec![with("a", "OWN"), with("b", "")]);
        monitor.parallel.as_mut().unwrap().log_source = "CHECK".into();
        let checks = add(&monitor, false, None, &mut Vec::new());
        let sources: Vec<&str> = checks.liveness.iter().map(|check| &*check.log_source).collect();
        assert_eq!((&sources[..], checks.monitor), (&["OWN", "CHECK"][..], MonitorForm::Parallel));
        let serial = SerialAction { actions: vec![with("c", "")], ..Default::default() };
        let serial = Action { serial: Some(serial), ..Default::default() };
        let checks = add(&parallel(vec![serial]), false, None, &mut Vec::new());
        assert_eq!((&*checks.liveness[0].log_source, checks.monitor), ("", MonitorForm::Serial));
    }

    #[test]
    fn invalid_monitor_is_reported_with_path() {
        let attempt = TryAction { action: Some(Box::new(run("a"))), ..Default::default() };
        let attempt = Action { r#try: Some(Box::new(attempt)), ..Default::default() };
        let mut with_env = run("b");
        let env =
            vec![EnvironmentVariable { name: "A".into(), value: "canary".into(), ..EnvironmentVariable::default() }];
        with_env.run.as_mut().unwrap().env = env;
        let nothing = limited(run("c"), -1);
        let monitor = parallel(vec![attempt, with_env, parallel(Vec::new()), Action::default(), nothing]);
        let mut violations = Vec::new();
        add(&monitor, false, None, &mut violations);
        let reported: Vec<String> = violations.iter().map(ToString::to_string).collect();
        let expected = [
            "monitor.parallel.actions[0]: `try`",
            "monitor.parallel.actions[2].parallel.actions: is empty",
            "monitor.parallel.actions[3]: is not set",
            "monitor.parallel.actions[4].timeout.timeout_ms: is -1",
            "monitor.parallel.actions[1].run.env: must be empty",
        ];
        for (reported, expected) in reported.iter().zip(expected) {
            assert!(reported.starts_with(expected) && !reported.contains("canary"), "{reported}");
        }
        assert_eq!(reported.len(), expected.len(), "{reported:?}");
        let mut violations = Vec::new();
        add(&parallel(vec![run("a"); 5]), false, None, &mut violations);
        assert_eq!(violations[0].to_string(), "monitor: has 5 run actions; at most 4 are allowed");
        let checks = add(&run("a"), false, None, &mut Vec::new());
        let mut violations = Vec::new();
        add(&run("a"), false, Some(checks), &mut violations);
        assert!(violations[0].description.contains("checks.startup and checks.liveness"), "{violations:?}");
    }
}
