//! Location and disk limit of a container's writable layer.
//!
//! ```text
//! no limit        STATE_DIR/containers/ID/{upper,work}
//! project quota   STATE_DIR/containers/ID/disk/{upper,work}   its own project, whose id is that of the container's root
//! image           the same path, with a file system of this size mounted on it in the shim's own mount namespace
//! volumes         volumes/N/data next to upper: an empty volume without its own limit
//!                 STATE_DIR/containers/ID/volumes/N/data: one with a limit, by its own project or image
//! ```
//! The image is an unnamed file below the state directory, on an autoclear loop device: it disappears with the last
//! process and mount namespace that has the file system mounted, whichever process is killed. Projects are only for
//! containers with a user namespace, because root of the host could leave its project.

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

/// Directory of a layer with a limit, in the container's state directory.
const DISK: &str = "disk";
/// Directory of empty volumes, in the layer's directory or in the container's state directory.
const VOLUMES: &str = "volumes";
/// Root of an empty volume in its directory.
const DATA: &str = "data";
/// Paths of mkfs.ext4, which makes the file system of an image.
const MAKERS: [&str; 4] = ["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4", "/usr/bin/mkfs.ext4", "/bin/mkfs.ext4"];
/// Fast options: no journal, because nothing outlives the container, and no early writes.
const MAKER_OPTIONS: [&str; 9] = [
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
/// Longest report of a failure of mkfs, in bytes.
const WORDS_MAX: usize = 300;

/// Makes the directory of a container's writable layer. Returns it with a warning, if any. `project` is a project id
/// that no other container has.
///
/// # Errors
/// Returns a violation of `limits.disk_bytes` if the limit cannot be enforced here, unless the operator accepts a
/// warning, and an error if the disk is full.
pub(crate) fn lay_out(
    policy: &Policy,
    plan: &Plan,
    state: &Path,
    project: Option<u32>,
) -> Result<(PathBuf, Option<String>), Refused> {
    let bytes = plan.limits.disk_bytes;
    // The host's programs are read-only: only such volumes write to the disk.
    let shares = |empty: &EmptyVolume| empty.medium == Medium::Disk && empty.bytes == 0;
    let is_written =
        !matches!(plan.rootfs, Rootfs::Host | Rootfs::Pod) || plan.volumes.iter().filter_map(Volume::empty).any(shares);
    if bytes == 0 || !is_written {
        return Ok((state.to_owned(), None));
    }
    let place = place(state);
    make_dir(&place, 0o700, None).map_err(|error| failed("state directory", &error))?;
    let unheld = hold(policy, &place, state, (bytes, project), "limits.disk_bytes")?;
    Ok((place, unheld))
}

/// Makes the directory of an empty volume on the disk. Returns a detached mount of it with a warning, if any. `layer`
/// is the directory of the writable layer, whose limit is shared by volumes without their own. `projects` are project
/// ids that no other container has.
///
/// # Errors
/// As [`lay_out`], for the volume's `empty.size_bytes`.
pub(crate) fn lay_out_volume(
    policy: &Policy,
    (layer, state): (&Path, &Path),
    projects: Option<u32>,
    index: usize,
    bytes: u64,
) -> Result<(OwnedFd, Option<String>), Refused> {
    let system = |error: io::Error| failed("state directory", &error);
    let all = if bytes == 0 { layer } else { state }.join(VOLUMES);
    ensure_dir(&all, 0o700).map_err(system)?;
    let place = all.join(index.to_string());
    make_dir(&place, 0o700, None).map_err(system)?;
    let unheld = match bytes {
        0 => None,
        _ => {
            // The first id of the range is the writable layer's.
            let project = projects.and_then(|first| first.checked_add(u32::try_from(index).ok()? + 1));
            hold(policy, &place, state, (bytes, project), &format!("volumes[{index}].empty.size_bytes"))?
        }
    };
    let root = place.join(DATA);
    let view = make_dir(&root, 0o700, None).and_then(|()| clone_tree(open_dir(&root)?.as_fd(), Path::new(""), false));
    while detach(&place).is_ok() {} // the view keeps the mount
    view.map(|view| (view, unheld)).map_err(system)
}

/// Limits the size of an empty directory by a project, or by a file system of this size mounted on it. Returns a
/// warning if the limit cannot be enforced.
///
/// # Errors
/// Returns a violation of `field` if the limit cannot be enforced here, unless the operator accepts a warning, and an
/// error if the disk is full.
fn hold(
    policy: &Policy,
    place: &Path,
    state: &Path,
    (bytes, project): (u64, Option<u32>),
    field: &str,
) -> Result<Option<String>, Refused> {
    let system = |error: io::Error| failed("state directory", &error);
    let dir = File::open(place).map_err(system)?;
    if let Some(project) = project.filter(|_| quota::enforces_projects(dir.as_fd())) {
        let limited = quota::set_project(dir.as_fd(), project)
            .and_then(|()| quota::limit_project(dir.as_fd(), project, bytes, inodes(bytes)));
        return limited.map(|()| None).map_err(|error| failed("project quota", &error));
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
                     made there: {why}"
                ),
            );
            match policy.unenforceable_limits {
                Unenforceable::Refuse => Err(Refused::from_fields(Reason::Precondition, &[violation])),
                Unenforceable::Report => Ok(Some(violation.to_string())),
            }
        }
    }
}

/// Returns the most files of a project: as many as mke2fs gives a file system of this size. Empty files use almost none
/// of the bytes, and the host's file system has a fixed number of inodes.
fn inodes(bytes: u64) -> u64 {
    bytes / if bytes < 512 << 20 { 4096 } else { 16_384 }
}

/// Returns the directory of a layer with a limit.
pub(crate) fn place(state: &Path) -> PathBuf {
    state.join(DISK)
}

/// Removes the limited layer and volumes, with their limits.
///
/// # Errors
/// Returns the error of the disk.
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
    let file = File::from(file.map_err(|error| words("file")(error.into()))?);
    file.set_len(bytes).map_err(words("file"))?;
    let device = LoopDevice::from_file(file.as_fd()).map_err(words("loop device"))?;
    let maker = MAKERS.iter().find(|path| Path::new(path).exists()).ok_or("mkfs.ext4 is not installed (e2fsprogs)")?;
    let mut command = Command::new(maker);
    command.args(MAKER_OPTIONS).arg(device.path()).env_clear().stdin(Stdio::null()).stdout(Stdio::null());
    let made = command.output().map_err(words("mkfs.ext4"))?;
    if !made.status.success() {
        let said = String::from_utf8_lossy(&made.stderr);
        let said: String = said.trim().chars().take(WORDS_MAX).collect();
        return Err(format!("mkfs.ext4: {} {said}", made.status));
    }
    let source = device.path().to_string_lossy();
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    // Discard returns removed blocks to the host; no background initialization.
    detached("ext4", &source, &[("discard", None), ("noinit_itable", None)], flags).map_err(words("ext4"))
}
