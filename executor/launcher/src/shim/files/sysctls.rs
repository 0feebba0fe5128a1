//! Settings of the kernel for a container's own namespaces.
//!
//! The settings are written through a proc file system that the launcher mounted for this alone: detached, so that nothing of
//! an image and no other container can lie on the way (CVE-2025-52881). A setting belongs to the namespaces of the process
//! that opens it. What a request asks for is written by a helper that has entered the container's, as the root of the container's user
//! namespace, which may change what is the container's own and nothing else.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use executor_core::plan::Plan;
use executor_sys::mount::{Follow, open_in_root};
use rustix::fs::{Mode, OFlags};

use super::helper::Failed;

/// From this port on any user may listen, in a network namespace of the container's own: what common engines set, because
/// nobody else has these ports there.
const PORTS: (&str, &str) = ("net.ipv4.ip_unprivileged_port_start", "0");

/// Lets any user of a container listen on any port; what a plan says is set later. The calling process is in the container's network
/// namespace. `proc` is the launcher's proc file system.
pub(crate) fn open_ports(proc: BorrowedFd<'_>) -> io::Result<()> {
    match set(proc, PORTS.0, PORTS.1) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()), // a kernel without IPv4
        written => written,
    }
}

/// Settings that a request asks for, and the proc file system that they are written through.
pub(crate) struct Settings<'a> {
    proc: BorrowedFd<'a>,
    wanted: &'a BTreeMap<String, String>,
}

impl<'a> Settings<'a> {
    /// Those of a plan; `None` where there are none.
    pub(crate) fn new(plan: &'a Plan, proc: BorrowedFd<'a>) -> Option<Self> {
        let wanted = &plan.surroundings.sysctls;
        (!wanted.is_empty()).then_some(Self { proc, wanted })
    }

    /// Any is of the namespace of IPC, which the helper must enter.
    pub(crate) fn has_ipc(&self) -> bool {
        self.wanted.keys().any(|name| !name.starts_with("net."))
    }

    /// Writes them.
    pub(crate) fn write(&self) -> Result<(), Failed> {
        let mut all = self.wanted.iter();
        all.try_for_each(|(name, value)| set(self.proc, name, value).map_err(|error| Failed(failed(name), error)))
    }
}

fn set(proc: BorrowedFd<'_>, name: &str, value: &str) -> io::Result<()> {
    let path: PathBuf = Path::new("sys").join(name.replace('.', "/"));
    let file = open_in_root(proc, &path, OFlags::WRONLY, Mode::empty(), Follow::NoLinks)?;
    std::fs::File::from(file).write_all(value.as_bytes())
}

/// Prefix of the failure of a setting.
pub(crate) const FAILED: &str = "sysctl ";

fn failed(name: &str) -> String {
    format!("{FAILED}{name}")
}
