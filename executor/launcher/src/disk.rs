//! Sets up a container's writable layer and empty volumes, and enforces their disk limits.
//!
//! ```text
//! no limit        STATE_DIR/containers/ID/{upper,work}
//! project quota   STATE_DIR/containers/ID/disk/{upper,work}   the project id is unique on the host
//! image           the same path, as mount point of a file system of the limit's size, in the shim's mount namespace
//! volumes         volumes/N/data next to upper: an empty volume without its own limit
//!                 STATE_DIR/containers/ID/volumes/N/data: a volume with a limit, enforced by a quota or an image
//! ```
//! The image is an unnamed file below the state directory, on a loop device with autoclear. The image disappears when
//! the last process and the last mount namespace that use it no longer exist, even if the shim was killed. Project
//! quotas are used only for containers with a user namespace, because the host's root can move files to another
//! project.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use executor_core::plan::{EmptyVolume, Medium, Plan, Rootfs, Volume};
use executor_core::protocol::{Reason, Refused};
use executor_core::validate::{Policy, Unenforceable, Violation};
use executor_sys::loopdev::LoopDevice;
use executor_sys::mount::{attach, clone_tree, detach, detached, open_dir};
use executor_sys::quota;
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountAttrFlags;

use crate::errors::{failed, plain};
use crate::files::{ensure_dir, make_dir, remove_tree};

/// Name of the directory of a layer with a limit, in the container's state directory.
const DISK: &str = "disk";
/// Name of the directory of empty volumes, in the layer's directory or in the container's state directory.
const VOLUMES: &str = "volumes";
/// Name of the root directory of an empty volume.
const DATA: &str = "data";
/// Possible paths of mkfs.ext4, which creates the file system of an image.
const MKFS: [&str; 4] = ["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4", "/usr/bin/mkfs.ext4", "/bin/mkfs.ext4"];
/// Options for speed: no journal, because the data is needed only until the container exits, and no initialization of
/// inode tables.
const MKFS_OPTIONS: [&str; 9] = [
    "-q",
    "-F",
    "-b4096",
    "-m0",
    "-O",
    "^has_journal,^resize_inode",
    "-E",
    "lazy_itable_init=1,nodiscard",
    "-Lexecutor",
];
/// Maximum length of a reported mkfs error, in characters.
const WORDS_MAX: usize = 300;

/// Creates the directory of a container's writable layer. Returns its path, and a warning if the limit is not enforced.
/// `project` is a project id that no other container has.
///
/// # Errors
/// Returns a violation of `limits.disk_bytes` if the host cannot enforce the limit and the policy does not accept a
/// warning. Returns an error if the disk is full.
pub(crate) fn lay_out(
    policy: &Policy,
    plan: &Plan,
    state: &Path,
    project: Option<u32>,
) -> Result<(PathBuf, Option<String>), Refused> {
    let bytes = plan.limits.disk_bytes;
    // If the rootfs is `host` or belongs to a pod, only empty volumes without their own limit write to the layer.
    let shares = |empty: &EmptyVolume| empty.medium == Medium::Disk && empty.bytes == 0;
    let is_written =
        !matches!(plan.rootfs, Rootfs::Host | Rootfs::Pod) || plan.volumes.iter().filter_map(Volume::empty).any(shares);
    if bytes == 0 || !is_written {
        return Ok((state.to_owned(), None));
    }
    let place = place(state);
    make_dir(&place, 0o700, None)
        .map_err(|error| failed("cannot create a directory below the state directory", &error))?;
    let unheld = limit_size(policy, &place, state, (bytes, project), "limits.disk_bytes")?;
    Ok((place, unheld))
}

/// Creates the directory of an empty volume on the disk. Returns a detached mount of the volume, and a warning if the
/// limit is not enforced. `layer` is the directory of the writable layer: volumes without their own limit share its
/// limit. `projects` is the first of a range of project ids that no other container has.
///
/// # Errors
/// Returns the same errors as [`lay_out`], for the volume's `empty.size_bytes`.
pub(crate) fn lay_out_volume(
    policy: &Policy,
    (layer, state): (&Path, &Path),
    projects: Option<u32>,
    index: usize,
    bytes: u64,
) -> Result<(OwnedFd, Option<String>), Refused> {
    let system = |error: io::Error| failed("cannot create a volume below the state directory", &error);
    let all = if bytes == 0 { layer } else { state }.join(VOLUMES);
    ensure_dir(&all, 0o700).map_err(system)?;
    let place = all.join(index.to_string());
    make_dir(&place, 0o700, None).map_err(system)?;
    let unheld = match bytes {
        0 => None,
        _ => {
            // The first id of the range is for the writable layer.
            let project = projects.and_then(|first| first.checked_add(u32::try_from(index).ok()? + 1));
            limit_size(policy, &place, state, (bytes, project), &format!("volumes[{index}].empty.size_bytes"))?
        }
    };
    let root = place.join(DATA);
    let view = make_dir(&root, 0o700, None).and_then(|()| clone_tree(open_dir(&root)?.as_fd(), Path::new(""), false));
    while detach(&place).is_ok() {} // the view keeps the mount
    view.map(|view| (view, unheld)).map_err(system)
}

/// Limits the size of an empty directory by a project quota, or by mounting a file system of this size on it. Returns a
/// warning if the limit cannot be enforced.
///
/// # Errors
/// Returns a violation of `field` if the host cannot enforce the limit and the policy does not accept a warning.
/// Returns an error if the disk is full.
fn limit_size(
    policy: &Policy,
    place: &Path,
    state: &Path,
    (bytes, project): (u64, Option<u32>),
    field: &str,
) -> Result<Option<String>, Refused> {
    let system = |error: io::Error| failed("cannot limit a directory below the state directory", &error);
    let dir = File::open(place).map_err(system)?;
    if let Some(project) = project.filter(|_| quota::enforces_projects(dir.as_fd())) {
        let limited = quota::set_project(dir.as_fd(), project)
            .and_then(|()| quota::limit_project(dir.as_fd(), project, bytes, inodes(bytes)));
        return limited.map(|()| None).map_err(|error| failed("cannot set the project quota", &error));
    }
    match image(state, bytes) {
        Ok(mount) => {
            open_dir(place).and_then(|place| attach(mount.as_fd(), place.as_fd())).map_err(system)?;
            Ok(None)
        }
        Err(why) => {
            let violation = Violation::new(
                field,
                format!(
                    "cannot be enforced: the state directory has no project quota, and a file system of this size cannot be \
                     created there: {why}"
                ),
            );
            match policy.unenforceable_limits {
                Unenforceable::Refuse => Err(Refused::from_fields(Reason::Precondition, &[violation])),
                Unenforceable::Report => Ok(Some(violation.to_string())),
            }
        }
    }
}

/// Returns the maximum number of inodes of a project: as many as mke2fs creates in a file system of this size. Empty
/// files use almost no bytes, but the host's file system has a fixed number of inodes.
fn inodes(bytes: u64) -> u64 {
    bytes / if bytes < 512 << 20 { 4096 } else { 16_384 }
}

/// Returns the directory of a layer with a limit.
pub(crate) fn place(state: &Path) -> PathBuf {
    state.join(DISK)
}

/// Removes the layer and volumes that have limits, and their project limits.
///
/// # Errors
/// Returns an error if a directory cannot be removed.
pub(crate) fn remove(state: &Path) -> io::Result<()> {
    let volumes = state.join(VOLUMES);
    let mut places = vec![place(state)];
    match fs::read_dir(&volumes) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        entries => {
            for entry in entries? {
                places.push(entry?.path());
            }
        }
    }
    for place in places {
        let Ok(dir) = File::open(&place) else { continue };
        let project = quota::project_of(dir.as_fd());
        remove_tree(&place)?;
        if let Some(project) = project {
            let _ = quota::limit_project(File::open(state)?.as_fd(), project, 0, 0); // no longer in use
        }
    }
    remove_tree(&volumes)
}

/// Creates an ext4 file system of `bytes` bytes in an unnamed file in `dir`, and returns the detached mount.
fn image(dir: &Path, bytes: u64) -> Result<OwnedFd, String> {
    let words = |what: &'static str| move |error: io::Error| format!("{what}: {}", plain(&error));
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR);
    let file = File::from(file.map_err(|error| words("cannot create the image file")(error.into()))?);
    file.set_len(bytes).map_err(words("cannot set the size of the image file"))?;
    let device = LoopDevice::from_file(file.as_fd()).map_err(words("cannot set up a loop device"))?;
    let maker = MKFS.iter().find(|path| Path::new(path).exists()).ok_or("mkfs.ext4 is not installed (e2fsprogs)")?;
    let mut command = Command::new(maker);
    command.args(MKFS_OPTIONS).arg(device.path()).env_clear().stdin(Stdio::null()).stdout(Stdio::null());
    let made = command.output().map_err(words("cannot run mkfs.ext4"))?;
    if !made.status.success() {
        let said = String::from_utf8_lossy(&made.stderr);
        let said: String = said.trim().chars().take(WORDS_MAX).collect();
        return Err(format!("mkfs.ext4: {} {said}", made.status));
    }
    let source = device.path().to_string_lossy();
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    // `discard` returns removed blocks to the host. `noinit_itable` disables background initialization.
    detached("ext4", &source, &[("discard", None), ("noinit_itable", None)], flags)
        .map_err(words("cannot mount the ext4 image"))
}
