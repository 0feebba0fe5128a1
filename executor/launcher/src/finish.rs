//! The end of a container: whoever does it, in one order.
//!
//! ```text
//! complete   wipe the secrets, kill what is left in the cgroup, take the container off a network of CNI, give readers
//!            the last of the output, write the exit record
//!            ── here the end is told ──
//! leave      remove the cgroup and the writable layer, last the run directory
//! ```
//! What is told is therefore true for good: no secret is left, no process runs, the result is written. What is still there
//! is the executor's own: it stays counted while its run directory is there, and a deletion waits for that to go. Each step
//! may be done again: a shim that is killed in the middle is followed by the launcher, and a launcher by the next one's
//! sweep. A launcher that follows a shim kills the container's processes first.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use executor_core::plan::{Network, Plan};
use executor_core::record::{
    ContainerRecord, Exit, ExitRecord, Failure, FailureKind, OutputsRecord, Prepared, StepRecord, Timings, WipeRecord,
};
use executor_core::time::Timestamp;
use executor_core::usage::{LogUsage, NetworkUsage, Usage};
use executor_secrets::volume::{Receipt, Volume};
use executor_sys::memfile::MemFile;

use crate::dirs::Dirs;
use crate::host::Host;
use crate::log::{self, Level};
use crate::network::{self, Patience};

/// Time that the kernel is given to let go of a cgroup whose processes were killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time that processes that were killed may take to let go of the leases on secret files that they had.
const LEASE_PATIENCE: Duration = Duration::from_secs(1);
/// Between two looks.
const LEASE_LOOK: Duration = Duration::from_millis(20);

/// Name of a shim, which finishes its own container.
pub(crate) const SHIM: &str = "shim";

/// Remains of a container whose process has ended, or never ran.
pub(crate) struct Remains {
    /// Process that finishes it: `shim` or `launcher`.
    pub by: &'static str,
    /// Directories.
    pub dirs: Dirs,
    /// Cgroup, relative to each hierarchy's mount.
    pub cgroup: PathBuf,
    /// Secret files: one handle, or several that each reach a part.
    pub volumes: Vec<Volume>,
    /// Start payloads, until they are wiped.
    pub inputs: Vec<MemFile>,
    /// Remains of updates of its files.
    pub rotated: Rotated,
    /// Views of the layers below its root.
    pub views: Vec<OwnedFd>,
}

/// Results of updates of a container's files that its end tells of.
#[derive(Default)]
pub(crate) struct Rotated {
    /// Old files.
    pub wiped: Receipt,
    /// Helpers that the kernel killed for want of memory in the container's cgroup.
    pub helpers_killed: u64,
}

/// End of the process, as far as it is known.
#[derive(Default)]
pub(crate) struct Outcome {
    /// Exit.
    pub exit: Option<Exit>,
    /// Failure.
    pub failure: Option<Failure>,
    /// Times, except that of the finish.
    pub timings: Timings,
    /// Captured outputs.
    pub outputs: Option<OutputsRecord>,
    /// The last of the output may not be in the log.
    pub output_incomplete: bool,
    /// Traffic of the container's own network.
    pub network: Option<NetworkUsage>,
    /// Counters of the log.
    pub log: Option<LogUsage>,
    /// Message that the process left about its end.
    pub termination_message: String,
    /// Time when the process ended.
    pub ended_at: Option<Timestamp>,
}

/// Tells whether a container has its exit record.
pub(crate) enum Recorded {
    /// The record is written: the end is known, whatever happens.
    Yes,
    /// This record could not be written.
    No(Box<ExitRecord>),
}

impl Remains {
    /// Tells whether nothing is to be waited for until the end of this container: no process, no plugin, no large files.
    pub(crate) fn are_gone_at_once(&self, host: &Host, container: &ContainerRecord) -> bool {
        let plan = &container.plan;
        plan.writable_files.is_none() && !leaves_a_network(plan) && host.hierarchies.pids(&self.cgroup).is_empty()
    }

    /// Overwrites every secret that this process can reach. What could not be overwritten stays in `volumes`.
    ///
    /// # Errors
    /// Something could not be overwritten: told, and never passed over.
    pub(crate) fn wipe(&mut self, id: &str) -> Result<WipeRecord, ()> {
        let mut failed = false;
        for input in self.inputs.drain(..) {
            if let Err(error) = input.wipe() {
                log::line(Level::Error, id, format_args!("a start payload was not wiped: {error}"));
                failed = true;
            }
        }
        let mut receipt = std::mem::take(&mut self.rotated.wiped);
        let deadline = Instant::now() + LEASE_PATIENCE;
        self.volumes.retain(|volume| match wipe_by(volume, deadline, &mut receipt) {
            Ok(()) => false,
            Err(error) => {
                log::line(Level::Error, id, format_args!("the secret files were not wiped: {error}"));
                failed = true;
                true
            }
        });
        if failed { Err(()) } else { Ok(receipt.record(self.by, now())) }
    }

    /// Ends the container for good, up to its exit record. That is written even when a step before it failed; what failed is
    /// in the log and in the record's missing receipt. `last` is what comes when no secret is left and before the end is told.
    /// Tells whether the record was written: then the end may be told. [`Self::leave`] is to follow either way.
    pub(crate) fn complete(
        &mut self,
        host: &Host,
        container: ContainerRecord,
        outcome: Outcome,
        last: impl FnOnce(),
    ) -> Recorded {
        let id = container.plan.id.to_string();
        let ended_at = outcome.ended_at.unwrap_or_else(now);
        // Before the cgroup goes.
        let usage = container.started_at.and_then(|_| host.hierarchies.usage(&self.cgroup));
        let reported = usage.as_ref().map(|usage| usage.memory.oom_kills);
        let oom_kills = reported.unwrap_or_else(|| host.hierarchies.oom_kills(&self.cgroup));
        let oom_killed = oom_kills > self.rotated.helpers_killed;
        let usage = usage.map(|usage| Usage { at: ended_at.0, network: outcome.network, log: outcome.log, ..usage });
        // Files that nobody could reach any more went with their last holder: there is no receipt for that.
        let had_files = |prepared: &Prepared| !prepared.mounts.is_empty();
        let had_files = !container.plan.files.is_empty()
            || container.plan.has_hidden_secrets()
            || container.prepared.as_ref().is_some_and(had_files);
        let out_of_reach = self.volumes.is_empty() && had_files;
        let wipe = self.wipe(&id).ok().filter(|_| !out_of_reach);
        if let Err(error) = host.hierarchies.kill_all(&self.cgroup, PATIENCE) {
            log::line(Level::Error, &id, format_args!("{error}"));
        }
        // Its address was given out by a plugin, its ports are the host's: who is told of the end may ask for them again.
        if leaves_a_network(&container.plan) {
            self.detach(host, &id);
        }
        let finish = now().since(ended_at);
        last();
        let mut container = container;
        container.steps.iter_mut().for_each(StepRecord::lose);
        container.restarts.iter_mut().for_each(|restarts| restarts.next_at = None);
        let unhealthy = container.unhealthy.clone();
        let unhealthy = unhealthy.map(|message| Failure { kind: FailureKind::Unhealthy, message, errno: 0 });
        let failure = outcome.failure.or(unhealthy).or_else(|| lone_failure(&container, outcome.exit?, oom_killed));
        let record = ExitRecord {
            container,
            exit: outcome.exit,
            oom_killed,
            failure,
            timings: Timings { finish, ..outcome.timings },
            wipe,
            outputs: outcome.outputs,
            output_incomplete: outcome.output_incomplete,
            usage,
            termination_message: outcome.termination_message,
            finished_at: now(),
        };
        self.record(&id, Box::new(record))
    }

    fn record(&self, id: &str, record: Box<ExitRecord>) -> Recorded {
        match self.dirs.write_exit(&record) {
            Ok(()) => Recorded::Yes,
            Err(error) => {
                log::line(Level::Error, id, format_args!("the exit record was not written: {error}"));
                Recorded::No(record)
            }
        }
    }

    /// Removes everything, with no record: the container never was.
    pub(crate) fn discard(&mut self, host: &Host, id: &str) {
        let _ = self.wipe(id); // logged
        self.detach(host, id);
        self.remove_leftovers(host, id);
        for result in [self.dirs.remove_state(), self.dirs.remove_run()] {
            if let Err(error) = result {
                log::line(Level::Error, id, format_args!("a directory was not removed: {error}"));
            }
        }
    }

    /// Removes what a container that has ended has left. Where its exit record was not written, there may be room for it
    /// then; without it the run directory stays, and whoever follows tries again. Tells whether it is written.
    pub(crate) fn leave(&mut self, host: &Host, id: &str, recorded: Recorded) -> Recorded {
        self.views.clear();
        if matches!(recorded, Recorded::Yes)
            && let Err(error) = self.dirs.give_back_room()
        {
            log::line(Level::Warning, id, format_args!("room for the exit record was not given back: {error}"));
        }
        self.remove_leftovers(host, id);
        let recorded = match recorded {
            Recorded::Yes => Recorded::Yes,
            Recorded::No(record) => self.record(id, record),
        };
        if matches!(recorded, Recorded::Yes)
            && let Err(error) = self.dirs.remove_run()
        {
            log::line(Level::Error, id, format_args!("the run directory was not removed: {error}"));
        }
        recorded
    }

    /// Takes the container off its network. What a plugin does not take back now, a later launcher asks it for again.
    pub(crate) fn detach(&self, host: &Host, id: &str) {
        let patience = if self.by == SHIM { Patience::whole(host) } else { Patience::brief(host) };
        if let Err(why) = id.parse().map_or(Ok(()), |id| network::detach(host, &id, patience)) {
            log::line(Level::Error, id, format_args!("not detached from its network: {why}"));
        }
    }

    fn remove_leftovers(&mut self, host: &Host, id: &str) {
        if let Err(error) = host.hierarchies.remove(&self.cgroup, PATIENCE) {
            log::line(Level::Error, id, format_args!("{error}"));
        }
        if let Err(error) = host.hierarchies.remove_workers(&self.cgroup, PATIENCE) {
            log::line(Level::Error, id, format_args!("{error}"));
        }
        if let Some(Err(error)) = host.cpusets.as_ref().map(|cpusets| cpusets.remove(&self.cgroup, PATIENCE)) {
            log::line(Level::Error, id, format_args!("{error}"));
        }
        if let Err(error) = self.dirs.remove_layers() {
            log::line(Level::Error, id, format_args!("the writable layer was not removed: {error}"));
        }
    }
}

/// Tells whether plugins of CNI have to take something back at a container's end.
fn leaves_a_network(plan: &Plan) -> bool {
    plan.network == Network::Cni && plan.makes_network()
}

/// Wipes a volume, again and again where somebody has a lease on one of its files.
fn wipe_by(volume: &Volume, deadline: Instant, receipt: &mut Receipt) -> io::Result<()> {
    loop {
        match volume.wipe_onto(receipt) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {}
            wiped => return wiped,
        }
        std::thread::sleep(LEASE_LOOK);
    }
}

/// The time.
pub(crate) fn now() -> Timestamp {
    std::time::SystemTime::now().into()
}

/// Returns the failure of a container with a single `run`, by its exit status. A container that a client has stopped has none.
fn lone_failure(container: &ContainerRecord, exit: Exit, out_of_memory: bool) -> Option<Failure> {
    if container.stopped || container.plan.actions.is_some() {
        return None;
    }
    let message = executor_core::steps::exit_failure(&container.plan.main()?.log_source, exit, out_of_memory)?;
    Some(Failure { kind: FailureKind::Action, message, errno: 0 })
}
