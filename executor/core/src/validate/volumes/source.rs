//! Validates sources of volumes.

use std::path::Path;

use crate::image::BadReference;
use crate::limits::{DISK_MIN, TMPFS_MAX, TMPFS_MIN};
use crate::plan::{Medium, PodRole, Volume, VolumeImage, VolumeSource};
use crate::validate::ViolationReason::{Conflict, InvalidFormat, NotAllowed, OutOfRange, Required, UnknownValue};
use crate::validate::{FieldFault, Policy, Report, image, pods, shorten, surroundings};

/// Maximum number of names in a message.
const NAMES_SHOWN: usize = 20;

/// Checks the source of a volume.
pub(super) fn check_source(
    volume: &Volume,
    (policy, pod): (&Policy, Option<&PodRole>),
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
        VolumeSource::HostPath(path) => {
            if let Err(why) = host_path(path, policy) {
                report.add(field("host_path.path"), why);
            }
        }
        VolumeSource::Image(asked) => {
            if !volume.read_only {
                report.add(field("read_only"), Required.because("the files of an image are read-only: set read_only"));
            }
            if let Err(why) = check_image(asked, policy) {
                report.add(field("image.reference"), why);
            }
        }
        VolumeSource::Pod(name) => {
            if !matches!(pod, Some(PodRole::Member { .. })) {
                report.add(field("pod"), Conflict.because("requires a container that is a member of a pod"));
            }
            if let Err(why) = pods::check_pod_volume_name(name) {
                report.add(field("pod.name"), why);
            }
        }
    }
}

fn host_path(path: &Path, policy: &Policy) -> Result<(), FieldFault> {
    surroundings::plain_path(path)?;
    if policy.host_path_around(path).is_some() {
        return Ok(());
    }
    let shown = shorten(&path.display().to_string());
    let listed: Vec<String> =
        policy.host_paths.iter().take(NAMES_SHOWN).map(|listed| listed.display().to_string()).collect();
    let listed = if listed.is_empty() { "is empty".to_owned() } else { format!("lists {}", listed.join(", ")) };
    let why = format!(
        "`{shown}` is not below a directory of policy.host_paths, which {listed} in this daemon's configuration"
    );
    Err(NotAllowed.because(why))
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
