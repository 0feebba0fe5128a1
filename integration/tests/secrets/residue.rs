//! One second after a container's exit, no part of its secrets is left, for every kind of exit. The search covers
//! executord, its launcher, shims, descriptors that other processes keep open, the disk, and logs. The secrets are
//! files, secret variables, secret arguments, files before and after a rotation, and the runtime token. Their sizes are
//! 64 bytes, 4 KiB, 64 KiB, and nearly the maximum of the kind.
//!
//! As a control, the same search finds every kind with binaries that wipe nothing.

mod clients;
mod memory;
mod refused;

use std::collections::BTreeSet;

use executor_proto::v1::{AttachRequest, AttachStart, Container, RunRequest, State, attach_request, failure};
use executor_residue::{Place, Report};
use integration::api::{ending, exit, pid};
use integration::daemon::{Daemon, Setup, has_ended, kill};
use integration::http2::{DATA, HEADERS, RawClient, fields, message};
use integration::request::RequestBuilder as _;
use integration::residue::{ContainerSecrets, FileHolder, wait_until_settled};
use integration::wait;
use prost::Message as _;

const USR1: u32 = 10;
const USR2: u32 = 12;
const HUP: u32 = 1;

/// A running container that has printed its secrets, and processes that keep its files open.
struct Running {
    batch: ContainerSecrets,
    container: Container,
    keepers: Vec<FileHolder>,
}

impl Running {
    fn start(daemon: &Daemon, id: &str) -> Self {
        Self::start_with(daemon, ContainerSecrets::new(id))
    }

    fn start_with(daemon: &Daemon, batch: ContainerSecrets) -> Self {
        let request = batch.request();
        Self::from_request(daemon, batch, request)
    }

    fn from_request(daemon: &Daemon, mut batch: ContainerSecrets, request: RunRequest) -> Self {
        daemon.api.started(request);
        let container = batch.wait_until_up(daemon);
        let keepers = vec![FileHolder::new(daemon, &container)];
        Self { batch, container, keepers }
    }

    /// Replaces all files. Another process opens the new files.
    fn rotate(&mut self, daemon: &Daemon) {
        self.batch.rotate(daemon);
        self.keepers.push(FileHolder::new(daemon, &self.container));
        is_found(&self.batch.search_process(self.keepers[1].pid()), &["new file", "variable", "argument"]);
    }

    /// Checks that secrets written by the process itself are found in the files that other processes keep open.
    fn has_written(&self) {
        is_found(&self.batch.search_process(self.keepers[0].pid()), &["written"]);
    }

    /// Checks that the search finds every secret at every location where it must be.
    fn is_found(&self) {
        let kept: &[&str] = if self.batch.is_step() { &["file"] } else { &["file", "variable", "argument"] };
        is_found(&self.batch.search_process(self.keepers[0].pid()), kept);
        let init = self.batch.search_process(pid(&self.container) as u32);
        let found = labels(&init);
        assert!(["variable of 64", "argument of 4096"].iter().all(|label| found.contains(label)), "{init}");
    }

    fn search(&self, daemon: &Daemon) -> Report {
        let keepers: Vec<u32> = self.keepers.iter().map(FileHolder::pid).collect();
        self.batch.search(daemon, &keepers)
    }
}

fn labels(report: &Report) -> Vec<&str> {
    report.hits.iter().map(|hit| hit.label.as_str()).collect()
}

/// Checks that the report contains the token and these kinds of secrets in every size.
fn is_found(report: &Report, kinds: &[&str]) {
    let found = labels(report);
    for kind in kinds {
        // A file that the process may change is found twice: its original content is kept under a second name.
        let sizes: BTreeSet<&&str> = found.iter().filter(|label| label.starts_with(&format!("{kind} of "))).collect();
        assert_eq!(sizes.len(), 4, "{kind} is not in {found:?}");
    }
    assert!(found.contains(&"token"), "{found:?}");
}

/// Checks that nothing was found, and that everything was searched.
fn is_clean(report: &Report, when: &str) {
    assert!(!report.found(), "{when}:\n{report}");
    assert_eq!(report.unsearched, [], "{when}");
    assert!(report.processes >= 1 && report.files > 3, "{when}: {report:?}");
}

/// Terminates a running container, then checks that nothing is left. There are five variants: unchanged files, rotated
/// files, files changed by the process, files of a step, and a restarted process.
fn nothing_is_left_after(daemon: &mut Daemon, name: &str, mut end: impl FnMut(&mut Daemon, &Running)) {
    for kind in ["given", "rotated", "written", "step", "restart"] {
        let id = format!("{name}-{kind}");
        let batch = match kind {
            "written" => ContainerSecrets::writing(&id),
            "step" => ContainerSecrets::from_step(&id),
            "restart" => ContainerSecrets::restarted(&id),
            _ => ContainerSecrets::new(&id),
        };
        let mut running = Running::start_with(daemon, batch);
        running.is_found();
        match kind {
            "rotated" => running.rotate(daemon),
            "written" => running.has_written(),
            _ => {}
        }
        end(daemon, &running);
        wait_until_settled(daemon, &id);
        is_clean(&running.search(daemon), &id);
        let log = daemon.api.output(&id).text();
        assert!(
            log.contains("residue-up") && log.contains("[REDACTED:"),
            "{id}: control: the log contains the output, with masked secrets"
        );
    }
}

fn wait_for(daemon: &Daemon, running: &Running) -> Container {
    daemon.api.wait(&running.batch.id).unwrap()
}

#[test]
fn after_success() {
    nothing_is_left_after(&mut Daemon::start(), "success", |daemon, running| {
        daemon.api.signal(&running.batch.id, USR1).unwrap();
        assert_eq!(exit(&wait_for(daemon, running)), Ok(0));
    });
}

/// If a reader never reads, an exited container is not completed, but none of its secrets is left. As a control, the
/// container is completed when the reader disconnects.
#[test]
fn nothing_left_for_unread_output() {
    let daemon = Daemon::start();
    let batch = ContainerSecrets::new("unread");
    // The output is larger than all queues to the reader, so the process waits for the reader.
    let request = batch.request().action(|run| run.args[1] = run.args[1].replace("'exit 0'", "'seq 4000000; exit 0'"));
    let running = Running::from_request(&daemon, batch, request);
    running.is_found();
    let mut reader = RawClient::with_window(&daemon.socket(), 0).unwrap();
    let attach = AttachStart { id: "unread".into(), lossless: true, ..AttachStart::default() };
    let attach = AttachRequest { part: Some(attach_request::Part::Start(attach)) };
    let stream = reader.open(&fields("/executor.v1.Executor/Attach"), false);
    reader.frame(DATA, 0, stream, &message(&attach.encode_to_vec()));
    reader.until(|kind, _, on, _| kind == HEADERS && on == stream);
    daemon.api.signal("unread", USR1).unwrap();
    daemon.api.follow("unread").until(|entry| entry.data == b"1000\n");
    daemon.api.signal("unread", 9).unwrap();
    wait::until("the process has exited", || has_ended(pid(&running.container)).then_some(()));
    wait::until_ok("no secret is left", || {
        let report = running.search(&daemon);
        if report.found() { Err(report) } else { Ok(()) }
    });
    assert_eq!(daemon.api.get("unread").unwrap().state(), State::Wiping, "the output of the container is unread");
    drop(reader);
    assert_eq!(exit(&daemon.api.wait("unread").unwrap()), Err(9));
    wait_until_settled(&daemon, "unread");
    is_clean(&running.search(&daemon), "unread");
}

#[test]
fn after_failure() {
    nothing_is_left_after(&mut Daemon::start(), "failure", |daemon, running| {
        daemon.api.signal(&running.batch.id, USR2).unwrap();
        assert_eq!(exit(&wait_for(daemon, running)), Ok(3));
    });
}

#[test]
fn after_a_program_that_cannot_be_executed() {
    let daemon = Daemon::start();
    let batch = ContainerSecrets::new("exec");
    let container = daemon.api.run_to_end(batch.asking_for("/nope"));
    assert_eq!(ending(&container).failure.as_ref().unwrap().kind(), failure::Kind::Exec);
    wait_until_settled(&daemon, "exec");
    is_clean(&batch.search(&daemon, &[]), "exec");
    // A request is refused after its secrets were received.
    let refused = ContainerSecrets::new("refused");
    daemon.api.run(refused.request().user("nobodyx")).unwrap_err();
    // docs/security-claims.md claims that nothing is left after one second.
    std::thread::sleep(std::time::Duration::from_secs(1));
    is_clean(&refused.search(&daemon, &[]), "refused");
}

#[test]
fn after_the_memory_limit() {
    nothing_is_left_after(&mut Daemon::start(), "oom", |daemon, running| {
        daemon.api.signal(&running.batch.id, HUP).unwrap();
        let container = wait_for(daemon, running);
        assert!(ending(&container).oom_killed, "{container:#?}");
    });
}

#[test]
fn after_a_stop() {
    nothing_is_left_after(&mut Daemon::start(), "stop", |daemon, running| {
        daemon.api.stop(&running.batch.id, Some(0)).unwrap();
        assert!(ending(&wait_for(daemon, running)).stopped);
    });
}

#[test]
fn after_a_shim_was_killed() {
    nothing_is_left_after(&mut Daemon::start(), "shim", |daemon, running| {
        kill(daemon.record(&running.batch.id).shim.pid, 9);
        let container = wait_for(daemon, running);
        let result = ending(&container);
        assert_eq!(result.failure.as_ref().unwrap().kind(), failure::Kind::SupervisorLost);
        assert_eq!(result.wipe.as_ref().unwrap().wiped_by, "launcher");
    });
}

#[test]
fn after_executord_was_killed() {
    nothing_is_left_after(&mut Daemon::start(), "daemon", |daemon, running| {
        daemon.kill();
        // The container exits while no daemon is running.
        kill(pid(&running.container), USR1 as i32);
        wait::until("the process has exited", || has_ended(pid(&running.container)).then_some(()));
        daemon.start_again();
        assert_eq!(exit(&wait_for(daemon, running)), Ok(0));
    });
}

#[test]
fn after_the_launcher_was_killed() {
    nothing_is_left_after(&mut Daemon::start(), "launcher", |daemon, running| {
        let launcher = daemon.launcher().unwrap();
        kill(launcher, 9);
        wait::until("the launcher has exited", || has_ended(launcher).then_some(()));
        daemon.api.signal(&running.batch.id, USR1).unwrap();
        assert_eq!(exit(&wait_for(daemon, running)), Ok(0));
        wait_until_settled(daemon, &running.batch.id);
        is_clean(&running.search(daemon), "without a launcher");
        // The next launcher finds nothing left to wipe.
        daemon.terminate();
        daemon.start_again();
    });
}

#[test]
fn after_all_were_killed() {
    nothing_is_left_after(&mut Daemon::start(), "all", |daemon, running| {
        let (launcher, shim) = (daemon.launcher().unwrap(), daemon.record(&running.batch.id).shim.pid);
        daemon.kill();
        for pid in [launcher, shim] {
            kill(pid, 9);
            wait::until("the killed process has exited", || has_ended(pid).then_some(()));
        }
        daemon.start_again();
        let container = wait_for(daemon, running);
        assert_eq!(ending(&container).failure.as_ref().unwrap().kind(), failure::Kind::SupervisorLost);
    });
}

/// As a control, the search finds every kind of secret in the files that other processes keep open and in the daemon's
/// memory, with an allocator that overwrites nothing and a wipe that does nothing.
#[test]
fn without_the_wipe_residue_is_found() {
    let daemon = Setup::default().control().start();
    assert!(daemon.api.info().version.contains("RESIDUE CONTROL"), "{:?}", daemon.api.info());
    let mut running = Running::start(&daemon, "control");
    running.is_found();
    running.rotate(&daemon);
    daemon.api.signal("control", USR1).unwrap();
    wait_until_settled(&daemon, "control");
    let report = running.search(&daemon);
    let found = |place: fn(&Place) -> bool| -> Vec<&str> {
        report.hits.iter().filter(|hit| place(&hit.place)).map(|hit| hit.label.as_str()).collect()
    };
    let kept = found(|place| matches!(place, Place::Descriptor { name, .. } if name == "sleep"));
    for kind in ["file", "new file", "variable", "argument"] {
        for size in [64, 4096, 65_536] {
            assert!(kept.contains(&&*format!("{kind} of {size}")), "{kind} of {size} is not in {kept:?}");
        }
    }
    assert!(kept.contains(&"token"), "{kept:?}");
    let writing = Running::start_with(&daemon, ContainerSecrets::writing("control-written"));
    writing.has_written();
    daemon.api.signal("control-written", USR1).unwrap();
    wait_until_settled(&daemon, "control-written");
    is_found(&writing.search(&daemon), &["written"]);
    // Later allocations overwrite a part of the memory. How many secrets remain depends on the order of the allocations.
    let memory = found(|place| matches!(place, Place::Memory { name, .. } if name == "executord"));
    assert!(!memory.is_empty(), "{report}");
    // The control does not apply to files: they contain no secret, because the log is masked as usual.
    assert!(found(|place| matches!(place, Place::File(_))).is_empty(), "{report}");
}
