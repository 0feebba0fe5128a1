//! Maps user and group ids of containers to host ids. A container gets an id range of the pool, a user namespace for
//! this range, and id-mapped mounts, in which files have the owners from the image.
//!
//! The launcher manages the ranges. The shim creates the user namespace, and closes its descriptor after init has
//! entered the namespace.

mod claims;

use crate::errors::failed;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use executor_core::idmap::{IdMap, Pool, RANGE_IDS};
use executor_core::plan::{Plan, UserNamespace};
use executor_core::protocol::{Reason, Refused};
use executor_core::validate::{Policy, Violation};
use executor_sys::mount::{Attributes, clone_tree, map_ids, set_attributes};
use executor_sys::userns;

pub(crate) use claims::Claims;

/// Host files that list users, groups and their subordinate ids.
const HOSTS_FILES: [&str; 4] = ["/etc/passwd", "/etc/group", "/etc/subuid", "/etc/subgid"];

/// Returns the policy's pool of ids, which must not contain ids of host users.
///
/// # Errors
/// Returns an error with the ids if host users have ids of the pool or the pool is invalid.
pub(crate) fn pool(policy: &Policy) -> io::Result<Pool> {
    let pool = policy.userns_pool().map_err(|why| io::Error::other(format!("policy.{why}")))?;
    let files = HOSTS_FILES.map(|name| (name, std::fs::read(name).unwrap_or_default()));
    let conflicts = pool.conflicts(&files.each_ref().map(|(name, content)| (*name, &**content)));
    if conflicts.is_empty() {
        return Ok(pool);
    }
    let why = format!(
        "the ids {pool} of user namespaces (policy.userns_pool_start, policy.userns_pool_ranges) overlap the ids of \
         users of this host: {}",
        conflicts.join("; ")
    );
    Err(io::Error::other(why))
}

/// Checks that every user can enter all parents of `path`. The container's root needs this permission, because it has
/// no additional rights on the host.
///
/// # Errors
/// Returns an error if a directory cannot be entered or does not exist.
pub(crate) fn reachable(path: &Path) -> io::Result<()> {
    for dir in path.ancestors().skip(1) {
        let mode = std::fs::metadata(dir)?.permissions().mode();
        if mode & 0o001 == 0 {
            let why = format!(
                "{} has mode {:o}; every user must be able to pass through it (o+x), or containers in user namespaces \
                 cannot reach their root file system below {}",
                dir.display(),
                mode & 0o7777,
                path.display()
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
    }
    Ok(())
}

/// Ids of a container during its creation.
#[derive(Debug)]
pub(crate) struct Ids {
    map: IdMap,
    namespace: Option<OwnedFd>,
}

impl Ids {
    /// Returns the ids of a pod for one of its members: the id map, and the pod's user namespace if it has one.
    pub(crate) fn from_pod((map, namespace): (IdMap, Option<OwnedFd>)) -> Self {
        Self { map, namespace }
    }

    /// Returns the ids that the plan requests. `range` is the first host id of the assigned range.
    ///
    /// # Errors
    /// Returns a refusal if no range was assigned or the kernel cannot create a user namespace.
    pub(crate) fn new(plan: &Plan, range: Option<u32>, policy: &Policy) -> Result<Self, Refused> {
        if plan.isolation.user_namespace == UserNamespace::Host {
            return Ok(Self { map: IdMap::HOST, namespace: None });
        }
        let Some(start) = range else {
            let ranges = policy.userns_pool_ranges;
            let why = format!(
                "all {ranges} ranges of ids (policy.userns_pool_ranges, policy.userns_pool_start) are in use by this \
                 launcher or by other launchers of this host, or no more ids can be claimed: see the launcher's log"
            );
            return Err(Refused::from_fields(Reason::Exhausted, &[Violation::new("user_namespace", why)]));
        };
        Self::from_range(start)
    }

    /// Returns the ids of the range that starts at `start`, with a new user namespace.
    ///
    /// # Errors
    /// Returns a refusal if the kernel cannot create a user namespace.
    pub(crate) fn from_range(start: u32) -> Result<Self, Refused> {
        match userns::create(start, RANGE_IDS) {
            Ok(namespace) => Ok(Self { map: IdMap::from_start(Some(start)), namespace: Some(namespace) }),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSPC | libc::EPERM)) => {
                let why = format!(
                    "cannot create a user namespace with the ids from {start} on: {error} (see \
                     /proc/sys/user/max_user_namespaces, and /proc/PID/uid_map of the launcher)"
                );
                Err(Refused::from_fields(Reason::Precondition, &[Violation::new("user_namespace", why)]))
            }
            Err(error) => Err(failed("cannot create a user namespace", &error)),
        }
    }

    /// Returns the map from container ids to host ids.
    pub(crate) fn map(&self) -> IdMap {
        self.map
    }

    /// Returns the path of the user namespace. The path is valid in children of this process while this value exists.
    pub(crate) fn namespace_path(&self) -> Option<PathBuf> {
        self.namespace.as_ref().map(|namespace| format!("/proc/self/fd/{}", namespace.as_raw_fd()).into())
    }

    /// Maps the owners in a detached mount to the container's ids. Does nothing if the container uses host ids.
    ///
    /// # Errors
    /// Returns the same errors as [`map_ids`].
    pub(crate) fn map_mount(&self, mount: BorrowedFd<'_>, recursive: bool) -> io::Result<()> {
        self.namespace.as_ref().map_or(Ok(()), |namespace| map_ids(mount, namespace.as_fd(), recursive))
    }

    /// Returns detached, read-only views of directories with the container's owners, in the same order. Returns `None`
    /// if the container uses host ids: the directories can then be used directly.
    ///
    /// # Errors
    /// Returns a violation of `rootfs` if a file system does not support id maps. `about` is the value of the field in
    /// the request.
    pub(crate) fn views(&self, about: &str, dirs: &[BorrowedFd<'_>]) -> Result<Option<Vec<OwnedFd>>, Refused> {
        if self.namespace.is_none() {
            return Ok(None);
        }
        let view = |dir: &BorrowedFd<'_>| {
            let view = clone_tree(*dir, Path::new(""), false)?;
            self.map_mount(view.as_fd(), false)?;
            set_attributes(view.as_fd(), Attributes { read_only: true, ..Attributes::default() })?;
            Ok(view)
        };
        let views = dirs.iter().map(view).collect::<io::Result<Vec<_>>>();
        views.map(Some).map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL | libc::EPERM) => {
                let why = not_mappable(&format!("`{about}`: the file system"));
                Refused::from_fields(Reason::Precondition, &[Violation::new("rootfs", why)])
            }
            _ => failed(&format!("`{about}`: cannot create an id-mapped mount"), &error),
        })
    }
}
/// Returns the message for a file system whose owners cannot be mapped. `subject` begins the message.
pub(crate) fn not_mappable(subject: &str) -> String {
    format!(
        "{subject} does not support id-mapped mounts, which a user namespace requires; use ext4, xfs, btrfs, or tmpfs \
         on Linux 6.3 or later, or set user_namespace to `host` if the policy allows it"
    )
}
