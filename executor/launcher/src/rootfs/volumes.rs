//! Mounts volumes into the root of a container before libcontainer uses the root. In a container with its own user
//! namespace, processes cannot change the mounts' attributes.
//!
//! ```text
//! empty, in memory    a new tmpfs
//! empty, on a disk    a new directory in the state directory, with a limit (`disk`)
//! host                a view, with the container's ids, of a directory on the operator's list, or of a directory or
//!                     file in it
//! host path           a view of a path that the request names (`host_path`)
//! image               an overlay of the layers, or a view of a single layer, with the container's ids
//! CDI device          a view of a host directory or file that a CDI file names, like a host volume
//! pod                 a view of an empty volume of the pod that the container is a member of
//! ```
//! Host volumes are shared with other containers, which can change their contents at any time. Therefore each path in a
//! host volume is opened beneath the volume's root, without following links or entering other mounts, and the opened
//! entry is mounted. Nothing is created in host volumes. If a container has volumes, its tmpfs file systems are mounted
//! here, too, outer file systems first.

mod host_path;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use executor_core::cdi::{Edit, HostMount};
use executor_core::plan::{EmptyVolume, HostVolume, Medium, Plan, Volume, VolumeImage, VolumeSource};
use executor_core::protocol::{Reason, Refused};
use executor_core::spec::{self, InMemory};
use executor_core::users::ResolvedUser;
use executor_core::validate::ViolationReason::{NotAllowed, NotFound, OutOfRange, Unsuitable, Unsupported};
use executor_core::validate::{Violation, ViolationReason};
use executor_layers::{DiffId, Store, UnpackError};
use executor_sys::mount::{
    Attributes, Follow, attach, clone_tree, detach, detached, open_dir, open_dir_beneath, open_dir_or_file_beneath,
    open_in_root, set_attributes, set_private,
};
use rustix::fs::{FileType, Mode, OFlags, StatVfsMountFlags, fstat, fstatvfs};
use rustix::mount::MountAttrFlags;

use super::{Tree, overlay};
use crate::dirs::Dirs;
use crate::disk;
use crate::errors::{failed, plain};
use crate::files::ensure_dir;
use crate::host::Host;
use crate::ids::{Ids, not_mappable};
use crate::pods::Pod;
use host_path::HostPathVolume;
pub(crate) use host_path::LateMount;

/// Directory in a container's run directory on which an image is mounted until the mount is cloned.
const IMAGE_PLACE: &str = "image";

/// Content that is mounted at a path in the container.
enum Content<'a> {
    Tmpfs(InMemory),
    Volume(usize, &'a Volume),
    /// Host directory or file that a CDI file names.
    Device(&'a Edit<HostMount>),
}

impl Content<'_> {
    fn path(&self) -> &Path {
        match self {
            Self::Tmpfs(tmpfs) => &tmpfs.path,
            Self::Volume(_, volume) => &volume.path,
            Self::Device(mount) => &mount.content.path,
        }
    }

    /// Returns true if the content belongs to this container alone, so that directories can be created in it.
    fn is_own(&self) -> bool {
        match self {
            Self::Tmpfs(_) => true,
            Self::Volume(_, volume) => volume.empty().is_some(),
            Self::Device(_) => false,
        }
    }

    fn field(&self) -> String {
        match self {
            Self::Tmpfs(_) => "tmpfs".to_owned(),
            Self::Volume(index, _) => format!("volumes[{index}].path"),
            Self::Device(mount) => format!("devices[{}].name", mount.device),
        }
    }
}

/// Error of a volume that was not mounted.
pub(super) enum NotMounted {
    /// A field of the request cannot be used on this host.
    Unfit(Violation),
    /// An operation failed, or a check has already created the refusal.
    Failed(Refused),
}

impl From<Refused> for NotMounted {
    fn from(refused: Refused) -> Self {
        Self::Failed(refused)
    }
}

/// A host directory that the operator permits for a volume.
struct OfferedDirectory<'a> {
    /// Request field that names the directory.
    field: String,
    /// Name or path of the volume in the request.
    name: &'a str,
    /// Host directory on the operator's list.
    root: &'a Path,
    /// Mounted path, relative to the root. Empty if the whole root is mounted.
    below: &'a Path,
    read_only: bool,
    no_exec: bool,
}

impl OfferedDirectory<'_> {
    /// Returns the error for a volume whose path cannot be opened.
    fn unfit(&self, error: &io::Error) -> NotMounted {
        let why = format!("`{}`: {}", self.name, explain(error));
        NotMounted::Unfit(Violation::new(self.field.clone(), reason_of(error).because(why)))
    }
}

/// Returns the error for a name that is not in the launcher's configuration.
fn not_listed(field: &str, shown: &str) -> NotMounted {
    NotMounted::Unfit(Violation::new(
        field,
        NotAllowed.because(format!("{shown} is not in the launcher's configuration")),
    ))
}

/// Returns true if the root of a mount is a file.
fn is_file(mount: &OwnedFd) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(fstat(mount)?.st_mode) != FileType::Directory)
}

#[derive(Default)]
pub(crate) struct MountedVolumes {
    pub(crate) warnings: Vec<String>,
    /// Mounts to be attached in the container.
    pub(crate) late: Vec<LateMount>,
}

/// Parameters for creating volumes.
struct Maker<'a> {
    host: &'a Host,
    dirs: &'a Dirs,
    ids: &'a Ids,
    /// Owner of empty volumes, as host ids.
    owner: (u32, u32),
    projects: Option<u32>,
    /// Pod that the container is a member of.
    pod: Option<&'a Pod>,
    /// True if the container may use every device of the host.
    all_devices: bool,
    warnings: Vec<String>,
}

impl Tree {
    /// Mounts the volumes of a plan, the directories and files of its CDI devices, and its tmpfs file systems. Volumes
    /// that are mounted late are only prepared. Does nothing if the plan has neither volumes nor CDI devices with
    /// mounts.
    ///
    /// # Errors
    /// Returns a violation for each volume that cannot be used with the tree or on the host. Returns an error if the
    /// disk is full.
    pub(crate) fn mount_volumes(
        &self,
        host: &Host,
        plan: &Plan,
        of_devices: &[Edit<HostMount>],
        (dirs, ids, pod): (&Dirs, &Ids, Option<&Pod>),
        user: &ResolvedUser,
        projects: Option<u32>,
    ) -> Result<MountedVolumes, Refused> {
        if !plan.has_ordered_mounts() {
            return Ok(MountedVolumes::default());
        }
        let volumes = plan.volumes.iter().enumerate().map(|(index, volume)| Content::Volume(index, volume));
        let all = spec::in_memory(plan).map(Content::Tmpfs).chain(volumes);
        let mut all: Vec<Content<'_>> = all.chain(of_devices.iter().map(Content::Device)).collect();
        all.sort_by(|one, other| one.path().cmp(other.path()));
        let owner = (ids.map().to_host(user.uid), ids.map().to_host(user.gid));
        let mut maker = Maker {
            host,
            dirs,
            ids,
            owner,
            projects,
            pod,
            all_devices: plan.isolation.privileged,
            warnings: Vec::new(),
        };
        let (mut violations, mut late) = (Vec::new(), Vec::new());
        for (position, content) in all.iter().enumerate() {
            let path = content.path();
            // The paths are sorted, so the last enclosing mount is the innermost.
            let around = all[..position].iter().rfind(|outer| path.starts_with(outer.path()));
            let about = || format!("rootfs: cannot mount at {}", path.display());
            let made = match content {
                Content::Tmpfs(tmpfs) => maker.tmpfs(tmpfs),
                Content::Volume(index, volume) => maker.volume(*index, volume),
                Content::Device(mount) => maker.mount_device(&plan.host_options.devices[mount.device].name, mount),
            };
            let mount = match made {
                Ok(mount) => mount,
                Err(NotMounted::Unfit(violation)) => {
                    violations.push(violation);
                    continue;
                }
                Err(NotMounted::Failed(refused)) => return Err(refused),
            };
            let is_file = is_file(&mount).map_err(|error| failed(&about(), &error))?;
            let is_late = matches!(content, Content::Volume(_, volume) if volume.is_mounted_late());
            if is_late && path.starts_with("/dev") {
                late.push(LateMount { path: path.to_owned(), view: mount, is_file });
                continue;
            }
            let may_make = around.is_none_or(Content::is_own);
            let way = if is_file { self.ensure_file(path, may_make) } else { self.ensure_dir_all(path, may_make) };
            if let Err(why) = way? {
                let why = format!("`{}`: {why}", path.display());
                violations.push(Violation::new(content.field(), Unsuitable.because(why)));
                continue;
            }
            if is_late {
                late.push(LateMount { path: path.to_owned(), view: mount, is_file });
                continue;
            }
            let flags = if is_file { OFlags::PATH } else { OFlags::PATH | OFlags::DIRECTORY };
            let target = open_in_root(self.root.as_fd(), path, flags, Mode::empty(), Follow::NoLinks)
                .map_err(|error| failed(&about(), &error))?;
            attach(mount.as_fd(), target.as_fd()).map_err(|error| failed(&about(), &error))?;
        }
        if violations.is_empty() {
            return Ok(MountedVolumes { warnings: maker.warnings, late });
        }
        Err(Refused::from_fields(Reason::Precondition, &violations))
    }
}

impl Maker<'_> {
    fn tmpfs(&self, tmpfs: &InMemory) -> Result<OwnedFd, NotMounted> {
        let owner = (self.ids.map().to_host(tmpfs.uid), self.ids.map().to_host(tmpfs.gid));
        in_memory(&tmpfs.size, tmpfs.mode, owner, tmpfs.exec)
            .map_err(|error| failed("cannot create a tmpfs", &error).into())
    }

    /// Creates the detached mount of a volume.
    fn volume(&mut self, index: usize, volume: &Volume) -> Result<OwnedFd, NotMounted> {
        match &volume.source {
            VolumeSource::Empty(EmptyVolume { medium: Medium::Memory, bytes, mode, gid }) => {
                let made = in_memory(&bytes.to_string(), *mode, self.owner(index, *gid)?, true);
                made.map_err(|error| failed(&format!("volumes[{index}]: cannot create the volume"), &error).into())
            }
            VolumeSource::Empty(EmptyVolume { medium: Medium::Disk, bytes, mode, gid }) => {
                let owner = self.owner(index, *gid)?;
                let places = (&*self.dirs.layer, &*self.dirs.state);
                let (view, unheld) = disk::lay_out_volume(&self.host.policy, places, self.projects, index, *bytes)?;
                self.warnings.extend(unheld);
                let made = own(&view, owner, *mode).and_then(|()| restrict_mount(&view, false));
                made.map(|()| view)
                    .map_err(|error| failed(&format!("volumes[{index}]: cannot mount the volume"), &error).into())
            }
            VolumeSource::Host(name) => {
                let field = format!("volumes[{index}].host.name");
                let listed = self.host.policy.volumes.iter().find(|known| known.name == *name);
                let HostVolume { path, read_only, .. } =
                    listed.ok_or_else(|| not_listed(&field, &format!("{name:?}")))?;
                let read_only = volume.read_only || *read_only;
                let lent =
                    OfferedDirectory { field, name, root: path, below: &volume.sub_path, read_only, no_exec: false };
                self.mount_host(&lent, |error| unfit_sub_path(volume, index, name, error))
            }
            VolumeSource::HostPath(asked) => {
                let all_devices = self.all_devices;
                HostPathVolume { host: self.host, ids: self.ids, index, volume, asked, all_devices }.mount()
            }
            VolumeSource::Image(image) => self.mount_image(index, volume, image),
            VolumeSource::Pod(name) => self.mount_pod(index, volume, name),
        }
    }

    /// Returns the owner of an empty volume, as host ids.
    fn owner(&self, index: usize, gid: Option<u32>) -> Result<(u32, u32), NotMounted> {
        let (uid, own) = self.owner;
        let highest = self.ids.map().highest();
        match gid {
            None => Ok((uid, own)),
            Some(gid) if gid <= highest => Ok((uid, self.ids.map().to_host(gid))),
            Some(gid) => {
                let why = format!("is {gid}; the maximum in a user namespace is {highest}");
                Err(NotMounted::Unfit(Violation::new(format!("volumes[{index}].empty.gid"), OutOfRange.because(why))))
            }
        }
    }

    fn mount_device(
        &self,
        name: &str,
        Edit { device, content: mount }: &Edit<HostMount>,
    ) -> Result<OwnedFd, NotMounted> {
        let HostMount { host_path, read_only, no_exec, .. } = mount;
        let field = format!("devices[{device}].name");
        // Open a file through its directory.
        let whole = (host_path.as_path(), Path::new(""));
        let in_parent = || Some((host_path.parent()?, Path::new(host_path.file_name()?)));
        let (root, below) = if host_path.is_dir() { whole } else { in_parent().unwrap_or(whole) };
        let name = format!("{name}: {}", host_path.display());
        let (read_only, no_exec) = (*read_only, *no_exec);
        let lent = OfferedDirectory { field, name: &name, root, below, read_only, no_exec };
        self.mount_host(&lent, |error| lent.unfit(error))
    }

    /// Creates a mount of a host path. `unfit_below` returns the error for the part below the root.
    fn mount_host(
        &self,
        lent: &OfferedDirectory<'_>,
        unfit_below: impl Fn(&io::Error) -> NotMounted,
    ) -> Result<OwnedFd, NotMounted> {
        let OfferedDirectory { field, name, root: path, below, read_only, no_exec } = lent;
        let unfit = |fault| NotMounted::Unfit(Violation::new(field.clone(), fault));
        let system = |what: &'static str| move |error: io::Error| failed(&format!("`{name}`: {what}"), &error);
        let root = open_dir(Path::new("/")).map_err(|error| failed("cannot open /", &error))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let opened = open_in_root(root.as_fd(), path, flags, Mode::empty(), Follow::NoLinks);
        let opened = opened.map_err(|error| {
            unfit(reason_of(&error).because(format!("`{name}`: {}: {}", path.display(), explain(&error))))
        })?;
        if !read_only && !is_out_of_reach(&opened, path).map_err(system("cannot inspect the path"))? {
            return Err(unfit(Unsuitable.because(format!(
                "`{name}`: host users could run setuid-root programs that a container creates in {}; make a parent \
                 directory accessible only to root (mode 0700), or mount the file system with nosuid",
                path.display()
            ))));
        }
        let found = open_dir_or_file_beneath(opened.as_fd(), below).map_err(|error| unfit_below(&error))?;
        let view = clone_tree(found.as_fd(), Path::new(""), false).map_err(system("cannot clone the mount"))?;
        self.ids.map_mount(view.as_fd(), false).map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL | libc::EPERM) => {
                unfit(Unsupported.because(not_mappable(&format!("`{name}`: the file system"))))
            }
            _ => failed(&format!("`{name}`: cannot create an id-mapped mount"), &error).into(),
        })?;
        restrict_mount_with(&view, *read_only, *no_exec).map_err(system("cannot set the attributes of the mount"))?;
        Ok(view)
    }

    /// Creates a mount of a pod's volume, whose files already have the pod's ids.
    fn mount_pod(&self, index: usize, volume: &Volume, name: &str) -> Result<OwnedFd, NotMounted> {
        let about = || format!("volume `{name}` of the pod");
        let pod = self.pod.ok_or_else(|| failed(&about(), &io::ErrorKind::NotFound.into()))?;
        let view = pod.volume(name, &volume.sub_path).map_err(|error| {
            if volume.sub_path.as_os_str().is_empty() {
                return NotMounted::Failed(failed(&about(), &error));
            }
            unfit_sub_path(volume, index, name, &error)
        })?;
        restrict_mount(&view, volume.read_only).map_err(|error| failed(&about(), &error))?;
        Ok(view)
    }

    fn mount_image(&mut self, index: usize, volume: &Volume, image: &VolumeImage) -> Result<OwnedFd, NotMounted> {
        let reference = &image.reference;
        let unfit = |fault| NotMounted::Unfit(Violation::new(format!("volumes[{index}].image.reference"), fault));
        let layers: Result<Vec<DiffId>, _> = image.layers.iter().map(|layer| layer.parse()).collect();
        let layers = layers.map_err(|error| unfit(Unsuitable.because(format!("`{reference}`: {error}"))))?;
        let opened = Store::at(&self.host.layers()).open(&layers).map_err(|error| match error {
            UnpackError::Parent(layer) => {
                let why = format!("`{reference}`: layer {layer} is not unpacked on this host");
                unfit(NotFound.because(why))
            }
            UnpackError::Host { about, error } => failed(&about, &error).into(),
            other => Refused::new(Reason::Internal, other.to_string()).into(),
        })?;
        let warned = opened.warnings.iter().map(|warning| format!("volumes[{index}]: {warning}"));
        self.warnings.extend(warned);
        let failed =
            |error: io::Error| NotMounted::Failed(failed(&format!("cannot mount image `{reference}`"), &error));
        let lower: Vec<_> = opened.dirs.iter().map(AsFd::as_fd).collect();
        let place = self.dirs.run.join(IMAGE_PLACE);
        ensure_dir(&place, 0o700).map_err(failed)?;
        // Only an attached mount can be cloned.
        let view = self.mounted_at(reference, &lower, &place).and_then(|()| {
            let root = open_dir(&place).map_err(failed)?;
            let dir = beneath(&root, volume, index, reference)?;
            clone_tree(dir.as_fd(), Path::new(""), false).map_err(failed)
        });
        while detach(&place).is_ok() {}
        let view = view?;
        restrict_mount(&view, true).map_err(failed)?;
        Ok(view)
    }

    /// Mounts an image's layers at a directory, with the container's ids.
    fn mounted_at(
        &self,
        reference: &str,
        lower: &[std::os::fd::BorrowedFd<'_>],
        place: &Path,
    ) -> Result<(), NotMounted> {
        let failed =
            |error: io::Error| NotMounted::Failed(failed(&format!("cannot mount image `{reference}`"), &error));
        let at = open_dir(place).map_err(failed)?;
        let [only] = lower else {
            return Ok(overlay::read_only(reference, lower, at.as_fd(), self.dirs, self.ids)?);
        };
        let view = match self.ids.views(reference, &[*only])? {
            Some(views) => views.into_iter().next(),
            None => Some(clone_tree(*only, Path::new(""), false).map_err(failed)?),
        };
        let view = view.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        attach(view.as_fd(), at.as_fd()).map_err(failed)
    }
}

/// Returns true if only root of the host can run set-user-id files that a container creates in a directory.
fn is_out_of_reach(opened: &OwnedFd, path: &Path) -> io::Result<bool> {
    Ok(is_nosuid(opened)? || is_closed_above(path)?)
}

/// Returns true if the file is on a mount that ignores set-user-id bits.
pub(super) fn is_nosuid(opened: &OwnedFd) -> io::Result<bool> {
    Ok(fstatvfs(opened)?.f_flag.contains(StatVfsMountFlags::NOSUID))
}

/// Returns true if users other than root cannot enter a directory above the path.
pub(super) fn is_closed_above(path: &Path) -> io::Result<bool> {
    for above in path.ancestors().skip(1) {
        let meta = std::fs::symlink_metadata(above)?;
        let passable = meta.mode() & 0o001 != 0 || (meta.mode() & 0o010 != 0 && meta.gid() != 0);
        if meta.uid() == 0 && !passable {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Opens the root of a mounted volume, or its sub-path.
fn beneath(root: &OwnedFd, volume: &Volume, index: usize, name: &str) -> Result<OwnedFd, NotMounted> {
    open_dir_beneath(root.as_fd(), &volume.sub_path).map_err(|error| unfit_sub_path(volume, index, name, &error))
}

/// Returns the violation for a sub-path of a volume that cannot be mounted.
pub(super) fn unfit_sub_path(volume: &Volume, index: usize, name: &str, error: &io::Error) -> NotMounted {
    let why = format!("`{}` in the volume `{name}`: {}", volume.sub_path.display(), explain(error));
    NotMounted::Unfit(Violation::new(format!("volumes[{index}].sub_path"), reason_of(error).because(why)))
}

/// Returns the reason of a violation for a path that cannot be opened.
pub(super) fn reason_of(error: &io::Error) -> ViolationReason {
    if error.kind() == io::ErrorKind::NotFound { NotFound } else { Unsuitable }
}

/// Describes an error from opening a path.
pub(super) fn explain(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ELOOP) => "the path contains a symbolic link, which is not followed".to_owned(),
        Some(libc::EXDEV) => "the path contains another mount; mounts within a volume are not included".to_owned(),
        _ => plain(error),
    }
}

/// Creates a detached tmpfs.
fn in_memory(size: &str, mode: u32, (uid, gid): (u32, u32), exec: bool) -> io::Result<OwnedFd> {
    let (mode, uid, gid) = (format!("{mode:o}"), uid.to_string(), gid.to_string());
    let options = [("size", Some(size)), ("mode", Some(&*mode)), ("uid", Some(&*uid)), ("gid", Some(&*gid))];
    let mut flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    if !exec {
        flags |= MountAttrFlags::MOUNT_ATTR_NOEXEC;
    }
    detached("tmpfs", "tmpfs", &options, flags)
}

/// Sets the owner and mode of the root of a new directory.
fn own(view: &OwnedFd, (uid, gid): (u32, u32), mode: u32) -> io::Result<()> {
    // Use /proc, because the owner and mode of a path descriptor cannot be changed directly.
    let held = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(view)));
    std::os::unix::fs::chown(&held, Some(uid), Some(gid))?;
    std::fs::set_permissions(&held, std::fs::Permissions::from_mode(mode))
}

/// Sets the attributes of a detached mount for a container.
fn restrict_mount(view: &OwnedFd, read_only: bool) -> io::Result<()> {
    restrict_mount_with(view, read_only, false)
}

fn restrict_mount_with(view: &OwnedFd, read_only: bool, no_exec: bool) -> io::Result<()> {
    set_attributes(view.as_fd(), Attributes { read_only, no_suid: true, no_dev: true, no_exec, recursive: false })?;
    set_private(view.as_fd())
}
