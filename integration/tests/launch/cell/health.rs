//! Health of the cell, as set by an operator and as detected by the daemon.

use executor_proto::v1::{CreatePodRequest, Health};
use integration::cli;
use integration::daemon::{Daemon, Setup, kill};
use integration::request::{RequestBuilder, sleeper};
use integration::{metrics, wait};

const STOP: i32 = 19;
const CONTINUE: i32 = 18;

fn health(daemon: &Daemon) -> Health {
    daemon.api.info().health.unwrap()
}

fn serves(daemon: &Daemon) -> bool {
    daemon.api.block_on(daemon.api.client().is_serving()).unwrap()
}

#[test]
fn operator_calls_the_cell_unhealthy() {
    let mut daemon = Daemon::start();
    let run = |daemon: &Daemon, arguments: &[&str]| cli::run(&daemon.socket(), arguments);
    assert!(health(&daemon).healthy && serves(&daemon), "control failed");
    let set = run(&daemon, &["health", "--unhealthy", "bad disk"]);
    assert_eq!((set.status, &*set.stdout), (0, "NOT healthy: set by an operator: bad disk\n"), "{set:?}");
    assert_eq!(run(&daemon, &["health"]).status, 1, "a script tests the status");
    wait::until("the health service reports the state", || (!serves(&daemon)).then_some(()));
    // The health set by the operator is only shown: containers still start.
    daemon.api.started(sleeper("a"));
    daemon.terminate();
    daemon.start_again();
    assert_eq!(run(&daemon, &["--json", "health"]).json()["reasons"][0], "set by an operator: bad disk");
    assert!(!serves(&daemon));
    for (arguments, word) in
        [(["health", "--unhealthy", ""], "reason"), (["health", "--unhealthy", "a\nb"], "one line")]
    {
        let refused = run(&daemon, &arguments);
        assert!(refused.status == 125 && refused.stderr.contains(word), "{refused:?}");
    }
    assert_eq!(run(&daemon, &["health", "--healthy"]).stdout, "healthy\n");
    assert_eq!(run(&daemon, &["health"]).status, 0);
    wait::until("the health service reports the state", || serves(&daemon).then_some(()));
    daemon.api.delete("a", true).unwrap();
}

/// The self-test fails while the launcher does not respond, and passes when the launcher responds again. The container
/// of the self-test is never listed.
#[test]
fn self_test_fails_and_recovers() {
    let setup = Setup::default();
    let config = "[self_test]\ninterval_seconds = 1\ntimeout_seconds = 8\n[capacity]\nmemory_bytes = \"64M\"\n";
    let config = metrics::table(&setup) + config;
    let daemon = setup.config(&config).start();
    let counted = |value: f64| {
        let is_reported = || (metrics::value(&daemon, "executor_self_test_failed") == value).then_some(());
        wait::until("the metrics report the test", is_reported);
    };
    counted(0.0);
    // The self-test also runs on a node without free capacity.
    daemon.api.started(sleeper("full").memory(64 << 20));
    let unseen = || {
        assert_eq!(daemon.api.ids(), ["full"]);
        let pods = daemon.api.block_on(daemon.api.client().pods().list(&Default::default())).unwrap();
        assert_eq!(pods, []);
        let info = daemon.api.info();
        assert_eq!((info.allocated.unwrap().memory_bytes, info.allocated.unwrap().containers), (64 << 20, 1));
        assert_eq!(info.containers.values().sum::<u32>(), 1);
    };
    wait::until("a self-test has completed", || {
        unseen();
        health(&daemon).self_test_at
    });
    assert!(health(&daemon).healthy, "{:?}", health(&daemon));
    let cursor = daemon.api.info().cursor;
    let refused = daemon.api.run(sleeper("executor.self-test")).unwrap_err();
    assert!(refused.message().contains("id: is reserved for the self-test"), "{refused}");
    let request = CreatePodRequest { id: "executor.self-test".into(), ..CreatePodRequest::default() };
    daemon.api.block_on(daemon.api.client().pods().create(&request)).unwrap_err();
    daemon.api.get("executor.self-test").unwrap_err();

    let launcher = daemon.launcher().unwrap();
    kill(launcher, STOP);
    let sick = wait::until("the test fails", || Some(health(&daemon)).filter(|health| !health.healthy));
    assert!(sick.reasons[0].starts_with("self-test: cannot"), "{sick:?}");
    counted(1.0);
    wait::until("the health service reports the state", || (!serves(&daemon)).then_some(()));
    kill(launcher, CONTINUE);
    wait::until("the test passes", || health(&daemon).healthy.then_some(()));
    wait::until("the health service reports the state", || serves(&daemon).then_some(()));
    unseen();
    assert_eq!(daemon.api.info().cursor, cursor, "the self-test adds no event");
    daemon.api.delete("full", true).unwrap();
}
