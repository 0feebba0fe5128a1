//! Handles downloads and uploads of a tree of actions. executord executes the transfers.
//!
//! The shim does not use the network and does not read the transferred data. The shim keeps the URL of a transfer in
//! the volume and returns the URL while the transfer's step runs, so that a later executord can start the transfer
//! again. When the completion of the transfer is reported, the shim continues with the tree. The shim limits the CPU
//! time of executord's workers, because executord lacks the privilege. Messages of executord about a transfer are
//! accepted only while the transfer's step runs.

use std::io;
use std::os::fd::AsFd as _;

use executor_core::limits::TRANSFER_REASON_MAX;
use executor_core::protocol::{EndTransfer, ReadTransfer, Reason, Refused};
use executor_core::steps::TransferEnd;
use executor_core::time::Timestamp;
use executor_sys::memfile::MemFile;
use executor_sys::process;
use executor_sys::ready::is_readable;

use super::control::Worker;
use super::limits;
use crate::errors::failed;
use crate::host::Host;
use crate::shim::Ready;

/// Returns the index of a transfer whose step runs, and the time at which the step began.
///
/// # Errors
/// Returns a refusal if the transfer does not run.
fn running_transfer(transfer: u32, ready: &Ready) -> Result<(usize, Timestamp), Refused> {
    let transfer = transfer as usize;
    let began = ready.steps.as_ref().and_then(|steps| steps.transfer_began(transfer));
    let why = || Refused::new(Reason::NotFound, format!("transfer {transfer} has not started or has completed"));
    began.map(|began| (transfer, began)).ok_or_else(why)
}

/// Copies the URL of a transfer into a memory file.
///
/// # Errors
/// Returns a refusal if the transfer does not run or no memory is left.
pub(crate) fn url(request: &ReadTransfer, ready: &Ready) -> Result<MemFile, Refused> {
    let (transfer, _) = running_transfer(request.transfer, ready)?;
    let number = ready.record.plan.processes.len() + transfer;
    let copy = || -> io::Result<MemFile> {
        let volume = ready.remains.volumes.first().ok_or(io::ErrorKind::NotFound)?;
        let stored = volume.step_payload(number)?;
        let mut file = MemFile::create("executor-url", stored.len())?;
        let mut read = Ok(());
        file.fill(|bytes| read = stored.read_into(bytes))?;
        read.map(|()| file)
    };
    copy().map_err(|error| failed("cannot copy the URL of a transfer", &error))
}

/// Moves a worker into the cgroup of the container's workers, with the container's CPU limits. The peer cannot move
/// arbitrary processes: a worker must run as the daemon's user and must not be the peer itself.
///
/// # Errors
/// Returns a refusal if the transfer does not run, the process is not a worker or has exited, or the kernel rejects the
/// move.
pub(crate) fn limit(host: &Host, worker: &Worker, ready: &Ready) -> Result<(), Refused> {
    let Worker { asked, fds, peer } = worker;
    running_transfer(asked.transfer, ready)?;
    let [pidfd] = fds.as_slice() else {
        let why = format!("a worker request needs one descriptor, but has {}", fds.len());
        return Err(Refused::new(Reason::Invalid, why));
    };
    let pid = process::pid_of(pidfd.as_fd()).map_err(|error| failed("cannot identify the worker", &error))?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))
        .map_err(|error| failed("cannot read the worker's status", &error))?;
    if !is_of_user(&status, host.daemon_uid) || *peer == Some(pid) {
        return Err(Refused::new(Reason::Denied, format!("process {pid} is not a worker of the daemon")));
    }
    let (in_force, _) = limits::in_force(host, &ready.record.plan)?; // the container's record has the warnings
    host.hierarchies
        .admit_worker(&ready.record.cgroup, &in_force, pid)
        .map_err(|error| failed("cannot move the worker into its cgroup", &error))?;
    if is_readable(pidfd) {
        return Err(Refused::new(Reason::Stale, "the worker has exited"));
    }
    Ok(())
}

/// Returns true if all user ids in a process's status file are `uid`.
fn is_of_user(status: &str, uid: u32) -> bool {
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    ids.is_some_and(|ids| ids.split_whitespace().count() == 4 && ids.split_whitespace().all(|id| id.parse() == Ok(uid)))
}

/// Continues the tree after the completion of a transfer.
///
/// # Errors
/// Returns a refusal if the transfer does not run or was started again, or if the reason is invalid.
pub(crate) fn finish(host: &Host, request: EndTransfer, ready: &mut Ready) -> Result<(), Refused> {
    let (transfer, began) = running_transfer(request.transfer, ready)?;
    if began.0 != request.began {
        return Err(Refused::new(Reason::Stale, format!("transfer {transfer} was started again")));
    }
    if request.error.len() > TRANSFER_REASON_MAX || request.error.chars().any(executor_core::text::is_harmful) {
        let bytes = request.error.len();
        let why = format!("the reason is {bytes} bytes; it must be one line of at most {TRANSFER_REASON_MAX} bytes");
        return Err(Refused::new(Reason::Invalid, why));
    }
    let end =
        if request.error.is_empty() { TransferEnd::Done(request.bytes) } else { TransferEnd::Failed(request.error) };
    ready.finish_transfer(host, transfer, end);
    host.hierarchies.remove_idle_workers(&ready.record.cgroup);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_needs_every_id_of_user() {
        for (ids, is_of) in [
            ("Uid:\t7\t7\t7\t7", true),
            ("Uid:\t7\t0\t7\t7", false),
            ("Uid:\t7\t7\t0\t7", false),
            ("Uid:\t7\t7\t7", false),
            ("Gid:\t7\t7\t7\t7", false),
            ("", false),
        ] {
            assert_eq!(is_of_user(&format!("Name:\tx\n{ids}\nGid:\t1\t1\t1\t1\n"), 7), is_of, "{ids}");
        }
    }
}
