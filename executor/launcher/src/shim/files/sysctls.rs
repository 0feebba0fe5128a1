//! Sets sysctls of a container's own namespaces.
//!
//! Sysctls are written through a detached proc file system that the launcher has mounted only for this purpose.
//! Therefore no file of an image or of another container can be in the path (CVE-2025-52881). A sysctl belongs to the
//! namespaces of the process that opens it. A helper in the container's namespaces writes the requested sysctls, as
//! root of the container's user namespace. This root user can change only the container's own settings. With the host's
//! user ids (`policy.host_ids_sysctls`), root could change other settings, so only sysctls that belong to namespaces
//! are permitted.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;

use executor_core::plan::Plan;

use super::helper::HelperFailure;
use crate::sysctl;

/// Lowest port on which any user may listen in the container's own network namespace. Common engines set the same
/// value, because no other process uses these ports there.
const PORTS: (&str, &str) = ("net.ipv4.ip_unprivileged_port_start", "0");

/// Allows all users of a container to listen on any port. The sysctls of the plan are set later. The calling process is
/// in the container's network namespace. `proc` is the launcher's proc file system.
pub(crate) fn open_ports(proc: BorrowedFd<'_>) -> io::Result<()> {
    match set(proc, PORTS.0, PORTS.1) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()), // a kernel without IPv4
        written => written,
    }
}

/// Requested sysctls, and the proc file system through which they are written.
pub(crate) struct Settings<'a> {
    proc: BorrowedFd<'a>,
    wanted: &'a BTreeMap<String, String>,
}

impl<'a> Settings<'a> {
    /// Returns the sysctls of a plan, or `None` if it has none.
    pub(crate) fn new(plan: &'a Plan, proc: BorrowedFd<'a>) -> Option<Self> {
        let wanted = &plan.surroundings.sysctls;
        (!wanted.is_empty()).then_some(Self { proc, wanted })
    }

    /// Returns true if a sysctl belongs to the IPC namespace, which the helper must enter.
    pub(crate) fn has_ipc(&self) -> bool {
        self.wanted.keys().any(|name| !name.starts_with("net."))
    }

    pub(crate) fn write(&self) -> Result<(), HelperFailure> {
        let mut all = self.wanted.iter();
        all.try_for_each(|(name, value)| {
            set(self.proc, name, value).map_err(|error| HelperFailure(failed(name), error))
        })
    }
}

fn set(proc: BorrowedFd<'_>, name: &str, value: &str) -> io::Result<()> {
    sysctl::write(proc, &name.replace('.', "/"), value)
}

/// Prefix of error messages about a sysctl.
pub(crate) const FAILED: &str = "sysctl ";

fn failed(name: &str) -> String {
    format!("{FAILED}{name}")
}
