//! Settings of the kernel for a container's own namespaces.
//!
//! The settings are written through a proc file system that is mounted for this alone: detached, so that nothing of an
//! image and no other container can lie on the way (CVE-2025-52881), by a helper that ends before anything of the container
//! runs. A setting belongs to the namespaces of the process that opens it: the helper has entered the container's. It
//! writes as the root of the container's user namespace, which may change what is the container's own and nothing else.

use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use executor_core::plan::Plan;
use executor_sys::mount::{self, Follow, open_in_root};
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountAttrFlags;

use super::helper::Failed;

/// From this port on any user may listen, in a network namespace of the container's own: what common engines set, because
/// nobody else has these ports there.
const PORTS: (&str, &str) = ("net.ipv4.ip_unprivileged_port_start", "0");

/// Settings to be written, and the proc file system that they are written through.
pub(super) struct Settings<'a> {
    proc: OwnedFd,
    wanted: Vec<(&'a str, &'a str)>,
}

impl<'a> Settings<'a> {
    /// Those of a plan; `None` where there are none. Before the helper enters any namespace: a container's root may mount
    /// no proc of its own here.
    pub(super) fn of(plan: &'a Plan) -> Result<Option<Self>, Failed> {
        let asked = &plan.surroundings.sysctls;
        let ports = (plan.makes_network() && !asked.contains_key(PORTS.0)).then_some(PORTS);
        let wanted: Vec<_> =
            ports.into_iter().chain(asked.iter().map(|(name, value)| (name.as_str(), value.as_str()))).collect();
        if wanted.is_empty() {
            return Ok(None);
        }
        let flags =
            MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let proc = mount::detached("proc", "proc", &[], flags).map_err(|error| Failed("proc".into(), error))?;
        Ok(Some(Self { proc, wanted }))
    }

    /// Any is of the namespace of IPC, which the helper must enter.
    pub(super) fn has_ipc(&self) -> bool {
        self.wanted.iter().any(|(name, _)| !name.starts_with("net."))
    }

    /// Writes them.
    pub(super) fn write(&self) -> Result<(), Failed> {
        for (name, value) in &self.wanted {
            match self.set(name, value) {
                // A kernel without IPv4.
                Err(error) if error.kind() == io::ErrorKind::NotFound && (*name, *value) == PORTS => {}
                written => written.map_err(|error| Failed(failed(name), error))?,
            }
        }
        Ok(())
    }

    fn set(&self, name: &str, value: &str) -> io::Result<()> {
        let path: PathBuf = Path::new("sys").join(name.replace('.', "/"));
        let file = open_in_root(self.proc.as_fd(), &path, OFlags::WRONLY, Mode::empty(), Follow::NoLinks)?;
        std::fs::File::from(file).write_all(value.as_bytes())
    }
}

/// Prefix of the failure of a setting.
pub(super) const FAILED: &str = "sysctl ";

fn failed(name: &str) -> String {
    format!("{FAILED}{name}")
}
