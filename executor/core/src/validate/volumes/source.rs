//! Validates sources of volumes.

use std::path::Path;

use crate::image::BadReference;
use crate::limits::{DISK_MIN, TMPFS_MAX, TMPFS_MIN};
use crate::plan::{
    HostPath, HostPathRule, Medium, PodRole, Propagation, UserNamespace, Volume, VolumeImage, VolumeSource,
};
use crate::validate::ViolationReason::{Conflict, InvalidFormat, NotAllowed, OutOfRange, Required, UnknownValue};
use crate::validate::{FieldFault, Policy, Report, image, pods, shorten, surroundings};

use super::VolumeSurroundings;

/// Maximum number of names in a message.
const NAMES_SHOWN: usize = 20;

/// Checks the source of a volume.
pub(super) fn check_source(
    volume: &Volume,
    (policy, beside): (&Policy, &VolumeSurroundings<'_>),
    field: &dyn Fn(&str) -> String,
    report: &mut Report,
) {
    match &volume.source {
        VolumeSource::Empty(empty) => {
            if !volume.sub_path.as_os_str().is_empty() {
                report.add(field("sub_path"), Conflict.because("an empty volume has no directories to mount"));
            }
            if volume.read_only {
                report.add(field("read_only"), Conflict.because("a read-only empty volume could never have content"));
            }
            let least = if empty.medium == Medium::Disk { DISK_MIN } else { TMPFS_MIN };
            if empty.bytes != 0 && !(least..=TMPFS_MAX).contains(&empty.bytes) {
                let why = format!("is {}; {least} to {TMPFS_MAX} is allowed", empty.bytes);
                report.add(field("empty.size_bytes"), OutOfRange.because(why));
            }
            if empty.mode > 0o7777 {
                let why = format!("is {:o}; permission bits are at most 7777", empty.mode);
                report.add(field("empty.mode"), OutOfRange.because(why));
            }
            if empty.gid == Some(u32::MAX) {
                report.add(field("empty.gid"), OutOfRange.because(format!("is {}, which is not a group id", u32::MAX)));
            }
        }
        VolumeSource::Host(name) => match policy.volumes.iter().find(|known| known.name == *name) {
            None => {
                let names: Vec<&str> = policy.volumes.iter().map(|known| &*known.name).collect();
                report.add(field("host.name"), unknown_name(name, &names, "volumes (tables `[[volumes]]`)"));
            }
            Some(known) if known.read_only && !volume.read_only => {
                let why = format!("`{name}` is read-only in this daemon's configuration: set read_only");
                report.add(field("read_only"), NotAllowed.because(why));
            }
            Some(_) => {}
        },
        VolumeSource::HostPath(asked) => check_host_path(asked, volume, (policy, beside), field, report),
        VolumeSource::Image(asked) => {
            if !volume.read_only {
                report.add(field("read_only"), Required.because("the files of an image are read-only: set read_only"));
            }
            if let Err(why) = check_image(asked, policy) {
                report.add(field("image.reference"), why);
            }
        }
        VolumeSource::Pod(name) => {
            if !matches!(beside.pod, Some(PodRole::Member { .. })) {
                report.add(field("pod"), Conflict.because("requires a container that is a member of a pod"));
            }
            if let Err(why) = pods::check_pod_volume_name(name) {
                report.add(field("pod.name"), why);
            }
        }
    }
}

fn check_host_path(
    asked: &HostPath,
    volume: &Volume,
    (policy, beside): (&Policy, &VolumeSurroundings<'_>),
    field: &dyn Fn(&str) -> String,
    report: &mut Report,
) {
    let rule = surroundings::plain_path(&asked.path).and_then(|()| host_path_rule(&asked.path, policy));
    match rule {
        Err(why) => report.add(field("host_path.path"), why),
        Ok(rule) => {
            if let Err((name, why)) = check_host_path_rule(asked, volume.read_only, rule) {
                report.add(field(name), why);
            }
        }
    }
    let HostPath { propagation, recursive, recursive_read_only, .. } = *asked;
    if recursive_read_only && (!volume.read_only || !recursive || propagation != Propagation::Private) {
        let why = "requires read_only, recursive and private propagation";
        report.add(field("host_path.recursive_read_only"), Conflict.because(why));
    }
    if propagation != Propagation::Private && !recursive {
        let why = "requires recursive: mounts below the path are otherwise not included";
        report.add(field("host_path.propagation"), Conflict.because(why));
    }
    let isolation = beside.isolation;
    let of_host = isolation.user_namespace == UserNamespace::Host;
    let can_mount = isolation.privileged
        || isolation.capabilities_added.iter().any(|name| name == "CAP_SYS_ADMIN" || name == "ALL");
    if propagation == Propagation::Bidirectional && !(can_mount && of_host) {
        let why = "bidirectional propagation requires privileged, or CAP_SYS_ADMIN, and the host's user namespace";
        report.add(field("host_path.propagation"), Conflict.because(why));
    }
    // A mount that is attached in the container's own user namespace is not locked.
    if volume.is_mounted_late() && volume.read_only && can_mount && !of_host {
        let why = "cannot be enforced below /dev: with CAP_SYS_ADMIN in its own user namespace, the container could \
                   mount the path writable again";
        report.add(field("read_only"), Conflict.because(why));
    }
}

/// Returns the operator's entry for a path of the host.
///
/// # Errors
/// Returns an error that names the key and its entries if no entry contains the path.
pub fn host_path_rule<'a>(path: &Path, policy: &'a Policy) -> Result<&'a HostPathRule, FieldFault> {
    if let Some(rule) = policy.host_path_around(path) {
        return Ok(rule);
    }
    let shown = shorten(&path.display().to_string());
    let listed: Vec<String> =
        policy.host_paths.iter().take(NAMES_SHOWN).map(|rule| rule.path.display().to_string()).collect();
    let listed = if listed.is_empty() { "is empty".to_owned() } else { format!("lists {}", listed.join(", ")) };
    let why = format!(
        "`{shown}` is not below a directory of policy.host_paths, which {listed} in this daemon's configuration"
    );
    Err(NotAllowed.because(why))
}

/// Checks that the operator's entry permits the mount options of a request.
///
/// # Errors
/// Returns the field of the volume, and an error that names the key and the value to add, if the entry does not permit
/// an option.
pub fn check_host_path_rule(
    asked: &HostPath,
    read_only: bool,
    rule: &HostPathRule,
) -> Result<(), (&'static str, FieldFault)> {
    let entry = rule.path.display();
    let not_allowed = |value: &str| {
        let entry = format!("the entry `{entry}` of policy.host_paths in this daemon's configuration");
        NotAllowed.because(format!("requires `{value}` in {entry}"))
    };
    if rule.read_only && !(read_only && (!asked.recursive || asked.recursive_read_only)) {
        let why = format!(
            "`{entry}` is read-only in policy.host_paths of this daemon's configuration: set read_only, and with \
             recursive also recursive_read_only"
        );
        return Err((if read_only { "host_path.recursive_read_only" } else { "read_only" }, NotAllowed.because(why)));
    }
    if asked.propagation > rule.propagation {
        let value = match asked.propagation {
            Propagation::Bidirectional => "propagation = \"bidirectional\"",
            _ => "propagation = \"host-to-container\"",
        };
        return Err(("host_path.propagation", not_allowed(value)));
    }
    if asked.suid && !rule.suid {
        return Err(("host_path.suid", not_allowed("suid = true")));
    }
    if asked.dev && !rule.dev {
        return Err(("host_path.dev", not_allowed("dev = true")));
    }
    Ok(())
}

fn check_image(asked: &VolumeImage, policy: &Policy) -> Result<(), FieldFault> {
    image::check_parts(&asked.reference, &asked.digest, &asked.layers)?;
    let reference = asked.reference.parse().map_err(|bad: BadReference| InvalidFormat.because(bad.to_string()))?;
    if policy.images.is_set() {
        policy.images.permits(&reference).map_err(|no| NotAllowed.because(no.to_string()))?;
    }
    Ok(())
}

/// Returns the error for a name that is not in one of the operator's lists, with the names in the list. `list`
/// describes the list and its section in the configuration.
pub(in crate::validate) fn unknown_name(name: &str, known: &[&str], list: &str) -> FieldFault {
    let shown = shorten(name);
    if known.is_empty() {
        return UnknownValue.because(format!("{shown:?} does not exist: this daemon's configuration has no {list}"));
    }
    let names = &known[..known.len().min(NAMES_SHOWN)];
    let more = known.len() - names.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    UnknownValue
        .because(format!("{shown:?} does not exist; this daemon's configuration has {}{more}", names.join(", ")))
}
