//! Holds a created container until a separate request starts its process.
//!
//! Until the start, init waits, the payloads are in memory files, and the shim executes only the commands Start and
//! Stop.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use executor_core::lifecycle::State;
use executor_core::protocol::{Reason, Refused};
use executor_core::record::{Failure, FailureKind};
use executor_sys::events::Events;
use executor_sys::process::SignalEvents;

use super::running::control::{AnswerDestination, Command, Control};
use super::supervise::reap_children;
use super::{Ready, shrink};

/// Maximum duration of a single wait for events.
const WAIT_MAX: Duration = Duration::from_secs(3600);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Event {
    InitEnded,
    /// A signal arrived: SIGCHLD after the exit of a child, or SIGTERM or SIGINT at host shutdown.
    Signal,
    /// The daemon or the launcher sent a message or connects.
    Control,
}

/// Reports the container as created, and waits for a start or stop.
///
/// # Errors
/// Returns a failure if the container was stopped, or if its init has exited.
pub(super) fn wait_for_start(ready: &mut Ready, control: &mut Control, signals: &SignalEvents) -> Result<(), Failure> {
    control.report_state(State::Created);
    shrink(&ready.watch, ready.record.plan.id.as_str());
    let mut decision = None;
    while decision.is_none() {
        let events = wait(ready, control, signals);
        if events.contains(&Event::Signal) {
            while let Ok(Some(signal)) = signals.next() {
                if signal == libc::SIGTERM || signal == libc::SIGINT {
                    decision = Some(stop(ready)); // host shutdown
                }
            }
            reap_children(ready);
        }
        if events.contains(&Event::Control) {
            for asked in control.read() {
                let (command, answer) = asked.split();
                execute(&command, &answer, ready, control, &mut decision);
            }
        }
        control.remove_closed();
        if events.contains(&Event::InitEnded) {
            decision = Some(Err(not_started("init was killed before the container started")));
        }
    }
    decision.unwrap_or(Ok(()))
}

fn wait(ready: &Ready, control: &Control, signals: &SignalEvents) -> Vec<Event> {
    let mut events = Events::default();
    events.read(ready.container.pidfd().as_fd(), Event::InitEnded);
    events.read(signals.as_fd(), Event::Signal);
    control.register(&mut events, Event::Control);
    events.due([Instant::now() + WAIT_MAX]);
    control.heartbeat().rest();
    let found = events.wait();
    control.heartbeat().turn();
    found.unwrap_or_default() // the next iteration waits again
}

/// Executes a command and replies. A stop also revokes a start that arrived in the same batch of commands. A start
/// after a stop is refused.
fn execute(
    command: &Command,
    answer: &AnswerDestination,
    ready: &mut Ready,
    control: &mut Control,
    decision: &mut Option<Result<(), Failure>>,
) {
    let result = match command {
        Command::Start if let Some(Err(failure)) = decision => {
            Err(Refused::new(Reason::Precondition, failure.message.clone()))
        }
        Command::Start => {
            *decision = Some(Ok(()));
            Ok(None)
        }
        Command::Stop(_) => {
            *decision = Some(stop(ready));
            Ok(None)
        }
        _ => {
            let why = format!("container {} is not started; only start and stop are possible", ready.record.plan.id);
            Err(Refused::new(Reason::Precondition, why))
        }
    };
    control.answer(answer, result);
}

fn stop(ready: &mut Ready) -> Result<(), Failure> {
    ready.record.stopped = true;
    Err(not_started("stopped before it was started"))
}

fn not_started(why: &str) -> Failure {
    Failure { kind: FailureKind::NotStarted, message: why.into(), errno: 0 }
}
