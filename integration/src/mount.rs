//! File systems for one test: small file systems that can be filled, and directories on another file system.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tempfile::TempDir;

/// Returns the file system type of secret files on this machine: tmpfs if the kernel can exclude tmpfs from swap (Linux
/// 6.4), otherwise ramfs, which is never swapped.
///
/// # Panics
/// Panics if the kernel's version cannot be read.
pub fn secrets_fs_type() -> &'static str {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let mut numbers = release.split(['.', '-', '\n']).map(|number| number.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= (6, 4) { "tmpfs" } else { "ramfs" }
}

/// A tmpfs that is unmounted on drop, even if it is in use.
pub struct Tmpfs {
    at: PathBuf,
}

impl Tmpfs {
    /// Creates the directory `at` and mounts a tmpfs of `bytes` bytes there.
    pub fn mount(at: &Path, bytes: u64) -> Self {
        fs::create_dir_all(at).expect("mkdir");
        let options = format!("size={bytes},nr_inodes=20000,mode=0755");
        mount(Some("test-disk"), at, Some("tmpfs"), MsFlags::empty(), Some(&*options)).expect("mount");
        Self { at: at.to_owned() }
    }

    /// Returns the used size of the file system, in bytes.
    pub fn used(&self) -> u64 {
        let reported = rustix::fs::statvfs(&self.at).expect("statvfs");
        (reported.f_blocks - reported.f_bfree) * reported.f_frsize
    }

    /// Fills the file system to the last byte.
    pub fn fill(&self) {
        let mut ballast = File::create(self.ballast()).expect("create");
        for block in [1 << 20, 4096, 1] {
            let block = vec![b'x'; block];
            while ballast.write(&block).is_ok_and(|written| written > 0) {}
        }
    }

    /// Creates files until no more can be created.
    pub fn fill_with_files(&self) {
        let dir = self.files();
        fs::create_dir(&dir).expect("mkdir");
        let mut number = 0;
        while File::create(dir.join(number.to_string())).is_ok() {
            number += 1;
        }
    }

    /// Removes a few files of [`Self::fill_with_files`].
    pub fn free_files(&self) {
        for number in 0..64 {
            fs::remove_file(self.files().join(number.to_string())).expect("remove");
        }
    }

    fn files(&self) -> PathBuf {
        self.at.join("files")
    }

    /// Removes the ballast file that [`Self::fill`] wrote.
    pub fn free(&self) {
        fs::remove_file(self.ballast()).expect("remove");
    }

    fn ballast(&self) -> PathBuf {
        self.at.join("ballast")
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = umount2(&self.at, MntFlags::MNT_DETACH);
    }
}

/// A directory on another file system, mounted at `at`. Removed on drop.
pub struct RelocatedDirectory {
    at: PathBuf,
    _dir: TempDir,
}

impl RelocatedDirectory {
    /// Creates a directory in `below` and mounts it at `at`. Also creates `at`.
    pub fn mount(at: &Path, below: &Path) -> Self {
        fs::create_dir_all(at).expect("mkdir");
        let dir = directory_below(below);
        mount(Some(dir.path()), at, None::<&str>, MsFlags::MS_BIND, None::<&str>).expect("mount");
        Self { at: at.to_owned(), _dir: dir }
    }
}

impl Drop for RelocatedDirectory {
    fn drop(&mut self) {
        let _ = umount2(&self.at, MntFlags::MNT_DETACH);
    }
}

/// A directory with its own mount options, independent of the surrounding file system. Unmounted on drop.
pub struct OwnMount {
    at: PathBuf,
}

impl OwnMount {
    /// Mounts the directory over itself. Files that were opened or mounted there before do not see this mount.
    pub fn from_dir(dir: &Path) -> Self {
        mount(Some(dir), dir, None::<&str>, MsFlags::MS_BIND, None::<&str>).expect("mount");
        Self { at: dir.to_owned() }
    }

    /// Enables or disables set-user-ID bits of programs in this directory. Existing mount namespaces keep their
    /// setting.
    pub fn honour_set_user_id(&self, honoured: bool) {
        let flags = if honoured { MsFlags::empty() } else { MsFlags::MS_NOSUID };
        let remount = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | flags;
        mount(None::<&str>, &self.at, None::<&str>, remount, None::<&str>).expect("remount");
    }
}

impl Drop for OwnMount {
    fn drop(&mut self) {
        let _ = umount2(&self.at, MntFlags::MNT_DETACH);
    }
}

/// Mounts the state directory in `home` from the file system that `EXECUTOR_STATE_BELOW` names. If unset, the directory
/// stays in /run, which is a tmpfs; before Linux 6.3 a tmpfs cannot be id-mapped.
pub(crate) fn state(home: &Path) -> Option<RelocatedDirectory> {
    let below = std::env::var_os("EXECUTOR_STATE_BELOW")?;
    Some(RelocatedDirectory::mount(&home.join("state"), Path::new(&below)))
}

/// Creates a directory that every user can traverse.
pub(crate) fn directory_below(dir: &Path) -> TempDir {
    let made = tempfile::Builder::new().prefix("ex").tempdir_in(dir).expect("a directory");
    fs::set_permissions(made.path(), Permissions::from_mode(0o755)).expect("chmod");
    made
}
