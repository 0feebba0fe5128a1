//! Implements the shim's part of health checks: creates sockets in the container's network namespace, and stops an
//! unhealthy container. executord runs the checks and uses the sockets, so the shim reads no data from the sockets.

use std::os::fd::AsFd;

use executor_core::lifecycle::State;
use executor_core::logline::Stream;
use executor_core::plan::Checks;
use executor_core::protocol::{
    CHECK_OUTPUT_MAX, CheckOutput, EndUnhealthy, MakeSocket, NoteHealth, Reason, Refused, UNHEALTHY_REASON_MAX,
};
use executor_sys::netsocket::tcp_socket_of;

use super::control::AnswerPayload;
use crate::errors::failed;
use crate::host::Host;
use crate::shim::Ready;

/// Creates a socket for a check, or for a client's connection to a pod.
///
/// # Errors
/// Returns a refusal if the container may not have such a socket, or if the socket cannot be created. A container may
/// have a socket if it has a TCP or HTTP check, or if it is a pod and the policy allows connections to pods.
pub(crate) fn socket(request: &MakeSocket, host: &Host, ready: &Ready) -> Result<AnswerPayload, Refused> {
    let plan = &ready.record.plan;
    let is_allowed = plan.is_pod() && host.policy.allow_connect;
    if !is_allowed && !plan.checks.as_ref().is_some_and(Checks::connect) {
        let why = "the container has no TCP or HTTP check, and is not a pod that clients may connect to";
        return Err(Refused::new(Reason::Denied, why));
    }
    let socket = tcp_socket_of(ready.container.pidfd().as_fd(), request.ipv6);
    socket
        .map(AnswerPayload::Socket)
        .map_err(|error| failed("cannot create a socket in the container's network", &error))
}

/// Logs the reason why a container is unhealthy. Returns true if the container must be stopped; then the record
/// contains the reason. Returns false if the container is not running, if the checked run has exited, or if the restart
/// policy runs the action again.
pub(crate) fn stop_unhealthy(request: &EndUnhealthy, host: &Host, ready: &mut Ready) -> Result<bool, Refused> {
    let EndUnhealthy { reason, outputs, run } = request;
    let Some(checks) = &ready.record.plan.checks else {
        return Err(Refused::new(Reason::Denied, "the container has no checks"));
    };
    let is_of_check = |output: &CheckOutput| {
        output.text.len() <= CHECK_OUTPUT_MAX && checks.all().any(|check| check.log_source == output.log_source)
    };
    let fits = (1..=UNHEALTHY_REASON_MAX).contains(&reason.len())
        && outputs.len() <= checks.all().count()
        && outputs.iter().all(is_of_check);
    if !fits || reason.chars().any(executor_core::text::is_harmful) {
        let why = format!(
            "the reason must be one line of 1 to {UNHEALTHY_REASON_MAX} bytes, and each output must belong to a check \
             and have at most {CHECK_OUTPUT_MAX} bytes"
        );
        return Err(Refused::new(Reason::Invalid, why));
    }
    if ready.record.state != State::Running {
        return Ok(false);
    }
    if ready.record.restarts.as_ref().is_some_and(|restarts| restarts.count != *run) {
        return Ok(false); // the checked run has exited
    }
    let main = ready.record.plan.main();
    let keeps_output = !main.is_some_and(|main| main.suppress_log_output);
    ready.log.executor_message(reason);
    for CheckOutput { log_source, text } in outputs.iter().filter(|output| keeps_output && !output.text.is_empty()) {
        match &**log_source {
            "" => ready.log.executor_message(text),
            source => ready.log.write_message(Stream::Executor, source, text),
        }
    }
    let reason = ready.log.masked(reason);
    if ready.run_again_for(host, &reason) {
        return Ok(false);
    }
    ready.record.unhealthy = Some(reason);
    Ok(true)
}

/// Logs that the checks start or that the container became healthy, with the same messages as Diego.
pub(crate) fn log_health(health: NoteHealth, ready: &mut Ready) -> Result<(), Refused> {
    let NoteHealth { healthy, run } = health;
    if !ready.record.plan.checks.as_ref().is_some_and(Checks::decide_start) {
        return Err(Refused::new(Reason::Denied, "the container has no startup or liveness check"));
    }
    let is_present = ready.record.restarts.as_ref().is_none_or(|restarts| restarts.count == run);
    if is_present && ready.record.state == State::Running {
        ready.log.executor_message(if healthy {
            "Container became healthy"
        } else {
            "Starting health monitoring of container"
        });
    }
    Ok(())
}
