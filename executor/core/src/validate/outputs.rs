//! Validates the outputs that a request declares: files, or one directory.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::ViolationReason::{
    Conflict, Duplicate, InvalidCharacter, InvalidFormat, OutOfRange, Required, Reserved, TooLong, TooMany,
};
use super::{DraftOutputs, FieldFault, Policy, Report, Violation, shorten};
use crate::limits::{LIST_MAX, NAME_MAX, PATH_MAX};
use crate::plan::{OutputSource, PlannedFile, PlannedOutputs};

/// Checks the outputs, and their conflicts with secret files and the policy.
pub(super) fn check(
    outputs: &DraftOutputs<'_>,
    secrets: &[PlannedFile],
    policy: &Policy,
    report: &mut Report,
) -> Option<PlannedOutputs> {
    let before = report.0.len();
    let bytes_max = if outputs.bytes_max == 0 { policy.outputs_bytes_max } else { outputs.bytes_max };
    if bytes_max > policy.outputs_bytes_max {
        let most = policy.outputs_bytes_max;
        let why = format!("is {bytes_max}; at most {most} (outputs_bytes_max) is allowed");
        report.add("outputs.bytes_max", OutOfRange.because(why));
    }
    let source = match (outputs.files.is_empty(), outputs.directory.is_empty()) {
        (true, true) => {
            report.add("outputs", Required.because("has neither files nor a directory; set one"));
            return None;
        }
        (false, false) => {
            report.add("outputs", Conflict.because("has both files and a directory; only one may be set"));
            return None;
        }
        (true, false) => {
            if let Err(why) = check_path(outputs.directory) {
                report.add("outputs.directory", why);
            }
            OutputSource::Directory(outputs.directory.into())
        }
        (false, true) => {
            if outputs.files.len() > LIST_MAX {
                let why = format!("has {} entries; at most {LIST_MAX} are allowed", outputs.files.len());
                report.add("outputs.files", TooMany.because(why));
                return None;
            }
            let mut seen = BTreeSet::new();
            for (index, path) in outputs.files.iter().enumerate() {
                let field = || format!("outputs.files[{index}]");
                if let Err(why) = check_path(path) {
                    report.add(field(), why);
                } else if !seen.insert(*path) {
                    report.add(field(), Duplicate.because(format!("`{}` is given twice", shorten(path))));
                } else if secrets.iter().any(|secret| secret.path == Path::new(path)) {
                    let why = format!("`{}` is a secret file, which is never captured", shorten(path));
                    report.add(field(), Conflict.because(why));
                }
            }
            OutputSource::Files(outputs.files.iter().map(PathBuf::from).collect())
        }
    };
    (report.0.len() == before).then_some(PlannedOutputs { source, bytes_max })
}

/// Checks that a path is absolute, in canonical form, and outside of the kernel's file systems.
fn check_path(path: &str) -> Result<(), FieldFault> {
    let shown = shorten(path);
    if path.len() >= PATH_MAX {
        return Err(TooLong.because(format!("is {} bytes; the maximum is {}", path.len(), PATH_MAX - 1)));
    }
    if path.contains(['\0', '\n']) {
        return Err(InvalidCharacter.because("contains NUL or a newline"));
    }
    let Some(parts) = path.strip_prefix('/').filter(|rest| !rest.is_empty()) else {
        let why = format!("`{shown}` is not an absolute path below the root directory");
        return Err(InvalidFormat.because(why));
    };
    for part in parts.split('/') {
        match part {
            "" => {
                let why = format!("`{shown}` has an empty component (`//`, or a `/` at its end)");
                return Err(InvalidFormat.because(why));
            }
            "." | ".." => return Err(InvalidFormat.because(format!("`{shown}` contains `{part}`"))),
            _ if part.len() > NAME_MAX => {
                let why = format!("`{shown}` has a component of {} bytes; the maximum is {NAME_MAX}", part.len());
                return Err(TooLong.because(why));
            }
            _ => {}
        }
    }
    match ["/proc", "/sys", "/dev"].iter().find(|bad| Path::new(path).starts_with(bad)) {
        Some(bad) => Err(Reserved.because(format!("`{shown}` is under {bad}, which is reserved for the kernel"))),
        None => Ok(()),
    }
}

/// Planned outputs, converted back to the strings of a request so that they can be validated again.
pub(super) struct DraftTexts {
    files: Vec<String>,
    directory: String,
    bytes_max: u64,
}

impl DraftTexts {
    /// Converts the paths of a plan's outputs to strings.
    ///
    /// # Errors
    /// Returns a violation if a path is not UTF-8, or if the maximum size is 0.
    pub(super) fn from_planned(planned: &PlannedOutputs) -> Result<Self, Vec<Violation>> {
        let text = |path: &PathBuf| {
            path.to_str()
                .map(str::to_owned)
                .ok_or_else(|| vec![Violation::new("outputs", "has a path that is not UTF-8")])
        };
        let (files, directory) = match &planned.source {
            OutputSource::Files(files) => (files.iter().map(text).collect::<Result<_, _>>()?, String::new()),
            OutputSource::Directory(directory) => (Vec::new(), text(directory)?),
        };
        if planned.bytes_max == 0 {
            return Err(vec![Violation::new("outputs.bytes_max", "must not be 0 in a plan")]);
        }
        Ok(Self { files, directory, bytes_max: planned.bytes_max })
    }

    pub(super) fn draft(&self) -> DraftOutputs<'_> {
        DraftOutputs {
            files: self.files.iter().map(String::as_str).collect(),
            directory: &self.directory,
            bytes_max: self.bytes_max,
        }
    }
}
