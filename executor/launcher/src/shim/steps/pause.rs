//! Pauses: all processes of the container are stopped until they go on.
//!
//! Times of a tree of actions stand still meanwhile, and no step starts. A stop lets the processes go on first, so that they can end
//! in order.

use std::time::{Duration, Instant};

use executor_core::lifecycle::State;
use executor_core::protocol::{Reason, Refused};

use super::Running;
use crate::cgroup::Stopped;
use crate::errors::failed;
use crate::host::Host;
use crate::log::{self, Level};
use crate::shim::Ready;

/// Time that a container's processes may take to stop.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// A pause that lasts.
pub(crate) struct Paused {
    stopped: Stopped,
    since: Instant,
}

impl Ready {
    /// Stops the container's processes. Again is no harm.
    pub(crate) fn pause(&mut self, host: &Host) -> Result<(), Refused> {
        if self.paused.is_some() {
            return Ok(());
        }
        let record = &self.record;
        let id = &record.plan.id;
        if record.state != State::Running {
            let why = format!("container {id} is {}: only a running container can be paused", record.state.name());
            return Err(Refused::new(Reason::Precondition, why));
        }
        let mut transfers = 0..record.plan.transfers.len();
        let is_busy =
            |steps: &Running| steps.is_starting() || transfers.any(|transfer| steps.transfer_began(transfer).is_some());
        if self.steps.as_ref().is_some_and(is_busy) {
            let why = format!("container {id} starts a process or transfers a file at the moment: ask again");
            return Err(Refused::new(Reason::Busy, why));
        }
        let stopped = host
            .hierarchies
            .stop_processes(&record.cgroup, PATIENCE)
            .map_err(|error| Refused::new(Reason::Busy, format!("container {id}: {error}")))?;
        let mut record = record.clone();
        record.paused = true;
        if let Err(error) = self.remains.dirs.write_record(&record) {
            host.hierarchies.continue_processes(&record.cgroup, &stopped);
            return Err(failed("run directory", &error));
        }
        self.record = record;
        self.paused = Some(Paused { stopped, since: Instant::now() });
        Ok(())
    }

    /// Lets the processes go on, if they are paused. What cannot be recorded is logged: they go on in any case.
    pub(crate) fn resume(&mut self, host: &Host) {
        let Some(paused) = self.paused.take() else { return };
        self.record.paused = false;
        if let Err(error) = self.remains.dirs.write_record(&self.record) {
            let id = self.record.plan.id.as_str();
            log::line(Level::Error, id, format_args!("its record says that it is paused: {error}"));
        }
        if let Some(steps) = &mut self.steps {
            steps.delay(paused.since.elapsed());
        }
        host.hierarchies.continue_processes(&self.record.cgroup, &paused.stopped);
    }
}
