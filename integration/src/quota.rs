//! Project quotas as reported by a file system, read with Debian's repquota.

use std::path::Path;
use std::process::Command;

/// Usage and limits of a project. A limit of 0 means no limit.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Project {
    /// Used blocks of 1024 bytes.
    pub blocks: u64,
    /// Limit in blocks of 1024 bytes.
    pub blocks_max: u64,
    /// Number of used inodes (files and directories).
    pub inodes: u64,
    /// Limit of inodes.
    pub inodes_max: u64,
}

/// Reads the quota of a project on the file system mounted at `mount_point`. All values are zero for an unknown
/// project.
///
/// # Panics
/// Panics if the file system has no project quotas.
pub fn project(mount_point: &Path, id: u32) -> Project {
    let mut repquota = Command::new("repquota");
    let output = repquota.args(["-P", "-n", "-O", "csv"]).arg(mount_point).output().expect("quota is installed");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = lines.next().expect("a header");
    let Some(line) = lines.find(|line| line[0] == format!("#{id}")) else { return Project::default() };
    let number = |name: &str| {
        let at = header
            .iter()
            .position(|column| *column == name)
            .unwrap_or_else(|| panic!("the output of repquota has no column {name}: {text}"));
        line[at].parse().unwrap_or_else(|_| panic!("the column {name} is not a number: {text}"))
    };
    Project {
        blocks: number("BlockUsed"),
        blocks_max: number("BlockHardLimit"),
        inodes: number("FileUsed"),
        inodes_max: number("FileHardLimit"),
    }
}
