//! The program, its arguments, its environment, its directory.

use std::collections::BTreeSet;

use super::ViolationReason::{Duplicate, InvalidCharacter, InvalidFormat, Required, TooLarge, TooLong, TooMany};
use super::{Draft, FieldFault, Report, check_path};
use crate::limits::{ARG_STRING_MAX, ARG_TOTAL_MAX, LIST_MAX};
use crate::plan::{MAIN_PROCESS, PlannedProcess};

/// Bytes of a pointer in the array that execve takes.
const POINTER: usize = 8;

pub(super) fn check(draft: &Draft<'_>, report: &mut Report) {
    if draft.path.is_empty() {
        report.add("action.run.path", Required.because("is empty; it must name the program to run"));
    } else if let Err(why) = check_path_of_program(draft.path) {
        report.add("action.run.path", why);
    }
    if !draft.dir.is_empty() {
        match check_path(draft.dir) {
            Err(why) => report.add("action.run.dir", why),
            Ok(()) if !draft.dir.starts_with('/') => {
                report.add("action.run.dir", InvalidFormat.because("is not absolute"));
            }
            Ok(()) => {}
        }
    }
    if draft.log_source.len() > 64 || !draft.log_source.bytes().all(|b| b.is_ascii_graphic()) {
        let reason = if draft.log_source.len() > 64 { TooLong } else { InvalidCharacter };
        let why = format!("has {} bytes; at most 64 visible ASCII characters", draft.log_source.len());
        report.add("action.run.log_source", reason.because(why));
    }
    let lists = [
        ("action.run.args", draft.args.len()),
        ("action.run.env", draft.env.len()),
        ("action.run.secret_environment", draft.secret_env.len()),
        ("action.run.secret_arguments", draft.secret_args.len()),
    ];
    for (name, list) in lists {
        if list > LIST_MAX {
            report.add(name, TooMany.because(format!("has {list} entries; at most {LIST_MAX}")));
            return;
        }
    }
    arguments(draft, report);
    environment(draft, report);
    let args: usize = draft.args.iter().map(|arg| arg.len() + 1 + POINTER).sum();
    let secret_args: usize = draft.secret_args.iter().map(|(_, value)| value.len()).sum();
    let env = draft.env.iter().chain(&draft.secret_env);
    let env: usize = env.map(|(name, value)| name.len() + value.len() + 2 + POINTER).sum();
    let total = args + secret_args + env + draft.path.len() + 1 + POINTER;
    if total > ARG_TOTAL_MAX {
        let why = format!("arguments and environment have {total} bytes in total; at most {ARG_TOTAL_MAX}; use a file");
        report.add("action.run", TooLarge.because(why));
    }
}

fn check_path_of_program(path: &str) -> Result<(), FieldFault> {
    // `..` is the caller's own affair here: the path is looked up inside the container.
    if path.len() >= super::PATH_MAX {
        return Err(TooLong.because(format!("has {} bytes; at most {}", path.len(), super::PATH_MAX - 1)));
    }
    if path.contains('\0') {
        return Err(InvalidCharacter.because("contains NUL"));
    }
    Ok(())
}

fn arguments(draft: &Draft<'_>, report: &mut Report) {
    let public = draft.args.iter().enumerate().map(|(index, arg)| (format!("action.run.args[{index}]"), *arg));
    let secret = draft.secret_args.iter().enumerate();
    let secret = secret.map(|(at, (_, value))| (format!("action.run.secret_arguments[{at}].value"), *value));
    for (field, arg) in public.chain(secret) {
        if arg.contains('\0') {
            report.add(&field, InvalidCharacter.because("contains NUL"));
        }
        if arg.len() >= ARG_STRING_MAX {
            let why = format!("has {} bytes; at most {}; use a file", arg.len(), ARG_STRING_MAX - 1);
            report.add(&field, TooLong.because(why));
        }
    }
}

fn environment(draft: &Draft<'_>, report: &mut Report) {
    let mut seen = BTreeSet::new();
    let public = draft.env.iter().enumerate().map(|(index, pair)| ("env", index, pair));
    let secret = draft.secret_env.iter().enumerate().map(|(index, pair)| ("secret_environment", index, pair));
    for (list, index, (name, value)) in public.chain(secret) {
        let field = || format!("action.run.{list}[{index}]");
        if name.is_empty() || name.contains(['=', '\0']) {
            let reason = if name.is_empty() { Required } else { InvalidCharacter };
            report.add(format!("{}.name", field()), reason.because("must not be empty or contain `=` or NUL"));
        } else if !seen.insert(*name) {
            let why = "is given twice (env and secret_environment count as one list)";
            report.add(format!("{}.name", field()), Duplicate.because(why));
        }
        if value.contains('\0') {
            report.add(format!("{}.value", field()), InvalidCharacter.because("contains NUL"));
        }
        let length = name.len() + 1 + value.len() + 1;
        if length > ARG_STRING_MAX {
            let (is, most) = (length - 1, ARG_STRING_MAX - 1);
            let why = format!("is too long: NAME=VALUE has {is} bytes; at most {most}; use a file");
            report.add(format!("{}.value", field()), TooLong.because(why));
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
        secret_environment_names: draft.secret_env.iter().map(|(name, _)| (*name).to_owned()).collect(),
        secret_arguments: {
            let mut indices: Vec<u32> = draft.secret_args.iter().map(|(index, _)| *index).collect();
            indices.sort_unstable();
            indices
        },
        log_source: draft.log_source.to_owned(),
        suppress_log_output: draft.suppress_log_output,
    }
}
