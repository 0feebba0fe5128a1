//! What a file system says of a project, asked with Debian's repquota.

use std::path::Path;
use std::process::Command;

/// What a project uses, and what it may: 0 where it has no limit.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Project {
    /// Of 1024 bytes each.
    pub blocks: u64,
    /// Of 1024 bytes each.
    pub blocks_max: u64,
    /// Files and directories.
    pub inodes: u64,
    /// Files and directories.
    pub inodes_max: u64,
}

/// A project as the file system that is mounted there has it: nothing at all where it does not know the project.
///
/// # Panics
/// The file system has no project quotas.
pub fn project(mount_point: &Path, id: u32) -> Project {
    let mut repquota = Command::new("repquota");
    let output = repquota.args(["-P", "-n", "-O", "csv"]).arg(mount_point).output().expect("quota is installed");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = lines.next().expect("a header");
    let Some(line) = lines.find(|line| line[0] == format!("#{id}")) else { return Project::default() };
    let number = |name: &str| {
        let at = header.iter().position(|column| *column == name).unwrap_or_else(|| panic!("no {name}: {text}"));
        line[at].parse().unwrap_or_else(|_| panic!("{name}: {text}"))
    };
    Project {
        blocks: number("BlockUsed"),
        blocks_max: number("BlockHardLimit"),
        inodes: number("FileUsed"),
        inodes_max: number("FileHardLimit"),
    }
}
