//! Pauses a container: suspends all of its processes with SIGSTOP until the container is resumed.
//!
//! During a pause the timers of a tree of actions do not advance, and no step starts. A Stop call resumes the processes
//! before stopping the container, so that the processes can exit gracefully.

use std::time::{Duration, Instant};

use executor_core::lifecycle::State;
use executor_core::protocol::{Reason, Refused};

use super::RunningSteps;
use crate::cgroup::StoppedProcesses;
use crate::errors::failed;
use crate::host::Host;
use crate::log::{self, Level};
use crate::shim::Ready;

/// Time limit for suspending a container's processes.
pub(crate) const SUSPEND_TIMEOUT: Duration = Duration::from_secs(5);

/// State of a paused container.
pub(crate) struct Paused {
    stopped: StoppedProcesses,
    since: Instant,
}

impl Ready {
    /// Suspends the container's processes. Does nothing if the container is already paused.
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
        let is_busy = |steps: &RunningSteps| {
            steps.is_starting() || transfers.any(|transfer| steps.transfer_began(transfer).is_some())
        };
        if self.steps.as_ref().is_some_and(is_busy) {
            let why = format!("container {id} is starting a process or transferring a file: try again");
            return Err(Refused::new(Reason::Busy, why));
        }
        let stopped = host
            .hierarchies
            .stop_processes(&record.cgroup, SUSPEND_TIMEOUT)
            .map_err(|error| Refused::new(Reason::Busy, format!("cannot pause container {id}: {error}")))?;
        let mut record = record.clone();
        record.paused = true;
        if let Err(error) = self.remains.dirs.write_record(&record) {
            host.hierarchies.continue_processes(&record.cgroup, &stopped);
            return Err(failed("cannot write the container's record", &error));
        }
        self.record = record;
        self.paused = Some(Paused { stopped, since: Instant::now() });
        Ok(())
    }

    /// Continues the processes if the container is paused. If the record cannot be written, the error is only logged.
    pub(crate) fn resume(&mut self, host: &Host) {
        let Some(paused) = self.paused.take() else { return };
        self.record.paused = false;
        if let Err(error) = self.remains.dirs.write_record(&self.record) {
            let id = self.record.plan.id.as_str();
            log::line(Level::Error, id, format_args!("the record still shows the container as paused: {error}"));
        }
        if let Some(steps) = &mut self.steps {
            steps.delay(paused.since.elapsed());
        }
        host.hierarchies.continue_processes(&self.record.cgroup, &paused.stopped);
    }
}
