//! Cleans up containers whose shim has exited, based on their files and the state of the kernel.
//!
//! If a shim exits unexpectedly, its container's init becomes a child of the launcher, which is a subreaper. The
//! launcher has a handle on the secret files, and the record is on disk. When a launcher starts, it requests handles
//! from all running shims and cleans up the containers whose shims have exited.

mod recover;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use executor_core::ident::ContainerId;
use executor_core::lifecycle::State;
use executor_core::protocol::{Share, ShimCall, ShimReport, ShimRequest};
use executor_core::record::{ContainerRecord, Exit, Failure, FailureKind, OutputsRecord, Timings, VolumeKind};
use executor_secrets::volume::Volume;
use executor_sys::memfile::MemFile;
use executor_sys::process;
use executor_sys::ready::readable_by;
use executor_sys::seqpacket::Seqpacket;
use executor_sys::{identity, process::pidfd};
use prost::Message;

use crate::dirs::{Dirs, finish_removals};
use crate::files::names;
use crate::finish::{ExitRecorded, ProcessOutcome, Remains, RotationResults, now};
use crate::host::Host;
use crate::log::{self, Level};
use crate::orphans;
use crate::shim;
use crate::shim_handle::ShimHandle;

/// Time limit for the kernel to terminate killed processes, for all processes together.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between checks for exited children while the launcher waits.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Sequence number of the request for a shim's handles.
const SHARE: u64 = 1;
/// Time limit for a new shim to write its record and to listen, and the poll interval.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(5);
const LISTEN_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Time limit for shims to reply to a new launcher, for all shims together.
const SHARE_TIMEOUT: Duration = Duration::from_secs(5);

/// Secret files of an exited container that could not be wiped, because a process outside the container may have a
/// lease on a file.
pub(crate) struct Unwiped {
    pub(crate) id: ContainerId,
    pub(crate) volume: Volume,
}

impl Unwiped {
    /// Wipes the remaining files. Returns true if another attempt is needed.
    pub(crate) fn is_still_leased(&self) -> bool {
        match self.volume.wipe() {
            Ok(receipt) => {
                let files = receipt.files();
                if files > 0 {
                    log::line(Level::Info, self.id.as_str(), format_args!("{files} secret files were wiped late"));
                }
                false
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => true,
            Err(error) => {
                log::line(Level::Error, self.id.as_str(), format_args!("secret files were not wiped: {error}"));
                false
            }
        }
    }
}

/// Result of the sweep at the start of a launcher.
#[derive(Default)]
pub(crate) struct Swept {
    /// Running shims of earlier launchers.
    pub(crate) shims: Vec<ShimHandle>,
    /// Secret files whose wipe must be repeated.
    pub(crate) unwiped: Vec<Unwiped>,
}

/// Completes a container whose shim has exited. If the container's exit was already recorded, only removes leftovers.
/// `living` contains the running shims. These shims and their helpers are not killed. Returns files whose wipe must be
/// repeated.
pub(crate) fn finish(
    host: &Host,
    id: &ContainerId,
    volume: Option<Volume>,
    inputs: Vec<MemFile>,
    killed: Option<String>,
    living: &BTreeSet<i32>,
) -> Vec<Unwiped> {
    let mut remains = remains(host, id, volume, inputs);
    finish_remains(host, id, &mut remains, killed, living);
    remains.volumes.into_iter().map(|volume| Unwiped { id: id.clone(), volume }).collect()
}

fn remains(host: &Host, id: &ContainerId, volume: Option<Volume>, inputs: Vec<MemFile>) -> Remains {
    let dirs = Dirs::new(host, id);
    // The cgroup of an activated warm container has a different name.
    let cgroup = dirs.read_record().map(|record| record.cgroup).filter(|cgroup| host.is_cgroup_of(cgroup, id));
    Remains {
        by: "launcher",
        cgroup: cgroup.unwrap_or_else(|| host.cgroup_parent.join(id.as_str())),
        dirs,
        volumes: volume.into_iter().collect(),
        inputs,
        rotated: RotationResults::default(),
        views: Vec::new(),
        on_network: true,
    }
}

/// State of a container without a shim, derived from its files.
#[derive(Debug)]
enum RemainsState {
    /// The exit record exists, and only cleanup is left.
    Ended,
    /// The container was not fully created, or its creation was being undone. All its files are removed.
    Incomplete,
    /// The container's exit must be recorded.
    Lost(Box<ContainerRecord>),
}

impl RemainsState {
    fn from_dirs(dirs: &Dirs) -> Self {
        let record = dirs.read_record();
        match dirs.read_exit() {
            Ok(Some(_)) => return Self::Ended,
            Ok(None) => {}
            Err(error) => {
                let name = dirs.state.file_name().unwrap_or_default().to_string_lossy();
                log::line(Level::Error, &name, format_args!("ignoring the exit record: {error}"));
            }
        }
        // The state directory is created before the first record, and removed first when a container is undone.
        match record.filter(|_| dirs.state.exists()) {
            Some(record) => Self::Lost(Box::new(record)),
            None => Self::Incomplete,
        }
    }
}

fn finish_remains(
    host: &Host,
    id: &ContainerId,
    remains: &mut Remains,
    killed: Option<String>,
    living: &BTreeSet<i32>,
) {
    let record = match RemainsState::from_dirs(&remains.dirs) {
        RemainsState::Ended => {
            orphans::kill_all(&host.run_dir, living);
            let _ = remains.wipe(id.as_str()); // the error is logged
            remains.leave(host, id.as_str(), ExitRecorded::Yes);
            return;
        }
        RemainsState::Incomplete => {
            orphans::kill_all(&host.run_dir, living);
            return remains.discard(host, id.as_str());
        }
        RemainsState::Lost(record) => *record,
    };
    log::line(Level::Warning, id.as_str(), "the shim was lost; cleaning up its container");
    if remains.volumes.is_empty() {
        remains.volumes = recover::volumes(host, &record);
    }
    let outcome = stop_processes(host, &record, remains, killed, living);
    let recorded = remains.complete(host, record, outcome, || {});
    remains.leave(host, id.as_str(), recorded);
}

/// Kills the remaining processes of a container. Returns the known part of the result.
fn stop_processes(
    host: &Host,
    record: &ContainerRecord,
    remains: &Remains,
    killed: Option<String>,
    living: &BTreeSet<i32>,
) -> ProcessOutcome {
    let init = record.prepared.as_ref().map(|prepared| prepared.init.clone());
    let this_boot = identity::boot_id().is_ok_and(|boot| boot == record.shim.boot_id);
    let kept: BTreeSet<i32> = living.iter().copied().chain(init.as_ref().map(|init| init.pid)).collect();
    // If the shim was a child of this process, init is now a child of this process, too. In this case, the exit status
    // of an init that exited before the kill is still available.
    let seen = init.as_ref().and_then(|init| {
        let by_itself = process::has_ended(init.pid).ok()?;
        if !by_itself && identity::alive(init) {
            kill_all(&[init.pid], &kept);
        }
        // Wait only for an init that has exited: a killed init may be blocked in the kernel.
        let ended = process::has_ended(init.pid).ok()?.then(|| process::wait_for(init.pid).ok()).flatten()?;
        by_itself.then_some(ended)
    });
    if let Some(init) = init.filter(identity::alive) {
        process::kill(init.pid);
    }
    kill_all(&host.hierarchies.pids(&remains.cgroup), &kept);
    orphans::kill_all(&host.run_dir, living);
    // Init of a tree of actions runs no program, so its exit status is not the result.
    let seen = seen.filter(|_| record.plan.actions.is_none());
    let exit = record.exit.or(seen.map(Exit::from));
    let ran = may_have_run(record, this_boot);
    let failure = failure(exit.filter(|_| ran), this_boot, killed);
    let outputs = (record.plan.outputs.is_some() && ran).then(|| outputs(record, remains, this_boot));
    let prepare = record.prepared.as_ref().map(|prepared| prepared.at.since(record.begun_at)).unwrap_or_default();
    let run = record.started_at.filter(|_| this_boot).map(|at| now().since(at)).unwrap_or_default();
    let timings = Timings { prepare, run, ..Timings::default() };
    let output_incomplete = log_missing_output(record, &remains.dirs, this_boot);
    ProcessOutcome {
        exit: exit.filter(|_| ran),
        failure,
        timings,
        outputs,
        output_incomplete,
        ended_at: Some(now()),
        ..ProcessOutcome::default()
    }
}

/// Returns the failure of a container whose shim exited unexpectedly. `exit` is the exit of its process, if known.
/// `killed` is the reason for killing the shim, if it was killed.
fn failure(exit: Option<Exit>, this_boot: bool, killed: Option<String>) -> Option<Failure> {
    if exit.is_some() {
        return None;
    }
    let (kind, message) = if this_boot {
        let how = killed.map_or_else(|| "was lost".into(), |why| format!("{why}, and was killed"));
        let message = format!("the shim {how}: the container's processes were killed, and the exit status is unknown");
        (FailureKind::SupervisorLost, message)
    } else {
        (
            FailureKind::HostStopped,
            "the host was restarted before the container completed: the exit status is unknown".into(),
        )
    };
    Some(Failure { kind, message, errno: 0 })
}

/// Returns true if a process of the container may have run. After a reboot only the first record is left. The first
/// record has no start time.
fn may_have_run(record: &ContainerRecord, this_boot: bool) -> bool {
    record.started_at.is_some() || !this_boot
}

/// Returns true if output may be missing in the log, because the shim had not reported that all output was written.
fn may_lack_output(record: &ContainerRecord, this_boot: bool) -> bool {
    let kept = record.plan.processes.iter().any(|process| !process.suppress_log_output);
    kept && may_have_run(record, this_boot) && record.state < State::Wiping
}

/// Writes a message to the log and returns true if output may be missing.
fn log_missing_output(record: &ContainerRecord, dirs: &Dirs, this_boot: bool) -> bool {
    if !may_lack_output(record, this_boot) {
        return false;
    }
    let why = if this_boot { "the shim was lost" } else { "the host was restarted" };
    if let Err(error) = dirs.append_to_log(&format!("the last output may be missing: {why}")) {
        log::line(Level::Warning, record.plan.id.as_str(), format_args!("the log was not written: {error}"));
    }
    true
}

/// Returns the record of captured outputs. If the shim had not captured all outputs, removes partial outputs and
/// returns a failure.
fn outputs(record: &ContainerRecord, remains: &Remains, this_boot: bool) -> OutputsRecord {
    if let Some(list) = remains.dirs.read_outputs() {
        return list.summary();
    }
    if let Err(error) = remains.dirs.remove_outputs() {
        log::line(
            Level::Error,
            record.plan.id.as_str(),
            format_args!("partially captured outputs were not removed: {error}"),
        );
    }
    let who = if this_boot { "the shim was lost" } else { "the host was restarted" };
    OutputsRecord { failure: Some(format!("{who} before the outputs were captured")), ..OutputsRecord::default() }
}

/// Kills processes and waits for their exit, because a shim's helper must not write after the wipe. While waiting,
/// reaps other children, except children in `kept`: the first process of a container exits only after all other
/// processes of its pid namespace are reaped, and steps become children of this process when the step starter exits.
fn kill_all(pids: &[i32], kept: &BTreeSet<i32>) {
    let processes: Vec<_> = pids.iter().filter_map(|pid| Some((pid, pidfd(*pid).ok()?))).collect();
    for (_, process) in &processes {
        let _ = process::pidfd_signal(process.as_fd(), libc::SIGKILL);
    }
    let deadline = Instant::now() + EXIT_TIMEOUT;
    for (pid, process) in &processes {
        while !readable_by(process, deadline.min(Instant::now() + EXIT_POLL_INTERVAL)).unwrap_or(true) {
            if Instant::now() >= deadline {
                // Stop waiting for this process.
                let late = format_args!("process {pid} did not exit within {} s after SIGKILL", EXIT_TIMEOUT.as_secs());
                log::line(Level::Warning, "", late);
                break;
            }
            orphans::reap_exited(kept);
        }
    }
}

/// Handles all leftovers of earlier launchers: cleans up containers without a shim, and returns the running shims.
///
/// # Errors
/// Returns an error if the directories cannot be read.
pub(crate) fn sweep(host: &Host) -> io::Result<Swept> {
    finish_removals(host)?;
    await_records(host)?;
    let Swept { mut shims, mut unwiped } = Swept::default();
    let (mut asked, mut lost) = (Vec::new(), Vec::new());
    for id in ids(&host.containers_run())? {
        match Dirs::new(host, &id).read_record().filter(|record| identity::alive(&record.shim)) {
            Some(record) => match adopt(host, &id, &record) {
                Ok(shim) => asked.push(shim),
                Err(error) => lost.push(not_adopted(id, &error)),
            },
            None => lost.push(id),
        }
    }
    let deadline = Instant::now() + SHARE_TIMEOUT;
    for mut shim in asked {
        match take_handles(host, &mut shim, deadline) {
            Ok(()) => shims.push(shim),
            Err(error) => lost.push(not_adopted(shim.id, &error)),
        }
    }
    let mut living: BTreeSet<i32> = shims.iter().map(|shim| shim.pid).collect();
    // An init of a tree of actions or of a pod also runs the executor's program. Do not kill such an init here: it is
    // killed with its container, and its mounts give access to the secret files.
    living.extend(
        lost.iter()
            .filter_map(|id| Some(Dirs::new(host, id).read_record()?.prepared?.init))
            .filter_map(|init| identity::alive(&init).then_some(init.pid)),
    );
    orphans::kill_all(&host.run_dir, &living);
    for id in lost {
        unwiped.extend(finish(host, &id, None, Vec::new(), None, &living));
    }
    let alive = |id: &ContainerId| shims.iter().any(|shim| shim.id == *id);
    for id in ids(&host.containers_state())?.into_iter().filter(|id| !alive(id)) {
        if !Dirs::new(host, &id).has_exit() && !host.containers_run().join(id.as_str()).exists() {
            unwiped.extend(finish(host, &id, None, Vec::new(), None, &living));
        }
    }
    // Other containers no longer have directories. Detach them from their network, if a plugin failed earlier.
    crate::network::sweep(host, &shims.iter().map(|shim| shim.id.clone()).collect());
    Ok(Swept { shims, unwiped })
}

/// Waits for new shims. Each of them soon writes a record, or exits because its launcher has exited. There is no
/// notification, so this polls.
fn await_records(host: &Host) -> io::Result<()> {
    let deadline = Instant::now() + LISTEN_TIMEOUT;
    loop {
        let records = ids(&host.containers_run())?.into_iter().filter_map(|id| Dirs::new(host, &id).read_record());
        let known = records.map(|record| record.shim.pid).collect();
        if !orphans::has_unknown(shim::NAME, &host.run_dir, &known) || Instant::now() >= deadline {
            return Ok(());
        }
        std::thread::sleep(LISTEN_POLL_INTERVAL);
    }
}

/// Logs that a shim cannot be adopted because it is exiting or blocked. The shim's container is then killed and cleaned
/// up.
fn not_adopted(id: ContainerId, error: &io::Error) -> ContainerId {
    log::line(Level::Warning, id.as_str(), format_args!("the shim cannot be adopted: {error}"));
    id
}

/// Returns the id ranges of containers without a shim whose directories still exist because the containers could not be
/// completed.
///
/// # Errors
/// Returns an error if the directory cannot be read.
pub(crate) fn ranges_left(host: &Host, shims: &[ShimHandle]) -> io::Result<BTreeSet<u32>> {
    let left = ids(&host.containers_run())?.into_iter().filter(|id| !shims.iter().any(|shim| shim.id == *id));
    let records = left.filter_map(|id| Dirs::new(host, &id).read_record());
    Ok(records.flat_map(|record| [record.id_range_start, record.pod_range_start]).flatten().collect())
}

/// Returns the ids of containers that have a directory in `dir`. Ignores other entries.
pub(crate) fn ids(dir: &Path) -> io::Result<Vec<ContainerId>> {
    Ok(names(dir)?.iter().filter_map(|name| name.parse().ok()).collect())
}

/// Connects to a shim. Retries for a while, because a new shim writes its record before it listens.
fn connect(socket: &Path, pidfd: &OwnedFd) -> io::Result<Seqpacket> {
    let deadline = Instant::now() + LISTEN_TIMEOUT;
    loop {
        match Seqpacket::connect(socket) {
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
                    && Instant::now() < deadline =>
            {
                if readable_by(pidfd, Instant::now() + LISTEN_POLL_INTERVAL)? {
                    return Err(error);
                }
            }
            connected => return connected,
        }
    }
}

/// Connects to a shim that an earlier launcher forked, and requests its handles.
fn adopt(host: &Host, id: &ContainerId, record: &ContainerRecord) -> io::Result<ShimHandle> {
    let pidfd = pidfd(record.shim.pid)?;
    if !identity::alive(&record.shim) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let lifeline = connect(&Dirs::new(host, id).run.join("shim.sock"), &pidfd)?;
    lifeline.set_nonblocking(true);
    let ask = ShimRequest { sequence: SHARE, call: Some(ShimCall::Share(Share {})) };
    lifeline.send(&ask.encode_to_vec(), &[])?;
    Ok(ShimHandle {
        id: id.clone(),
        created_at: record.created_at,
        pid: record.shim.pid,
        child: false,
        pidfd,
        lifeline: Some(lifeline),
        volume: None,
        inputs: Vec::new(),
        id_range: record.id_range_start,
        pod_range: record.pod_range_start,
        listening: true,
        done: false,
        watch: None,
        killed: None,
        warm: None,
        offer: None,
    })
}

/// Receives a shim's handles. If a shim listens but does not reply, the shim is still adopted, and its container is
/// completed after the shim's exit.
fn take_handles(host: &Host, shim: &mut ShimHandle, deadline: Instant) -> io::Result<()> {
    let kind = if host.noswap { VolumeKind::TmpfsNoswap } else { VolumeKind::Ramfs };
    let mut buffer = [0; 4096];
    while let Some(lifeline) = &shim.lifeline {
        let (length, fds) = match lifeline.recv_by(&mut buffer, deadline) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                let words = format_args!("the shim did not respond within {} s", SHARE_TIMEOUT.as_secs());
                log::line(Level::Error, shim.id.as_str(), words);
                return Ok(());
            }
            received => received?.ok_or(io::ErrorKind::UnexpectedEof)?,
        };
        let report = ShimReport::decode(&buffer[..length]).map_err(io::Error::other)?;
        let answers = report.sequence == SHARE;
        shim.take(report, fds, kind);
        if answers {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use executor_core::ident::ProcessIdentity;
    use executor_core::record::ExitRecord;
    use executor_core::time::Timestamp;
    use executor_core::validate::{Draft, Policy, validate};

    use super::*;

    fn record(state: State, started: bool) -> ContainerRecord {
        let draft = Draft { id: "c1", path: "/bin/true", ..Draft::default() };
        ContainerRecord {
            state,
            started_at: started.then_some(Timestamp(3)),
            ..ContainerRecord::first(
                validate(&draft, &Policy::default()).expect("a plan"),
                (Timestamp(1), Timestamp(2)),
                ProcessIdentity { pid: 1, start_time: 1, boot_id: String::new() },
                "c1".into(),
            )
        }
    }

    fn ended() -> ExitRecord {
        ExitRecord {
            container: record(State::Completed, true),
            exit: Some(Exit::Code(0)),
            oom_killed: false,
            failure: None,
            timings: Timings::default(),
            wipe: None,
            outputs: None,
            output_incomplete: false,
            usage: None,
            termination_message: String::new(),
            finished_at: Timestamp(4),
        }
    }

    #[test]
    fn lost_container_failure_names_known_cause() {
        let hung = || Some("has not responded to a ping for 90 s".to_owned());
        let lost = "the shim was lost: the container's processes were killed, and the exit status is unknown";
        let killed = "the shim has not responded to a ping for 90 s, and was killed: the container's processes were \
                      killed, and the exit status is unknown";
        let stopped = "the host was restarted before the container completed: the exit status is unknown";
        let cases = [
            (Some(Exit::Code(0)), true, None, None),
            (Some(Exit::Signal(9)), false, hung(), None),
            (None, true, None, Some((FailureKind::SupervisorLost, lost))),
            (None, true, hung(), Some((FailureKind::SupervisorLost, killed))),
            (None, false, None, Some((FailureKind::HostStopped, stopped))),
            (None, false, hung(), Some((FailureKind::HostStopped, stopped))),
        ];
        for (exit, this_boot, killed, expected) in cases {
            let reported = failure(exit, this_boot, killed).map(|failure| (failure.kind, failure.message));
            assert_eq!(reported, expected.map(|(kind, message)| (kind, message.to_owned())), "{exit:?} {this_boot}");
        }
    }

    #[test]
    fn possibly_missing_output_depends_on_state() {
        for (state, started, this_boot, missing) in [
            (State::Created, false, true, false),
            (State::Created, false, false, true), // the first record, after a reboot
            (State::Running, true, true, true),
            (State::Stopping, true, true, true),
            (State::Wiping, true, true, false),
            (State::Completed, true, true, false),
        ] {
            assert_eq!(may_lack_output(&record(state, started), this_boot), missing, "{state:?}");
        }
        let mut silent = record(State::Running, true);
        silent.plan.processes[0].suppress_log_output = true;
        assert!(!may_lack_output(&silent, true));
    }

    /// The state of a container is recognized from each set of files that a killed shim or launcher can leave.
    #[test]
    fn container_without_shim_is_classified_by_files() {
        let home = tempfile::tempdir().expect("a directory");
        let dirs = Dirs::in_home(home.path());
        let found = || match RemainsState::from_dirs(&dirs) {
            RemainsState::Ended => "ended",
            RemainsState::Incomplete => "incomplete",
            RemainsState::Lost(_) => "lost",
        };
        let write = |path: &Path, json: &[u8]| fs::write(path, json).expect("write");
        let json = serde_json::to_vec(&record(State::Running, true)).expect("JSON");
        let exit = ended();
        assert_eq!(found(), "incomplete", "no directory");
        fs::create_dir(&dirs.run).expect("mkdir");
        assert_eq!(found(), "incomplete", "no state directory");
        write(&dirs.run.join("container.json"), &json);
        assert_eq!(found(), "incomplete", "being undone");
        fs::create_dir(&dirs.state).expect("mkdir");
        assert_eq!(found(), "lost");
        fs::remove_file(dirs.run.join("container.json")).expect("unlink");
        assert_eq!(found(), "incomplete", "no record");
        write(&dirs.state.join("container.json"), &json);
        assert_eq!(found(), "lost", "by the record in its state directory: the machine was stopped");
        let whole = serde_json::to_vec(&exit).expect("JSON");
        let mut holed = whole.clone();
        holed[40..].fill(0);
        // The record is not synced, so a power failure can leave these contents.
        for torn in [&b""[..], &whole[..whole.len() / 2], &vec![0; whole.len()], &holed] {
            write(&dirs.state.join("exit.json"), torn);
            assert_eq!(found(), "lost", "a part of an exit record does not count");
        }
        write(&dirs.state.join("exit.json"), &whole);
        assert_eq!(found(), "ended");
    }

    /// The daemon can read an exit record, even if the shim was killed immediately after it created the file.
    #[test]
    #[ignore = "needs root"]
    fn the_daemon_can_read_an_exit_record() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().expect("a directory");
        let dirs = Dirs::in_home(home.path());
        fs::create_dir(&dirs.state).expect("mkdir");
        let ahead = dirs.state.join(".exit.json");
        for kept in [false, true] {
            if kept {
                fs::write(&ahead, "").expect("write");
                fs::set_permissions(&ahead, fs::Permissions::from_mode(0o600)).expect("chmod");
            }
            dirs.write_exit(&ended()).expect("a record");
            let mode = fs::metadata(dirs.state.join("exit.json")).expect("a record").permissions().mode();
            assert_eq!(mode & 0o777, 0o640, "{kept}");
        }
    }
}
