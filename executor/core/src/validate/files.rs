//! Validates the secret files of a request, each file by itself and all files together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::ViolationReason::{
    Conflict, Duplicate, InvalidCharacter, InvalidFormat, OutOfRange, Required, Reserved, TooLarge, TooLong, TooMany,
};
use super::{Draft, DraftFile, DraftStep, FieldFault, Policy, Report, Violation, fits, parse_principal, shorten};
use crate::ident::ContainerId;
use crate::limits::{
    DIRECTORIES_MAX, FILE_PATHS_MAX, LIST_MAX, MODE_MAX, NAME_MAX, PATH_MAX, WRITABLE_DEFAULT, WRITABLE_MIN,
    WRITABLE_SHARE,
};
use crate::plan::{FILE_MODE, Plan, PlannedFile, Principal, UserNamespace, WritableFiles};
use crate::token;

/// Field of the runtime token's file.
const TOKEN_FIELD: &str = "runtime_token_path";

/// Checks that at most one file of a plan holds the runtime token, and that this file is the last. The order of the
/// contents in the payload depends on this position.
pub(super) fn check_token_is_last(plan: &Plan) -> Result<(), Vec<Violation>> {
    if plan.given_files().iter().any(|file| file.token) {
        return Err(vec![Violation::new(TOKEN_FIELD, "must be the last file of the plan")]);
    }
    Ok(())
}

/// Checks every file, and conflicts between files.
pub(super) fn check(draft: &Draft<'_>, policy: &Policy, report: &mut Report) -> Vec<PlannedFile> {
    if draft.files.len() > LIST_MAX {
        let why = format!("has {} entries; at most {LIST_MAX} are allowed", draft.files.len());
        report.add("volume_mounted_files", TooMany.because(why));
        return Vec::new();
    }
    let mut files: Vec<PlannedFile> = Vec::with_capacity(draft.files.len());
    for file in &draft.files {
        let path = resolve(file.path, &policy.files_root);
        let path = path.map_err(|why| report.add(format!("{}.path", file.field), why)).ok();
        let access = access(file, None, draft.isolation.user_namespace, report);
        files.extend(path.map(|path| planned(file, path, access)));
    }
    if !draft.token_path.is_empty() {
        match resolve(draft.token_path, &policy.files_root) {
            Ok(path) => {
                let size = draft.id.parse().map_or(0, |id: ContainerId| token::length(&id) as u64);
                files.push(PlannedFile { token: true, ..PlannedFile::private(path, size, TOKEN_FIELD) });
            }
            Err(why) => report.add(TOKEN_FIELD, why),
        }
    }
    if !draft.token_path.is_empty() {
        check_runtime_directory(&files, report);
    }
    check_conflicts(&files, report);
    check_total_size(draft, policy, report);
    files
}

/// Checks the files of a process in a tree of actions, individually and together with the container's files. The
/// process sees both sets of files.
pub(super) fn for_step(
    step: &DraftStep<'_>,
    own: &[PlannedFile],
    draft: &Draft<'_>,
    policy: &Policy,
    report: &mut Report,
) -> Vec<PlannedFile> {
    let list = format!("{}.volume_mounted_files", step.field);
    if step.files.len() > LIST_MAX {
        report.add(list, TooMany.because(format!("has {} entries; at most {LIST_MAX} are allowed", step.files.len())));
        return Vec::new();
    }
    let mut files = Vec::with_capacity(step.files.len());
    for file in &step.files {
        let path = resolve(file.path, &policy.files_root);
        let path = path.map_err(|why| report.add(format!("{}.path", file.field), why)).ok();
        let access = access(file, None, draft.isolation.user_namespace, report);
        files.extend(path.map(|path| planned(file, path, access)));
    }
    if files.is_empty() {
        return files;
    }
    let mut conflicts = Report::default();
    let together: Vec<PlannedFile> = own.iter().chain(&files).cloned().collect();
    check_conflicts(&together, &mut conflicts);
    // Conflicts among the container's own files were already reported.
    report.0.extend(conflicts.0.into_iter().filter(|violation| violation.field.starts_with(&step.field)));
    files
}

/// Checks the directories that are declared to hold only secret files.
pub(super) fn directories(
    draft: &Draft<'_>,
    files: &[PlannedFile],
    policy: &Policy,
    report: &mut Report,
) -> Vec<PathBuf> {
    let count = draft.file_directories.len();
    if count > DIRECTORIES_MAX {
        report.add(
            "file_directories",
            TooMany.because(format!("has {count} entries; at most {DIRECTORIES_MAX} are allowed")),
        );
        return Vec::new();
    }
    let runtime = Path::new(token::RUNTIME_DIR);
    let mut directories: Vec<PathBuf> = Vec::with_capacity(count);
    for (index, text) in draft.file_directories.iter().enumerate() {
        let path = match resolve(text, &policy.files_root) {
            Ok(path) => path,
            Err(why) => {
                report.add(format!("file_directories[{index}]"), why);
                continue;
            }
        };
        let shown = path.display();
        let why = if directories.contains(&path) {
            Duplicate.because(format!("`{shown}` is given twice"))
        } else if let Some(file) = files.iter().find(|file| path.starts_with(&file.path)) {
            Conflict.because(format!("`{shown}` requires {} to be a directory, but it is a file", file.field))
        } else if !draft.token_path.is_empty() && (runtime.starts_with(&path) || path.starts_with(runtime)) {
            let runtime = runtime.display();
            let why = format!("`{shown}`: {runtime} is reserved for the runtime socket of a container with a token");
            Reserved.because(why)
        } else {
            directories.push(path);
            continue;
        };
        report.add(format!("file_directories[{index}]"), why);
    }
    directories
}

/// Checks the number of bytes that a process may write to the file system of its secret files. The default depends on
/// the memory limit.
pub(super) fn writable(
    requested_bytes: u64,
    memory_bytes: u64,
    files: &[PlannedFile],
    directories: &[PathBuf],
    report: &mut Report,
) -> Option<WritableFiles> {
    if files.is_empty() && directories.is_empty() && report.0.is_empty() {
        report.add("writable_files", "needs a file in volume_mounted_files, or a directory in file_directories");
        return None;
    }
    let bytes_max =
        if requested_bytes == 0 { WRITABLE_DEFAULT.min(memory_bytes / WRITABLE_SHARE) } else { requested_bytes };
    if requested_bytes != 0 && (requested_bytes < WRITABLE_MIN || requested_bytes > memory_bytes) {
        let why = format!("is {requested_bytes}; {WRITABLE_MIN} to {memory_bytes} (limits.memory_bytes) is allowed");
        report.add("writable_files.bytes_max", why);
        return None;
    }
    Some(WritableFiles { bytes_max })
}

/// Mode and group of a file.
pub(super) type Access = (u32, Option<Principal>);

/// Returns the mode and group of a file: the requested values, otherwise the values of the replaced file, otherwise the
/// defaults.
pub(super) fn access(
    file: &DraftFile<'_>,
    replaced: Option<&PlannedFile>,
    namespace: UserNamespace,
    report: &mut Report,
) -> Access {
    let mode = file.mode.or(replaced.map(|old| old.mode)).unwrap_or(FILE_MODE);
    if mode > MODE_MAX {
        let why = format!("is {mode:#o}; 0 to {MODE_MAX:#o} is allowed");
        report.add(format!("{}.mode", file.field), OutOfRange.because(why));
    }
    let group = match file.group {
        None => replaced.and_then(|old| old.group.clone()),
        Some("") => None,
        Some(text) => match parse_principal(text, "group").and_then(|group| fits(group, "group", namespace)) {
            Ok(group) => Some(group),
            Err(why) => {
                report.add(format!("{}.group", file.field), why);
                None
            }
        },
    };
    (mode, group)
}

/// Creates the planned file for a validated file.
pub(super) fn planned(file: &DraftFile<'_>, path: PathBuf, (mode, group): Access) -> PlannedFile {
    let DraftFile { field, size, public, .. } = file;
    PlannedFile { public: *public, mode, group, ..PlannedFile::private(path, *size, field) }
}

/// Returns the absolute path of a file.
///
/// # Errors
/// Returns an error if the path is invalid.
pub(super) fn resolve(path: &str, root: &Path) -> Result<PathBuf, FieldFault> {
    if path.is_empty() {
        return Err(Required.because("is empty"));
    }
    if path.contains(['\0', '\n']) {
        return Err(InvalidCharacter.because("contains NUL or a newline"));
    }
    for part in path.strip_prefix('/').unwrap_or(path).split('/') {
        let shown = shorten(path);
        match part {
            "" => {
                let why = format!("`{shown}` has an empty component (`//`, or a `/` at its end)");
                return Err(InvalidFormat.because(why));
            }
            "." | ".." => return Err(InvalidFormat.because(format!("`{shown}` contains `{part}`"))),
            _ if part.starts_with("..") => {
                let why = format!("`{shown}`: names that begin with `..` are reserved for rotation");
                return Err(Reserved.because(why));
            }
            _ if part.len() > NAME_MAX => {
                let why = format!("`{shown}` has a component of {} bytes; the maximum is {NAME_MAX}", part.len());
                return Err(TooLong.because(why));
            }
            _ => {}
        }
    }
    let absolute = root.join(path);
    let length = absolute.as_os_str().len();
    if length >= PATH_MAX {
        return Err(TooLong.because(format!("`{}` is {length} bytes; the maximum is {}", shorten(path), PATH_MAX - 1)));
    }
    if let Some(bad) = ["/proc", "/sys", "/dev"].iter().find(|bad| absolute.starts_with(bad)) {
        let why = format!("`{}` is under {bad}, which is reserved for the kernel", shorten(path));
        return Err(Reserved.because(why));
    }
    Ok(absolute)
}

/// Checks that no file of a container with a runtime token is inside the directory of the runtime socket, and that no
/// file has the path of this directory or of one of its parents.
fn check_runtime_directory(files: &[PlannedFile], report: &mut Report) {
    let taken = Path::new(token::RUNTIME_DIR);
    for file in files.iter().filter(|file| file.path.starts_with(taken) || taken.starts_with(&file.path)) {
        let why = format!(
            "`{}`: {} is reserved for the runtime socket of a container with a token",
            file.path.display(),
            taken.display()
        );
        report.add(file.path_field(), Reserved.because(why));
    }
}

/// Checks that no path is used twice, and that no file has the path of another file's directory.
pub(super) fn check_conflicts(files: &[PlannedFile], report: &mut Report) {
    let mut first: BTreeMap<&Path, &str> = BTreeMap::new();
    for file in files {
        if let Some(earlier) = first.get(file.path.as_path()) {
            let why = format!("`{}` is also the path of {earlier}", file.path.display());
            report.add(file.path_field(), Duplicate.because(why));
        } else {
            first.insert(&file.path, &file.field);
        }
    }
    for file in files {
        for parent in file.path.ancestors().skip(1) {
            if let Some(other) = first.get(parent) {
                let why = format!("`{}` requires {other} to be a directory, but it is a file", file.path.display());
                report.add(file.path_field(), Conflict.because(why));
            }
        }
    }
}

fn check_total_size(draft: &Draft<'_>, policy: &Policy, report: &mut Report) {
    let all = draft.files.iter().chain(draft.steps.iter().flat_map(|step| &step.files));
    let files: Vec<(&Path, u64)> = all.map(|file| (Path::new(file.path), file.size)).collect();
    for why in exceeded_limits(&files, policy) {
        report.add("volume_mounted_files", TooLarge.because(format!("have {why}")));
    }
}

/// Returns the limits that all files together exceed, as phrases that follow `have` in a message. As in BBS, only
/// contents count towards the size limit; paths have a separate limit.
pub(super) fn exceeded_limits(files: &[(&Path, u64)], policy: &Policy) -> Vec<String> {
    let mut exceeded = Vec::new();
    let contents = files.iter().map(|(_, size)| *size).fold(0, u64::saturating_add);
    if contents > policy.files_bytes_max
        && let Some((largest, size)) = files.iter().max_by_key(|(_, size)| *size)
    {
        exceeded.push(format!(
            "{contents} bytes of contents; the maximum is {} (files_bytes_max); \
             the largest is {} with {size} bytes",
            policy.files_bytes_max,
            shorten(&largest.to_string_lossy()),
        ));
    }
    let paths: usize = files.iter().map(|(path, _)| path.as_os_str().len()).sum();
    if paths > FILE_PATHS_MAX {
        exceeded.push(format!("{paths} bytes of paths; the maximum is {FILE_PATHS_MAX}"));
    }
    exceeded
}
