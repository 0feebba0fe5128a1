//! Validates volumes: paths, sources and conflicts with other mounts; and the operator's list of volumes.

mod conflicts;
mod operator;
mod source;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use conflicts::conflict;
pub(super) use conflicts::for_steps;
pub(super) use operator::check_name;
pub(super) use operator::check_offered_dir;
pub use operator::{check_device_paths, check_host_paths, check_host_volumes};
use source::check_source;
pub(super) use source::unknown_name;
pub use source::{check_host_path_rule, host_path_rule};

use super::ViolationReason::{Conflict, Duplicate, InvalidFormat, NotUtf8, Required, Reserved, TooMany};
use super::{FieldFault, Policy, Report, check_device_path, check_path, is_nested, shorten, surroundings};
use crate::plan::{
    DOCKER_SOCKET, Device, EmptyVolume, Isolation, Limits, Medium, Plan, PlannedFile, PodRole, Rootfs, Tmpfs, Volume,
    VolumeSource,
};

/// Maximum number of volumes of a container.
pub const VOLUMES_MAX: usize = 512;
/// Files that the executor writes into each container, and their directory.
const WRITTEN: [&str; 4] = ["/etc", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf"];
/// Mount point of the shared memory of each container.
const SHM: &str = "/dev/shm";
/// Parent directories of the Docker socket in a container, by its path and by the usual symbolic link.
const ABOVE_DOCKER_SOCKET: [&str; 3] = ["/var", "/var/run", "/run"];

/// Parts of a request that can conflict with its volumes.
pub(super) struct VolumeSurroundings<'a> {
    pub(super) rootfs: Option<&'a Rootfs>,
    pub(super) isolation: &'a Isolation,
    pub(super) limits: &'a Limits,
    pub(super) tmpfs: &'a [Tmpfs],
    pub(super) files: &'a [PlannedFile],
    pub(super) file_directories: &'a [PathBuf],
    pub(super) with_token: bool,
    pub(super) pod: Option<&'a PodRole>,
    /// True if the process may change its secret files.
    pub(super) is_writable: bool,
    pub(super) devices: &'a [Device],
}

impl<'a> VolumeSurroundings<'a> {
    fn from_plan(plan: &'a Plan) -> Self {
        Self {
            rootfs: Some(&plan.rootfs),
            isolation: &plan.isolation,
            limits: &plan.limits,
            tmpfs: &plan.surroundings.tmpfs,
            files: &plan.files,
            file_directories: &plan.file_directories,
            with_token: plan.token_file().is_some(),
            pod: plan.pod.as_ref(),
            is_writable: plan.writable_files.is_some(),
            devices: &plan.host_options.devices,
        }
    }
}

/// Checks the mount of a CDI device by the rules for host volumes: its paths, and conflicts of its target with the
/// container's other mounts.
///
/// # Errors
/// Returns an error if a path is invalid, or if another mount conflicts with the target.
pub fn check_device_mount(host_path: &Path, target: &Path, plan: &Plan) -> Result<(), FieldFault> {
    surroundings::plain_path(host_path).map_err(|fault| fault.within("hostPath"))?;
    let beside = VolumeSurroundings::from_plan(plan);
    path(target, None, &beside)?;
    let shown = shorten(&target.display().to_string());
    if plan.volumes.iter().any(|volume| volume.path == target) {
        return Err(Conflict.because(format!("`{shown}` is also the path of a volume")));
    }
    let source = VolumeSource::HostPath(target.to_owned().into());
    let mount = Volume { path: target.to_owned(), source, sub_path: PathBuf::new(), read_only: true };
    if let Some(why) = conflict(&mount, &plan.volumes, &beside) {
        return Err(Conflict.because(why));
    }
    let message = plan.termination_message.as_ref().map(|message| message.path.as_path());
    let mut files = plan.processes.iter().flat_map(|process| &process.files).map(|file| file.path.as_path());
    match message
        .into_iter()
        .find(|path| is_nested(path, target))
        .or_else(|| files.find(|path| is_nested(path, target)))
    {
        Some(file) => Err(Conflict.because(format!("`{}` would be inside `{shown}` or hide it", file.display()))),
        None => Ok(()),
    }
}

/// Checks the volumes, and fills in defaults.
pub(super) fn check(
    volumes: &[Volume],
    beside: &VolumeSurroundings<'_>,
    policy: &Policy,
    report: &mut Report,
) -> Vec<Volume> {
    if volumes.len() > VOLUMES_MAX {
        report.add(
            "volumes",
            TooMany.because(format!("has {} entries; at most {VOLUMES_MAX} are allowed", volumes.len())),
        );
        return Vec::new();
    }
    let mut seen = BTreeSet::new();
    for (index, volume) in volumes.iter().enumerate() {
        let field = |name: &str| format!("volumes[{index}].{name}");
        match path(&volume.path, Some(&volume.source), beside) {
            Err(why) => report.add(field("path"), why),
            Ok(()) if !seen.insert(&volume.path) => report.add(field("path"), Duplicate.because("is given twice")),
            Ok(()) => {
                if let Some(why) = conflict(volume, volumes, beside) {
                    report.add(field("path"), Conflict.because(why));
                }
            }
        }
        if let Err(why) = sub_path(&volume.sub_path) {
            report.add(field("sub_path"), why);
        }
        check_source(volume, (policy, beside), &field, report);
        if beside.limits.memory_bytes == 0
            && volume.empty().is_some_and(|empty| empty.medium == Medium::Memory && empty.bytes == 0)
        {
            report.add(field("empty.size_bytes"), Required.because(surroundings::NO_LIMIT));
        }
    }
    let filled = |volume: &Volume| {
        let mut volume = volume.clone();
        if let VolumeSource::Empty(EmptyVolume { medium: Medium::Memory, bytes: bytes @ 0, .. }) = &mut volume.source {
            *bytes = beside.limits.memory_bytes;
        }
        volume
    };
    volumes.iter().map(filled).collect()
}

/// Checks the path of a volume in the container. A path of the host may replace files and directories that the executor
/// creates in each container.
fn path(path: &Path, source: Option<&VolumeSource>, beside: &VolumeSurroundings<'_>) -> Result<(), FieldFault> {
    let replaces = matches!(source, Some(VolumeSource::HostPath(_)));
    if replaces && path.starts_with("/dev") {
        return if path == Path::new(SHM) { Ok(()) } else { check_device_path(path) };
    }
    surroundings::mount_point(path, beside.with_token)?;
    let shown = || shorten(&path.display().to_string());
    let written = WRITTEN.iter().position(|written| path == Path::new(written));
    if written.is_some_and(|index| index == 0 || !replaces) {
        let why = format!("`{}` is reserved for the executor, which writes {}", shown(), WRITTEN[1..].join(", "));
        return Err(Reserved.because(why));
    }
    let above_socket = ABOVE_DOCKER_SOCKET.iter().any(|above| path == Path::new(above));
    if beside.isolation.docker_socket && (above_socket || path == Path::new(DOCKER_SOCKET)) {
        let why = format!("`{}` would hide the Docker socket {DOCKER_SOCKET} (docker_socket)", shown());
        return Err(Conflict.because(why));
    }
    Ok(())
}

fn sub_path(path: &Path) -> Result<(), FieldFault> {
    let text = path.to_str().ok_or_else(|| NotUtf8.because("is not UTF-8"))?;
    check_path(text)?;
    let normal: PathBuf = path.components().filter(|part| matches!(part, Component::Normal(_))).collect();
    if normal.as_os_str() != path.as_os_str() {
        let why = format!(
            "`{}` is not valid: it must be a relative path without `.`, `//` or a `/` at its end",
            shorten(text)
        );
        return Err(InvalidFormat.because(why));
    }
    Ok(())
}
