//! Mounts overlayfs over opened directories: read-only lower directories and, if the overlay is writable, an upper
//! directory.
//!
//! Directories are passed as descriptors. Therefore, no path is looked up a second time, and no path can be too long
//! for the kernel or need escaping. Supports up to [`LOWER_MAX`] lower directories, the capacity of the kernel's old
//! interface.

use std::fmt::Write as _;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string,
    fsmount, fsopen,
};

use crate::kernel_version;
use crate::mount::attach;

/// Maximum number of lower directories. Docker's limit on image layers is 127. The options of mount(2) must fit into
/// one page, which can hold 200 names like `/proc/self/fd/1000`.
pub const LOWER_MAX: usize = 200;
/// Mount source, as shown in mountinfo.
const SOURCE: &str = "executor-rootfs";

/// Directories for the changes in an overlay. Both must be on the same file system and not in use by another overlay.
#[derive(Clone, Copy, Debug)]
pub struct Upper<'a> {
    /// Upper directory, which receives changed entries.
    pub dir: BorrowedFd<'a>,
    /// Work directory for the kernel; must be empty.
    pub work: BorrowedFd<'a>,
}

/// Kernel interface for passing the lower directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interface {
    /// One `lowerdir+` option per directory (kernel 6.5 and newer).
    Each,
    /// One list of all directories in the page of mount options.
    Page,
}

/// Mounts an overlay of `lower`, bottom first, at `at`, with nosuid and nodev. Without an upper directory the overlay
/// is read-only. Writes need not reach the disk (`volatile`), because the upper directory is not reused.
///
/// # Errors
/// Returns `ENODEV` if the kernel has no overlayfs. Returns `InvalidInput` if `lower` is empty or longer than
/// [`LOWER_MAX`], or the kernel rejects the layers; without an upper directory, the kernel requires two lower
/// directories. Otherwise returns the errors of mount.
pub fn overlay(lower: &[BorrowedFd<'_>], upper: Option<Upper<'_>>, at: BorrowedFd<'_>) -> io::Result<()> {
    if lower.is_empty() || lower.len() > LOWER_MAX {
        let why = format!("an overlay needs 1 to {LOWER_MAX} lower directories, not {}", lower.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    // An older kernel logs each option that it does not know, so that a first attempt would fill its log.
    let interface = if kernel_version::running() >= (6, 5) { Interface::Each } else { Interface::Page };
    overlay_by(interface, lower, upper, at)
}

fn overlay_by(
    interface: Interface,
    lower: &[BorrowedFd<'_>],
    upper: Option<Upper<'_>>,
    at: BorrowedFd<'_>,
) -> io::Result<()> {
    if interface == Interface::Page {
        return by_page(lower, upper, at);
    }
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", SOURCE)?;
    for dir in lower.iter().rev() {
        fsconfig_set_string(&context, "lowerdir+", held(*dir))?;
    }
    if let Some(Upper { dir, work }) = upper {
        fsconfig_set_string(&context, "upperdir", held(dir))?;
        fsconfig_set_string(&context, "workdir", held(work))?;
        fsconfig_set_flag(&context, "volatile")?;
    }
    fsconfig_create(&context)?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
    attach(mount.as_fd(), at)
}

fn by_page(lower: &[BorrowedFd<'_>], upper: Option<Upper<'_>>, at: BorrowedFd<'_>) -> io::Result<()> {
    let mut options = String::from("lowerdir=");
    for (index, dir) in lower.iter().rev().enumerate() {
        let colon = if index == 0 { "" } else { ":" };
        let _ = write!(options, "{colon}{}", held(*dir)); // writing to a string cannot fail
    }
    if let Some(Upper { dir, work }) = upper {
        let _ = write!(options, ",upperdir={},workdir={},volatile", held(dir), held(work));
    }
    let options = std::ffi::CString::new(options)?;
    Ok(rustix::mount::mount(SOURCE, held(at), "overlay", MountFlags::NOSUID | MountFlags::NODEV, &*options)?)
}

/// Returns a /proc path that always leads to the opened directory.
fn held(dir: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", dir.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::mount::open_dir;

    /// Mounts an overlay in a mount namespace of the test's own thread. The directories are opened in this namespace,
    /// because the kernel rejects layers from mounts of another namespace.
    fn mounted(interface: Interface, lower: &[PathBuf], dir: &Path, writable: bool) -> io::Result<()> {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?;
        for name in ["at", "upper", "work"] {
            fs::create_dir_all(dir.join(name))?;
        }
        let (upper, work) = (open_dir(&dir.join("upper"))?, open_dir(&dir.join("work"))?);
        let lower = lower.iter().map(|dir| open_dir(dir)).collect::<io::Result<Vec<_>>>()?;
        let lower: Vec<_> = lower.iter().map(AsFd::as_fd).collect();
        let upper = writable.then_some(Upper { dir: upper.as_fd(), work: work.as_fd() });
        let at = open_dir(&dir.join("at"))?;
        overlay_by(interface, &lower, upper, at.as_fd())
    }

    /// Both interfaces accept more layers than an image can have, and a file of the topmost layer hides files of lower
    /// layers.
    #[test]
    #[ignore = "needs root"]
    fn many_layers_by_either_interface() {
        for interface in [Interface::Each, Interface::Page] {
            let dir = tempfile::Builder::new().prefix("over,lay:\\").tempdir().unwrap();
            let lower: Vec<_> = (0..LOWER_MAX).map(|index| dir.path().join(format!("layer{index}"))).collect();
            for (index, layer) in lower.iter().enumerate() {
                fs::create_dir(layer).unwrap();
                fs::write(layer.join("all"), index.to_string()).unwrap();
                fs::write(layer.join(index.to_string()), "").unwrap();
            }
            let path = dir.path().to_owned();
            let seen = std::thread::spawn(move || {
                mounted(interface, &lower, &path, true).unwrap();
                fs::write(path.join("at/new"), "x").unwrap();
                let names = fs::read_dir(path.join("at")).unwrap().count();
                (fs::read_to_string(path.join("at/all")).unwrap(), names)
            });
            assert_eq!(seen.join().unwrap(), ((LOWER_MAX - 1).to_string(), LOWER_MAX + 2), "{interface:?}");
            assert!(dir.path().join("upper/new").exists());
        }
    }

    #[test]
    #[ignore = "needs root"]
    fn without_an_upper_directory_nothing_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let lower = ["a", "b"].map(|name| dir.path().join(name));
        for layer in &lower {
            fs::create_dir(layer).unwrap();
        }
        let path = dir.path().to_owned();
        let written = std::thread::spawn(move || {
            mounted(Interface::Each, &lower, &path, false).unwrap();
            fs::write(path.join("at/new"), "x")
        });
        assert_eq!(written.join().unwrap().unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
        let one = open_dir(dir.path()).unwrap();
        let error = overlay(&[one.as_fd(); LOWER_MAX + 1], None, one.as_fd()).unwrap_err();
        assert!(error.to_string().contains("not 201"), "{error}");
    }
}
