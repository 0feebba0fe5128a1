//! The program, its arguments, its environment, its directory.

use std::collections::BTreeSet;

use super::{ARG_STRING_MAX, ARG_TOTAL_MAX, Draft, LIST_MAX, Report, check_path};
use crate::plan::{MAIN_PROCESS, PlannedProcess};

/// Bytes of a pointer in the array that execve takes.
const POINTER: usize = 8;

pub(super) fn check(draft: &Draft<'_>, report: &mut Report) {
    if draft.path.is_empty() {
        report.add("action.run.path", "is empty: it names the program to run");
    } else if let Err(why) = check_path_of_program(draft.path) {
        report.add("action.run.path", why);
    }
    if !draft.dir.is_empty() {
        match check_path(draft.dir) {
            Err(why) => report.add("action.run.dir", why),
            Ok(()) if !draft.dir.starts_with('/') => report.add("action.run.dir", "is not absolute"),
            Ok(()) => {}
        }
    }
    if draft.log_source.len() > 64 || !draft.log_source.bytes().all(|b| b.is_ascii_graphic()) {
        report.add(
            "action.run.log_source",
            format!("has {} bytes; at most 64 visible ASCII characters", draft.log_source.len()),
        );
    }
    for (name, list) in [("action.run.args", draft.args.len()), ("action.run.env", draft.env.len())] {
        if list > LIST_MAX {
            report.add(name, format!("has {list} entries; at most {LIST_MAX}"));
            return;
        }
    }
    arguments(draft, report);
    environment(draft, report);
    let args: usize = draft.args.iter().map(|arg| arg.len() + 1 + POINTER).sum();
    let env: usize = draft.env.iter().map(|(name, value)| name.len() + value.len() + 2 + POINTER).sum();
    let total = args + env + draft.path.len() + 1 + POINTER;
    if total > ARG_TOTAL_MAX {
        report.add(
            "action.run",
            format!("arguments and environment have {total} bytes together; at most {ARG_TOTAL_MAX}: use a file"),
        );
    }
}

fn check_path_of_program(path: &str) -> Result<(), String> {
    // `..` is the caller's own affair here: the path is looked up inside the container.
    if path.len() >= super::PATH_MAX {
        return Err(format!("has {} bytes; at most {}", path.len(), super::PATH_MAX - 1));
    }
    if path.contains('\0') {
        return Err("contains a NUL".into());
    }
    Ok(())
}

fn arguments(draft: &Draft<'_>, report: &mut Report) {
    for (index, arg) in draft.args.iter().enumerate() {
        if arg.contains('\0') {
            report.add(format!("action.run.args[{index}]"), "contains a NUL");
        }
        if arg.len() >= ARG_STRING_MAX {
            report.add(
                format!("action.run.args[{index}]"),
                format!("has {} bytes; at most {}: use a file", arg.len(), ARG_STRING_MAX - 1),
            );
        }
    }
}

fn environment(draft: &Draft<'_>, report: &mut Report) {
    let mut seen = BTreeSet::new();
    for (index, (name, value)) in draft.env.iter().enumerate() {
        let field = || format!("action.run.env[{index}]");
        if name.is_empty() || name.contains(['=', '\0']) {
            report.add(format!("{}.name", field()), "is empty, or contains `=` or a NUL");
        } else if !seen.insert(*name) {
            report.add(format!("{}.name", field()), "is there twice");
        }
        if value.contains('\0') {
            report.add(format!("{}.value", field()), "contains a NUL");
        }
        let length = name.len() + 1 + value.len() + 1;
        if length > ARG_STRING_MAX {
            report.add(
                format!("{}.value", field()),
                format!(
                    "makes an environment string of {} bytes; at most {}: use a file",
                    length - 1,
                    ARG_STRING_MAX - 1
                ),
            );
        }
    }
}

pub(super) fn plan(draft: &Draft<'_>) -> PlannedProcess {
    PlannedProcess {
        id: MAIN_PROCESS.to_owned(),
        path: draft.path.to_owned(),
        argument_count: u32::try_from(draft.args.len()).unwrap_or(u32::MAX),
        dir: if draft.dir.is_empty() { "/".to_owned() } else { draft.dir.to_owned() },
        environment_names: draft.env.iter().map(|(name, _)| (*name).to_owned()).collect(),
        log_source: draft.log_source.to_owned(),
        suppress_log_output: draft.suppress_log_output,
    }
}
