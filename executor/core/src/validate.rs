//! Validates untrusted requests and converts them to a [`Plan`]. All violations are reported together. Each violation
//! names its field, the limit and the size of the value, and contains no secret.
//!
//! The input is a [`Draft`] that borrows from the decoded message, so that validation copies no secret; the output is a
//! plan, which contains no secret. Rules for paths of files: no `.`, `..`, NUL or newline; not under `/proc`, `/sys` or
//! `/dev`; no duplicate; no file at the path of another file's directory; no name that begins with `..` (reserved for
//! atomic rotation, as in Kubernetes).

mod actions;
mod cgroups;
mod checks;
mod cni;
mod connect;
mod connectivity;
mod dev_paths;
mod draft;
mod egress;
mod exec;
mod files;
mod groups;
mod host_options;
mod id_map;
mod image;
mod isolation;
mod limits;
mod logging;
mod outputs;
mod pods;
mod policy;
mod process;
mod recheck;
mod retention;
mod secrets;
mod surroundings;
mod termination;
mod transfers;
mod update;
mod volumes;

use crate::text::printable;
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use crate::ident::ContainerId;
use crate::idmap::RANGE_IDS;
use crate::image::BadReference;
use crate::limits::{GRACE_MAX, ID_MAX, LABELS_MAX, PATH_MAX, SIGNAL_MAX};
use crate::plan::{MAIN_PROCESS, Network, Plan, Principal, Rootfs, SIGTERM, UserNamespace, UserRef};

pub use crate::violation::{FieldFault, Violation, ViolationReason};
use ViolationReason::{Conflict, InvalidCharacter, InvalidFormat, NotAllowed, OutOfRange, Reserved, TooLong, TooMany};
pub use cgroups::{check_cgroup_keys, check_cgroup_parents, page_kilobytes};
pub use connect::connect_port;
pub use connectivity::{check_network_namespaces, is_host_label, validate_egress};
pub use dev_paths::check_device_path;
pub use draft::{Draft, DraftFile, DraftLogging, DraftOutputs, DraftStep, DraftTransfer, Unlimited};
pub use exec::{ExecDraft, WINDOW_MAX, exec_user, validate_archive, validate_exec};
pub use host_options::{
    ULIMITS, check_apparmor_profiles, check_cdi_devices, check_cdi_spec_dirs, check_host_devices, check_ulimit_max,
};
pub use id_map::check_given_ids;
pub use isolation::{CAPABILITIES, SECCOMP_PROFILE_MAX};
pub use limits::validate_limits;
pub use logging::check_log_dirs;
pub use pods::{check_member, check_pod_volume_name};
pub use policy::{BadPortRule, Policy, PortRule, Unenforceable};
pub use recheck::recheck;
pub use transfers::check_url;
pub use update::{PlannedUpdate, UpdateDraft, validate_update};
pub use volumes::{
    VOLUMES_MAX, check_device_mount, check_device_paths, check_host_path_rule, check_host_paths, check_host_volumes,
    host_path_rule,
};

/// Collects violations.
#[derive(Default)]
struct Report(Vec<Violation>);

impl Report {
    fn add(&mut self, field: impl Into<String>, fault: impl Into<FieldFault>) {
        self.0.push(Violation::new(field, fault));
    }
}

/// Validates a request. The caller must fill in the draft's `id` if the request has none.
///
/// # Errors
/// Returns all violations, in the order of the API's fields, if the request is invalid.
pub fn validate(draft: &Draft<'_>, policy: &Policy) -> Result<Plan, Vec<Violation>> {
    let mut report = Report::default();
    let id =
        draft.id.parse::<ContainerId>().map_err(|bad| report.add("id", InvalidFormat.because(bad.to_string()))).ok();
    process::shared_environment(&draft.shared_env, &mut report);
    let main = (draft.actions.is_none() && !draft.is_pod()).then(|| draft.main());
    let main_user = main.as_ref().and_then(|main| {
        process::check(main, &draft.shared_env, &mut report);
        let user = parse_user(main.user).and_then(|user| user_fits(user, draft.isolation.user_namespace));
        user.map_err(|why| report.add("action.run.user", why)).ok()
    });
    let rootfs = parse_rootfs(draft).map_err(|why| report.add("rootfs", why)).ok();
    let limits = limits::limits(draft, policy, &mut report);
    let window = window(draft, &mut report);
    pairs("labels", &draft.labels, LABELS_MAX, &mut report);
    let grace = draft.grace.unwrap_or(Duration::from_secs(policy.default_grace_seconds));
    if grace > GRACE_MAX {
        let why = format!("is {} s; at most {} s are allowed", grace.as_secs(), GRACE_MAX.as_secs());
        report.add("grace_period", OutOfRange.because(why));
    }
    if let Some(main) = &main {
        secrets::check(main, &mut report);
    }
    let files = files::check(draft, policy, &mut report);
    let file_directories = files::directories(draft, &files, policy, &mut report);
    let writable_files = draft
        .writable_files
        .and_then(|asked| files::writable(asked, limits.memory_max(), &files, &file_directories, &mut report));
    let outputs = draft.outputs.as_ref().and_then(|asked| outputs::check(asked, &files, policy, &mut report));
    let network = draft.network.unwrap_or(Network::None);
    report.0.extend(check_permitted(rootfs.as_ref(), network, policy));
    pods::check(draft, &mut report);
    let isolation = isolation::check(&draft.isolation, policy, &mut report);
    connectivity::check(&draft.connectivity, network, &isolation, policy, &mut report);
    let token = !draft.token_path.is_empty();
    let kinds = (network, policy.host_ids_sysctls);
    let surroundings = surroundings::check(&draft.surroundings, kinds, &isolation, &limits, token, &mut report);
    let mut of_host_options = Report::default();
    let host_options = host_options::check(&draft.host_options, &isolation, policy, &mut of_host_options);
    let beside = volumes::VolumeSurroundings {
        rootfs: rootfs.as_ref(),
        isolation: &isolation,
        limits: &limits,
        tmpfs: &surroundings.tmpfs,
        files: &files,
        file_directories: &file_directories,
        with_token: token,
        pod: draft.pod.as_ref(),
        is_writable: writable_files.is_some(),
        devices: &host_options.devices,
    };
    let volumes = volumes::check(&draft.volumes, &beside, policy, &mut report);
    report.0.append(&mut of_host_options.0);
    if draft.stop_signal > SIGNAL_MAX {
        let why = format!("is {}; 1 to {SIGNAL_MAX} is allowed, or 0", draft.stop_signal);
        report.add("stop_signal", OutOfRange.because(why));
    }
    retention::check(draft, policy, &mut report);
    let (user, processes) = match (&draft.actions, &main) {
        (Some(actions), _) => {
            let processes = actions::check(actions, draft, (&files, &limits), policy, &mut report);
            let first = actions.first_process().and_then(|first| processes.get(first)?.user.clone());
            (first, processes)
        }
        (None, None) => (parse_user("").ok(), Vec::new()),
        (None, main) => {
            let main = main.iter().map(|main| process::plan(MAIN_PROCESS, main, &draft.shared_env));
            (main_user, main.collect())
        }
    };
    volumes::for_steps(&volumes, &processes, &mut report);
    let transfers = transfers::check(draft, policy, &mut report);
    let logging = logging::check(&draft.logging, policy, &mut report);
    let checks = draft.checks.as_ref().and_then(|asked| checks::check(asked, policy, &mut report));
    checks::environment(checks.as_ref(), draft.keep_environment, &mut report);
    let extra_groups = groups::check(draft, &mut report);
    let termination_message = draft.termination_message.as_ref().map(|asked| {
        let beside = termination::MessageSurroundings {
            files: &files,
            file_directories: &file_directories,
            tmpfs: &surroundings.tmpfs,
            volumes: &volumes,
        };
        termination::message(asked, &beside, &mut report)
    });
    match (id, rootfs, user) {
        (Some(id), Some(rootfs), Some(user)) if report.0.is_empty() => Ok(Plan {
            id,
            rootfs,
            user,
            limits,
            network,
            grace,
            labels: draft.labels.clone(),
            files,
            file_directories,
            writable_files,
            redaction: draft.redaction,
            outputs,
            isolation,
            connectivity: draft.connectivity.clone(),
            surroundings,
            volumes,
            host_options,
            terminal: draft.terminal,
            window,
            stdin: draft.stdin,
            await_reader: draft.await_reader,
            stop_signal: if draft.stop_signal == 0 { SIGTERM } else { draft.stop_signal },
            remove_when_completed: draft.remove_when_completed,
            keep_until_deleted: draft.keep_until_deleted,
            hold: draft.hold,
            processes,
            transfers,
            actions: draft.actions.clone(),
            logging,
            checks,
            extra_groups,
            strict_groups: draft.strict_groups,
            merge_groups: draft.merge_groups,
            keep_environment: draft.keep_environment,
            termination_message,
            pod: draft.pod.clone(),
        }),
        _ => Err(report.0),
    }
}

/// Checks a rootfs and a network against the operator's policy.
fn check_permitted(rootfs: Option<&Rootfs>, network: Network, policy: &Policy) -> Vec<Violation> {
    let mut found = Vec::new();
    match rootfs {
        Some(Rootfs::Host) if !policy.allow_host_rootfs => {
            found.push(Violation::new(
                "rootfs",
                NotAllowed.because("`host` is not allowed by this daemon's configuration (allow_host_rootfs)"),
            ));
        }
        Some(Rootfs::Dir(dir))
            if !policy.rootfs_dirs.is_empty() && !policy.rootfs_dirs.iter().any(|root| dir.starts_with(root)) =>
        {
            let why = format!("{} is not below any of this daemon's configured rootfs_dirs", dir.display());
            found.push(Violation::new("rootfs", NotAllowed.because(why)));
        }
        Some(Rootfs::Image(image)) if policy.images.is_set() => {
            let result = image.reference.parse().map_err(|bad: BadReference| bad.to_string());
            let result = result.and_then(|reference| policy.images.permits(&reference).map_err(|no| no.to_string()));
            found.extend(result.err().map(|why| Violation::new("rootfs", NotAllowed.because(why))));
        }
        _ => {}
    }
    if network == Network::Host && !policy.allow_host_network {
        found.push(Violation::new(
            "network",
            NotAllowed.because("`host` is not allowed by this daemon's configuration (allow_host_network)"),
        ));
    }
    found
}

fn window(draft: &Draft<'_>, report: &mut Report) -> (u16, u16) {
    if draft.window != (0, 0) && !draft.terminal {
        report.add("window", Conflict.because("requires `terminal`"));
    }
    exec::check_window("window", draft.window).unwrap_or_else(|violations| {
        report.0.extend(violations);
        (0, 0)
    })
}

/// Returns the error of a log source; `None` if the log source is valid.
fn log_source_fault(log_source: &str) -> Option<FieldFault> {
    if log_source.len() <= 64 && log_source.bytes().all(|b| b.is_ascii_graphic()) {
        return None;
    }
    let reason = if log_source.len() > 64 { TooLong } else { InvalidCharacter };
    Some(reason.because(format!("is {} bytes; use at most 64 visible ASCII characters", log_source.len())))
}

/// Checks names and values of labels or log tags.
fn pairs(field: &str, pairs: &BTreeMap<String, String>, most: usize, report: &mut Report) {
    if pairs.len() > most {
        report.add(field, TooMany.because(format!("has {} entries; at most {most} are allowed", pairs.len())));
        return;
    }
    for (name, value) in pairs {
        let safe = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'/'));
        if name.is_empty() || name.len() > 63 || !safe {
            let why =
                format!("the name \"{}\" is not valid: use 1 to 63 letters, digits, `.`, `_`, `-`, `/`", shorten(name));
            report.add(field, InvalidFormat.because(why));
        }
        if value.len() > 256 || value.contains('\0') {
            let reason = if value.len() > 256 { TooLong } else { InvalidCharacter };
            report.add(
                format!("{field}[{}]", shorten(name)),
                reason.because(format!("the value is {} bytes; use at most 256, without NUL", value.len())),
            );
        }
    }
}

/// Parses `host`, `dir:/absolute/path`, or an image; an empty string means `host`.
fn parse_rootfs(draft: &Draft<'_>) -> Result<Rootfs, FieldFault> {
    let text = draft.rootfs;
    if let Some(image) = &draft.image {
        return image::check(text, image).map(|()| Rootfs::Image(image.clone()));
    }
    if draft.is_pod() {
        return Ok(Rootfs::Pod);
    }
    if text.is_empty() || text == "host" {
        return Ok(Rootfs::Host);
    }
    let Some(path) = text.strip_prefix("dir:") else {
        let why = format!("\"{}\" is not valid: use `host`, `dir:/absolute/path` or an image", shorten(text));
        return Err(InvalidFormat.because(why));
    };
    check_path(path)?;
    let dir = PathBuf::from(path);
    if !dir.is_absolute() {
        return Err(InvalidFormat.because(format!("`dir:{}` is not absolute", shorten(path))));
    }
    // These file systems contain links to arbitrary directories: /proc/self/fd/N can be the host's root.
    if ["/proc", "/sys", "/dev"].iter().any(|bad| dir.starts_with(bad)) {
        return Err(Reserved.because(format!("`dir:{}` is under /proc, /sys or /dev", shorten(path))));
    }
    Ok(Rootfs::Dir(dir))
}

/// Checks the length and characters of an untrusted path.
fn check_path(path: &str) -> Result<(), FieldFault> {
    if path.len() >= PATH_MAX {
        return Err(TooLong.because(format!("is {} bytes; the maximum is {}", path.len(), PATH_MAX - 1)));
    }
    if path.contains(['\0', '\n']) {
        return Err(InvalidCharacter.because("contains NUL or a newline"));
    }
    if Path::new(path).components().any(|part| part == Component::ParentDir) {
        return Err(InvalidFormat.because(format!("`{}` contains `..`", shorten(path))));
    }
    Ok(())
}

/// Accepted notations of a user, for error messages.
const USER_FORMS: &str = "`user`, `uid`, `user:group` or `uid:gid`";

/// Parses `user`, `uid`, `user:group`, ...; root if empty.
fn parse_user(text: &str) -> Result<UserRef, FieldFault> {
    if text.is_empty() {
        return Ok(UserRef { user: Principal::Id(0), group: None });
    }
    match text.split_once(':') {
        None => Ok(UserRef { user: parse_principal(text, "user")?, group: None }),
        Some((user, group)) => {
            if let Some((_, what)) = [(user, "user"), (group, "group")].iter().find(|(part, _)| part.is_empty()) {
                return Err(
                    InvalidFormat.because(format!("the {what} in `{}` is empty: use {USER_FORMS}", shorten(text)))
                );
            }
            Ok(UserRef { user: parse_principal(user, "user")?, group: Some(parse_principal(group, "group")?) })
        }
    }
}

/// Parses a number or a name; `what` names its kind in messages.
fn parse_principal(text: &str, what: &str) -> Result<Principal, FieldFault> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return match text.parse::<u32>() {
            Ok(id) if id <= ID_MAX => Ok(Principal::Id(id)),
            _ => Err(OutOfRange.because(format!("{what} {} is larger than {ID_MAX}", shorten(text)))),
        };
    }
    let safe = text.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'/' | b',' | b':'));
    if text.is_empty() || text.len() > 256 || !safe || text.starts_with('-') {
        return Err(
            InvalidFormat.because(format!("\"{}\" is not a valid {what}: use a name or a number", shorten(text)))
        );
    }
    Ok(Principal::Name(text.to_owned()))
}

/// Checks an id against the number of ids in the user namespace.
fn fits(principal: Principal, what: &str, namespace: UserNamespace) -> Result<Principal, FieldFault> {
    match principal {
        Principal::Id(id) if id >= RANGE_IDS && namespace == UserNamespace::Own => {
            let why = format!("{what} {id} is larger than {}, the highest id in a user namespace", RANGE_IDS - 1);
            Err(OutOfRange.because(why))
        }
        _ => Ok(principal),
    }
}

/// Checks that user and group exist in the user namespace.
fn user_fits(UserRef { user, group }: UserRef, namespace: UserNamespace) -> Result<UserRef, FieldFault> {
    let user = fits(user, "user", namespace)?;
    let group = group.map(|group| fits(group, "group", namespace)).transpose()?;
    Ok(UserRef { user, group })
}

/// Returns true if one path is below the other, or both are the same.
pub fn is_nested(one: &Path, other: &Path) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

/// Shortens a value that is not secret for an error message.
fn shorten(text: &str) -> String {
    printable(text, 80)
}

#[cfg(test)]
mod tests;
