//! Tests of restarts of the daemon, after a clean stop and after a kill.

use executor_core::lifecycle::State;
use executor_core::record::Exit;
use executor_proto::v1;
use executor_proto::v1::event::Kind;
use tonic::Code;
use tonic_health::pb::health_check_response::ServingStatus;

use crate::harness::{Node, get, kinds, request, secret_request, until, wait};

/// If the daemon is killed with SIGKILL, neither a container nor an exit code is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_daemon_finds_its_containers_again() {
    let mut node = Node::start().await;
    let (lives, _) = node.run(secret_request("lives", "x")).await;
    let (ended, _) = node.run(request("ended")).await;
    let (vanished, _) = node.run(request("vanished")).await;
    let (completed, _) = node.run(request("completed")).await;
    completed.exits(4);
    let mut client = node.client().await;
    let before = wait(&mut client, "completed").await;
    let cursor = client.info(v1::InfoRequest {}).await.unwrap().into_inner().cursor;
    // Only the ledger will have the container `vanished`, so wait until the ledger is written.
    let ledger = node.state_dir().join("ledger/executord.redb");
    let has = |what: &[u8]| std::fs::read(&ledger).unwrap().windows(what.len()).any(|window| window == what);
    until("the ledger is written", || has(br#""id":"vanished""#)).await;
    // The transaction may still be open. A later transaction begins after the open transaction is finished.
    let (last, _) = node.run(request("last")).await;
    last.exits(0);
    wait(&mut client, "last").await;
    until("the next transaction is written", || has(br#""id":"last""#)).await;
    node.kill();
    // Meanwhile one container exits cleanly, and one vanishes with its shim, without an exit record.
    ended.exits(5);
    vanished.hangs_up();
    std::fs::remove_dir_all(node.run_dir().join("containers/vanished")).unwrap();
    node.start_daemon();
    node.until_health(ServingStatus::Serving).await;
    let mut client = node.client().await;
    assert_eq!(get(&mut client, "completed").await, before, "to the last field");
    let exit = wait(&mut client, "ended").await.result.unwrap().exit.unwrap();
    assert_eq!(exit.status, Some(v1::exit_status::Status::Code(5)));
    let lost = wait(&mut client, "vanished").await.result.unwrap();
    assert_eq!(lost.failure.unwrap().kind(), v1::failure::Kind::SupervisorLost);
    assert_eq!(get(&mut client, "lives").await.state(), v1::State::Running);

    let info = client.info(v1::InfoRequest {}).await.unwrap().into_inner();
    let (total, left) = (info.total.unwrap(), info.remaining.unwrap());
    assert_eq!(total.containers - left.containers, 1, "one container holds its capacity");
    assert!(info.cursor > cursor);
    // An event subscriber continues.
    let follow = v1::WatchEventsRequest { after_cursor: cursor, ..Default::default() };
    let mut stream = client.watch_events(follow).await.unwrap().into_inner();
    let first = tokio_stream::StreamExt::next(&mut stream).await.unwrap().unwrap();
    assert!(first.event.unwrap().cursor > cursor);

    // A repeated request is still recognized; the reconnected shim reports the exit.
    let again = client.run(secret_request("lives", "x")).await.unwrap().into_inner();
    assert!(!again.created);
    assert_eq!(client.run(secret_request("lives", "y")).await.unwrap_err().code(), Code::AlreadyExists);
    lives.is_connected().await;
    lives.exits(6);
    wait(&mut client, "lives").await;
    let all = ["RESERVED", "INITIALIZING", "CREATED", "RUNNING", "WIPING", "COMPLETED"];
    assert_eq!(kinds(&node.events("lives", Kind::Completed).await), all);
}

/// If the ledger is lost, the records on disk and the shims provide everything.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_ledger_the_records_report_everything() {
    let mut node = Node::start().await;
    let (lives, _) = node.run(request("lives")).await;
    let (completed, _) = node.run(request("completed")).await;
    completed.exits(4);
    let mut client = node.client().await;
    wait(&mut client, "completed").await;
    let before = client.info(v1::InfoRequest {}).await.unwrap().into_inner().cursor;
    node.kill();
    std::fs::write(node.state_dir().join("ledger/executord.redb"), "broken").unwrap();
    node.start_daemon();
    node.until_health(ServingStatus::Serving).await;
    let mut client = node.client().await;
    let exit = wait(&mut client, "completed").await.result.unwrap().exit.unwrap();
    assert_eq!(exit.status, Some(v1::exit_status::Status::Code(4)));
    assert_eq!(get(&mut client, "lives").await.state(), v1::State::Running);
    assert!(client.info(v1::InfoRequest {}).await.unwrap().into_inner().cursor > before);
    lives.is_connected().await;
    lives.exits(0);
    wait(&mut client, "lives").await;
}

/// If a launcher that starts later than the daemon writes an exit record, the daemon uses the record. The container is
/// not in the ledger, because of a power failure before the ledger was written.
#[tokio::test(flavor = "multi_thread")]
async fn exit_record_of_later_launcher_is_used() {
    let mut node = Node::start().await;
    let (shim, _) = node.run(request("unheard")).await;
    let (other, _) = node.run(request("other")).await;
    node.kill();
    std::fs::remove_dir_all(node.state_dir().join("ledger")).unwrap();
    shim.write_exit(Some(Exit::Code(8)), None);
    let (record, aside) = (node.state_dir().join("containers/unheard/exit.json"), node.dir.path().join("aside"));
    std::fs::rename(&record, &aside).unwrap();
    node.launcher.hold_greetings();
    node.start_daemon();
    let mut client = node.client().await;
    assert_eq!(get(&mut client, "other").await.state(), v1::State::Running);
    let unheard = client.get(v1::GetRequest { id: "unheard".into() }).await.unwrap_err();
    assert_eq!(unheard.code(), Code::NotFound);
    std::fs::rename(&aside, &record).unwrap();
    node.launcher.greet();
    node.until_health(ServingStatus::Serving).await;
    let exit = wait(&mut client, "unheard").await.result.unwrap().exit.unwrap();
    assert_eq!(exit.status, Some(v1::exit_status::Status::Code(8)));
    drop(other);
}

/// If a container has neither a shim nor a record and no launcher runs, it stays in its last state until a launcher has
/// cleaned it up.
#[tokio::test(flavor = "multi_thread")]
async fn container_without_shim_waits_for_launcher() {
    let mut node = Node::start().await;
    let (lost, _) = node.run(request("lost")).await;
    let (lives, _) = node.run(request("lives")).await;
    // Stop the daemon cleanly, so that the ledger is written.
    node.terminate();
    lost.hangs_up();
    node.launcher.die();
    // A launcher does this before it greets; the exit record is missing because the disk was full.
    let run_dir = node.run_dir().join("containers/lost");
    let finished_by_a_launcher = || std::fs::remove_dir_all(&run_dir).unwrap();
    // An unprivileged daemon starts no launcher. A daemon with root privileges starts /bin/cat, which is no launcher.
    node.start_daemon_with(&["--launcher", "/bin/cat"]);
    if rustix::process::geteuid().is_root() {
        assert_eq!(node.ended().code(), Some(1));
        assert!(node.log().contains("the launcher /bin/cat: exited"), "{}", node.log());
        assert!(!node.socket().exists(), "nothing is left behind");
        finished_by_a_launcher();
        node.launcher.listen();
        node.start_daemon();
        node.until_health(ServingStatus::Serving).await;
    } else {
        node.until_health(ServingStatus::NotServing).await;
        let mut client = node.client().await;
        assert_eq!(get(&mut client, "lost").await.state(), v1::State::Running);
        lives.is_connected().await;
        finished_by_a_launcher();
        node.launcher.listen();
    }
    let mut client = node.client().await;
    let result = wait(&mut client, "lost").await.result.unwrap();
    assert_eq!(result.failure.unwrap().kind(), v1::failure::Kind::SupervisorLost);
    assert_eq!(get(&mut client, "lives").await.state(), v1::State::Running);
    lives.exits(0);
    wait(&mut client, "lives").await;
}

/// A restarted daemon reports the state in a container's record before the shim responds.
#[tokio::test(flavor = "multi_thread")]
async fn state_of_record_is_reported_without_shim() {
    let mut node = Node::start().await;
    let (shim, _) = node.run(request("a")).await;
    node.terminate(); // the ledger has the state `running`
    shim.record(State::Stopping);
    shim.hangs_up();
    node.launcher.hold_greetings();
    node.start_daemon();
    assert_eq!(get(&mut node.client().await, "a").await.state(), v1::State::Stopping);
    node.launcher.greet();
}

/// Cursors increase across clean stops and kills.
#[tokio::test(flavor = "multi_thread")]
async fn cursors_never_go_back() {
    let mut node = Node::start().await;
    let mut last = 0;
    for (round, kill) in [true, false, true, false].into_iter().enumerate() {
        let id = format!("c{round}");
        let (shim, _) = node.run(request(&id)).await;
        shim.exits(0);
        let events = node.events(&id, Kind::Completed).await;
        assert!(events[0].cursor > last, "round {round}");
        assert!(events.windows(2).all(|pair| pair[0].cursor + 1 == pair[1].cursor));
        last = events.last().unwrap().cursor;
        if kill {
            node.crash().await;
        } else {
            assert!(node.terminate().success());
            node.start_daemon();
            node.until_health(ServingStatus::Serving).await;
            let info = node.client().await.info(v1::InfoRequest {}).await.unwrap().into_inner();
            assert_eq!(info.cursor, last, "a clean stop wastes no number");
        }
    }
}

/// If a daemon stops, its containers keep running. If an ephemeral daemon stops, it stops its containers and its
/// launcher.
#[tokio::test(flavor = "multi_thread")]
async fn only_ephemeral_daemon_stops_its_containers() {
    let mut node = Node::start().await;
    let (shim, _) = node.run(request("a")).await;
    let waiting = tokio::spawn({
        let mut client = node.client().await;
        async move { client.wait(v1::WaitRequest { id: "a".into() }).await }
    });
    let mut events = node.client().await.watch_events(v1::WatchEventsRequest::default()).await.unwrap().into_inner();
    assert!(node.terminate().success());
    assert_eq!(waiting.await.unwrap().unwrap_err().code(), Code::Unavailable);
    let end = loop {
        if let Err(status) = tokio_stream::StreamExt::next(&mut events).await.unwrap() {
            break status;
        }
    };
    assert_eq!(end.code(), Code::Unavailable);
    assert!(node.launcher.calls().is_empty());
    drop(shim);

    let mut node = Node::start_with(&["--ephemeral"]).await;
    let (shim, _) = node.run(request("a")).await;
    let killed = tokio::spawn(async move {
        let call = shim.next_call().await;
        shim.reached(State::Wiping);
        shim.write_exit(Some(Exit::Signal(9)), None);
        shim.report(State::Completed);
        call
    });
    let ended = tokio::task::spawn_blocking(move || {
        let status = node.terminate();
        (node, status)
    });
    let (node, status) = ended.await.unwrap();
    assert!(status.success());
    let stop = executor_core::protocol::Stop { grace_ms: 0, signal: 0 };
    assert_eq!(killed.await.unwrap(), executor_core::protocol::ShimCall::Stop(stop));
    assert_eq!(node.launcher.calls(), ["shutdown"]);
}

/// If a daemon uses the state directory, a second daemon is refused, and its error names the first. Otherwise each
/// daemon would write state that the other does not see.
#[tokio::test(flavor = "multi_thread")]
async fn second_daemon_is_refused_naming_first() {
    let mut node = Node::start().await;
    let first = node.take_daemon();
    node.start_daemon();
    assert_eq!(node.ended().code(), Some(1));
    let reported =
        format!("another executord (pid {}) is using state directory {}", first.id(), node.state_dir().display());
    assert!(node.log().contains(&reported), "{}", node.log());
    node.give_daemon(first);
    node.client().await.info(v1::InfoRequest {}).await.unwrap();
}
