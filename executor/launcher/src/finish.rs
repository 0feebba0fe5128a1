//! Completes a container and removes its resources. The shim or the launcher runs these steps, always in the following
//! order.
//!
//! ```text
//! complete   wipe the secrets, kill leftover processes in the cgroup, free the published ports, detach a pod from its
//!            network, deliver the last output to clients, write the exit record
//!            ── here the exit is reported ──
//! leave      detach any other container from its network, remove the cgroup, the writable layer and, last, the run
//!            directory
//! ```
//! A reported exit is therefore final: all secrets are wiped, no process runs, and the result is written. Only the
//! executor's own files remain. The container exists until its run directory is removed, and a deletion waits for
//! this. Each step can be repeated: the launcher continues after a killed shim, and the next launcher's sweep
//! continues after a killed launcher. A launcher that continues for a shim first kills the container's processes.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use executor_core::plan::{Network, Plan};
use executor_core::record::{
    ContainerRecord, Exit, ExitRecord, Failure, FailureKind, OutputsRecord, PreparedContainer, StepRecord, Timings,
    WipeRecord,
};
use executor_core::time::Timestamp;
use executor_core::usage::{LogUsage, NetworkUsage, Usage};
use executor_secrets::volume::{Receipt, Volume};
use executor_sys::memfile::MemFile;

use crate::dirs::Dirs;
use crate::host::Host;
use crate::log::{self, Level};
use crate::network::{self, PluginTimeouts};

/// Time limit for the kernel to release a cgroup whose processes were killed.
const CGROUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit for killed processes to release their leases on secret files.
const LEASE_TIMEOUT: Duration = Duration::from_secs(1);
/// Poll interval for released leases: the kernel does not report when a lease is released.
const LEASE_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Value of [`Remains::by`] if the container's own shim completes the container.
pub(crate) const SHIM: &str = "shim";

/// Resources of a container whose process has exited or never ran.
pub(crate) struct Remains {
    /// Process that completes the container: `shim` or `launcher`.
    pub by: &'static str,
    pub dirs: Dirs,
    /// Cgroup, relative to each hierarchy's mount.
    pub cgroup: PathBuf,
    /// Handles on the secret files. Each handle can cover a part of the files.
    pub volumes: Vec<Volume>,
    /// Start payloads, until they are wiped.
    pub inputs: Vec<MemFile>,
    /// Results of updates of the container's secret files.
    pub rotated: RotationResults,
    /// Views of the layers of the root file system.
    pub views: Vec<OwnedFd>,
    /// True if the container may be attached to a network.
    pub on_network: bool,
}

/// Results of updates of a container's files, for the exit record.
#[derive(Default)]
pub(crate) struct RotationResults {
    /// Receipt for the wipe of replaced files.
    pub wiped: Receipt,
    /// Number of helpers that the kernel killed because the container's cgroup was out of memory.
    pub helpers_killed: u64,
}

/// Result of the process. Unknown fields are unset.
#[derive(Default)]
pub(crate) struct ProcessOutcome {
    pub exit: Option<Exit>,
    pub failure: Option<Failure>,
    /// Durations of the container's phases except `finish`, which is not known yet.
    pub timings: Timings,
    pub outputs: Option<OutputsRecord>,
    /// True if the last output may be missing in the log.
    pub output_incomplete: bool,
    /// Traffic of the container's network, if it has its own.
    pub network: Option<NetworkUsage>,
    /// Counters of the log.
    pub log: Option<LogUsage>,
    pub termination_message: String,
    /// Exit time of the process.
    pub ended_at: Option<Timestamp>,
}

/// Result of writing the exit record.
pub(crate) enum ExitRecorded {
    /// The exit record is written, so the exit can be reported.
    Yes,
    /// The exit record could not be written.
    No(Box<ExitRecord>),
}

impl Remains {
    /// Returns true if the container can be completed without waiting: it has no process, no published port and no
    /// secret files that the process could write, and it is not a pod on a network.
    pub(crate) fn can_complete_without_waiting(&self, host: &Host, container: &ContainerRecord) -> bool {
        let plan = &container.plan;
        let has_ports = !plan.connectivity.ports.is_empty();
        let detaches_first = plan.is_pod() && self.on_network && leaves_a_network(plan);
        let is_quick = plan.writable_files.is_none() && !has_ports && !detaches_first;
        is_quick && host.hierarchies.pids(&self.cgroup).is_empty()
    }

    /// Overwrites all secrets that this process can access. Secret files that could not be overwritten stay in
    /// `volumes`.
    ///
    /// # Errors
    /// Logs and returns an error if a secret could not be overwritten.
    pub(crate) fn wipe(&mut self, id: &str) -> Result<WipeRecord, ()> {
        let mut failed = false;
        for input in self.inputs.drain(..) {
            if let Err(error) = input.wipe() {
                log::line(Level::Error, id, format_args!("a start payload was not wiped: {error}"));
                failed = true;
            }
        }
        let mut receipt = std::mem::take(&mut self.rotated.wiped);
        let deadline = Instant::now() + LEASE_TIMEOUT;
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

    /// Runs the cleanup up to and including the exit record: wipes the secrets, kills the cgroup, frees the ports. The
    /// record is written even if an earlier step failed. Failures are logged. If the wipe failed, the record has no
    /// receipt. `last` is called after the wipe and before the exit is reported. Report the exit only if this returns
    /// `Yes`. Call [`Self::leave`] afterwards in either case.
    pub(crate) fn complete(
        &mut self,
        host: &Host,
        container: ContainerRecord,
        outcome: ProcessOutcome,
        last: impl FnOnce(),
    ) -> ExitRecorded {
        let id = container.plan.id.to_string();
        let ended_at = outcome.ended_at.unwrap_or_else(now);
        // Read the usage before the cgroup is removed.
        let usage = container.started_at.and_then(|_| host.hierarchies.usage(&self.cgroup));
        let reported = usage.as_ref().map(|usage| usage.memory.oom_kills);
        let oom_kills = reported.unwrap_or_else(|| host.hierarchies.oom_kills(&self.cgroup));
        let oom_killed = oom_kills > self.rotated.helpers_killed;
        let usage = usage.map(|usage| Usage { at: ended_at.0, network: outcome.network, log: outcome.log, ..usage });
        // Files without a handle disappeared with their last user. These files have no receipt.
        let had_files = |prepared: &PreparedContainer| !prepared.mounts.is_empty();
        let had_files = !container.plan.files.is_empty()
            || container.plan.has_hidden_secrets()
            || container.prepared.as_ref().is_some_and(had_files);
        let out_of_reach = self.volumes.is_empty() && had_files;
        let wipe = self.wipe(&id).ok().filter(|_| !out_of_reach);
        if let Err(error) = host.hierarchies.kill_all(&self.cgroup, CGROUP_TIMEOUT) {
            log::line(Level::Error, &id, format_args!("{error}"));
        }
        self.on_network &= leaves_a_network(&container.plan);
        // A client may request the ports again, or a network's last address, as soon as the exit is reported.
        if self.on_network && container.plan.is_pod() {
            self.detach_within(host, &id, PluginTimeouts::single(host));
        } else if self.on_network && !container.plan.connectivity.ports.is_empty() {
            match id.parse().map_or(Ok(false), |id| network::free_ports(host, &id)) {
                Ok(true) => {}
                Ok(false) => self.detach(host, &id),
                Err(why) => log::line(Level::Error, &id, format_args!("the published ports are not free yet: {why}")),
            }
        }
        let finish = now().since(ended_at);
        last();
        let mut container = container;
        container.steps.iter_mut().for_each(StepRecord::lose);
        container.restarts.iter_mut().for_each(|restarts| restarts.next_at = None);
        let unhealthy = container.unhealthy.clone();
        let unhealthy = unhealthy.map(|message| Failure { kind: FailureKind::Unhealthy, message, errno: 0 });
        let failure = outcome.failure.or(unhealthy).or_else(|| run_failure(&container, outcome.exit?, oom_killed));
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

    fn record(&self, id: &str, record: Box<ExitRecord>) -> ExitRecorded {
        match self.dirs.write_exit(&record) {
            Ok(()) => ExitRecorded::Yes,
            Err(error) => {
                log::line(Level::Error, id, format_args!("the exit record was not written: {error}"));
                ExitRecorded::No(record)
            }
        }
    }

    /// Removes the container's resources without writing an exit record, as if the container had never existed.
    pub(crate) fn discard(&mut self, host: &Host, id: &str) {
        let _ = self.wipe(id); // the error is logged
        self.detach(host, id);
        self.remove_leftovers(host, id);
        for result in [self.dirs.remove_state(), self.dirs.remove_run()] {
            if let Err(error) = result {
                log::line(Level::Error, id, format_args!("a directory was not removed: {error}"));
            }
        }
    }

    /// Releases the remaining resources after [`Self::complete`]. If the exit record was not written, tries again,
    /// because the disk may have free space now. If that also fails, the run directory is kept, and the next launcher
    /// tries again. Returns [`ExitRecorded::Yes`] if the record is written.
    pub(crate) fn leave(&mut self, host: &Host, id: &str, recorded: ExitRecorded) -> ExitRecorded {
        self.views.clear();
        if matches!(recorded, ExitRecorded::Yes)
            && let Err(error) = self.dirs.release_exit_space()
        {
            log::line(
                Level::Warning,
                id,
                format_args!("the space reserved for the exit record was not freed: {error}"),
            );
        }
        self.detach(host, id);
        self.remove_leftovers(host, id);
        let recorded = match recorded {
            ExitRecorded::Yes => ExitRecorded::Yes,
            ExitRecorded::No(record) => self.record(id, record),
        };
        if matches!(recorded, ExitRecorded::Yes)
            && let Err(error) = self.dirs.remove_run()
        {
            log::line(Level::Error, id, format_args!("the run directory was not removed: {error}"));
        }
        recorded
    }

    /// Detaches the container from its network. If a plugin fails, the launcher tries again later.
    pub(crate) fn detach(&mut self, host: &Host, id: &str) {
        self.detach_within(host, id, PluginTimeouts::whole(host));
    }

    /// Detaches the container within a time limit. The limit is short if the launcher detaches, because all other
    /// containers wait meanwhile.
    fn detach_within(&mut self, host: &Host, id: &str, timeouts: PluginTimeouts) {
        if !std::mem::take(&mut self.on_network) {
            return;
        }
        let timeouts = if self.by == SHIM { timeouts } else { PluginTimeouts::brief(host) };
        if let Err(why) = id.parse().map_or(Ok(()), |id| network::detach(host, &id, timeouts)) {
            log::line(Level::Error, id, format_args!("the container was not detached from its network: {why}"));
        }
    }

    fn remove_leftovers(&mut self, host: &Host, id: &str) {
        if let Err(error) = host.hierarchies.remove(&self.cgroup, CGROUP_TIMEOUT) {
            log::line(Level::Error, id, format_args!("{error}"));
        }
        if let Err(error) = host.hierarchies.remove_workers(&self.cgroup, CGROUP_TIMEOUT) {
            log::line(Level::Error, id, format_args!("{error}"));
        }
        if let Some(Err(error)) = host.cpusets.as_ref().map(|cpusets| cpusets.remove(&self.cgroup, CGROUP_TIMEOUT)) {
            log::line(Level::Error, id, format_args!("{error}"));
        }
        if host.is_given(&self.cgroup)
            && let Err(error) = host.hierarchies.remove_made_parents(&host.parents(), &self.cgroup)
        {
            log::line(Level::Error, id, format_args!("the parents of the cgroup were not removed: {error}"));
        }
        if let Err(error) = self.dirs.remove_layers() {
            log::line(Level::Error, id, format_args!("the writable layer was not removed: {error}"));
        }
    }
}

/// Returns true if the cleanup of the container must detach it from a network.
fn leaves_a_network(plan: &Plan) -> bool {
    plan.network == Network::Cni && plan.makes_network()
}

/// Wipes a volume, retrying while a process has a lease on one of its files.
fn wipe_by(volume: &Volume, deadline: Instant, receipt: &mut Receipt) -> io::Result<()> {
    loop {
        match volume.wipe_onto(receipt) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {}
            wiped => return wiped,
        }
        std::thread::sleep(LEASE_POLL_INTERVAL);
    }
}

pub(crate) fn now() -> Timestamp {
    std::time::SystemTime::now().into()
}

/// Returns the failure of a container with a single `run`, derived from its exit status. Returns `None` if a client
/// stopped the container.
fn run_failure(container: &ContainerRecord, exit: Exit, out_of_memory: bool) -> Option<Failure> {
    if container.stopped || container.plan.actions.is_some() {
        return None;
    }
    let message = executor_core::steps::exit_failure(&container.plan.main()?.log_source, exit, out_of_memory)?;
    Some(Failure { kind: FailureKind::Action, message, errno: 0 })
}
