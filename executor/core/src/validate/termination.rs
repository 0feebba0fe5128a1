//! Validates the file for the termination message.

use std::path::{Component, Path, PathBuf};

use super::ViolationReason::{Conflict, InvalidFormat, OutOfRange, Reserved, TooLong};
use super::{FieldFault, Report, check_path, shorten};
use crate::limits::{NAME_MAX, TERMINATION_BYTES_MAX};
use crate::plan::{
    PlannedFile, TERMINATION_BYTES_DEFAULT, TERMINATION_DEV_PREFIX, TERMINATION_PATH_DEFAULT, TerminationMessage,
    Tmpfs, Volume, VolumeSource,
};

/// Other mounts of the container.
pub(super) struct MessageSurroundings<'a> {
    pub(super) files: &'a [PlannedFile],
    pub(super) file_directories: &'a [PathBuf],
    pub(super) tmpfs: &'a [Tmpfs],
    pub(super) volumes: &'a [Volume],
}

impl MessageSurroundings<'_> {
    /// Describes the conflict of a file at this path with another mount, if there is one.
    fn conflict(&self, path: &Path) -> Option<&'static str> {
        if self.files.iter().any(|file| file.path.starts_with(path) || path.starts_with(&file.path)) {
            return Some("is a secret file, or is above or below one");
        }
        if self.file_directories.iter().any(|directory| path.starts_with(directory)) {
            return Some("is in one of file_directories, which can only contain secret files");
        }
        // In a host volume, the file would remain after the container.
        let of_host = |volume: &&Volume| matches!(volume.source, VolumeSource::Host(_) | VolumeSource::HostPath(_));
        if self.volumes.iter().filter(of_host).any(|volume| path.starts_with(&volume.path)) {
            return Some("is in a volume of the host");
        }
        let mounts = self.tmpfs.iter().map(|tmpfs| &tmpfs.path).chain(self.volumes.iter().map(|volume| &volume.path));
        mounts.into_iter().any(|mount| mount.starts_with(path)).then_some("is at or above another mount")
    }
}

/// Checks the file and its conflicts with other mounts, and fills in defaults.
pub(super) fn message(
    message: &TerminationMessage,
    beside: &MessageSurroundings<'_>,
    report: &mut Report,
) -> TerminationMessage {
    let or_default = message.path.as_os_str().is_empty();
    let path = if or_default { PathBuf::from(TERMINATION_PATH_DEFAULT) } else { message.path.clone() };
    let bytes_max = if message.bytes_max == 0 { TERMINATION_BYTES_DEFAULT } else { message.bytes_max };
    if bytes_max > TERMINATION_BYTES_MAX {
        let why = format!("is {bytes_max}; at most {TERMINATION_BYTES_MAX} is allowed");
        report.add("termination_message.bytes_max", OutOfRange.because(why));
    }
    let conflict = || {
        let with = beside.conflict(&path)?;
        Some(Conflict.because(format!("`{}` {with}", shorten(&path.to_string_lossy()))))
    };
    if let Some(why) = check(&path).err().or_else(conflict) {
        report.add("termination_message.path", why);
    }
    TerminationMessage { path, bytes_max, fallback_to_logs: message.fallback_to_logs }
}

/// Checks that a path is absolute and consists of plain names.
fn check(path: &Path) -> Result<(), FieldFault> {
    let text = path.to_str().ok_or_else(|| InvalidFormat.because("is not UTF-8"))?;
    check_path(text)?;
    let shown = shorten(text);
    let plain = path.components().skip(1).all(|part| matches!(part, Component::Normal(_)));
    let same = path.components().collect::<PathBuf>().as_os_str() == path.as_os_str();
    if !path.is_absolute() || path.parent().is_none() || !plain || !same {
        let why =
            format!("`{shown}` is not valid: it must be an absolute path without `.`, `..`, `//` or a `/` at its end");
        return Err(InvalidFormat.because(why));
    }
    if let Some(long) = path.iter().map(|name| name.len()).find(|length| *length > NAME_MAX) {
        return Err(TooLong.because(format!("`{shown}` has a component of {long} bytes; the maximum is {NAME_MAX}")));
    }
    let in_dev = text.strip_prefix(TERMINATION_DEV_PREFIX).is_some_and(|rest| !rest.contains('/'));
    match ["/proc", "/sys", "/dev"].iter().find(|bad| path.starts_with(bad)) {
        Some(&"/dev") if in_dev => Ok(()),
        Some(&"/dev") => {
            let why = format!(
                "`{shown}` is under /dev, where only paths that begin with `{TERMINATION_DEV_PREFIX}` are allowed"
            );
            Err(Reserved.because(why))
        }
        Some(bad) => Err(Reserved.because(format!("`{shown}` is under {bad}, which is reserved for the kernel"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{EmptyVolume, Medium};

    fn asked(path: &str) -> TerminationMessage {
        TerminationMessage { path: path.into(), bytes_max: 0, fallback_to_logs: false }
    }

    #[test]
    fn invalid_message_paths_are_refused() {
        let faults = |path: &str| {
            let mut report = Report::default();
            let files = [PlannedFile::private("/run/s/key", 1, "f[0]")];
            let volume =
                |path: &str, source| Volume { path: path.into(), source, sub_path: PathBuf::new(), read_only: false };
            let empty = EmptyVolume { medium: Medium::Disk, bytes: 0, mode: 0, gid: None };
            let volumes =
                [volume("/data/cache", VolumeSource::Empty(empty)), volume("/shared", VolumeSource::Host("x".into()))];
            let directories = ["/run/only".into()];
            let beside =
                MessageSurroundings { files: &files, file_directories: &directories, tmpfs: &[], volumes: &volumes };
            let message = message(&asked(path), &beside, &mut report);
            assert_eq!(message.bytes_max, TERMINATION_BYTES_DEFAULT);
            report.0.len()
        };
        for good in ["", "/dev/termination-log", "/dev/termination-x", "/tmp/message", "/data/m", "/data/cache/m"] {
            assert_eq!(faults(good), 0, "{good}");
        }
        let long = format!("/{}", "x".repeat(256));
        let bad = [
            "relative",
            "/",
            "/a/../b",
            "/a/./b",
            "/a//b",
            "/a/",
            "/dev/null",
            "/dev/termination-a/b",
            "/dev/shm/x",
            "/proc/x",
            "/sys/x",
            "/run/s/key",
            "/run/s/key/below",
            "/run/s",
            "/run/only/m",
            "/data/cache",
            "/data",
            "/shared/m",
            "/a\nb",
            &long,
        ];
        for bad in bad {
            assert_eq!(faults(bad), 1, "{bad:?}");
        }
        let mut report = Report::default();
        let large = TerminationMessage { bytes_max: TERMINATION_BYTES_MAX + 1, ..asked("") };
        let beside = MessageSurroundings { files: &[], file_directories: &[], tmpfs: &[], volumes: &[] };
        message(&large, &beside, &mut report);
        assert_eq!(report.0[0].field, "termination_message.bytes_max");
    }
}
