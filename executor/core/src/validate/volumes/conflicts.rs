//! Detects conflicts of volumes with other mounts of their container, and with its secret files.

use std::path::Path;

use super::VolumeSurroundings;
use crate::plan::{FRESH_OF_HOST, PlannedFile, PlannedProcess, Propagation, Rootfs, Volume};
use crate::validate::ViolationReason::Conflict;
use crate::validate::{Report, is_nested, shorten};

/// Describes a conflict of a volume with other mounts of its container, if there is one.
pub(super) fn conflict(volume: &Volume, all: &[Volume], beside: &VolumeSurroundings<'_>) -> Option<String> {
    let (path, shown) = (&volume.path, shorten(&volume.path.display().to_string()));
    if beside.tmpfs.iter().any(|tmpfs| tmpfs.path == *path) {
        return Some(format!("`{shown}` is also the path of a tmpfs"));
    }
    let inside = |other: &&Volume| path != &other.path && path.starts_with(&other.path);
    let is_shared = |other: &&Volume| other.propagation() == Propagation::Bidirectional;
    if let Some(outer) = all.iter().filter(inside).find(is_shared) {
        let outer = outer.path.display();
        return Some(format!("`{shown}` would also be mounted on the host: propagation of `{outer}` is bidirectional"));
    }
    // The nodes of CDI devices are not known yet, and volumes take precedence over the nodes of all host devices.
    let mut devices = beside.devices.iter().filter(|device| !device.is_cdi() && !device.is_whole_dev());
    if let Some(device) = devices.find(|device| is_nested(&device.path, path)) {
        return Some(format!("`{shown}` conflicts with the device at `{}`", device.path.display()));
    }
    let of_others = volume.empty().is_none();
    if of_others && let Some(tmpfs) = beside.tmpfs.iter().find(|tmpfs| tmpfs.path.starts_with(path)) {
        let tmpfs = tmpfs.path.display();
        return Some(format!(
            "the tmpfs at `{tmpfs}` would be inside the volume at `{shown}`; replace the tmpfs with an empty volume"
        ));
    }
    let VolumeSurroundings { files, file_directories, .. } = beside;
    if let Some(file) = files.iter().find(|file| path.starts_with(&file.path)) {
        return Some(format!("`{shown}` requires {} to be a directory, but it is a file", file.field));
    }
    if file_directories.contains(path) {
        return Some(format!("`{shown}` is one of file_directories, which can only contain secret files"));
    }
    if of_others {
        let file = files.iter().find(|file| file.path.starts_with(path)).map(PlannedFile::path_field);
        let directory = || {
            let index = file_directories.iter().position(|directory| directory.starts_with(path))?;
            Some(format!("file_directories[{index}]"))
        };
        if let (Some(field), Some(why)) = (file.or_else(directory), secret_file_obstacle(volume, beside)) {
            return Some(format!("{field} is in `{shown}`: {why}"));
        }
    }
    // In an empty file system, the directory of secret files is created and mounted as a whole, after the volumes.
    let own = all.iter().filter(|other| other.empty().is_some() || other.is_of_pod()).map(|other| &other.path);
    let fresh: Vec<&Path> =
        beside.tmpfs.iter().map(|tmpfs| &tmpfs.path).chain(own).map(|path| path.as_path()).collect();
    let of_host = if beside.rootfs == Some(&Rootfs::Host) { &FRESH_OF_HOST[..] } else { &[] };
    for fresh in fresh.into_iter().chain(of_host.iter().map(Path::new)) {
        let first =
            |path: &Path| path.strip_prefix(fresh).ok().and_then(|below| below.iter().next().map(ToOwned::to_owned));
        let Some(name) = first(path) else { continue };
        let parents = files.iter().filter_map(|file| file.path.parent());
        let mut directories = parents.chain(file_directories.iter().map(|directory| directory.as_path()));
        if directories.any(|directory| first(directory).as_ref() == Some(&name)) {
            let both = fresh.join(&name);
            return Some(format!("`{shown}` conflicts with a directory of secret files in `{}`", both.display()));
        }
    }
    None
}

/// Returns the reason why secret files cannot be mounted in a volume; `None` if the files can be mounted. The volume
/// must not be an empty volume. In a volume of the pod, only an empty mount point is created, and only if the secret
/// files are read-only (ADR 48).
fn secret_file_obstacle(volume: &Volume, beside: &VolumeSurroundings<'_>) -> Option<&'static str> {
    if !volume.is_of_pod() {
        return Some("secret files cannot be mounted in a volume of the host or of an image");
    }
    if volume.read_only {
        return Some("no mount point can be created in a read-only volume of the pod");
    }
    beside.is_writable.then_some("writable files cannot be mounted in a volume of the pod")
}

/// Rejects secret files of steps in volumes other than empty volumes.
pub(in crate::validate) fn for_steps(volumes: &[Volume], processes: &[PlannedProcess], report: &mut Report) {
    for file in processes.iter().flat_map(|process| &process.files) {
        let mut of_others = volumes.iter().filter(|volume| volume.empty().is_none());
        if let Some(volume) = of_others.find(|volume| file.path.starts_with(&volume.path)) {
            let shown = shorten(&volume.path.display().to_string());
            let why =
                format!("is in the volume at `{shown}`: a step's secret files can be mounted only in an empty volume");
            report.add(file.path_field(), Conflict.because(why));
        }
    }
}
