//! Nothing of a secret is left one second after its container's end, however that ended: not in executord, its launcher
//! or a shim, not behind a descriptor that somebody kept, not on disk, not in a log. For files, secret variables, secret
//! arguments, files before and after a rotation, the runtime token; 64 bytes, 4 KiB, 64 KiB, and the largest that the kind
//! can have.
//!
//! The control is the same search against binaries that wipe nothing: it finds every kind.

#![allow(clippy::unwrap_used)] // where a test cannot go on, it fails

use executor_proto::v1::{Container, failure};
use executor_residue::{Place, Report};
use integration::api::{ending, exit, pid};
use integration::daemon::{Daemon, Setup, ended, kill};
use integration::request::Words;
use integration::residue::{Batch, Keeper, settled};
use integration::wait;

const USR1: u32 = 10;
const USR2: u32 = 12;
const HUP: u32 = 1;

/// A container that runs, has printed its secrets, and whose files somebody keeps open.
struct Running {
    batch: Batch,
    container: Container,
    keepers: Vec<Keeper>,
}

impl Running {
    fn start(daemon: &Daemon, id: &str) -> Self {
        let mut batch = Batch::new(id);
        let container = daemon.api.started(batch.request());
        batch.is_up(daemon, &container);
        let keepers = vec![Keeper::of(daemon, &container)];
        Self { batch, container, keepers }
    }

    /// Replaces all files; somebody keeps the new ones open, too.
    fn rotate(&mut self, daemon: &Daemon) {
        self.batch.rotate(daemon);
        self.keepers.push(Keeper::of(daemon, &self.container));
        is_found(&self.batch.search_process(self.keepers[1].pid()), &["new file", "variable", "argument"]);
    }

    /// The search finds everything where it is meant to be.
    fn is_found(&self) {
        is_found(&self.batch.search_process(self.keepers[0].pid()), &["file", "variable", "argument"]);
        let init = self.batch.search_process(pid(&self.container) as u32);
        let found = labels(&init);
        assert!(["variable of 64", "argument of 4096"].iter().all(|label| found.contains(label)), "{init}");
    }

    fn search(&self, daemon: &Daemon) -> Report {
        let keepers: Vec<u32> = self.keepers.iter().map(Keeper::pid).collect();
        self.batch.search(daemon, &keepers)
    }
}

fn labels(report: &Report) -> Vec<&str> {
    report.hits.iter().map(|hit| hit.label.as_str()).collect()
}

/// The token and these kinds in every size.
fn is_found(report: &Report, kinds: &[&str]) {
    let found = labels(report);
    for kind in kinds {
        let whole = report.hits.iter().filter(|hit| hit.label.starts_with(&format!("{kind} of ")));
        assert_eq!(whole.count(), 4, "{kind} is not in {found:?}");
    }
    assert!(found.contains(&"token"), "{found:?}");
}

/// Nothing is found, and everything was searched.
fn is_clean(report: &Report, when: &str) {
    assert!(!report.found(), "{when}:\n{report}");
    assert_eq!(report.unsearched, [], "{when}");
    assert!(report.processes >= 1 && report.files > 3, "{when}: {report:?}");
}

/// A container that is there, its files replaced or not, is brought to its end; then nothing is left.
fn ends(daemon: &mut Daemon, name: &str, mut end: impl FnMut(&mut Daemon, &Running)) {
    for rotated in [false, true] {
        let id = format!("{name}-{rotated}");
        let mut running = Running::start(daemon, &id);
        running.is_found();
        if rotated {
            running.rotate(daemon);
        }
        end(daemon, &running);
        settled(daemon, &id);
        is_clean(&running.search(daemon), &id);
        let log = daemon.api.output(&id).text();
        assert!(log.contains("residue-up") && log.contains("[REDACTED:"), "{id}: the control of the log");
    }
}

fn wait_for(daemon: &Daemon, running: &Running) -> Container {
    daemon.api.wait(&running.batch.id).unwrap()
}

#[test]
fn after_success() {
    ends(&mut Daemon::start(), "success", |daemon, running| {
        daemon.api.signal(&running.batch.id, USR1).unwrap();
        assert_eq!(exit(&wait_for(daemon, running)), Ok(0));
    });
}

#[test]
fn after_failure() {
    ends(&mut Daemon::start(), "failure", |daemon, running| {
        daemon.api.signal(&running.batch.id, USR2).unwrap();
        assert_eq!(exit(&wait_for(daemon, running)), Ok(3));
    });
}

#[test]
fn after_a_program_that_cannot_be_executed() {
    let daemon = Daemon::start();
    let batch = Batch::new("exec");
    let container = daemon.api.ran(batch.asking_for("/nope"));
    assert_eq!(ending(&container).failure.as_ref().unwrap().kind(), failure::Kind::Exec);
    settled(&daemon, "exec");
    is_clean(&batch.search(&daemon, &[]), "exec");
    // And one that is refused when its secrets were there already.
    let refused = Batch::new("refused");
    daemon.api.run(refused.request().user("nobodyx")).unwrap_err();
    std::thread::sleep(std::time::Duration::from_secs(1)); // it is what is claimed
    is_clean(&refused.search(&daemon, &[]), "refused");
}

#[test]
fn after_the_memory_limit() {
    ends(&mut Daemon::start(), "oom", |daemon, running| {
        daemon.api.signal(&running.batch.id, HUP).unwrap();
        let container = wait_for(daemon, running);
        assert!(ending(&container).oom_killed, "{container:#?}");
    });
}

#[test]
fn after_a_stop() {
    ends(&mut Daemon::start(), "stop", |daemon, running| {
        daemon.api.stop(&running.batch.id, Some(0)).unwrap();
        assert!(ending(&wait_for(daemon, running)).stopped);
    });
}

#[test]
fn after_a_shim_was_killed() {
    ends(&mut Daemon::start(), "shim", |daemon, running| {
        kill(daemon.record(&running.batch.id).shim.pid, 9);
        let container = wait_for(daemon, running);
        let result = ending(&container);
        assert_eq!(result.failure.as_ref().unwrap().kind(), failure::Kind::SupervisorLost);
        assert_eq!(result.wipe.as_ref().unwrap().wiped_by, "launcher");
    });
}

#[test]
fn after_executord_was_killed() {
    ends(&mut Daemon::start(), "daemon", |daemon, running| {
        daemon.kill();
        // The container ends while there is no daemon.
        kill(pid(&running.container), USR1 as i32);
        wait::until("it has ended", || ended(pid(&running.container)).then_some(()));
        daemon.start_again();
        assert_eq!(exit(&wait_for(daemon, running)), Ok(0));
    });
}

#[test]
fn after_the_launcher_was_killed() {
    ends(&mut Daemon::start(), "launcher", |daemon, running| {
        let launcher = daemon.launcher().unwrap();
        kill(launcher, 9);
        wait::until("the launcher is gone", || ended(launcher).then_some(()));
        daemon.api.signal(&running.batch.id, USR1).unwrap();
        assert_eq!(exit(&wait_for(daemon, running)), Ok(0));
        settled(daemon, &running.batch.id);
        is_clean(&running.search(daemon), "without a launcher");
        // The next one has nothing to add.
        daemon.terminate();
        daemon.start_again();
    });
}

#[test]
fn after_all_were_killed() {
    ends(&mut Daemon::start(), "all", |daemon, running| {
        let (launcher, shim) = (daemon.launcher().unwrap(), daemon.record(&running.batch.id).shim.pid);
        daemon.kill();
        for pid in [launcher, shim] {
            kill(pid, 9);
            wait::until("it is gone", || ended(pid).then_some(()));
        }
        daemon.start_again();
        let container = wait_for(daemon, running);
        assert_eq!(ending(&container).failure.as_ref().unwrap().kind(), failure::Kind::SupervisorLost);
    });
}

/// The control: with an allocator that overwrites nothing and a wipe that wipes nothing the very same search finds every
/// kind behind the descriptors that were kept, and the daemon's memory full of what passed through it.
#[test]
fn without_the_wipe_residue_is_found() {
    let daemon = Setup::default().control().start();
    assert!(daemon.api.info().version.contains("RESIDUE CONTROL"), "{:?}", daemon.api.info());
    let mut running = Running::start(&daemon, "control");
    running.is_found();
    running.rotate(&daemon);
    daemon.api.signal("control", USR1).unwrap();
    settled(&daemon, "control");
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
    // Which of them the memory still has depends on what was allocated since.
    let memory = found(|place| matches!(place, Place::Memory { name, .. } if name == "executord"));
    assert!(memory.len() >= 3, "{memory:?}");
    // What the control is not: the processes of the daemon are the same, and the log is masked all the same.
    assert!(found(|place| matches!(place, Place::File(_))).is_empty(), "{report}");
}
