//! Updates the egress rules of a running container: validates new rules, applies them in one step, and records them.
//!
//! If the new rules cannot be recorded, the old rules are restored, so that the record matches the rules in force.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use executor_core::lifecycle::State;
use executor_core::protocol::{EGRESS_FDS, PLAN_MAX, Reason, Refused};
use executor_core::record::ContainerRecord;
use executor_core::update::EgressUpdate;
use executor_core::validate::validate_egress;
use executor_sys::memfile::MemFile;

use crate::errors::failed;
use crate::host::Host;
use crate::log::{self, Level};
use crate::network;
use crate::shim::Ready;
use crate::shim::files::update::reserve_record_space;

/// Time limit for the kernel to apply new rules, and to restore the old rules if the new rules cannot be recorded.
pub(crate) const APPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// Executes an update of the egress rules.
pub(crate) fn execute(host: &Host, ready: &mut Ready, fds: Vec<OwnedFd>) -> Result<(), Refused> {
    let record = evaluate(host, &ready.record, fds)?;
    reserve_record_space(ready, &record)?;
    let plan = &record.plan;
    network::replace_egress(host, ready.container.pidfd().as_fd(), plan)?;
    if let Err(error) = ready.remains.dirs.write_record(&record) {
        if let Err(refused) = network::replace_egress(host, ready.container.pidfd().as_fd(), &ready.record.plan) {
            let why = format_args!("the old egress rules could not be restored: {}", refused.message);
            log::line(Level::Error, plan.id.as_str(), why);
        }
        return Err(failed("cannot write the container's record", &error));
    }
    ready.record = record;
    Ok(())
}

/// Returns the new record. The new rules are validated with the launcher's own policy, not the daemon's.
fn evaluate(host: &Host, record: &ContainerRecord, fds: Vec<OwnedFd>) -> Result<ContainerRecord, Refused> {
    if record.state != State::Running {
        let why = format!(
            "container {} is {}: egress rules can be replaced only while it runs",
            record.plan.id,
            record.state.name()
        );
        return Err(Refused::new(Reason::Precondition, why));
    }
    let invalid = |error: &dyn std::fmt::Display| Refused::new(Reason::Invalid, format!("update: {error}"));
    let Ok([file]) = <[OwnedFd; EGRESS_FDS.len()]>::try_from(fds) else {
        return Err(invalid(&"an update of egress needs one descriptor"));
    };
    let file = MemFile::from_fd(file, PLAN_MAX).map_err(|error| invalid(&error))?;
    let parsed = file.read(|bytes| serde_json::from_slice::<EgressUpdate>(bytes)).map_err(|error| invalid(&error))?;
    let update = parsed.map_err(|error| invalid(&error))?;
    let plan = validate_egress(&update, &record.plan, &host.policy)
        .map_err(|violations| Refused::from_fields(Reason::Invalid, &violations))?;
    let mut prepared = record.prepared.clone();
    if let Some(prepared) = &mut prepared {
        // Remove warnings about the replaced rules.
        prepared.warnings.retain(|warning| !warning.starts_with("egress_rules["));
        prepared.warnings.extend(network::log_warning(&plan));
    }
    Ok(ContainerRecord { plan, prepared, egress_generation: record.egress_generation + 1, ..record.clone() })
}
