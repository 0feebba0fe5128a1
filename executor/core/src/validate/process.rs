//! Validates program, arguments, environment and working directory.

use std::collections::BTreeSet;

use super::ViolationReason::{Duplicate, InvalidCharacter, InvalidFormat, Required, TooLarge, TooLong, TooMany};
use super::{DraftStep, FieldFault, Report, check_path, log_source_fault};
use crate::limits::{ARG_STRING_MAX, ARG_TOTAL_MAX, LIST_MAX};
use crate::plan::PlannedProcess;

/// Size of a pointer in the argument array of execve, in bytes.
const POINTER: usize = 8;

/// Checks a process, together with the variables that all processes share.
pub(super) fn check(draft: &DraftStep<'_>, shared_env: &[(&str, &[u8])], report: &mut Report) {
    let field = |name: &str| format!("{}.{name}", draft.field);
    if draft.path.is_empty() {
        report.add(field("path"), Required.because("is empty; it must name the program to run"));
    } else if let Err(why) = check_path_of_program(draft.path) {
        report.add(field("path"), why);
    }
    if !draft.dir.is_empty() {
        match check_path(draft.dir) {
            Err(why) => report.add(field("dir"), why),
            Ok(()) if !draft.dir.starts_with('/') => {
                report.add(field("dir"), InvalidFormat.because("is not absolute"));
            }
            Ok(()) => {}
        }
    }
    if let Some(why) = log_source_fault(draft.log_source) {
        report.add(field("log_source"), why);
    }
    let lists = [
        ("args", draft.args.len()),
        ("env", draft.env.len()),
        ("secret_environment", draft.secret_env.len()),
        ("secret_arguments", draft.secret_args.len()),
    ];
    for (name, list) in lists {
        if list > LIST_MAX {
            report.add(field(name), TooMany.because(format!("has {list} entries; at most {LIST_MAX} are allowed")));
            return;
        }
    }
    arguments(draft, report);
    environment(draft, report);
    let args: usize = draft.args.iter().map(|arg| arg.len() + 1 + POINTER).sum();
    let secret_args: usize = draft.secret_args.iter().map(|(_, value)| value.len()).sum();
    let inherited: Vec<(&str, &[u8])> = draft.inherited(shared_env).collect();
    let env = draft.env.iter().chain(&draft.secret_env).chain(&inherited);
    let env: usize = env.map(|(name, value)| name.len() + value.len() + 2 + POINTER).sum();
    let total = args + secret_args + env + draft.path.len() + 1 + POINTER;
    if total > ARG_TOTAL_MAX {
        let why =
            format!("arguments and environment are {total} bytes in total; the maximum is {ARG_TOTAL_MAX}; use a file");
        report.add(&draft.field, TooLarge.because(why));
    }
}

fn check_path_of_program(path: &str) -> Result<(), FieldFault> {
    // `..` is allowed here: the path is looked up inside the container.
    if path.len() >= super::PATH_MAX {
        return Err(TooLong.because(format!("is {} bytes; the maximum is {}", path.len(), super::PATH_MAX - 1)));
    }
    if path.contains('\0') {
        return Err(InvalidCharacter.because("contains NUL"));
    }
    Ok(())
}

fn arguments(draft: &DraftStep<'_>, report: &mut Report) {
    let parent = &draft.field;
    let public = draft.args.iter().enumerate().map(|(index, arg)| (format!("{parent}.args[{index}]"), *arg));
    let secret = draft.secret_args.iter().enumerate();
    let secret = secret.map(|(at, (_, value))| (format!("{parent}.secret_arguments[{at}].value"), *value));
    for (field, arg) in public.chain(secret) {
        if arg.contains('\0') {
            report.add(&field, InvalidCharacter.because("contains NUL"));
        }
        if arg.len() >= ARG_STRING_MAX {
            let why = format!("is {} bytes; the maximum is {}; use a file", arg.len(), ARG_STRING_MAX - 1);
            report.add(&field, TooLong.because(why));
        }
    }
}

fn environment(draft: &DraftStep<'_>, report: &mut Report) {
    let mut seen = BTreeSet::new();
    let parent = &draft.field;
    for (list, pairs) in [("env", &draft.env), ("secret_environment", &draft.secret_env)] {
        let why = "is given twice (env and secret_environment count as one list)";
        variables(&format!("{parent}.{list}"), pairs, &mut seen, why, report);
    }
}

/// Checks the variables that all processes share.
pub(super) fn shared_environment(variables_of_all: &[(&str, &[u8])], report: &mut Report) {
    let count = variables_of_all.len();
    if count > LIST_MAX {
        report.add("environment", TooMany.because(format!("has {count} entries; at most {LIST_MAX} are allowed")));
        return;
    }
    variables("environment", variables_of_all, &mut BTreeSet::new(), "is given twice", report);
}

fn variables<'a>(
    list: &str,
    pairs: &[(&'a str, &'a [u8])],
    seen: &mut BTreeSet<&'a str>,
    twice: &str,
    report: &mut Report,
) {
    for (index, (name, value)) in pairs.iter().enumerate() {
        let field = || format!("{list}[{index}]");
        if name.is_empty() || name.contains(['=', '\0']) {
            let reason = if name.is_empty() { Required } else { InvalidCharacter };
            report.add(format!("{}.name", field()), reason.because("must not be empty or contain `=` or NUL"));
        } else if !seen.insert(*name) {
            report.add(format!("{}.name", field()), Duplicate.because(twice));
        }
        if value.contains(&0) {
            report.add(format!("{}.value", field()), InvalidCharacter.because("contains NUL"));
        }
        let length = name.len() + 1 + value.len() + 1;
        if length > ARG_STRING_MAX {
            let (is, most) = (length - 1, ARG_STRING_MAX - 1);
            let why = format!("is too long: NAME=VALUE is {is} bytes; the maximum is {most}; use a file");
            report.add(format!("{}.value", field()), TooLong.because(why));
        }
    }
}

/// Creates the plan of a process with this id.
pub(super) fn plan(id: &str, draft: &DraftStep<'_>, shared_env: &[(&str, &[u8])]) -> PlannedProcess {
    let own = draft.env.iter().map(|(name, _)| (*name).to_owned());
    PlannedProcess {
        id: id.to_owned(),
        path: draft.path.to_owned(),
        argument_count: u32::try_from(draft.args.len()).unwrap_or(u32::MAX),
        dir: if draft.dir.is_empty() { "/".to_owned() } else { draft.dir.to_owned() },
        environment_names: own.chain(draft.inherited(shared_env).map(|(name, _)| name.to_owned())).collect(),
        secret_environment_names: draft.secret_env.iter().map(|(name, _)| (*name).to_owned()).collect(),
        secret_arguments: {
            let mut indices: Vec<u32> = draft.secret_args.iter().map(|(index, _)| *index).collect();
            indices.sort_unstable();
            indices
        },
        log_source: draft.log_source.to_owned(),
        suppress_log_output: draft.suppress_log_output,
        user: None,
        nofile: None,
        files: Vec::new(),
    }
}
