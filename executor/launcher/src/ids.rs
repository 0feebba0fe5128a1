//! Ids of a container's users on the host: a range of the pool, a user namespace that maps it, and views of
//! directories in which files show the owners that they have in an image.
//!
//! The launcher keeps account of the ranges; a shim makes the namespace of its own container and lets go of it when init
//! is in it.

mod claims;

use crate::errors::failed;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use executor_core::idmap::{IdMap, Pool, RANGE};
use executor_core::plan::{Plan, UserNamespace};
use executor_core::protocol::{Reason, Refused};
use executor_core::validate::{Policy, Violation};
use executor_sys::mount::{Attributes, clone_tree, map_ids, set_attributes};
use executor_sys::userns;

pub(crate) use claims::Claims;

/// Files in which the host keeps the owners of ids.
const HOSTS_FILES: [&str; 4] = ["/etc/passwd", "/etc/group", "/etc/subuid", "/etc/subgid"];

/// The pool of the policy, which no user of the host has a part in.
///
/// # Errors
/// Users of the host have ids of the pool, or the numbers do not fit: named with the numbers.
pub(crate) fn pool(policy: &Policy) -> io::Result<Pool> {
    let pool = policy.userns_pool().map_err(|why| io::Error::other(format!("policy.{why}")))?;
    let files = HOSTS_FILES.map(|name| (name, std::fs::read(name).unwrap_or_default()));
    let conflicts = pool.conflicts(&files.each_ref().map(|(name, content)| (*name, &**content)));
    if conflicts.is_empty() {
        return Ok(pool);
    }
    let why = format!(
        "the ids {pool} are for user namespaces (policy.userns_pool_start, policy.userns_pool_ranges), and some of them \
         belong to users of this host: {}",
        conflicts.join("; ")
    );
    Err(io::Error::other(why))
}

/// Every directory above `path` can be passed through by every user: root of a container is no more than that here.
///
/// # Errors
/// A directory cannot be passed through, or does not exist.
pub(crate) fn reachable(path: &Path) -> io::Result<()> {
    for dir in path.ancestors().skip(1) {
        let mode = std::fs::metadata(dir)?.permissions().mode();
        if mode & 0o001 == 0 {
            let why = format!(
                "{}: has mode {:o}; every user must be able to pass through it (o+x), or containers in user namespaces \
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

/// The ids of one container, as its shim has them while it makes it.
#[derive(Debug)]
pub(crate) struct Ids {
    map: IdMap,
    namespace: Option<OwnedFd>,
}

impl Ids {
    /// Those of a pod, for one of its members; the namespace is the pod's, where it has one.
    pub(crate) fn from_pod((map, namespace): (IdMap, Option<OwnedFd>)) -> Self {
        Self { map, namespace }
    }

    /// As the plan asks for them, from this range.
    ///
    /// # Errors
    /// No range is left; the kernel makes no user namespace.
    pub(crate) fn new(plan: &Plan, range: Option<u32>, policy: &Policy) -> Result<Self, Refused> {
        if plan.isolation.user_namespace == UserNamespace::Host {
            return Ok(Self { map: IdMap::HOST, namespace: None });
        }
        let Some(start) = range else {
            let ranges = policy.userns_pool_ranges;
            let why = format!(
                "all {ranges} ranges of ids are in use, here or by other launchers of this host \
                 (policy.userns_pool_ranges, policy.userns_pool_start)"
            );
            return Err(Refused::from_fields(Reason::Exhausted, &[Violation::new("user_namespace", why)]));
        };
        Self::from_range(start)
    }

    /// Returns the ids of this range, with a user namespace of their own.
    ///
    /// # Errors
    /// The kernel makes no user namespace.
    pub(crate) fn from_range(start: u32) -> Result<Self, Refused> {
        match userns::create(start, RANGE) {
            Ok(namespace) => Ok(Self { map: IdMap::from_start(Some(start)), namespace: Some(namespace) }),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSPC | libc::EPERM)) => {
                let why = format!("this kernel cannot make one (see /proc/sys/user/max_user_namespaces): {error}");
                Err(Refused::from_fields(Reason::Precondition, &[Violation::new("user_namespace", why)]))
            }
            Err(error) => Err(failed("user namespace", &error)),
        }
    }

    /// Returns the map of ids to the host's.
    pub(crate) fn map(&self) -> IdMap {
        self.map
    }

    /// The namespace, for processes that this one makes, as long as this value lives.
    pub(crate) fn namespace_path(&self) -> Option<PathBuf> {
        self.namespace.as_ref().map(|namespace| format!("/proc/self/fd/{}", namespace.as_raw_fd()).into())
    }

    /// Shows a detached mount with the container's owners. Nothing is done where the ids are the host's.
    ///
    /// # Errors
    /// See [`map_ids`].
    pub(crate) fn map_mount(&self, mount: BorrowedFd<'_>, recursive: bool) -> io::Result<()> {
        self.namespace.as_ref().map_or(Ok(()), |namespace| map_ids(mount, namespace.as_fd(), recursive))
    }

    /// Detached, read-only views of directories with the container's owners, in their order; `None` where the ids are the
    /// host's, so that the directories are what is shown.
    ///
    /// # Errors
    /// A file system that cannot be shown so: a violation of `rootfs`, which is `about` what the request names.
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
                let why = format!(
                    "`{about}`: its file system cannot show its files to a user namespace (id-mapped mounts): put it on \
                     ext4, xfs or btrfs, or ask for user_namespace `host` where that is allowed"
                );
                Refused::from_fields(Reason::Precondition, &[Violation::new("rootfs", why)])
            }
            _ => failed(&format!("`{about}`: id-mapped mount"), &error),
        })
    }
}
