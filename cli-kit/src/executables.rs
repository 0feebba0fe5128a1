//! Finds related programs, such as `agent-cli-kube`, next to this program or in PATH.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Finds a program in the directory of this program, or else in PATH.
pub fn find(name: &str) -> Option<PathBuf> {
    directories().into_iter().map(|directory| directory.join(name)).find(|program| is_executable(program))
}

/// Lists the programs whose names begin with `prefix`, without the prefix.
pub fn list(prefix: &str) -> BTreeSet<String> {
    let entries =
        directories().into_iter().filter_map(|directory| std::fs::read_dir(directory).ok()).flatten().flatten();
    let named = entries.filter_map(|entry| Some((entry.file_name().to_str()?.strip_prefix(prefix)?.to_owned(), entry)));
    named.filter(|(_, entry)| is_executable(&entry.path())).map(|(name, _)| name).collect()
}

/// Returns the directories in which programs are searched for, in this order: this program's directory, then PATH.
fn directories() -> Vec<PathBuf> {
    let own = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.to_owned()));
    own.into_iter().chain(in_path(&std::env::var_os("PATH").unwrap_or_default())).collect()
}

/// Returns the directories of a PATH. Relative entries are skipped, because this program may run as root.
fn in_path(path: &OsStr) -> Vec<PathBuf> {
    std::env::split_paths(path).filter(|directory| directory.is_absolute()).collect()
}

fn is_executable(program: &Path) -> bool {
    program.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn relative_path_entries_are_skipped() {
        let path = std::env::join_paths([".", "", "/usr/bin", "bin", "/bin"]).unwrap();
        assert_eq!(in_path(&path), ["/usr/bin", "/bin"].map(PathBuf::from));
    }

    #[test]
    fn only_executable_files_are_programs() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("executord");
        std::fs::write(&program, "#!/bin/sh\n").unwrap();
        assert!(!is_executable(&program) && !is_executable(dir.path()));
        std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        assert!(is_executable(&program));
    }
}
