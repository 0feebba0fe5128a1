//! Validates updates of a running container's secret files against the current files.
//!
//! The input is the container's plan, and the files and removed paths of an update request; the output is the list of
//! all files after the update, and the indices of the files with new content. Remaining files keep their
//! positions: the list has the order of the requests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::ViolationReason::{Conflict, Duplicate, NotFound, OutOfRange, Required, Reserved, TooLarge, TooMany};
use super::{DraftFile, Policy, Report, Violation, files, outputs};
use crate::limits::{LIST_MAX, SIGNAL_MAX};
use crate::plan::{Plan, PlannedFile};

/// Description, in messages, of a file that the container already has.
const EXISTING_FILE: &str = "the container's file";

/// An update before validation, borrowed from the message.
#[derive(Default)]
pub struct UpdateDraft<'a> {
    /// Files to replace or, if the path does not exist, to add.
    pub files: Vec<DraftFile<'a>>,
    /// Paths of files to remove.
    pub removed: Vec<&'a str>,
    /// Signal to send afterwards; 0 for none.
    pub signal: u32,
}

/// A validated update, to be sent to the shim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedUpdate {
    /// All files after the update; the runtime token's file is the last.
    pub files: Vec<PlannedFile>,
    /// Files with new content, as ascending indices into `files`.
    pub changed: Vec<usize>,
    /// For each entry of `changed`, the index of the draft's file with the content.
    pub sources: Vec<usize>,
    /// Signal to send afterwards; 0 for none.
    pub signal: i32,
}

/// Validates an update of a container with this plan.
///
/// # Errors
/// Returns all violations, in the order of the API's fields, if the update is invalid.
pub fn validate_update(draft: &UpdateDraft<'_>, plan: &Plan, policy: &Policy) -> Result<PlannedUpdate, Vec<Violation>> {
    let mut report = Report::default();
    if draft.files.len() > LIST_MAX || draft.removed.len() > LIST_MAX {
        for (field, count) in [("files", draft.files.len()), ("removed_paths", draft.removed.len())] {
            if count > LIST_MAX {
                report.add(field, TooMany.because(format!("has {count} entries; at most {LIST_MAX} are allowed")));
            }
        }
        return Err(report.0);
    }
    if draft.files.is_empty() && draft.removed.is_empty() {
        report.add("files", Required.because("files and removed_paths are both empty: nothing to update"));
    }
    let given = given(draft, plan, policy, &mut report);
    let removed = removed(draft, plan, &given, policy, &mut report);
    let merged = merge(draft, plan, &given, &removed, &mut report);
    check_merged(&merged, plan, policy, &mut report);
    let signal = i32::try_from(draft.signal).ok().filter(|_| draft.signal <= SIGNAL_MAX);
    if signal.is_none() {
        let why = format!("is {}; 0 (none) to {SIGNAL_MAX} is allowed", draft.signal);
        report.add("signal", OutOfRange.because(why));
    }
    match signal {
        Some(signal) if report.0.is_empty() => Ok(PlannedUpdate { signal, ..merged }),
        _ => Err(report.0),
    }
}

/// Returns the files of the update request by their absolute paths, with their indices in the draft.
fn given(draft: &UpdateDraft<'_>, plan: &Plan, policy: &Policy, report: &mut Report) -> BTreeMap<PathBuf, usize> {
    let mut given = BTreeMap::new();
    for (index, file) in draft.files.iter().enumerate() {
        let field = || format!("{}.path", file.field);
        match files::resolve(file.path, &policy.files_root) {
            Err(why) => report.add(field(), why),
            Ok(path) if plan.token_file().is_some_and(|token| token.path == path) => {
                let why = format!("`{}` is the file of the container's runtime token", path.display());
                report.add(field(), Reserved.because(why));
            }
            Ok(path) => match given.get(&path) {
                Some(earlier) => {
                    let earlier: &DraftFile<'_> = &draft.files[*earlier];
                    let why = format!("`{}` is also the path of {}", path.display(), earlier.field);
                    report.add(field(), Duplicate.because(why));
                }
                None => {
                    given.insert(path, index);
                }
            },
        }
    }
    given
}

fn removed(
    draft: &UpdateDraft<'_>,
    plan: &Plan,
    given: &BTreeMap<PathBuf, usize>,
    policy: &Policy,
    report: &mut Report,
) -> BTreeSet<PathBuf> {
    let there: BTreeSet<&PathBuf> = plan.given_files().iter().map(|file| &file.path).collect();
    let mut removed = BTreeSet::new();
    for (index, path) in draft.removed.iter().enumerate() {
        let path = match files::resolve(path, &policy.files_root) {
            Ok(path) => path,
            Err(why) => {
                report.add(format!("removed_paths[{index}]"), why);
                continue;
            }
        };
        let shown = path.display();
        let why = if plan.token_file().is_some_and(|token| token.path == path) {
            Reserved.because(format!("`{shown}` is the file of the container's runtime token"))
        } else if given.contains_key(&path) {
            Conflict.because(format!("`{shown}` is also in `files`"))
        } else if removed.contains(&path) {
            Duplicate.because(format!("`{shown}` is given twice"))
        } else if !there.contains(&path) {
            NotFound.because(format!("`{shown}` is not one of the container's secret files"))
        } else {
            removed.insert(path);
            continue;
        };
        report.add(format!("removed_paths[{index}]"), why);
    }
    removed
}

/// Merges the lists: remaining and replaced files keep their positions, new files follow, then the token's file. A
/// replaced file keeps its mode and group unless the update request sets new values.
fn merge(
    draft: &UpdateDraft<'_>,
    plan: &Plan,
    given: &BTreeMap<PathBuf, usize>,
    removed: &BTreeSet<PathBuf>,
    report: &mut Report,
) -> PlannedUpdate {
    let mut planned = |path: &PathBuf, index: usize, replaced: Option<&PlannedFile>| {
        let file = &draft.files[index];
        let access = files::access(file, replaced, plan.isolation.user_namespace, report);
        files::planned(file, path.clone(), access)
    };
    let mut merged = PlannedUpdate { files: Vec::new(), changed: Vec::new(), sources: Vec::new(), signal: 0 };
    let mut placed = BTreeSet::new();
    for file in plan.given_files().iter().filter(|file| !removed.contains(&file.path)) {
        match given.get(&file.path) {
            None => merged.files.push(file.clone()),
            Some(index) => {
                placed.insert(*index);
                merged.changed.push(merged.files.len());
                merged.sources.push(*index);
                merged.files.push(planned(&file.path, *index, Some(file)));
            }
        }
    }
    let mut added: Vec<(&PathBuf, usize)> =
        given.iter().map(|(path, index)| (path, *index)).filter(|(_, index)| !placed.contains(index)).collect();
    added.sort_by_key(|(_, index)| *index);
    for (path, index) in added {
        merged.changed.push(merged.files.len());
        merged.sources.push(index);
        merged.files.push(planned(path, index, None));
    }
    merged.files.extend(plan.token_file().cloned());
    merged
}

/// Checks the rules that apply to all files together, as in the original request.
fn check_merged(merged: &PlannedUpdate, plan: &Plan, policy: &Policy, report: &mut Report) {
    // The field path of a remaining file refers to an earlier call and would mislead this caller.
    let mut named = merged.files.clone();
    for (index, file) in named.iter_mut().enumerate() {
        if merged.changed.binary_search(&index).is_err() {
            file.field = format!("{EXISTING_FILE} `{}`", file.path.display());
        }
    }
    let mut clashes = Report::default();
    files::check_conflicts(&named, &mut clashes);
    for clash in clashes.0 {
        let field = if clash.field.starts_with(EXISTING_FILE) { "files".to_owned() } else { clash.field };
        report.add(field, clash.reason.because(clash.description));
    }
    if let Some(Ok(words)) = plan.outputs.as_ref().map(outputs::DraftTexts::from_planned) {
        outputs::check(&words.draft(), &merged.files, policy, report);
    }
    let count = merged.files.len() - usize::from(plan.token_file().is_some());
    if count > LIST_MAX {
        report.add(
            "files",
            TooMany.because(format!("would give this container {count} files; at most {LIST_MAX} are allowed")),
        );
    }
    let given = |file: &'_ PlannedFile| file.path.strip_prefix(&policy.files_root).unwrap_or(&file.path).to_owned();
    let paths: Vec<PathBuf> = merged.files[..count].iter().map(given).collect();
    let weighed: Vec<(&Path, u64)> =
        paths.iter().map(PathBuf::as_path).zip(merged.files.iter().map(|file| file.size)).collect();
    for why in files::exceeded_limits(&weighed, policy) {
        report.add("files", TooLarge.because(format!("would give this container {why}")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{OutputSource, PlannedOutputs};
    use crate::validate::{Draft, recheck, validate};

    fn plan(files: &[&str], token: &str) -> Plan {
        let files = files.iter().map(|path| ("f".to_owned(), *path, 3).into()).collect();
        let draft = Draft { id: "c1", path: "/bin/true", files, token_path: token, ..Draft::default() };
        validate(&draft, &Policy::default()).unwrap()
    }

    fn asked<'a>(files: &[(&'a str, u64)], removed: &[&'a str]) -> UpdateDraft<'a> {
        let file = |(index, (path, size)): (usize, &(&'a str, u64))| (format!("files[{index}]"), *path, *size).into();
        UpdateDraft { files: files.iter().enumerate().map(file).collect(), removed: removed.to_vec(), signal: 0 }
    }

    #[test]
    fn files_stay_in_their_places() {
        let plan = plan(&["a", "b", "c", "/x/y"], "token");
        let draft = asked(&[("new", 7), ("c", 8), ("/etc/cf-service-bindings/a", 9)], &["b"]);
        let planned = validate_update(&draft, &plan, &Policy::default()).unwrap();
        let root = "/etc/cf-service-bindings";
        let paths: Vec<String> = planned.files.iter().map(|file| file.path.display().to_string()).collect();
        let expected = ["a", "c"].map(|name| format!("{root}/{name}")).into_iter();
        let expected = expected.chain(["/x/y".into(), format!("{root}/new"), format!("{root}/token")]);
        assert_eq!(paths, expected.collect::<Vec<_>>());
        assert_eq!((&planned.changed[..], &planned.sources[..]), (&[0, 1, 3][..], &[2, 1, 0][..]));
        let sizes: Vec<u64> = planned.files.iter().map(|file| file.size).collect();
        assert_eq!(sizes[..4], [9, 8, 3, 7]);
        assert!(planned.files[4].token && !planned.files[..4].iter().any(|file| file.token));
        // The shim's own check accepts every validated update.
        recheck(&Plan { files: planned.files, ..plan }, &Policy::default()).unwrap();
    }

    #[test]
    fn all_update_violations_are_reported_together() {
        let plan = plan(&["a", "b", "d/e"], "token");
        let files = [("../x", 1), ("a", 1), ("/etc/cf-service-bindings/a", 1), ("token", 1), ("b/c", 1), ("d", 1)];
        let mut draft = asked(&files, &["a", "nope", "token", "/proc/x", "b", "b"]);
        draft.signal = 65;
        draft.removed.truncate(5);
        let violations = validate_update(&draft, &plan, &Policy::default()).unwrap_err();
        let reported: Vec<(&str, &str)> = violations.iter().map(|v| (&*v.field, &*v.description)).collect();
        let expected = [
            ("files[0].path", "contains `..`"),
            ("files[2].path", "is also the path of files[1]"),
            ("files[3].path", "runtime token"),
            ("removed_paths[0]", "is also in `files`"),
            ("removed_paths[1]", "not one of the container's"),
            ("removed_paths[2]", "runtime token"),
            ("removed_paths[3]", "is under /proc"),
            ("files", "requires files[5] to be a directory, but it is a file"),
            ("signal", "is 65"),
        ];
        assert_eq!(reported.len(), expected.len(), "{reported:#?}");
        for ((field, description), (expected_field, words)) in reported.iter().zip(expected) {
            assert!(*field == expected_field && description.contains(words), "{field}: {description}");
        }
        // `b` is removed, so it may become a directory.
        let reported = validate_update(&asked(&[("b/c", 1)], &["b"]), &plan, &Policy::default());
        assert!(reported.is_ok(), "{reported:?}");
        let nothing = validate_update(&UpdateDraft::default(), &plan, &Policy::default()).unwrap_err();
        assert_eq!(nothing[0].field, "files");
    }

    #[test]
    fn limits_hold_for_the_whole_list() {
        let plan = plan(&["a", "b"], "");
        let policy = Policy { files_bytes_max: 20, ..Policy::default() };
        let sum = |size| validate_update(&asked(&[("b", size)], &[]), &plan, &policy);
        assert!(sum(17).is_ok(), "3 + 17 bytes");
        let violations = sum(18).unwrap_err();
        assert_eq!(violations[0].field, "files");
        assert!(
            violations[0].description.contains("would give this container 21 bytes of contents"),
            "{}",
            violations[0]
        );
        let many = vec!["x"; LIST_MAX + 1];
        let violations = validate_update(&asked(&[], &many), &plan, &policy).unwrap_err();
        assert_eq!((violations.len(), &*violations[0].field), (1, "removed_paths"));
        let names: Vec<String> = (0..LIST_MAX).map(|i| format!("n{i}")).collect();
        let files: Vec<(&str, u64)> = names.iter().map(|name| (&**name, 1)).collect();
        let violations = validate_update(&asked(&files, &[]), &plan, &Policy::default()).unwrap_err();
        assert!(violations[0].description.contains("10002 files"), "{}", violations[0]);
    }

    /// An update cannot add a secret file at the path of a declared output.
    #[test]
    fn a_declared_output_cannot_become_a_secret() {
        let outputs = PlannedOutputs { source: OutputSource::Files(vec!["/srv/out".into()]), bytes_max: 10 };
        let plan = Plan { outputs: Some(outputs), ..plan(&["a"], "") };
        let violations = validate_update(&asked(&[("/srv/out", 1)], &[]), &plan, &Policy::default()).unwrap_err();
        assert!(violations[0].description.contains("never captured"), "{}", violations[0]);
    }
}
