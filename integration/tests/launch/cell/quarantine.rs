//! Containers that do not exit or start in time, because a file system does not respond: one container's process is in
//! uninterruptible sleep, and another container cannot be created. The rest of the cell continues to work. As a
//! control, the same file system is used while it responds.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use executor_proto::v1::event::Kind;
use executor_proto::v1::quarantine::Phase;
use executor_proto::v1::volume_mount::Source;
use executor_proto::v1::{Container, NamedVolume, RunRequest, State, UserNamespace, VolumeMount};
use integration::api::exit;
use integration::cli;
use integration::daemon::{Daemon, Setup};
use integration::fuse::{Fuse, Held};
use integration::request::{RequestBuilder, sh};
use integration::{host, metrics, wait};
use tempfile::TempDir;
use tonic::Code;

/// A daemon that offers a FUSE file system of the test as a volume.
///
/// `fuse` is dropped before `daemon`: a stopping daemon waits for its containers, which wait for the file system.
struct Stage {
    fuse: Fuse,
    daemon: Daemon,
    _home: TempDir,
}

impl Stage {
    fn new() -> Self {
        let home = tempfile::tempdir_in("/run").unwrap();
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let at = home.path().join("mount");
        fs::create_dir(&at).unwrap();
        let fuse = Fuse::mount(&at);
        let setup = Setup::default();
        let config = format!(
            "{}[policy]\nallow_host_userns = true\n[capacity]\nmemory_bytes = \"256M\"\n[quarantine]\ncreate_seconds = 5\n\
             stop_seconds = 1\n[[volumes]]\nname = 'lent'\npath = '{}'\n",
            metrics::table(&setup),
            at.display()
        );
        Self { daemon: setup.config(&config).start(), fuse, _home: home }
    }

    fn reader(id: &str) -> RunRequest {
        let source = Some(Source::Host(NamedVolume { name: "lent".into() }));
        let volume = VolumeMount { path: "/mnt".into(), source, ..VolumeMount::default() };
        let request = sh("echo begun; cat /mnt/file").id(id).memory(64 << 20).file("a", b"secret").grace_ms(100);
        RunRequest { volumes: vec![volume], user_namespace: UserNamespace::Host.into(), ..request }
    }

    fn phase(&self, id: &str) -> Option<Phase> {
        self.daemon.api.get(id).unwrap().quarantine.map(|quarantine| quarantine.phase())
    }

    fn allocated(&self) -> u64 {
        self.daemon.api.info().allocated.unwrap().memory_bytes >> 20
    }

    /// Returns the number of containers quarantined in this phase, from the metrics.
    fn counted(&self, phase: &str) -> f64 {
        metrics::value(&self.daemon, &format!("executor_quarantined{{phase=\"{phase}\"}}"))
    }

    /// Checks that the daemon still serves calls and runs other containers.
    fn works_on(&self) {
        let ended = self.daemon.api.run_to_end(sh("exit 5").id("other").memory(64 << 20).file("a", b"x"));
        assert_eq!(exit(&ended), Ok(5));
        self.daemon.api.delete("other", false).unwrap();
    }
}

fn sleeps(container: &Container) -> bool {
    let pids = host::descendants(integration::api::pid(container));
    pids.into_iter().chain([integration::api::pid(container)]).any(integration::fuse::is_uninterruptible)
}

#[test]
fn unkillable_process_is_quarantined_until_exit() {
    let mut stage = Stage::new();
    // As a control, the same container exits and can be stopped while the file system responds.
    let ended = stage.daemon.api.run_to_end(Stage::reader("control"));
    assert_eq!((exit(&ended), ended.quarantine), (Ok(0), None));
    assert_eq!(stage.daemon.api.output("control").text(), "begun\nfrom the file system\n");
    stage.daemon.api.delete("control", false).unwrap();

    stage.fuse.hold(Held::Reads);
    let started = stage.daemon.api.started(Stage::reader("stuck"));
    wait::until("the process waits for the file system", || (stage.fuse.waiting() > 0).then_some(()));
    assert_eq!(stage.phase("stuck"), None, "the container runs");
    let cursor = stage.daemon.api.info().cursor;
    stage.daemon.api.stop("stuck", None).unwrap();
    wait::until("the container is in quarantine", || stage.phase("stuck"));
    assert_eq!(
        (stage.phase("stuck"), stage.daemon.api.get("stuck").unwrap().state()),
        (Some(Phase::Stop), State::Stopping)
    );
    assert!(sleeps(&started), "a process is in uninterruptible sleep");
    let mut events = stage.daemon.api.events_after(cursor);
    let reported = events.until(|response| response.event.as_ref().unwrap().kind() == Kind::Quarantined).pop().unwrap();
    let reported = reported.event.unwrap();
    assert_eq!((&*reported.container_id, reported.quarantine_phase()), ("stuck", Phase::Stop));
    let shown = |arguments: &[&str]| cli::run(&stage.daemon.socket(), arguments).stdout;
    assert!(shown(&["ps"]).contains("stopping (quarantine: stop)"), "{}", shown(&["ps"]));
    assert!(shown(&["inspect", "stuck"]).contains("stuck in phase stop"), "{}", shown(&["inspect", "stuck"]));
    assert_eq!(
        (stage.allocated(), stage.daemon.api.info().quarantined),
        (64, 1),
        "the capacity of the container is kept"
    );
    assert_eq!((stage.counted("stop"), stage.counted("create")), (1.0, 0.0));
    let refused = stage.daemon.api.delete("stuck", true).unwrap_err();
    assert!(refused.code() == Code::Unavailable && refused.message().contains("in quarantine since"), "{refused}");
    stage.works_on();

    // The next daemon reports the same state.
    stage.daemon.kill();
    stage.daemon.start_again();
    wait::until("the container is in quarantine", || stage.phase("stuck"));
    assert_eq!(stage.allocated(), 64);
    stage.works_on();

    // A drain completes without this container and reports it in `left`.
    let cell = stage.daemon.api.client().cell();
    let mut drain = cell.drain(Some(Duration::from_secs(1)), 0, "").unwrap();
    let mut last = None;
    while let Some(progress) = stage.daemon.api.block_on(drain.next()).unwrap() {
        last = Some(progress);
    }
    assert_eq!(last.unwrap().left, ["stuck"]);
    stage.daemon.api.block_on(cell.undrain()).unwrap();

    stage.fuse.hold(Held::Nothing);
    let ended = stage.daemon.api.wait("stuck").unwrap();
    assert_eq!((exit(&ended), ended.quarantine), (Err(9), None));
    assert!(ended.result.unwrap().wipe.unwrap().verified);
    let mut events = stage.daemon.api.events_after(cursor);
    let reported =
        events.until(|response| response.event.as_ref().unwrap().kind() == Kind::QuarantineEnded).pop().unwrap();
    assert_eq!(reported.event.unwrap().container_id, "stuck");
    stage.daemon.wait_until_removed("stuck");
    stage.daemon.api.delete("stuck", false).unwrap();
    assert_eq!((stage.allocated(), stage.daemon.api.info().quarantined), (0, 0));
}

#[test]
fn stuck_container_creation_does_not_block_others() {
    let stage = Stage::new();
    stage.fuse.hold(Held::All);
    let refused = stage.daemon.api.run(Stage::reader("stuck")).unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("phase `create` exceeded its time limit"), "{refused}");
    assert_eq!((stage.phase("stuck"), stage.allocated()), (Some(Phase::Create), 64));
    assert_eq!(stage.counted("create"), 1.0);
    stage.works_on();
    stage.fuse.hold(Held::Nothing);
    wait::until("the process has exited", || {
        let gone = stage.daemon.api.get("stuck").is_err();
        let ended = || stage.daemon.api.get("stuck").is_ok_and(|one| one.state() == State::Completed);
        (gone || ended()).then_some(())
    });
    assert_eq!(stage.daemon.api.info().quarantined, 0);
    let _ = stage.daemon.api.delete("stuck", true); // deletes the container if its creation has completed
    wait::until("the capacity of the container is free", || (stage.allocated() == 0).then_some(()));
    assert_eq!(exit(&stage.daemon.api.run_to_end(Stage::reader("control"))), Ok(0), "control failed");
}
