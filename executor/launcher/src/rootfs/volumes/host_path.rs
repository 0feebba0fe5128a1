//! Mounts paths of the host that requests name (`policy.host_paths`).
//!
//! ```text
//! request: path ──(follow_links: resolved)──> path below an entry of the policy
//!     ──openat2 without links──> descriptor ──open_tree──> detached mount ──> container's root
//! ```
//! All steps run in the host's mount namespace. In the launcher's own namespace, later mounts of the host are missing
//! if the host's mounts are private, and no mount is a peer of a host mount. Users of the host may replace any part of
//! the path at any time. Therefore a path is checked by its text, opened without links beneath the entry's directory,
//! and after that used only through its descriptor.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use executor_core::plan::{HostPath, HostPathRule, Propagation, Volume};
use executor_core::validate::ViolationReason::{NotAllowed, Unsuitable, Unsupported};
use executor_core::validate::{FieldFault, Violation, check_host_path_rule, host_path_rule};
use executor_sys::mount::{
    self, Attributes, Follow, clone_tree, open_any_beneath, open_dir, open_in_root, set_attributes, set_propagation,
};
use executor_sys::{mountinfo, process};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags, fstat, statx};

use super::{NotMounted, explain, is_closed_above, is_nosuid, reason_of, unfit_sub_path};
use crate::cgroup::Hierarchies;
use crate::errors::{failed, plain};
use crate::host::Host;
use crate::ids::{Ids, not_mappable};

/// A volume whose source is a path of the host.
pub(super) struct HostPathVolume<'a> {
    pub(super) host: &'a Host,
    pub(super) ids: &'a Ids,
    pub(super) index: usize,
    pub(super) volume: &'a Volume,
    pub(super) asked: &'a HostPath,
    /// True if the container may use every device.
    pub(super) all_devices: bool,
}

/// An opened path of the host, with the operator's entry that contains it.
struct Opened<'a> {
    file: OwnedFd,
    rule: &'a HostPathRule,
}

impl HostPathVolume<'_> {
    /// Creates the detached mount of the volume.
    pub(super) fn mount(&self) -> Result<OwnedFd, NotMounted> {
        let view = process::within_mounts(self.host.mounts.as_fd(), || self.clone_checked());
        view.map_err(|error| self.failed("cannot enter the host's mount namespace", &error))?
    }

    /// Opens, checks and clones the path. The caller is in the host's mount namespace.
    fn clone_checked(&self) -> Result<OwnedFd, NotMounted> {
        let asked = self.asked;
        let Opened { file, rule } = self.open()?;
        let kind = FileType::from_raw_mode(
            fstat(&file).map_err(|error| self.failed("cannot inspect the path", &error.into()))?.st_mode,
        );
        if matches!(kind, FileType::CharacterDevice | FileType::BlockDevice) && !asked.dev {
            return Err(self.unfit(
                "dev",
                Unsuitable.because(format!("`{}` is a device node; set `dev` to mount it", self.shown())),
            ));
        }
        // Without device rules, the container could open every node below the path, including nodes that it creates.
        if asked.dev && !self.all_devices && matches!(self.host.hierarchies, Hierarchies::V2 { .. }) {
            let why = "cannot be enforced on cgroup v2, which has no device rules, unless the container is privileged";
            return Err(self.unfit("dev", Unsupported.because(why)));
        }
        self.check_mounts(&file, rule)?;
        let clone = clone_tree(file.as_fd(), Path::new(""), asked.recursive);
        let view = clone.map_err(|error| self.failed("cannot clone the mount", &error))?;
        let propagation = match asked.propagation {
            Propagation::Private => mount::Propagation::Private,
            Propagation::HostToContainer => mount::Propagation::Slave,
            Propagation::Bidirectional => mount::Propagation::Shared,
        };
        set_propagation(view.as_fd(), propagation, asked.recursive)
            .map_err(|error| self.failed("cannot set the propagation", &error))?;
        self.ids.map_mount(view.as_fd(), asked.recursive).map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL | libc::EPERM) => {
                let place = if asked.recursive { "a file system at or below the path" } else { "the file system" };
                self.unfit("path", Unsupported.because(not_mappable(&format!("`{}`: {place}", self.shown()))))
            }
            _ => self.failed("cannot create an id-mapped mount", &error),
        })?;
        let (no_suid, no_dev) = (!asked.suid, !asked.dev);
        let attributes = Attributes { no_suid, no_dev, recursive: asked.recursive, ..Attributes::default() };
        set_attributes(view.as_fd(), attributes)
            .map_err(|error| self.failed("cannot set the attributes of the mount", &error))?;
        if self.volume.read_only {
            let recursive = asked.recursive_read_only;
            let attributes = Attributes { read_only: true, recursive, ..Attributes::default() };
            set_attributes(view.as_fd(), attributes).map_err(|error| match recursive {
                true => {
                    let why =
                        format!("`{}`: a mount below the path cannot be read-only: {}", self.shown(), plain(&error));
                    self.unfit("recursive_read_only", Unsupported.because(why))
                }
                false => self.failed("cannot set the attributes of the mount", &error),
            })?;
        }
        Ok(view)
    }

    fn open(&self) -> Result<Opened<'_>, NotMounted> {
        let root = open_dir(Path::new("/")).map_err(|error| self.failed("cannot open /", &error))?;
        let path = &self.asked.path;
        let Opened { file, rule } =
            if self.asked.follow_links { self.follow(root.as_fd())? } else { self.beneath(root.as_fd(), path)? };
        let sub_path = &self.volume.sub_path;
        if sub_path.as_os_str().is_empty() {
            return Ok(Opened { file, rule });
        }
        let inner = open_any_beneath(file.as_fd(), sub_path, self.asked.recursive);
        let inner = inner.map_err(|error| unfit_sub_path(self.volume, self.index, &self.shown(), &error))?;
        Ok(Opened { file: inner, rule })
    }

    /// Resolves the links of the request's path, and opens the result. The result is checked and opened like a path of
    /// a request, so that a link that changes during these steps cannot lead to an unchecked path.
    fn follow(&self, root: BorrowedFd<'_>) -> Result<Opened<'_>, NotMounted> {
        let found = open_in_root(root, &self.asked.path, OFlags::PATH, Mode::empty(), Follow::LinksWithinRoot);
        let found = found.map_err(|error| self.unopened(&error))?;
        let path = fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd()));
        let path = path.map_err(|error| self.failed("cannot resolve the path in /proc", &error))?;
        let again = self.beneath(root, &path)?;
        let same = identity(&found).and_then(|found| Ok(found == identity(&again.file)?));
        if !same.map_err(|error| self.failed("cannot inspect the path", &error))? {
            let why = format!("`{}` changed while it was opened", self.shown());
            return Err(self.unfit("path", Unsuitable.because(why)));
        }
        Ok(again)
    }

    /// Finds the entry of `policy.host_paths` that contains the path, and opens the path beneath the entry's directory
    /// without following links. An entry that is a file contains only itself.
    fn beneath(&self, root: BorrowedFd<'_>, path: &Path) -> Result<Opened<'_>, NotMounted> {
        let rule = host_path_rule(path, &self.host.policy).map_err(|why| {
            let why = match path == self.asked.path {
                true => why,
                false => {
                    let words = format!("`{}` resolves to another path: {}", self.shown(), why.description);
                    NotAllowed.because(words)
                }
            };
            self.unfit("path", why)
        })?;
        check_host_path_rule(self.asked, self.volume.read_only, rule)
            .map_err(|(name, why)| self.violation(name, why))?;
        let entry = |flags| open_in_root(root, &rule.path, OFlags::PATH | flags, Mode::empty(), Follow::NoLinks);
        let below = path.strip_prefix(&rule.path).unwrap_or(path);
        let file = match below.as_os_str().is_empty() {
            true => entry(OFlags::empty()),
            false => {
                entry(OFlags::DIRECTORY).and_then(|dir| open_any_beneath(dir.as_fd(), below, self.asked.recursive))
            }
        };
        Ok(Opened { file: file.map_err(|error| self.unopened(&error))?, rule })
    }

    /// Checks the propagation of the mount at the path, and that users of the host cannot run set-user-id programs that
    /// a container creates on this mount or on mounts below the path.
    fn check_mounts(&self, file: &OwnedFd, rule: &HostPathRule) -> Result<(), NotMounted> {
        let HostPath { propagation, recursive, .. } = *self.asked;
        let stat = |error: io::Error| self.failed("cannot inspect the path", &error);
        let is_safe = self.volume.read_only && (!recursive || self.asked.recursive_read_only)
            || rule.suid
            || is_closed_above(&rule.path).map_err(stat)?
            || !recursive && is_nosuid(file).map_err(stat)?;
        let table = if recursive && (!is_safe || propagation != Propagation::Private) {
            mountinfo::parse(
                &fs::read("/proc/self/mountinfo").map_err(|error| self.failed("cannot read mountinfo", &error))?,
            )
        } else {
            Vec::new()
        };
        let id =
            statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).map_err(|error| stat(error.into()))?.stx_mnt_id;
        let is_safe = is_safe
            || recursive && propagation == Propagation::Private && {
                let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
                are_nosuid(&table, id, &path.map_err(|error| self.failed("cannot resolve the path in /proc", &error))?)
            };
        if !is_safe {
            let why = format!(
                "`{}`: host users could run setuid-root programs that a container creates there; make a parent \
                 directory of {} accessible only to root (mode 0700), mount the file systems there with nosuid, or set \
                 `suid = true` in the entry of policy.host_paths",
                self.shown(),
                rule.path.display()
            );
            return Err(self.unfit("path", Unsuitable.because(why)));
        }
        let own = table.iter().find(|mount| mount.id == id);
        let (shared, slave) = own.map_or((false, false), |mount| (mount.shared, mount.slave));
        let (fits, fault) = match propagation {
            Propagation::Private => (true, ""),
            Propagation::HostToContainer => {
                (shared || slave, "neither shared nor a slave, so the host's mounts do not propagate")
            }
            Propagation::Bidirectional => (shared, "not shared, so the container's mounts do not propagate"),
        };
        if fits {
            return Ok(());
        }
        let why = format!("the mount that contains `{}` is {fault}; run mount --make-shared", self.shown());
        Err(self.unfit("propagation", Unsuitable.because(why)))
    }

    fn shown(&self) -> String {
        self.asked.path.display().to_string()
    }

    fn unopened(&self, error: &io::Error) -> NotMounted {
        self.unfit("path", reason_of(error).because(format!("`{}`: {}", self.shown(), explain(error))))
    }

    fn unfit(&self, name: &str, why: FieldFault) -> NotMounted {
        self.violation(&format!("host_path.{name}"), why)
    }

    fn violation(&self, name: &str, why: FieldFault) -> NotMounted {
        NotMounted::Unfit(Violation::new(format!("volumes[{}].{name}", self.index), why))
    }

    fn failed(&self, about: &str, error: &io::Error) -> NotMounted {
        failed(&format!("`{}`: {about}", self.shown()), error).into()
    }
}

/// Returns the device, inode and mount id of an opened file.
fn identity(file: &OwnedFd) -> io::Result<(u32, u32, u64, u64)> {
    let stat = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::INO | StatxFlags::MNT_ID)?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino, stat.stx_mnt_id))
}

/// Returns true if a mount and all its submounts below `path` ignore set-user-id bits.
fn are_nosuid(table: &[mountinfo::Mount], id: u64, path: &Path) -> bool {
    let is_nosuid = |mount: &mountinfo::Mount| mount.attributes.split(',').any(|option| option == "nosuid");
    let mut pending: Vec<u64> = vec![id];
    let mut all = table.iter().find(|mount| mount.id == id).is_some_and(is_nosuid);
    while let Some(parent) = pending.pop() {
        // A mount whose parent is itself is the root of the namespace.
        let below = |mount: &&mountinfo::Mount| mount.parent == parent && mount.id != parent;
        for mount in table.iter().filter(below).filter(|mount| mount.point.starts_with(path)) {
            all &= is_nosuid(mount);
            pending.push(mount.id);
        }
    }
    all
}

/// A mount to be attached in the container after the container's own /dev exists.
pub(crate) struct LateMount {
    pub(crate) path: PathBuf,
    pub(crate) view: OwnedFd,
    pub(crate) is_file: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn submount_with_set_user_id_is_found() {
        let table = mountinfo::parse(
            b"1 1 8:1 / / rw - ext4 a rw\n\
              2 1 8:2 / /srv rw,nosuid - ext4 b rw\n\
              3 2 8:3 / /srv/a rw,nosuid - ext4 c rw\n\
              4 3 8:4 / /srv/a/b rw - ext4 d rw\n",
        );
        for (id, path, expected) in [(1, "/", false), (2, "/srv", false), (2, "/srv/b", true), (4, "/srv/a/b", false)] {
            assert_eq!(are_nosuid(&table, id, Path::new(path)), expected, "{path}");
        }
        assert!(are_nosuid(&table[..3], 2, Path::new("/srv")), "the control");
    }
}
