//! Finds the container of an exec process, and the user that the process runs as.
//!
//! Everything is looked up through the container's init, which the container's record identifies by pid, start time and
//! boot. A pid alone is not enough, because the kernel may reuse it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use executor_core::ident::ContainerId;
use executor_core::lifecycle::State;
use executor_core::placement::GENERATIONS_DIR;
use executor_core::protocol::{Reason, Refused};
use executor_core::record::{ContainerRecord, PreparedContainer};
use executor_core::spec::CapabilitySets;
use executor_core::time::Timestamp;
use executor_core::users::{self, ResolvedUser};
use executor_core::validate::{Violation, exec_user};
use executor_sys::capabilities;
use executor_sys::entry::Namespaces;
use executor_sys::mount::{Follow, open_dir, open_in_root};
use executor_sys::privileges::Credentials;
use executor_sys::ready::is_readable;
use executor_sys::{identity, process};
use rustix::fs::{Mode, OFlags, fstat};

use crate::dirs::Dirs;
use crate::errors::failed;
use crate::host::Host;
use crate::rootfs::read_small;

/// A running container.
pub(crate) struct ExecTarget {
    pub(crate) record: ContainerRecord,
    pub(crate) prepared: PreparedContainer,
    /// pidfd of the container's init.
    pub(crate) init: OwnedFd,
    pub(crate) namespaces: Namespaces,
    root: OwnedFd,
    /// Id maps of the container: `/proc/PID/uid_map` and `gid_map`.
    maps: [String; 2],
    /// OOM score adjustment of the container's init. New processes get the same value, so that the OOM killer treats
    /// all processes equally.
    pub(crate) oom_score_adj: String,
}

impl ExecTarget {
    /// Finds a running container.
    ///
    /// # Errors
    /// Returns a refusal if the container does not exist or is not running.
    pub(super) fn find(host: &Host, id: &ContainerId, created_at: Timestamp) -> Result<Self, Refused> {
        let record = Dirs::new(host, id).read_record().filter(|record| record.created_at == created_at);
        let record = record.ok_or_else(|| Refused::new(Reason::NotFound, format!("no container {id} is running")))?;
        if !matches!(record.state, State::Running | State::Stopping) {
            return Err(not_running(id, &format!("is {}", record.state.name())));
        }
        let ended = || not_running(id, "is exiting");
        let prepared = record.prepared.clone().ok_or_else(ended)?;
        let pid = prepared.init.pid;
        // Open the pidfd first, because it refers to the same process even if the pid is reused. The recorded identity
        // then shows whether this process is the container's init.
        let init = process::pidfd(pid).map_err(|_| ended())?;
        if identity::read(pid).ok().as_ref() != Some(&prepared.init) {
            return Err(ended());
        }
        let target = Self::new(record, prepared, init);
        let gone = |error: &std::io::Error| matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH));
        match target {
            // If the process has not exited by now, all data read above belongs to it.
            Ok(target) if is_readable(&target.init) => Err(ended()),
            Ok(target) => Ok(target),
            Err(error) if gone(&error) => Err(ended()), // init is exiting and has released its resources
            Err(error) => Err(failed("cannot inspect the container's init", &error)),
        }
    }

    /// Reads the properties of a running container from /proc. `init` is the pidfd of the container's init.
    ///
    /// # Errors
    /// Returns an error if the process is exiting.
    pub(crate) fn new(record: ContainerRecord, prepared: PreparedContainer, init: OwnedFd) -> std::io::Result<Self> {
        let pid = prepared.init.pid;
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}"));
        let root = open_dir(Path::new(&format!("/proc/{pid}/root")))?;
        let maps = [read("uid_map")?, read("gid_map")?];
        let oom_score_adj = read("oom_score_adj")?;
        Ok(Self { namespaces: Namespaces::other_than_own(pid)?, record, prepared, init, root, maps, oom_score_adj })
    }

    /// Resolves the user of the process with the container's own /etc/passwd and /etc/group.
    ///
    /// # Errors
    /// Returns a refusal if the user does not exist or is not allowed.
    pub(super) fn user(&self, host: &Host, user: &str) -> Result<ResolvedUser, Refused> {
        let invalid = |violation| Refused::from_fields(Reason::Invalid, &[violation]);
        let Some(user) = exec_user(user, &host.policy).map_err(invalid)? else {
            return Ok(self.prepared.user.clone());
        };
        let read = |path: &str| {
            read_small(self.root.as_fd(), Path::new(path))
                .map_err(|error| failed(&format!("cannot read {path} of the container"), &error))
        };
        let mut user =
            users::resolve(&user, self.record.plan.memberships(), &read("/etc/passwd")?, &read("/etc/group")?)
                .map_err(|unknown| {
                    Refused::from_fields(Reason::Precondition, &[Violation::new("start.user", unknown.to_string())])
                })?;
        user.join(&self.prepared.extra_groups);
        Ok(user)
    }

    /// Returns the credentials of a process of this user, with the given capability sets.
    ///
    /// # Errors
    /// Returns an error if this program does not support a capability.
    pub(crate) fn credentials(user: &ResolvedUser, sets: &CapabilitySets) -> std::io::Result<Credentials> {
        let ambient = sets.names.iter().filter(|_| sets.ambient).copied();
        Ok(Credentials {
            uid: user.uid,
            gid: user.gid,
            groups: user.groups.clone(),
            capabilities: capabilities::named(sets.before_filter())?,
            bounding: capabilities::named(sets.bounding.iter().copied())?,
            ambient: capabilities::named(ambient)?,
            new_privileges: sets.new_privileges,
        })
    }

    /// Returns the device numbers of the file systems with the container's secret files.
    ///
    /// # Errors
    /// Returns an error if a mount point cannot be inspected.
    pub(super) fn secret_devices(&self) -> std::io::Result<Vec<u64>> {
        let targets = self.prepared.mounts.iter().map(|mount| mount.target.as_path());
        let generations = std::iter::once(Path::new(GENERATIONS_DIR));
        let mut devices = Vec::new();
        for path in targets.chain(generations.filter(|_| !self.prepared.mounts.is_empty())) {
            match open_in_root(self.root.as_fd(), path, OFlags::PATH, Mode::empty(), Follow::LinksWithinRoot) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {} // single files have no generations
                opened => devices.push(fstat(opened?)?.st_dev),
            }
        }
        devices.dedup();
        Ok(devices)
    }

    /// Maps a container user and group to host ids.
    ///
    /// # Errors
    /// Returns a refusal if an id is not mapped.
    pub(super) fn on_host(&self, user: &ResolvedUser) -> Result<(u32, u32), Refused> {
        let one = |map: &str, id: u32| {
            mapped(map, id).ok_or_else(|| {
                let why = format!("{id} is not among the ids of the container's user namespace");
                Refused::from_fields(Reason::Precondition, &[Violation::new("start.user", why)])
            })
        };
        Ok((one(&self.maps[0], user.uid)?, one(&self.maps[1], user.gid)?))
    }
}

/// Returns the refusal for a container that is not running.
pub(super) fn not_running(id: &ContainerId, how: &str) -> Refused {
    Refused::new(Reason::Precondition, format!("container {id} {how}; exec and copy need a running container"))
}

/// Maps an id of a user namespace to a host id, by lines of `inside outside count`.
fn mapped(map: &str, id: u32) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        let (inside, outside, count) = (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
        let offset = id.checked_sub(inside).filter(|offset| *offset < count)?;
        outside.checked_add(offset)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_mapped_by_ranges() {
        assert_eq!(mapped("         0          0 4294967295\n", 1000), Some(1000));
        let map = "0 1879048192 65536\n70000 5 1\n";
        assert_eq!(mapped(map, 0), Some(1_879_048_192));
        assert_eq!(mapped(map, 65_535), Some(1_879_113_727));
        assert_eq!(mapped(map, 65_536), None);
        assert_eq!(mapped(map, 70_000), Some(5));
        assert_eq!(mapped("", 0), None);
        assert_eq!(mapped("x y z", 0), None);
    }
}
