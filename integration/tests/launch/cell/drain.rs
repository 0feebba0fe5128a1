//! During a drain no new container is accepted, running containers exit by the deadline, and followers receive the ids
//! of killed containers.

use std::collections::BTreeSet;
use std::time::Duration;

use executor_client::{Code, Error};
use executor_proto::v1::{CreatePodRequest, DrainResponse, Resources, RunRequest, State};
use integration::api::exit;
use integration::cli;
use integration::daemon::{Daemon, Setup};
use integration::request::{RequestBuilder, sh, sleeper};
use integration::{metrics, wait};

/// A process that exits normally on SIGTERM.
pub(crate) const ENDS: &str = "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done";
/// A process that ignores SIGTERM.
pub(crate) const IGNORES: &str = "trap '' TERM; echo up; while :; do sleep 0.05; done";

/// Returns the number of containers, a tenth of which ignore SIGTERM.
fn containers() -> usize {
    std::env::var("EXECUTOR_DRAIN_CONTAINERS").map_or(20, |number| number.parse().unwrap())
}

fn drain(daemon: &Daemon, deadline: Duration, parallel: u32) -> Result<Vec<DrainResponse>, Error> {
    hurried(daemon, deadline, parallel, |_| false)
}

/// Starts a drain. When `waited_for` accepts a progress message, another call moves the deadline to one second after
/// that message.
fn hurried(
    daemon: &Daemon,
    deadline: Duration,
    parallel: u32,
    waited_for: impl Fn(&DrainResponse) -> bool,
) -> Result<Vec<DrainResponse>, Error> {
    let ask = |deadline| daemon.api.client().cell().drain(Some(deadline), parallel, "maintenance").unwrap();
    let mut drain = ask(deadline);
    let mut hurries = None;
    let mut all = Vec::new();
    while let Some(progress) = daemon.api.block_on(drain.next())? {
        if hurries.is_none() && waited_for(&progress) {
            let mut second = ask(Duration::from_secs(1));
            daemon.api.block_on(second.next())?;
            hurries = Some(second);
        }
        all.push(progress);
    }
    Ok(all)
}

pub(crate) fn undrain(daemon: &Daemon) {
    daemon.api.block_on(daemon.api.client().cell().undrain()).unwrap();
}

fn serves(daemon: &Daemon) -> bool {
    daemon.api.block_on(daemon.api.client().is_serving()).unwrap()
}

#[test]
fn drain_ends_at_deadline_and_lists_killed() {
    let setup = Setup::default();
    let config = format!("{}[policy]\ndefault_memory_bytes = \"16M\"\n", metrics::table(&setup));
    let daemon = setup.config(&config).start();
    let before = daemon.footprint();
    let (all, stubborn) = (containers(), containers() / 10);
    let mut expected = BTreeSet::new();
    for index in 0..all {
        let ignores = index % 10 == 3;
        let id = format!("c{index:03}");
        // The grace period of these containers is longer than the drain takes, so the deadline kills them.
        let (script, grace) = if ignores { (IGNORES, 3_600_000) } else { (ENDS, 60_000) };
        daemon.api.up(sh(script).id(&id).memory(16 << 20).grace_ms(grace).file("a", b"secret"));
        if ignores {
            expected.insert(id);
        }
    }
    let resources = Resources { memory_bytes: 16 << 20, ..Resources::default() };
    daemon.api.block_on(daemon.api.client().cell().reserve("later", resources, None)).unwrap();
    assert!(serves(&daemon), "control failed");
    let reported = || ["executor_reservations", "executor_drained"].map(|series| metrics::value(&daemon, series));
    assert_eq!(reported(), [1.0, 0.0]);

    // Containers that exit on SIGTERM have enough time. The other containers are killed at the deadline.
    let in_order = |progress: &DrainResponse| progress.ended as usize == all - stubborn;
    let progress = hurried(&daemon, Duration::from_secs(1800), 8, in_order).unwrap();
    let last = progress.last().unwrap();
    assert_eq!((last.total as usize, last.ended as usize, last.stopping, last.done), (all, all, 0, true), "{last:?}");
    assert_eq!((last.killed.iter().cloned().collect::<BTreeSet<_>>(), last.left.len()), (expected, 0));
    assert_eq!(last.killed.len(), stubborn);
    let (before_deadline, at_once): (Vec<_>, Vec<_>) =
        progress.iter().filter(|one| !one.done).partition(|one| one.killed.is_empty());
    // A container whose grace period would end after the deadline is stopped immediately, and does not count against
    // `parallel`.
    let most = 8 + stubborn as u32;
    assert!(
        before_deadline.iter().all(|one| one.stopping <= most),
        "more than {most} containers stop at the same time: {before_deadline:?}"
    );
    assert!(before_deadline.len() + at_once.len() > 1, "there was progress");
    let deadline_at = last.deadline_at.unwrap();
    for index in 0..all {
        let ended = daemon.api.get(&format!("c{index:03}")).unwrap();
        let at = ended.finished_at.unwrap();
        let is_late = (at.seconds, at.nanos) >= (deadline_at.seconds, deadline_at.nanos);
        let ignores = index % 10 == 3;
        assert_eq!((exit(&ended), is_late), if ignores { (Err(9), true) } else { (Ok(0), false) }, "{index}");
        daemon.api.delete(&ended.id, false).unwrap();
    }

    // No call may create a new container, and the reservation is gone.
    let refused = daemon.api.run(sleeper("x")).unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("it is drained (maintenance)"), "{refused}");
    let refused = daemon.api.block_on(daemon.api.client().cell().reserve("y", resources, None)).unwrap_err();
    assert_eq!(refused.code(), Some(Code::Unavailable), "{refused}");
    wait::until("a scrape reports the drain", || (reported() == [0.0, 1.0]).then_some(()));
    assert_eq!((daemon.api.info().reservations, daemon.api.ids().len()), (0, 0));
    wait::until("the health service reports the state", || (!serves(&daemon)).then_some(()));
    let health = daemon.api.info().health.unwrap();
    assert_eq!(
        (health.healthy, health.drained, &*health.reasons),
        (false, true, &["drained (maintenance)".to_owned()][..])
    );

    undrain(&daemon);
    wait::until("the health service reports the state", || serves(&daemon).then_some(()));
    assert_eq!(exit(&daemon.api.run_to_end(sh("exit 4").id("again"))), Ok(4));
    daemon.api.delete("again", false).unwrap();
    daemon.wait_until_back_at(&before);
}

/// A drain counts the containers that `ps -a` lists, and no pods.
#[test]
fn drain_counts_containers_without_pods() {
    let daemon = Daemon::start();
    let pod = CreatePodRequest { id: "p".into(), ..CreatePodRequest::default() };
    daemon.api.block_on(daemon.api.client().pods().create(&pod)).unwrap();
    daemon.api.up(RunRequest { pod: "p".into(), ..sh(ENDS).id("member") });
    daemon.api.up(sh(ENDS).id("single"));
    let last = drain(&daemon, Duration::from_secs(60), 0).unwrap().pop().unwrap();
    assert_eq!((last.total, last.ended, last.left.len()), (2, 2, 0), "{last:?}");
    assert_eq!(daemon.api.ids().len(), 2, "the containers that `ps -a` lists");
}

/// A drain continues after its first client disconnects, and after the daemon is killed and restarted.
#[test]
fn drain_survives_client_and_daemon() {
    let mut daemon = Daemon::start();
    for id in ["a", "b"] {
        daemon.api.up(sh(IGNORES).id(id).grace_ms(3_600_000));
    }
    let mut follower = daemon.api.client().cell().drain(Some(Duration::from_secs(3600)), 0, "").unwrap();
    assert!(!daemon.api.block_on(follower.next()).unwrap().unwrap().done);
    drop(follower);
    wait::until("both containers are stopping", || {
        ["a", "b"].iter().all(|id| daemon.api.get(id).unwrap().state() == State::Stopping).then_some(())
    });
    daemon.kill();
    daemon.start_again();
    let refused = daemon.api.run(sleeper("x")).unwrap_err();
    assert!(refused.message().contains("draining"), "{refused}");
    // A repeated call joins the drain with an earlier deadline.
    let last = drain(&daemon, Duration::from_secs(1), 0).unwrap().pop().unwrap();
    assert_eq!((last.total, &*last.killed), (2, &["a".to_owned(), "b".to_owned()][..]));
    daemon.terminate();
    daemon.start_again();
    assert!(daemon.api.run(sleeper("x")).unwrap_err().message().contains("drained"), "executord is still drained");
    // A second drain of a drained cell completes immediately.
    assert_eq!(drain(&daemon, Duration::from_secs(1), 0).unwrap().pop().unwrap().total, 0);
    undrain(&daemon);
    daemon.api.started(sleeper("x"));
    daemon.api.delete("x", true).unwrap();

    // Undrain cancels a running drain. Containers that already got the stop signal still stop.
    daemon.api.up(sh(IGNORES).id("c").grace_ms(3_600_000));
    let mut follower = daemon.api.client().cell().drain(None, 0, "").unwrap();
    daemon.api.block_on(follower.next()).unwrap();
    undrain(&daemon);
    let ended = loop {
        match daemon.api.block_on(follower.next()) {
            Ok(progress) => assert!(!progress.unwrap().done),
            Err(error) => break error,
        }
    };
    assert_eq!(ended.code(), Some(Code::Aborted), "{ended}");
    daemon.api.started(sleeper("x"));
    for id in ["a", "b", "c", "x"] {
        daemon.api.delete(id, true).unwrap();
    }
    for (deadline, field) in [(Duration::from_secs(86_401), "deadline"), (Duration::ZERO, "parallel")] {
        let refused = drain(&daemon, deadline, if field == "parallel" { 1001 } else { 0 }).unwrap_err();
        assert!(refused.code() == Some(Code::InvalidArgument) && refused.to_string().contains(field), "{refused}");
    }
    assert!(!daemon.api.info().health.unwrap().draining, "a refused request starts nothing");
}

#[test]
fn command_line_drains() {
    let daemon = Daemon::start();
    let run = |arguments: &[&str]| cli::run(&daemon.socket(), arguments);
    daemon.api.up(sh(IGNORES).id("stubborn").grace_ms(100));
    daemon.api.up(sh(ENDS).id("orderly"));
    let drained = run(&["drain", "--deadline", "1m", "--reason", "new kernel"]);
    assert_eq!(drained.status, 0, "{drained:?}");
    assert!(drained.stdout.ends_with("drained: 2 completed, 1 killed\nkilled: stubborn\n"), "{drained:?}");
    assert!(drained.stdout.starts_with("0 of "), "lines of progress come first: {drained:?}");
    let health = run(&["health"]);
    assert_eq!(health.stdout, "NOT healthy: drained (new kernel)\n");
    assert!(run(&["info"]).stdout.contains("NOT healthy: drained (new kernel)"));
    let refused = run(&["run", "--", "/bin/true"]);
    assert!(refused.status == 125 && refused.stderr.contains("new kernel"), "{refused:?}");
    assert_eq!(run(&["undrain"]).status, 0);
    let lines = run(&["--json", "drain"]).json_lines();
    assert!(lines.last().unwrap()["done"] == true && lines.last().unwrap()["total"] == 0, "{lines:?}");
    assert_eq!(run(&["undrain"]).status, 0);
    assert_eq!(run(&["health"]).stdout, "healthy\n");
}
