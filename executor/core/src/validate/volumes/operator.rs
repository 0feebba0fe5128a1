//! Checks the operator's volumes and directories in the configuration.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::plan::{HostPathRule, HostVolume};
use crate::validate::{Policy, shorten, surroundings};

/// Maximum number of entries in each list of the operator.
const HOST_VOLUMES_MAX: usize = 1000;
/// Maximum length of the name of an operator's volume, in bytes.
const NAME_MAX: usize = 128;

/// Checks a name that the operator assigns to a host resource.
pub(in crate::validate) fn check_name(name: &str) -> Result<(), String> {
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    if plain && name.len() <= NAME_MAX && name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Ok(());
    }
    let why = format!("1 to {NAME_MAX} of [A-Za-z0-9._-], beginning with a letter or a digit, are allowed");
    Err(format!("the name \"{}\" is not valid: {why}", shorten(name)))
}

/// Checks the operator's list of volumes. `reserved` holds directories of the executor.
///
/// # Errors
/// Returns the entry and the reason if an entry is invalid.
pub fn check_host_volumes(volumes: &[HostVolume], reserved: &[&Path]) -> Result<(), String> {
    if volumes.len() > HOST_VOLUMES_MAX {
        return Err(format!("has {} entries; at most {HOST_VOLUMES_MAX} are allowed", volumes.len()));
    }
    let mut seen = BTreeSet::new();
    for HostVolume { name, path, .. } in volumes {
        check_name(name)?;
        if !seen.insert(name) {
            return Err(format!("the name {name:?} is given twice"));
        }
        check_offered_dir(path, reserved).map_err(|why| format!("the path of {name:?}, {}, {why}", path.display()))?;
    }
    Ok(())
}

/// Checks the operator's list of files, and of directories below which requests may mount any path. `reserved` holds
/// directories of the executor.
///
/// # Errors
/// Returns the entry and the reason if an entry is invalid.
pub fn check_host_paths(rules: &[HostPathRule], reserved: &[&Path]) -> Result<(), String> {
    if rules.len() > HOST_VOLUMES_MAX {
        return Err(format!("has {} entries; at most {HOST_VOLUMES_MAX} are allowed", rules.len()));
    }
    let mut seen = BTreeSet::new();
    for HostPathRule { path, .. } in rules {
        check_offered_dir(path, reserved).map_err(|why| format!("{}: {why}", path.display()))?;
        if !seen.insert(path) {
            return Err(format!("{}: is given twice", path.display()));
        }
    }
    // A request could mount the outer directory, with everything in it.
    let narrower = |inner: &&HostPathRule| {
        let outer = |outer: &&HostPathRule| inner.path != outer.path && inner.path.starts_with(&outer.path);
        rules.iter().filter(outer).any(|outer| {
            inner.read_only && !outer.read_only
                || inner.propagation < outer.propagation
                || outer.suid && !inner.suid
                || outer.dev && !inner.dev
        })
    };
    match rules.iter().find(narrower) {
        Some(inner) => Err(format!("{}: permits less than the entry that contains it", inner.path.display())),
        None => Ok(()),
    }
}

/// Checks the operator's list of device nodes and their directories.
///
/// # Errors
/// Returns the entry and the reason if an entry is invalid.
pub fn check_device_paths(paths: &[PathBuf]) -> Result<(), String> {
    if paths.len() > HOST_VOLUMES_MAX {
        return Err(format!("has {} entries; at most {HOST_VOLUMES_MAX} are allowed", paths.len()));
    }
    paths.iter().try_for_each(|path| surroundings::plain_path(path).map_err(|why| format!("{}: {why}", path.display())))
}

/// Checks a host directory that the operator lists.
pub(in crate::validate) fn check_offered_dir(path: &Path, reserved: &[&Path]) -> Result<(), String> {
    surroundings::mount_point(path, false).map_err(|why| why.to_string())?;
    match reserved.iter().find(|own| own.starts_with(path) || path.starts_with(own)) {
        Some(own) => Err(format!("overlaps a directory of the executor: {}", own.display())),
        None => Ok(()),
    }
}

impl Policy {
    /// Returns the innermost entry of `host_paths` that contains the path.
    pub fn host_path_around(&self, path: &Path) -> Option<&HostPathRule> {
        let around = self.host_paths.iter().filter(|rule| path.starts_with(&rule.path));
        around.max_by_key(|rule| rule.path.components().count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_volumes_invalid_entry_fails() {
        for (path, allowed) in
            [("/srv/a", true), ("/", false), ("/srv", false), ("/srv/own/x", false), ("/proc/x", false)]
        {
            let listed = check_host_paths(&[PathBuf::from(path).into()], &[Path::new("/srv/own")]);
            assert_eq!(listed.is_ok(), allowed, "{path}: {listed:?}");
        }
        let rule = |path: &str, read_only, suid| HostPathRule {
            path: path.into(),
            read_only,
            suid,
            ..HostPathRule::default()
        };
        for (outer, inner, allowed) in [
            (rule("/a", true, false), rule("/a/b", false, true), true),
            (rule("/a", false, false), rule("/a/b", true, false), false),
            (rule("/a", false, true), rule("/a/b", false, false), false),
            (rule("/a", false, true), rule("/ab", true, false), true),
            (rule("/a", false, false), rule("/a", false, false), false),
        ] {
            let listed = check_host_paths(&[inner.clone(), outer], &[]);
            assert_eq!(listed.is_ok(), allowed, "{inner:?}: {listed:?}");
        }
        for (path, allowed) in [("/dev/fuse", true), ("/dev", true), ("/", false), ("dev", false), ("/dev/../x", false)]
        {
            assert_eq!(check_device_paths(&[path.into()]).is_ok(), allowed, "{path}");
        }
        let volume = |name: &str, path: &str| HostVolume { name: name.into(), path: path.into(), read_only: false };
        let own = [Path::new("/run/executor"), Path::new("/var/lib/executor")];
        check_host_volumes(&[volume("a", "/srv/a"), volume("B-1.x_y", "/srv/a")], &own).unwrap();
        for (name, path, why) in [
            ("", "/srv", "the name"),
            ("-a", "/srv", "the name"),
            ("a/b", "/srv", "the name"),
            ("a", "srv", "absolute"),
            ("a", "/", "root directory"),
            ("a", "/srv/../etc", "`..`"),
            ("a", "/srv/", "at its end"),
            ("a", "/proc/1", "under /proc"),
            ("a", "/run/executor/x", "directory of the executor"),
            ("a", "/var", "directory of the executor"),
        ] {
            let reported = check_host_volumes(&[volume(name, path)], &own).unwrap_err();
            assert!(reported.contains(why), "{name} {path}: {reported}");
        }
        assert!(check_host_volumes(&[volume("a", "/a"), volume("a", "/b")], &own).unwrap_err().contains("twice"));
        let long = volume(&"a".repeat(NAME_MAX + 1), "/a");
        assert!(check_host_volumes(&[long], &own).is_err());
        let many = vec![volume("a", "/a"); HOST_VOLUMES_MAX + 1];
        assert!(check_host_volumes(&many, &own).unwrap_err().contains("at most"));
    }
}
