//! Root file systems for `dir:`, built from busybox.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

const PROGRAMS: [&str; 22] = [
    "cat", "chmod", "dd", "echo", "false", "grep", "id", "kill", "ls", "mkdir", "mknod", "mount", "mv", "ping", "sh",
    "sleep", "stat", "touch", "true", "umount", "wc", "yes",
];

pub struct Rootfs {
    dir: TempDir,
}

impl Rootfs {
    /// Creates a root file system with a shell, root, a user `app` (1234) in a group `web`, and the directories that a
    /// container needs.
    pub fn busybox() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("chmod");
        for name in ["bin", "dev", "etc", "proc", "sys", "srv", "tmp"] {
            fs::create_dir(dir.path().join(name)).expect("mkdir");
        }
        fs::copy(find("busybox"), dir.path().join("bin/busybox")).expect("busybox-static is installed");
        for name in PROGRAMS {
            symlink("busybox", dir.path().join("bin").join(name)).expect("symlink");
        }
        fs::write(dir.path().join("etc/passwd"), "root:x:0:0::/root:/bin/sh\napp:x:1234:1234::/srv:/bin/sh\n")
            .expect("write");
        fs::write(dir.path().join("etc/group"), "root:x:0:\napp:x:1234:\nweb:x:80:app\n").expect("write");
        Self { dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the reference of the root file system in a request.
    pub fn reference(&self) -> String {
        format!("dir:{}", self.path().display())
    }

    /// Replaces a directory with a symbolic link.
    pub fn replace_by_link(&self, name: &str, target: &str) {
        let path = self.path().join(name);
        fs::remove_dir(&path).expect("an empty directory");
        symlink(target, path).expect("symlink");
    }

    /// Returns the path, kind and size of every entry, to check that nothing has changed.
    pub fn listing(&self) -> Vec<(PathBuf, bool, u64)> {
        let mut found = Vec::new();
        list(self.path(), &mut found);
        found.sort();
        found
    }
}

fn list(dir: &Path, found: &mut Vec<(PathBuf, bool, u64)>) {
    for entry in fs::read_dir(dir).expect("readable").flatten() {
        let meta = entry.path().symlink_metadata().expect("metadata");
        found.push((entry.path(), meta.is_dir(), meta.len()));
        if meta.is_dir() {
            list(&entry.path(), found);
        }
    }
}

fn find(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|path| path.exists())
        .expect("busybox-static is installed")
}
