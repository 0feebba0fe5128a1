//! Draws the steps of a tree of actions as a tree, with their times.

use std::time::{Duration, SystemTime};

use executor_cli_kit::text::plain;
use executor_cli_kit::view::quantity;
use executor_cli_kit::view::style::Role;
use executor_cli_kit::view::table::Table;
use executor_client::v1::Step;

use super::human::{step_ending, step_role};

pub(crate) fn table(steps: &[Step], now: SystemTime) -> Table {
    let mut table = Table::bare(2);
    for (index, step) in steps.iter().enumerate() {
        let role = step_role(step);
        let what = match (&*step.kind, &*step.artifact) {
            ("run", _) => plain(&step.program),
            (kind, "") => kind.to_owned(),
            (kind, artifact) => format!("{kind} {}", plain(artifact)),
        };
        let source = if step.log_source.is_empty() { String::new() } else { format!("[{}]", plain(&step.log_source)) };
        table.row([
            (format!("{}{what}", tree_prefix(steps, index)), Role::Plain),
            (source, Role::Faint),
            (step_ending(step), role),
            (duration_text(step, now), Role::Faint),
            (plain(&step.error), role),
        ]);
    }
    table
}

/// Returns the index of a step's parent: the last earlier step whose path is a prefix of the step's path.
fn parent(steps: &[Step], index: usize) -> Option<usize> {
    let path = &steps[index].path;
    (0..index).rev().find(|above| path.strip_prefix(&*steps[*above].path).is_some_and(|rest| rest.starts_with('.')))
}

/// Returns the tree lines in front of a step.
fn tree_prefix(steps: &[Step], index: usize) -> String {
    let Some(above) = parent(steps, index) else { return String::new() };
    let is_last = |index: usize, above: usize| !(index + 1..steps.len()).any(|next| parent(steps, next) == Some(above));
    let mut text = if is_last(index, above) { "└─ " } else { "├─ " }.to_owned();
    let mut child = above;
    while let Some(above) = parent(steps, child) {
        text.insert_str(0, if is_last(child, above) { "   " } else { "│  " });
        child = above;
    }
    text
}

fn duration_text(step: &Step, now: SystemTime) -> String {
    let time = |stamp: Option<prost_types::Timestamp>| SystemTime::try_from(stamp?).ok();
    let Some(started) = time(step.started_at) else { return String::new() };
    let ended = time(step.finished_at).unwrap_or(now);
    let span = ended.duration_since(started).unwrap_or(Duration::ZERO);
    quantity::span(span)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_drawn_as_tree() {
        let step = |path: &str, kind: &str| Step { path: path.into(), kind: kind.into(), ..Step::default() };
        let steps = [
            step("setup", "run"),
            step("action", "serial"),
            step("action.serial.actions[0]", "timeout"),
            step("action.serial.actions[0].timeout.action", "run"),
            step("action.serial.actions[1]", "run"),
            step("action.serial.actions[10]", "run"),
        ];
        let branches: Vec<String> = (0..steps.len()).map(|index| tree_prefix(&steps, index)).collect();
        assert_eq!(branches, ["", "", "├─ ", "│  └─ ", "├─ ", "└─ "]);
    }
}
