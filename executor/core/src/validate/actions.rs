//! Validates trees of actions: their structure, and each of their processes.

use std::path::PathBuf;
use std::time::Duration;

use super::ViolationReason::{Conflict, InvalidCharacter, OutOfRange, Required, TooLong, TooMany};
use super::limits::{nofile, sidecar_limits};
use super::{Draft, Policy, Report, Violation, files, log_source_fault, parse_user, process, secrets, user_fits};
use crate::limits::{
    ACTION_DEPTH_MAX, ACTIONS_MAX, PROCESSES_MAX, PROGRESS_MESSAGE_MAX, RESTART_DELAY_MAX, RESTART_DELAY_MIN,
    RESTARTS_MAX, TIMEOUT_MAX, TRANSFERS_MAX,
};
use crate::plan::{Action, Actions, Limits, Messages, PlannedFile, PlannedProcess, RestartMode, RestartPolicy};

/// Checks a tree and its processes. `own` holds the container's own files, `limits` the container's limits.
pub(super) fn check(
    actions: &Actions,
    draft: &Draft<'_>,
    (own, limits): (&[PlannedFile], &Limits),
    policy: &Policy,
    report: &mut Report,
) -> Vec<PlannedProcess> {
    shape(actions, draft, report);
    alone(draft, report);
    actions.restart.iter().for_each(|asked| restart(asked, report));
    for (index, asked) in &actions.sidecar_limits {
        sidecar_limits(*index, asked, actions.sidecars.len(), limits, report);
    }
    let paths = processes(actions);
    let mut planned = Vec::with_capacity(draft.steps.len());
    for (step, id) in draft.steps.iter().zip(&paths) {
        process::check(step, &draft.shared_env, report);
        secrets::check(step, report);
        let user = parse_user(step.user).and_then(|user| user_fits(user, draft.isolation.user_namespace));
        let user = user.map_err(|why| report.add(format!("{}.user", step.field), why)).ok();
        let limit = step.nofile.unwrap_or(policy.default_nofile);
        nofile(&step.field, limit, report);
        let files = files::for_step(step, own, draft, policy, report);
        planned.push(PlannedProcess { user, nofile: Some(limit), files, ..process::plan(id, step, &draft.shared_env) });
    }
    planned
}

/// Returns the paths of the run actions, which are the ids of their processes, in the order of their indices.
fn processes(actions: &Actions) -> Vec<String> {
    let mut paths = Vec::new();
    actions.visit(|path, action| {
        if let Action::Run(_) = action {
            paths.push(path.to_owned());
        }
    });
    paths
}

/// Checks the structure of a tree: its size, and that each process occurs once, in order.
fn shape(actions: &Actions, draft: &Draft<'_>, report: &mut Report) {
    let processes = draft.steps.len();
    let (mut count, mut runs, mut transfers) = (0, 0, 0);
    let mut in_order = true;
    actions.visit(|path, action| {
        count += 1;
        let depth = 1 + path.matches(".action").count() - usize::from(path.starts_with("sidecars"));
        if depth == ACTION_DEPTH_MAX + 1 {
            report.add(
                path,
                TooMany.because(format!("is nested {depth} levels deep; at most {ACTION_DEPTH_MAX} are allowed")),
            );
        }
        match action {
            Action::Run(index) => {
                in_order &= *index == runs;
                runs += 1;
            }
            Action::Download(index) | Action::Upload(index) => {
                let planned = draft.transfers.get(*index);
                in_order &= *index == transfers;
                in_order &= planned.is_some_and(|one| one.id == path && one.direction.kind() == action.kind());
                transfers += 1;
            }
            Action::Serial(below) | Action::Parallel(below) | Action::Codependent(below) if below.is_empty() => {
                let field = format!("{path}.{}.actions", action.kind());
                report.add(field, Required.because("is empty; it must have at least one action"));
            }
            Action::Timeout { after, .. } if after.is_zero() || *after > TIMEOUT_MAX => {
                let (is, most) = (after.as_millis(), TIMEOUT_MAX.as_millis());
                let why = format!("is {is}; 1 to {most} is allowed");
                report.add(format!("{path}.timeout.timeout_ms"), OutOfRange.because(why));
            }
            Action::EmitProgress { messages, .. } => progress(path, messages, report),
            _ => {}
        }
    });
    if count > ACTIONS_MAX {
        report.add(
            "action",
            TooMany.because(format!(
                "has {count} actions, setup and sidecars included; at most {ACTIONS_MAX} are allowed"
            )),
        );
    }
    if runs > PROCESSES_MAX {
        let why = format!("has {runs} run actions, setup and sidecars included; at most {PROCESSES_MAX} are allowed");
        report.add("action", TooMany.because(why));
    }
    if transfers > TRANSFERS_MAX {
        let why = format!(
            "has {transfers} downloads and uploads, setup and sidecars included; at most {TRANSFERS_MAX} are allowed"
        );
        report.add("action", TooMany.because(why));
    }
    if !in_order || runs != processes || transfers != draft.transfers.len() {
        report.add("action", "must refer to each process and transfer exactly once, in order");
    }
    if actions.first_process().is_none() && report.0.is_empty() {
        report.add("action", Required.because("has no run action"));
    }
}

/// Checks a restart policy.
fn restart(asked: &RestartPolicy, report: &mut Report) {
    let RestartPolicy { mode, delay_min, delay_max } = asked;
    if let RestartMode::OnFailure(Some(most)) = mode
        && !(1..=RESTARTS_MAX).contains(most)
    {
        let why = format!("is {most}; 1 to {RESTARTS_MAX} is allowed, or 0 for no limit");
        report.add("restart_policy.max_retries", OutOfRange.because(why));
    }
    let mut delay = |name: &str, is: Duration, least: Duration| {
        let fits = (least..=RESTART_DELAY_MAX).contains(&is);
        if !fits {
            let why = format!("is {is:?}; {least:?} to {RESTART_DELAY_MAX:?} is allowed");
            report.add(format!("restart_policy.{name}"), OutOfRange.because(why));
        }
        fits
    };
    let least = if delay("min_delay", *delay_min, RESTART_DELAY_MIN) { *delay_min } else { RESTART_DELAY_MIN };
    delay("max_delay", *delay_max, least);
}

fn progress(path: &str, messages: &Messages, report: &mut Report) {
    let Messages { start, success, failure_prefix, log_source } = messages;
    let parent = format!("{path}.emit_progress");
    for (name, text) in
        [("start_message", start), ("success_message", success), ("failure_message_prefix", failure_prefix)]
    {
        if text.len() > PROGRESS_MESSAGE_MAX {
            let why = format!("is {} bytes; the maximum is {PROGRESS_MESSAGE_MAX}", text.len());
            report.add(format!("{parent}.{name}"), TooLong.because(why));
        } else if text.contains('\0') {
            report.add(format!("{parent}.{name}"), InvalidCharacter.because("contains NUL"));
        }
    }
    if let Some(why) = log_source_fault(log_source) {
        report.add(format!("{parent}.log_source"), why);
    }
}

/// Rejects settings that only a single run action can have.
fn alone(draft: &Draft<'_>, report: &mut Report) {
    let settings =
        [("terminal", draft.terminal), ("stdin", draft.stdin), ("writable_files", draft.writable_files.is_some())];
    for (field, _) in settings.into_iter().filter(|(_, is_set)| *is_set) {
        report
            .add(field, Conflict.because("requires a single `run` action, with no setup, sidecars or restart policy"));
    }
}

/// Returns the paths of the secret files of all processes.
pub(super) fn file_paths(processes: &[PlannedProcess]) -> impl Iterator<Item = &PathBuf> {
    processes.iter().flat_map(|process| &process.files).map(|file| &file.path)
}

/// Checks the secret inputs of the processes in a plan with a tree of actions. The comparison in `recheck` cannot
/// detect invalid secret inputs.
pub(super) fn recheck(plan_actions: &Actions, processes_of_plan: &[PlannedProcess]) -> Result<(), Vec<Violation>> {
    for (process, path) in processes_of_plan.iter().zip(processes(plan_actions)) {
        secrets::recheck(&format!("{path}.run"), process)?;
    }
    Ok(())
}
