//! Action trees: converts the messages of a request to the tree and the processes of a draft.

use std::collections::BTreeMap;
use std::time::Duration;

use executor_core::limits::ACTION_DEPTH_MAX;
use executor_core::plan::{
    self, Actions, Direction, Messages, RESTART_DELAY_MAX_DEFAULT, RESTART_DELAY_MIN_DEFAULT, RestartMode,
    RestartPolicy, SidecarLimits,
};
use executor_core::validate::ViolationReason::{Conflict, OutOfRange, Required, TooMany, UnknownValue};
use executor_core::validate::{DraftStep, DraftTransfer, Violation};
use executor_proto::v1::{
    self as v1, Action, CodependentAction, DownloadAction, EmitProgressAction, ParallelAction, RunAction, RunRequest,
    SerialAction, Sidecar, TimeoutAction, TryAction, UploadAction,
};

use super::{duration, file, variables};

/// Maximum number of sidecars.
const SIDECARS_MAX: usize = 16;

/// The action that is set in an [`Action`].
pub(super) enum ActionKind<'a> {
    Run(&'a RunAction),
    Timeout(&'a TimeoutAction),
    EmitProgress(&'a EmitProgressAction),
    Try(&'a TryAction),
    Parallel(&'a ParallelAction),
    Serial(&'a SerialAction),
    Codependent(&'a CodependentAction),
    Download(&'a DownloadAction),
    Upload(&'a UploadAction),
}

/// Returns the action that is set, with its name. If not exactly one action is set, returns the names of all set
/// actions as the error.
pub(super) fn action_kind(action: &Action) -> Result<(&'static str, ActionKind<'_>), Vec<&'static str>> {
    let Action { download, upload, run, timeout, emit_progress, r#try, parallel, serial, codependent } = action;
    let all = [
        ("download", download.as_ref().map(ActionKind::Download)),
        ("upload", upload.as_ref().map(ActionKind::Upload)),
        ("run", run.as_ref().map(ActionKind::Run)),
        ("timeout", timeout.as_deref().map(ActionKind::Timeout)),
        ("emit_progress", emit_progress.as_deref().map(ActionKind::EmitProgress)),
        ("try", r#try.as_deref().map(ActionKind::Try)),
        ("parallel", parallel.as_ref().map(ActionKind::Parallel)),
        ("serial", serial.as_ref().map(ActionKind::Serial)),
        ("codependent", codependent.as_ref().map(ActionKind::Codependent)),
    ];
    let mut set: Vec<_> = all.into_iter().filter_map(|(name, set)| Some((name, set?))).collect();
    if set.len() == 1 { set.pop().ok_or_else(Vec::new) } else { Err(set.into_iter().map(|(name, _)| name).collect()) }
}

/// Steps, transfers and violations that were found so far in an action tree.
struct ActionReader<'a, 'v> {
    steps: Vec<DraftStep<'a>>,
    transfers: Vec<DraftTransfer<'a>>,
    violations: &'v mut Vec<Violation>,
}

/// Tree of a request, with its processes and its transfers.
type Tree<'a> = (Option<Actions>, Vec<DraftStep<'a>>, Vec<DraftTransfer<'a>>);

/// Reads the tree of a request. Invalid actions become violations; the tree is `None` if the main action is invalid.
pub(super) fn from_request<'a>(request: &'a RunRequest, violations: &mut Vec<Violation>) -> Tree<'a> {
    let mut reading = ActionReader { steps: Vec::new(), transfers: Vec::new(), violations };
    let source = &request.log_source;
    let setup = request.setup.as_ref();
    let setup = setup.and_then(|setup| reading.action("setup", Some(setup), source, 1));
    let action = reading.action("action", request.action.as_ref(), source, 1);
    let count = request.sidecars.len();
    if count > SIDECARS_MAX {
        let why = format!("has {count} entries; at most {SIDECARS_MAX} are allowed");
        reading.violations.push(Violation::new("sidecars", TooMany.because(why)));
    }
    let mut sidecars = Vec::new();
    for (index, sidecar) in request.sidecars.iter().take(SIDECARS_MAX).enumerate() {
        let path = format!("sidecars[{index}].action");
        sidecars.extend(reading.action(&path, sidecar.action.as_ref(), source, 1));
    }
    let (steps, transfers) = (reading.steps, reading.transfers);
    let restart = restart(request.restart_policy.as_ref(), violations);
    let sidecar_limits = sidecar_limits(&request.sidecars, violations);
    let actions = action.map(|action| Actions { setup, action, sidecars, restart, sidecar_limits });
    (actions, steps, transfers)
}

/// Creates the tree of a single run action with a restart policy. The files of the action belong to the container.
pub(super) fn from_single_run<'a>(
    request: &'a RunRequest,
    run: &'a RunAction,
    violations: &mut Vec<Violation>,
) -> Option<(Actions, Vec<DraftStep<'a>>)> {
    let restart = restart(request.restart_policy.as_ref(), violations)?;
    let source = if run.log_source.is_empty() { &request.log_source } else { &run.log_source };
    let step = DraftStep { files: Vec::new(), ..step("action.run".to_owned(), run, source) };
    let action = plan::Action::Run(0);
    let (setup, sidecars, sidecar_limits) = (None, Vec::new(), BTreeMap::new());
    Some((Actions { setup, action, sidecars, restart: Some(restart), sidecar_limits }, vec![step]))
}

/// Reads a restart policy and applies defaults; `None` without a policy, or if its mode is 0 (no) or unknown.
fn restart(asked: Option<&v1::RestartPolicy>, violations: &mut Vec<Violation>) -> Option<RestartPolicy> {
    let asked = asked?;
    let mut delay = |name: &str, delay: Option<&prost_types::Duration>, default: Duration| {
        duration(&format!("restart_policy.{name}"), delay)
            .unwrap_or_else(|violation| {
                violations.push(violation);
                None
            })
            .unwrap_or(default)
    };
    let delay_min = delay("min_delay", asked.min_delay.as_ref(), RESTART_DELAY_MIN_DEFAULT);
    let delay_max = delay("max_delay", asked.max_delay.as_ref(), RESTART_DELAY_MAX_DEFAULT.max(delay_min));
    let mode = match asked.mode {
        0 => None,
        1 => Some(RestartMode::OnFailure(Some(asked.max_retries).filter(|most| *most > 0))),
        2 => Some(RestartMode::Always),
        number => {
            let why = format!("is {number}; 0 (no), 1 (on failure) and 2 (always) are allowed");
            violations.push(Violation::new("restart_policy.mode", UnknownValue.because(why)));
            None
        }
    };
    if asked.max_retries > 0 && asked.mode != 1 {
        let why = format!("is {}; it must be 0 unless the mode is MODE_ON_FAILURE", asked.max_retries);
        violations.push(Violation::new("restart_policy.max_retries", Conflict.because(why)));
    }
    Some(RestartPolicy { mode: mode?, delay_min, delay_max })
}

/// Reads the limits of each sidecar that has its own limits.
fn sidecar_limits(sidecars: &[Sidecar], violations: &mut Vec<Violation>) -> BTreeMap<usize, SidecarLimits> {
    let mut all = BTreeMap::new();
    for (index, Sidecar { action: _, disk_mb, memory_mb, pids }) in sidecars.iter().enumerate().take(SIDECARS_MAX) {
        if *disk_mb != 0 {
            let why = format!("is {disk_mb}; it must be 0: the container's disk has one limit, limits.disk_bytes");
            violations.push(Violation::new(format!("sidecars[{index}].disk_mb"), Conflict.because(why)));
        }
        let Ok(memory_mb) = u64::try_from(*memory_mb) else {
            let why = OutOfRange.because(format!("is {memory_mb}; it must be 0 or more"));
            violations.push(Violation::new(format!("sidecars[{index}].memory_mb"), why));
            continue;
        };
        let limits = SidecarLimits { memory_bytes: memory_mb << 20, pids: *pids };
        if limits != SidecarLimits::default() {
            all.insert(index, limits);
        }
    }
    all
}

impl<'a> ActionReader<'a, '_> {
    /// Reads the action at a path; `None` if it is invalid, which is reported as a violation.
    fn action(
        &mut self,
        path: &str,
        action: Option<&'a Action>,
        source: &'a str,
        depth: usize,
    ) -> Option<plan::Action> {
        let kind = match action.map(action_kind) {
            None => return self.missing(path),
            Some(Err(names)) if names.is_empty() => return self.missing(path),
            Some(Err(names)) => {
                let why = format!("sets more than one action ({}); set exactly one", names.join(", "));
                self.violations.push(Violation::new(path, Conflict.because(why)));
                return None;
            }
            Some(Ok((_, kind))) => kind,
        };
        if depth > ACTION_DEPTH_MAX {
            let why = format!("is nested {depth} levels deep; at most {ACTION_DEPTH_MAX} are allowed");
            self.violations.push(Violation::new(path, TooMany.because(why)));
            return None;
        }
        let below = depth + 1;
        let inherited = |own: &'a str| if own.is_empty() { source } else { own };
        match kind {
            ActionKind::Download(download) => {
                let checksum = (&*download.checksum_algorithm, &*download.checksum_value);
                self.transfers.push(DraftTransfer {
                    id: path.to_owned(),
                    direction: Direction::Download,
                    artifact: &download.artifact,
                    url: Some(&download.from),
                    path: &download.to,
                    user: &download.user,
                    log_source: inherited(&download.log_source),
                    checksum,
                    cache_key: &download.cache_key,
                });
                Some(plan::Action::Download(self.transfers.len() - 1))
            }
            ActionKind::Upload(upload) => {
                self.transfers.push(DraftTransfer {
                    id: path.to_owned(),
                    direction: Direction::Upload,
                    artifact: &upload.artifact,
                    url: Some(&upload.to),
                    path: &upload.from,
                    user: &upload.user,
                    log_source: inherited(&upload.log_source),
                    checksum: ("", ""),
                    cache_key: "",
                });
                Some(plan::Action::Upload(self.transfers.len() - 1))
            }
            ActionKind::Run(run) => {
                self.steps.push(step(format!("{path}.run"), run, inherited(&run.log_source)));
                Some(plan::Action::Run(self.steps.len() - 1))
            }
            ActionKind::Serial(serial) => {
                let path = format!("{path}.serial");
                self.list(&path, &serial.actions, inherited(&serial.log_source), below).map(plan::Action::Serial)
            }
            ActionKind::Parallel(parallel) => {
                let path = format!("{path}.parallel");
                self.list(&path, &parallel.actions, inherited(&parallel.log_source), below).map(plan::Action::Parallel)
            }
            ActionKind::Codependent(codependent) => {
                let path = format!("{path}.codependent");
                let list = self.list(&path, &codependent.actions, inherited(&codependent.log_source), below);
                list.map(plan::Action::Codependent)
            }
            ActionKind::Try(attempt) => {
                let path = format!("{path}.try.action");
                let action = self.action(&path, attempt.action.as_deref(), inherited(&attempt.log_source), below);
                action.map(|action| plan::Action::Try(Box::new(action)))
            }
            ActionKind::Timeout(timeout) => {
                let after = timeout_of(path, timeout, self.violations);
                let path = format!("{path}.timeout.action");
                let action = self.action(&path, timeout.action.as_deref(), inherited(&timeout.log_source), below);
                action.map(|action| plan::Action::Timeout { action: Box::new(action), after })
            }
            ActionKind::EmitProgress(progress) => {
                let messages = Messages {
                    start: progress.start_message.clone(),
                    success: progress.success_message.clone(),
                    failure_prefix: progress.failure_message_prefix.clone(),
                    log_source: inherited(&progress.log_source).to_owned(),
                };
                let path = format!("{path}.emit_progress.action");
                let action = self.action(&path, progress.action.as_deref(), source, below);
                action.map(|action| plan::Action::EmitProgress { action: Box::new(action), messages })
            }
        }
    }

    fn list(&mut self, path: &str, actions: &'a [Action], source: &'a str, depth: usize) -> Option<Vec<plan::Action>> {
        let mut list = Vec::with_capacity(actions.len());
        for (index, action) in actions.iter().enumerate() {
            list.extend(self.action(&format!("{path}.actions[{index}]"), Some(action), source, depth));
        }
        Some(list)
    }

    fn missing(&mut self, path: &str) -> Option<plan::Action> {
        self.violations.push(Violation::new(path, Required.because("is not set: set one action, such as `run`")));
        None
    }
}

/// Returns the duration of a timeout; a negative duration is reported as a violation and replaced with a valid one.
pub(super) fn timeout_of(path: &str, timeout: &TimeoutAction, violations: &mut Vec<Violation>) -> Duration {
    #[expect(deprecated, reason = "older clients of a BBS set it")]
    let nanos = timeout.deprecated_timeout_ns;
    let (field, value, duration) = match timeout.timeout_ms {
        0 => ("deprecated_timeout_ns", nanos, u64::try_from(nanos).map(Duration::from_nanos)),
        millis => ("timeout_ms", millis, u64::try_from(millis).map(Duration::from_millis)),
    };
    duration.unwrap_or_else(|_| {
        let why = OutOfRange.because(format!("is {value}; it must be more than 0"));
        violations.push(Violation::new(format!("{path}.timeout.{field}"), why));
        Duration::from_millis(1)
    })
}

/// Creates the draft of a process.
fn step<'a>(field: String, run: &'a RunAction, log_source: &'a str) -> DraftStep<'a> {
    let files = run.volume_mounted_files.iter().enumerate();
    DraftStep {
        path: &run.path,
        args: run.args.iter().map(String::as_str).collect(),
        dir: &run.dir,
        env: variables(&run.env),
        user: &run.user,
        nofile: run.resource_limits.as_ref().and_then(|limits| limits.nofile),
        log_source,
        suppress_log_output: run.suppress_log_output,
        secret_env: variables(&run.secret_environment),
        secret_args: run.secret_arguments.iter().map(|argument| (argument.index, &*argument.value)).collect(),
        files: files.map(|(index, one)| file(format!("{field}.volume_mounted_files[{index}]"), one)).collect(),
        field,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(path: &str) -> Action {
        Action { run: Some(RunAction { path: path.into(), ..Default::default() }), ..Default::default() }
    }

    fn serial(actions: Vec<Action>) -> Action {
        Action { serial: Some(SerialAction { actions, log_source: "S".into() }), ..Default::default() }
    }

    #[test]
    fn processes_are_numbered_in_tree_order() {
        let timeout = TimeoutAction { action: Some(Box::new(run("c"))), timeout_ms: 5, ..Default::default() };
        let timeout = Action { timeout: Some(Box::new(timeout)), ..Default::default() };
        let request = RunRequest {
            setup: Some(run("a")),
            action: Some(serial(vec![run("b"), timeout, run("d")])),
            sidecars: vec![Sidecar { action: Some(run("e")), ..Default::default() }],
            log_source: "APP".into(),
            ..Default::default()
        };
        let mut violations = Vec::new();
        let (actions, steps, _) = from_request(&request, &mut violations);
        assert!(violations.is_empty() && actions.is_some());
        let paths: Vec<_> = steps.iter().map(|step| (step.path, step.log_source)).collect();
        assert_eq!(paths, [("a", "APP"), ("b", "S"), ("c", "S"), ("d", "S"), ("e", "APP")]);
        assert!(request.runs().iter().map(|run| &*run.path).eq(["a", "b", "c", "d", "e"]));
        let (mut request, mut seen) = (request, Vec::new());
        request.for_each_run(|run| seen.push(run.path.clone()));
        assert_eq!(seen, ["a", "b", "c", "d", "e"]);
        assert!(request.single_run().is_none());
    }

    #[test]
    fn invalid_actions_are_reported_with_path() {
        let none = Action::default();
        let negative = TimeoutAction { action: Some(Box::new(run("a"))), timeout_ms: -1, ..Default::default() };
        let negative = Action { timeout: Some(Box::new(negative)), ..Default::default() };
        let two = Action { r#try: Some(Box::default()), ..run("b") };
        let request = RunRequest { action: Some(serial(vec![none, negative, two])), ..Default::default() };
        let mut violations = Vec::new();
        from_request(&request, &mut violations);
        let fields: Vec<&str> = violations.iter().map(|violation| &*violation.field).collect();
        let parent = "action.serial.actions";
        assert_eq!(
            fields,
            [&*format!("{parent}[0]"), &*format!("{parent}[1].timeout.timeout_ms"), &*format!("{parent}[2]")]
        );
    }

    #[test]
    fn transfers_are_numbered_beside_processes() {
        let download = DownloadAction { from: "http://a/".into(), log_source: "D".into(), ..Default::default() };
        let download = Action { download: Some(download), ..Default::default() };
        let upload = UploadAction { to: "http://b/".into(), ..Default::default() };
        let upload = Action { upload: Some(upload), ..Default::default() };
        let mut request = RunRequest { action: Some(serial(vec![download, run("a"), upload])), ..Default::default() };
        let (actions, steps, transfers) = from_request(&request, &mut Vec::new());
        let Some(plan::Action::Serial(list)) = actions.map(|actions| actions.action) else { panic!() };
        assert_eq!(list, [plan::Action::Download(0), plan::Action::Run(0), plan::Action::Upload(1)]);
        assert_eq!((steps.len(), transfers.len()), (1, 2));
        let of: Vec<_> = transfers.iter().map(|one| (&*one.id, one.url.unwrap(), one.log_source)).collect();
        let parent = "action.serial.actions";
        let ids = [format!("{parent}[0]"), format!("{parent}[2]")];
        assert_eq!(of, [(&*ids[0], "http://a/", "D"), (&*ids[1], "http://b/", "S")]);
        assert_eq!(request.urls(), ["http://a/", "http://b/"]);
        request.for_each_url(String::clear);
        assert_eq!(request.urls(), ["", ""]);
    }

    #[test]
    fn depth_is_bounded() {
        let deep = |levels| (1..levels).fold(run("a"), |action, _| serial(vec![action]));
        for (levels, fits) in [(16, true), (17, false), (30, false)] {
            let request = RunRequest { action: Some(deep(levels)), ..Default::default() };
            let mut violations = Vec::new();
            from_request(&request, &mut violations);
            assert_eq!(violations.is_empty(), fits, "{levels}");
        }
    }
}
