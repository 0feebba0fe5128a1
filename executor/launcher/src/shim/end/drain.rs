//! Delivers the last output to clients that read more slowly than the process wrote. The process has exited, and its
//! secrets may already be wiped. The exit is reported after lossless clients have received all output.
//!
//! Lossless clients have no time limit unless the container is stopped. After a Stop, all clients have the rest of the
//! grace period, but at least [`READ_TIME_MIN`]. If no lossless client is attached or awaited, the other clients have
//! [`READ_TIME_MIN`].

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use executor_core::protocol::{Reason, Refused};
use executor_sys::events::Events;
use executor_sys::process::SignalEvents;

use crate::shim::output::attach::Attached;
use crate::shim::running::control::{Command, Control};

/// Minimum time for clients to read the last output after the process has exited.
const READ_TIME_MIN: Duration = Duration::from_millis(500);
/// Maximum duration of a single wait for events.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// Event loop between the exit of the process and the cleanup of its container.
pub(crate) struct OutputDrain<'a> {
    clients: &'a mut Attached,
    grace: Duration,
    stop_at: Option<Instant>,
    /// Deadline of a stop that arrived after the process had exited.
    stop_asked: Option<Instant>,
    ended: Instant,
}

impl<'a> OutputDrain<'a> {
    /// Starts the loop for a container whose process has just exited. `stop_at` is the deadline of an earlier stop.
    pub(crate) fn new(clients: &'a mut Attached, grace: Duration, stop_at: Option<Instant>) -> Self {
        Self { clients, grace, stop_at, stop_asked: None, ended: Instant::now() }
    }

    /// Returns the deadline of a stop that arrived after the process had exited.
    pub(crate) fn stop_asked(&self) -> Option<Instant> {
        self.stop_asked
    }

    /// Registers signals, commands, clients and deadlines for one iteration of a loop.
    pub(crate) fn register<'fd>(
        &'fd self,
        events: &mut Events<'fd, ()>,
        control: &'fd Control,
        signals: &'fd SignalEvents,
    ) {
        events.read(signals.as_fd(), ());
        control.register(events, ());
        self.clients.register(events, ());
        events.due(self.clients.due().into_iter().chain(self.stop_asked));
    }

    /// Handles clients, commands and host shutdown, without waiting.
    pub(crate) fn poll(&mut self, control: &mut Control, signals: &SignalEvents) {
        control.heartbeat().turn();
        while let Ok(Some(signal)) = signals.next() {
            if signal == libc::SIGTERM || signal == libc::SIGINT {
                self.stop(self.grace);
            }
        }
        for asked in control.read() {
            let (command, answer) = asked.split();
            let result = match command {
                Command::Stop(stop) => {
                    self.stop(Duration::from_millis(stop.grace_ms));
                    Ok(None)
                }
                Command::Attach(asked, fds) => self.clients.take(&asked, fds).map(|()| None),
                _ => Err(Refused::new(Reason::Precondition, "the container's process has exited")),
            };
            control.answer(&answer, result);
        }
        control.remove_closed();
        self.clients.poll_clients();
    }

    fn stop(&mut self, grace: Duration) {
        let at = Instant::now() + grace;
        self.stop_asked = Some(self.stop_asked.map_or(at, |earlier| earlier.min(at)));
    }

    /// Waits until the clients have received the last output, or until their deadline.
    pub(crate) fn deliver(mut self, control: &mut Control, signals: &SignalEvents) {
        loop {
            self.poll(control, signals);
            let (now, least) = (Instant::now(), self.ended + READ_TIME_MIN);
            let stop = self.stop_at.into_iter().chain(self.stop_asked).min().map(|at| at.max(least));
            let is_late = stop.is_some_and(|at| at <= now);
            if self.clients.is_delivered() || is_late || (self.clients.is_settled() && least <= now) {
                return;
            }
            let mut events = Events::default();
            self.register(&mut events, control, signals);
            events.due(stop.into_iter().chain(self.clients.is_settled().then_some(least)));
            events.due([now + WAIT_MAX]);
            control.heartbeat().rest();
            let _ = events.wait(); // the next iteration polls all sources
        }
    }
}
