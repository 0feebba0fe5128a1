//! The steps of a tree of actions, drawn as a tree with their times.

use std::time::{Duration, SystemTime};

use executor_client::v1::{Step, exit_status, step};

use super::human;
use super::style::{Role, Style};
use super::table::Table;
use crate::signals;
use crate::text::plain;

/// The tree.
pub(crate) fn table(steps: &[Step], now: SystemTime) -> Table {
    let mut table = Table::bare(2);
    for at in 0..steps.len() {
        let step = &steps[at];
        let role = role(step);
        let what = if step.kind == "run" { plain(&step.program) } else { step.kind.clone() };
        let source = if step.log_source.is_empty() { String::new() } else { format!("[{}]", plain(&step.log_source)) };
        table.row([
            (format!("{}{what}", branch(steps, at)), Role::Plain),
            (source, Role::Faint),
            (ending(step), role),
            (lasted(step, now), Role::Faint),
            (plain(&step.error), role),
        ]);
    }
    table
}

/// State of a step in one word, with the exit status of its process.
pub(crate) fn ending(step: &Step) -> String {
    let state = human::word(step.state().as_str_name(), "STATE_");
    match step.exit.and_then(|exit| exit.status) {
        Some(exit_status::Status::Code(code)) => format!("{state} ({code})"),
        Some(exit_status::Status::Signal(signal)) => format!("{state} ({})", signals::name(signal)),
        None => state,
    }
}

/// Colour of a step's state.
pub(crate) fn role(step: &Step) -> Role {
    match step.state() {
        step::State::Failed | step::State::Lost => Role::Bad,
        step::State::Cancelled => Role::Attention,
        step::State::Running | step::State::Succeeded => Role::Good,
        step::State::Pending | step::State::Unspecified => Role::Faint,
    }
}

/// Parent of a path among the steps: the longest one that it begins with.
fn parent(steps: &[Step], at: usize) -> Option<usize> {
    let path = &steps[at].path;
    (0..at).rev().find(|above| path.strip_prefix(&*steps[*above].path).is_some_and(|rest| rest.starts_with('.')))
}

/// Lines that lead to a step.
fn branch(steps: &[Step], at: usize) -> String {
    let Some(above) = parent(steps, at) else { return String::new() };
    let is_last = |at: usize, above: usize| !(at + 1..steps.len()).any(|next| parent(steps, next) == Some(above));
    let mut text = if is_last(at, above) { "└─ " } else { "├─ " }.to_owned();
    let mut child = above;
    while let Some(above) = parent(steps, child) {
        text.insert_str(0, if is_last(child, above) { "   " } else { "│  " });
        child = above;
    }
    text
}

fn lasted(step: &Step, now: SystemTime) -> String {
    let at = |time: Option<prost_types::Timestamp>| SystemTime::try_from(time?).ok();
    let Some(started) = at(step.started_at) else { return String::new() };
    let ended = at(step.finished_at).unwrap_or(now);
    let span = ended.duration_since(started).unwrap_or(Duration::ZERO);
    human::span(span)
}

/// One line about a step, for an event.
pub(crate) fn line(step: &Step, style: Style) -> String {
    let mut text = format!("  {}  ", plain(&step.path));
    style.paint_onto(&mut text, role(step), &ending(step));
    if !step.error.is_empty() {
        text.push_str(&format!("  {}", plain(&step.error)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_drawn_by_its_paths() {
        let step = |path: &str, kind: &str| Step { path: path.into(), kind: kind.into(), ..Step::default() };
        let steps = [
            step("setup", "run"),
            step("action", "serial"),
            step("action.serial.actions[0]", "timeout"),
            step("action.serial.actions[0].timeout.action", "run"),
            step("action.serial.actions[1]", "run"),
            step("action.serial.actions[10]", "run"),
        ];
        let branches: Vec<String> = (0..steps.len()).map(|at| branch(&steps, at)).collect();
        assert_eq!(branches, ["", "", "├─ ", "│  └─ ", "├─ ", "└─ "]);
    }
}
