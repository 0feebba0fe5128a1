//! A container's checks, as far as the shim is needed for them: sockets in the container's network namespace, and the end
//! of a container that is not healthy. executord makes the checks: nothing that a container sends is read here.

use std::os::fd::AsFd;

use executor_core::lifecycle::State;
use executor_core::plan::Checks;
use executor_core::protocol::{CHECK_OUTPUT_MAX, EndUnhealthy, MakeSocket, Reason, Refused, UNHEALTHY_REASON_MAX};
use executor_sys::netsocket::tcp_socket_of;

use super::Ready;
use super::control::Carried;
use crate::errors::failed;
use crate::host::Host;

/// Makes a socket for a check. A container without checks that connect has no use for one, and executord gets none.
pub(super) fn socket(asked: &MakeSocket, ready: &Ready) -> Result<Carried, Refused> {
    if !ready.record.plan.checks.as_ref().is_some_and(Checks::connect) {
        return Err(Refused::new(Reason::Denied, "the container has no checks that connect"));
    }
    let socket = tcp_socket_of(ready.container.pidfd().as_fd(), asked.ipv6);
    socket.map(Carried::Socket).map_err(|error| failed("socket for a check", &error))
}

/// Takes the reason of a container's end into its log and its record. `false` of a container that is ending already, and of one
/// whose restart policy has its action begin again.
pub(super) fn end(asked: &EndUnhealthy, host: &Host, ready: &mut Ready) -> Result<bool, Refused> {
    let EndUnhealthy { reason, output, run } = asked;
    if ready.record.plan.checks.is_none() {
        return Err(Refused::new(Reason::Denied, "the container has no checks"));
    }
    let fits = (1..=UNHEALTHY_REASON_MAX).contains(&reason.len()) && output.len() <= CHECK_OUTPUT_MAX;
    if !fits || reason.chars().any(executor_core::text::is_harmful) {
        return Err(Refused::new(Reason::Invalid, "the reason or the output of a check is not in its bounds"));
    }
    if ready.record.state != State::Running {
        return Ok(false);
    }
    if ready.record.restarts.as_ref().is_some_and(|restarts| restarts.count != *run) {
        return Ok(false); // the run that was checked has ended
    }
    let main = ready.record.plan.main();
    let keeps_output = !main.is_some_and(|main| main.suppress_log_output);
    ready.log.own_words(reason);
    if keeps_output && !output.is_empty() {
        ready.log.own_words(output);
    }
    let reason = ready.log.masked(reason);
    if ready.run_again_for(host, &reason) {
        return Ok(false);
    }
    ready.record.unhealthy = Some(reason);
    Ok(true)
}
