//! Downloads and uploads of a tree of actions, which executord carries out.
//!
//! The shim has no network and reads no tenant's bytes. It keeps a transfer's URL in the volume and gives it out while the
//! transfer's step runs, so that a later executord can begin the transfer again; and it goes on with the tree when it is told
//! the end. What executord says of a transfer counts while that transfer's step runs.

use std::io;

use executor_core::limits::TRANSFER_REASON_MAX;
use executor_core::protocol::{EndTransfer, ReadTransfer, Reason, Refused};
use executor_core::steps::TransferEnd;
use executor_core::time::Timestamp;
use executor_sys::memfile::MemFile;

use super::Ready;
use crate::errors::failed;
use crate::host::Host;

/// Returns the index of a transfer whose step runs, and when that began.
///
/// # Errors
/// There is no such transfer.
fn running(transfer: u32, ready: &Ready) -> Result<(usize, Timestamp), Refused> {
    let transfer = transfer as usize;
    let began = ready.steps.as_ref().and_then(|steps| steps.transfer_began(transfer));
    let why = || Refused::new(Reason::NotFound, format!("transfer {transfer} has not begun, or has ended"));
    began.map(|began| (transfer, began)).ok_or_else(why)
}

/// Copies the URL of a transfer into a memory file.
///
/// # Errors
/// The transfer does not run; no memory is left.
pub(super) fn url(asked: &ReadTransfer, ready: &Ready) -> Result<MemFile, Refused> {
    let (transfer, _) = running(asked.transfer, ready)?;
    let number = ready.record.plan.processes.len() + transfer;
    let copy = || -> io::Result<MemFile> {
        let volume = ready.remains.volumes.first().ok_or(io::ErrorKind::NotFound)?;
        let stored = volume.step_payload(number)?;
        let mut file = MemFile::create("executor-url", stored.len())?;
        let mut read = Ok(());
        file.fill(|bytes| read = stored.read_into(bytes))?;
        read.map(|()| file)
    };
    copy().map_err(|error| failed("URL of a transfer", &error))
}

/// Goes on after the end of a transfer.
///
/// # Errors
/// The transfer does not run; the reason is too long.
pub(super) fn end(host: &Host, asked: EndTransfer, ready: &mut Ready) -> Result<(), Refused> {
    let (transfer, began) = running(asked.transfer, ready)?;
    if began.0 != asked.began {
        return Err(Refused::new(Reason::Stale, format!("transfer {transfer} has begun again")));
    }
    if asked.error.len() > TRANSFER_REASON_MAX || asked.error.chars().any(executor_core::text::is_harmful) {
        let why = format!("the reason has {} bytes; at most {TRANSFER_REASON_MAX} on one line", asked.error.len());
        return Err(Refused::new(Reason::Invalid, why));
    }
    let end = if asked.error.is_empty() { TransferEnd::Done(asked.bytes) } else { TransferEnd::Failed(asked.error) };
    ready.end_transfer(host, transfer, end);
    Ok(())
}
