//! Validates secret arguments, and the secret inputs of a plan from another process. Secret variables and other
//! variables are checked as one list.

use std::collections::BTreeMap;

use super::ViolationReason::{Conflict, Duplicate, OutOfRange, Required};
use super::{DraftStep, Report, Violation};
use crate::limits::LIST_MAX;
use crate::plan::PlannedProcess;

/// Checks that each secret argument has an empty public argument at its index. If there are secret arguments, every
/// empty argument must have a secret argument.
pub(super) fn check(draft: &DraftStep<'_>, report: &mut Report) {
    if draft.secret_args.is_empty() || draft.secret_args.len() > LIST_MAX {
        return; // without secret arguments, an empty argument is intended
    }
    let parent = &draft.field;
    let mut given: BTreeMap<u32, usize> = BTreeMap::new();
    for (at, (index, _)) in draft.secret_args.iter().enumerate() {
        let field = || format!("{parent}.secret_arguments[{at}].index");
        if let Some(earlier) = given.get(index) {
            let why = format!("{index} is also the index of {parent}.secret_arguments[{earlier}]");
            report.add(field(), Duplicate.because(why));
            continue;
        }
        given.insert(*index, at);
        match draft.args.get(*index as usize) {
            Some(&"") => {}
            Some(_) => {
                let why = format!("{parent}.args[{index}] has a value; it must be empty");
                report.add(field(), Conflict.because(why));
            }
            None => {
                let count = draft.args.len();
                let why = format!("is {index}; {parent}.args has {count} entries, counted from 0");
                report.add(field(), OutOfRange.because(why));
            }
        }
    }
    for (index, arg) in draft.args.iter().enumerate() {
        if arg.is_empty() && !u32::try_from(index).is_ok_and(|index| given.contains_key(&index)) {
            report.add(
                format!("{parent}.args[{index}]"),
                Required.because("is empty; to pass an empty argument, set a secret argument with an empty value"),
            );
        }
    }
}

/// Checks the secret inputs of a process in a plan from another process.
pub(super) fn recheck(field: &str, process: &PlannedProcess) -> Result<(), Vec<Violation>> {
    let indices = &process.secret_arguments;
    let ascending = indices.windows(2).all(|pair| pair[0] < pair[1]);
    if !ascending || indices.last().is_some_and(|last| *last >= process.argument_count) {
        let field = format!("{field}.secret_arguments");
        return Err(vec![Violation::new(field, "must be ascending indices of the arguments")]);
    }
    let names = &process.secret_environment_names;
    if names.len() > LIST_MAX || names.iter().any(|name| name.is_empty() || name.contains(['=', '\0'])) {
        let field = format!("{field}.secret_environment");
        return Err(vec![Violation::new(field, format!("has an invalid name, or more than {LIST_MAX} entries"))]);
    }
    Ok(())
}
