//! The place of a container's writable layer, held to its limit of disk.
//!
//! ```text
//! no limit        STATE_DIR/containers/ID/{upper,work}
//! project quota   STATE_DIR/containers/ID/disk/{upper,work}   a project of the container's, whose id is that of its root
//! image           the same place, with a file system of this size mounted on it in the shim's own mount namespace
//! volumes         volumes/N/data beside upper: an empty volume without a limit of its own
//!                 STATE_DIR/containers/ID/volumes/N/data: one with a limit, by a project or an image of its own
//! ```
//! The image is a file without a name below the state directory, on a loop device that lets go of it by itself: it goes
//! with the last process and mount namespace that has the file system mounted, whoever is killed when. A project is for
//! containers with a user namespace alone, because root of the host's could leave it.

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

/// Directory of a layer that has a limit, in the container's state directory.
const DISK: &str = "disk";
/// Directory of empty volumes, in that of a layer or in the container's state directory.
const VOLUMES: &str = "volumes";
/// Root of an empty volume in its place.
const DATA: &str = "data";
/// Makes the file system of an image.
const MAKERS: [&str; 4] = ["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4", "/usr/bin/mkfs.ext4", "/bin/mkfs.ext4"];
/// Quickly: no journal, because nothing of it outlives the container, and nothing written that can be written later.
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
/// Longest account of a failure of the maker, in bytes.
const WORDS_MAX: usize = 300;

/// Lays out the place of a container's writable layer, and gives it with what is to be told. `project` is an id that no
/// other container has.
///
/// # Errors
/// The limit cannot be held here: a violation of `limits.disk_bytes`, unless the operator wants it told. A full disk.
pub(crate) fn lay_out(
    policy: &Policy,
    plan: &Plan,
    state: &Path,
    project: Option<u32>,
) -> Result<(PathBuf, Option<String>), Refused> {
    let bytes = plan.limits.disk_bytes;
    // The host's programs are shown read-only: nothing of the container reaches the disk, but for such volumes.
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

/// Lays out the directory of an empty volume on the disk, and gives a detached mount of it with what is to be told. `layer`
/// is the place of the writable layer, whose limit volumes without a limit of their own share; `projects` are the ids of
/// projects that no other container has.
///
/// # Errors
/// As [`lay_out`], of the volume's `empty.size_bytes`.
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
    while detach(&place).is_ok() {} // the view holds it
    view.map(|view| (view, unheld)).map_err(system)
}

/// Holds what will be in an empty directory to a limit: by a project, or by a file system of this size that is mounted on
/// it. Gives what is to be told where the limit cannot be held.
///
/// # Errors
/// The limit cannot be held here: a violation of `field`, unless the operator wants it told. A full disk.
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
                    "cannot be enforced: no project quota is in force where containers' state lies, and a file system of \
                     this size cannot be made there: {why}"
                ),
            );
            match policy.unenforceable_limits {
                Unenforceable::Refuse => Err(Refused::from_fields(Reason::Precondition, &[violation])),
                Unenforceable::Report => Ok(Some(violation.to_string())),
            }
        }
    }
}

/// Returns the most files of a project: as many as mke2fs gives a file system of this size. Empty files take next to
/// nothing of the bytes, and the host's file system has room for a number of them that is fixed.
fn inodes(bytes: u64) -> u64 {
    bytes / if bytes < 512 << 20 { 4096 } else { 16_384 }
}

/// Returns the directory of a layer with a limit.
pub(crate) fn place(state: &Path) -> PathBuf {
    state.join(DISK)
}

/// Takes away what limits left, with the layer and the volumes that they held.
///
/// # Errors
/// The disk.
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
            let _ = quota::limit_project(File::open(state)?.as_fd(), project, 0, 0); // of nobody from now on
        }
    }
    remove_tree(&volumes)
}

/// A new file system of so many bytes, mounted nowhere, in a file without a name below `dir`.
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
    // What is removed in it is given back to the host; nothing is initialized behind our back.
    detached("ext4", &source, &[("discard", None), ("noinit_itable", None)], flags).map_err(words("ext4"))
}
