//! Tests of the container lifecycle in the daemon, with event orders that rarely occur.

use std::time::Duration;

use crate::harness::launcher::OnLaunch;
use crate::harness::{Node, get, kinds, request, secret_request, until, wait};
use executor_core::lifecycle::State;
use executor_core::payload::{self, ProcessPayload};
use executor_core::protocol::{Reason, Refused, ShimCall};
use executor_core::record::{Exit, Failure, FailureKind};
use executor_core::validate::Violation;
use executor_proto::v1::event::Kind;
use executor_proto::v1::{self, Event};
use tonic::Code;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_types::StatusExt as _;

const WHOLE_LIFE: [&str; 6] = ["RESERVED", "INITIALIZING", "CREATED", "RUNNING", "WIPING", "COMPLETED"];

#[tokio::test(flavor = "multi_thread")]
async fn launch_reaches_shim_with_all_inputs() {
    let node = Node::start().await;
    let (shim, answer) = node.run(secret_request("a", "canary")).await;
    let process = ProcessPayload::decode(&shim.process).unwrap();
    assert_eq!((process.path, process.dir), (&b"/bin/true"[..], &b"/"[..]));
    assert_eq!(process.args, [b"--token=canary-arg"]);
    assert_eq!(process.env[0], b"TOKEN=canary-env");
    assert!(process.env[1].starts_with(b"PATH=/usr/local/sbin:") && process.env.len() == 2);
    assert_eq!(payload::decode(&shim.files).unwrap(), [&b"canary-action"[..], b"canary-own"]);

    let container = answer.container.unwrap();
    assert!(answer.created && container.state() == v1::State::Running);
    assert!(container.processes[0].pid > 0 && container.started_at.is_some() && container.result.is_none());
    let paths: Vec<&str> = container.files.iter().map(|file| &*file.path).collect();
    assert_eq!(paths, ["/etc/cf-service-bindings/a", "/b"]);

    shim.exits(3);
    let mut client = node.client().await;
    let container = wait(&mut client, "a").await;
    let result = container.result.unwrap();
    assert_eq!(result.exit.unwrap().status, Some(v1::exit_status::Status::Code(3)));
    assert!(result.wipe.unwrap().verified && !result.stopped && container.processes[0].pid == 0);
    let events = node.events("a", Kind::Completed).await;
    assert_eq!(kinds(&events), WHOLE_LIFE);
    assert!(events.last().unwrap().result.is_some() && events[0].result.is_none());

    client.delete(v1::DeleteRequest { id: "a".into(), force: false }).await.unwrap();
    assert_eq!(node.launcher.calls(), ["remove a"]);
    let gone = client.get(v1::GetRequest { id: "a".into() }).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);
    assert_eq!(kinds(&node.events("a", Kind::Deleted).await).last(), Some(&"DELETED"));
}

/// If reports arrive twice, late, or not at all, no event is duplicated or out of order.
#[tokio::test(flavor = "multi_thread")]
async fn reports_in_any_order_duplicate_no_event() {
    let node = Node::start().await;
    let mut client = node.client().await;
    let call = tokio::spawn({
        let mut client = client.clone();
        async move { client.run(request("a")).await }
    });
    let shim = node.launcher.launched().await;
    shim.report(State::Initializing);
    shim.reached(State::Running); // skips `created`
    assert!(call.await.unwrap().is_ok());
    shim.report(State::Created);
    shim.report(State::Running);
    shim.report(State::Running);
    shim.sends_raw(&[8, 0, 18, 2, 8, 99]); // Reached(99), of a newer shim
    shim.record(State::Wiping); // ahead of the report
    shim.report(State::Running);
    shim.report(State::Wiping);
    shim.report(State::Stopping); // late
    shim.write_exit(Some(Exit::Signal(9)), None);
    shim.report(State::Completed);
    shim.report(State::Completed);
    wait(&mut client, "a").await;
    assert_eq!(kinds(&node.events("a", Kind::Completed).await), WHOLE_LIFE);
}

/// If a process exits immediately, it is still reported as running, although its shim has finished before the first
/// report is read.
#[tokio::test(flavor = "multi_thread")]
async fn short_run_is_reported_as_running() {
    let node = Node::start().await;
    let mut client = node.client().await;
    for round in 0..20 {
        let id = format!("c{round}");
        let call = tokio::spawn({
            let (mut client, request) = (client.clone(), request(&id));
            async move { client.run(request).await }
        });
        let shim = node.launcher.launched().await;
        shim.runs();
        shim.exits(0);
        let answer = call.await.unwrap().unwrap().into_inner().container.unwrap();
        assert!(answer.state() >= v1::State::Running && answer.started_at.is_some());
        wait(&mut client, &id).await;
        assert_eq!(kinds(&node.events(&id, Kind::Completed).await), WHOLE_LIFE);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shim_exit_without_report_uses_record() {
    let node = Node::start().await;
    let mut client = node.client().await;
    // The exit record exists, but `completed` was never reported.
    let (shim, _) = node.run(request("record-first")).await;
    shim.write_exit(Some(Exit::Code(1)), None);
    shim.hangs_up();
    let container = wait(&mut client, "record-first").await;
    assert_eq!(container.result.unwrap().exit.unwrap().status, Some(v1::exit_status::Status::Code(1)));

    // The shim is killed; the launcher cleans up the container and reports the lost shim.
    let (shim, _) = node.run(request("killed")).await;
    shim.hangs_up();
    let lost = Failure { kind: FailureKind::SupervisorLost, message: "the shim died".into(), errno: 0 };
    shim.write_exit(None, Some(lost.clone()));
    node.launcher.shim_lost("killed");
    let failure = wait(&mut client, "killed").await.result.unwrap().failure.unwrap();
    assert_eq!((failure.kind(), &*failure.message), (v1::failure::Kind::SupervisorLost, "the shim died"));

    // The launcher's report arrives before the connection ends.
    let (shim, _) = node.run(request("word-first")).await;
    shim.write_exit(None, Some(lost));
    node.launcher.shim_lost("word-first");
    wait(&mut client, "word-first").await;
    drop(shim);

    // No exit record was written.
    let (shim, _) = node.run(request("nothing")).await;
    shim.hangs_up();
    node.launcher.shim_lost("nothing");
    let result = wait(&mut client, "nothing").await.result.unwrap();
    assert_eq!(result.failure.unwrap().kind(), v1::failure::Kind::SupervisorLost);
    assert!(result.exit.is_none() && result.wipe.is_none());

    // After a broken connection the shim still listens, and is reconnected.
    let (shim, _) = node.run(request("reconnects")).await;
    shim.drops_connections();
    shim.is_connected().await;
    assert_eq!(get(&mut client, "reconnects").await.state(), v1::State::Running);
    let before = shim.connections();
    shim.sends_raw(b"\xff\xff\xff\xff");
    until("the daemon connects again", || shim.connections() > before).await;
    shim.exits(0);
    wait(&mut client, "reconnects").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_container_leaves_nothing() {
    let node = Node::start().await;
    let mut client = node.client().await;
    let before = client.info(v1::InfoRequest {}).await.unwrap().into_inner().remaining;
    let violations = [Violation::new("rootfs", "`dir:/x`: No such file or directory")];
    let cases = [
        (Reason::Invalid, Code::InvalidArgument),
        (Reason::Precondition, Code::FailedPrecondition),
        (Reason::Exhausted, Code::ResourceExhausted),
        (Reason::Internal, Code::Internal),
    ];
    for (reason, code) in cases {
        let call = tokio::spawn({
            let mut client = client.clone();
            async move { client.run(request("a")).await }
        });
        let shim = node.launcher.launched().await;
        shim.refuses(Refused::from_fields(reason, &violations));
        let status = call.await.unwrap().unwrap_err();
        assert_eq!(status.code(), code);
        assert_eq!(status.get_details_bad_request().unwrap().field_violations[0].field, "rootfs");
        assert_eq!(client.get(v1::GetRequest { id: "a".into() }).await.unwrap_err().code(), Code::NotFound);
    }
    node.launcher.on_launch(OnLaunch::Refuse(Refused::new(Reason::Exhausted, "no memory")));
    let status = client.run(request("a")).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "no memory"));
    let events = node.events("a", Kind::Deleted).await;
    assert_eq!(kinds(&events), ["RESERVED", "INITIALIZING", "WIPING", "COMPLETED", "DELETED"]);
    let failure = events[3].result.clone().unwrap().failure.unwrap();
    assert_eq!(failure.kind(), v1::failure::Kind::Prepare);
    assert_eq!(client.info(v1::InfoRequest {}).await.unwrap().into_inner().remaining, before);
    // The id is free.
    let (shim, answer) = node.run(request("a")).await;
    assert!(answer.created);
    shim.exits(0);
}

/// If the launcher exits during a request, the request fails, and its id is free.
#[tokio::test(flavor = "multi_thread")]
async fn a_launcher_that_vanishes_leaves_nothing() {
    let node = Node::start().await;
    let mut client = node.client().await;
    node.launcher.on_launch(OnLaunch::Disconnect);
    let status = client.run(request("a")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert_eq!(client.get(v1::GetRequest { id: "a".into() }).await.unwrap_err().code(), Code::NotFound);
    node.until_health(ServingStatus::Serving).await;
    let (shim, _) = node.run(request("a")).await;
    shim.exits(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_run_on_without_a_launcher() {
    let node = Node::start().await;
    let mut client = node.client().await;
    let (shim, _) = node.run(request("a")).await;
    node.launcher.die();
    node.until_health(ServingStatus::NotServing).await;
    let status = client.run(request("b")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(
        status.message().contains("no launcher serves") && status.message().contains("launcher.sock"),
        "{status:?}"
    );
    assert!(!client.info(v1::InfoRequest {}).await.unwrap().into_inner().launcher_connected);
    // A repeated request finds its container without a launcher.
    assert!(!client.run(request("a")).await.unwrap().into_inner().created);
    shim.exits(5);
    wait(&mut client, "a").await;
    let delete = v1::DeleteRequest { id: "a".into(), force: false };
    assert_eq!(client.delete(delete.clone()).await.unwrap_err().code(), Code::Unavailable);
    node.launcher.listen();
    node.until_health(ServingStatus::Serving).await;
    client.delete(delete).await.unwrap();
}

/// If a request arrives just after the daemon's start, it waits for the launcher, which may have just started, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_waits_for_the_first_greeting() {
    let mut node = Node::start().await;
    node.kill();
    node.launcher.hold_greetings();
    node.start_daemon();
    let mut client = node.client().await;
    let mut call = tokio::spawn(async move { client.run(request("early")).await });
    // Control: without the wait, the request would be refused immediately.
    tokio::time::timeout(Duration::from_millis(300), &mut call).await.unwrap_err();
    node.launcher.greet();
    node.launcher.launched().await.runs();
    assert!(call.await.unwrap().unwrap().into_inner().created);
}

/// If a process exited before its start was reported, it counts as having run. If a process never started, it does not.
#[tokio::test(flavor = "multi_thread")]
async fn exit_before_start_report_counts_as_run() {
    let node = Node::start().await;
    let mut client = node.client().await;
    for (id, began) in [("brief", true), ("never", false)] {
        let mut calls = client.clone();
        let call = tokio::spawn(async move { calls.run(request(id)).await });
        let shim = node.launcher.launched().await;
        if began {
            shim.record(State::Running);
        }
        shim.record(State::Wiping);
        shim.write_exit(began.then_some(Exit::Code(0)), None);
        shim.report(State::Completed);
        shim.hangs_up();
        call.await.unwrap().unwrap();
        wait(&mut client, id).await;
        let kinds: Vec<_> = node.events(id, Kind::Completed).await.iter().map(Event::kind).collect();
        let life = [Kind::Reserved, Kind::Initializing, Kind::Created, Kind::Running, Kind::Wiping, Kind::Completed];
        let brief = |kind: &Kind| began || !matches!(kind, Kind::Created | Kind::Running);
        assert_eq!(kinds, life.into_iter().filter(brief).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_request_is_the_same_container() {
    let node = Node::start().await;
    let client = node.client().await;
    let run = |request: v1::RunRequest| {
        let mut client = client.clone();
        tokio::spawn(async move { client.run(request).await })
    };
    let calls: Vec<_> = (0..8).map(|_| run(secret_request("a", "x"))).collect();
    let shim = node.launcher.launched().await;
    let other = run(secret_request("a", "y")).await.unwrap().unwrap_err();
    assert_eq!(other.code(), Code::AlreadyExists);
    shim.runs();
    let mut created = 0;
    for call in calls {
        let answer = call.await.unwrap().unwrap().into_inner();
        assert_eq!(answer.container.unwrap().state(), v1::State::Running);
        created += u32::from(answer.created);
    }
    assert_eq!(created, 1);
    shim.exits(0);
    wait(&mut client.clone(), "a").await;
    let again = run(secret_request("a", "x")).await.unwrap().unwrap().into_inner();
    assert!(!again.created && again.container.unwrap().state() == v1::State::Completed);

    // Concurrent callers get the refusal, too.
    let calls: Vec<_> = (0..4).map(|_| run(request("b"))).collect();
    let shim = node.launcher.launched().await;
    shim.refuses(Refused::new(Reason::Precondition, "does not fit"));
    for call in calls {
        // A call after the refusal is a new request, which is refused, too.
        let answer = tokio::select! {
            answer = call => answer.unwrap(),
            late = node.launcher.launched() => {
                late.refuses(Refused::new(Reason::Precondition, "does not fit"));
                continue;
            }
        };
        assert_eq!(answer.unwrap_err().code(), Code::FailedPrecondition);
    }
}

/// If a program cannot be executed, the container's result reports the failure, and Run responds when the result is
/// known.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_exec_is_a_result() {
    let node = Node::start().await;
    let mut client = node.client().await;
    let call = tokio::spawn({
        let mut client = client.clone();
        async move { client.run(request("a")).await }
    });
    let shim = node.launcher.launched().await;
    shim.reached(State::Created);
    shim.reached(State::Wiping);
    let message = "exec /nope: No such file or directory".to_owned();
    // Like a real shim, write a record without a start time.
    shim.write_exit(None, Some(Failure { kind: FailureKind::Exec, message, errno: 2 }));
    shim.report(State::Completed);
    let answer = call.await.unwrap().unwrap().into_inner().container.unwrap();
    assert_eq!(answer.state(), v1::State::Completed);
    let failure = answer.result.unwrap().failure.unwrap();
    assert_eq!((failure.kind(), failure.errno), (v1::failure::Kind::Exec, 2));
    assert_eq!(get(&mut client, "a").await.state(), v1::State::Completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_signal_and_delete() {
    let node = Node::start().await;
    let mut client = node.client().await;
    let (shim, _) = node.run(request("a")).await;
    let signal = |signal, process_id: &str| v1::SignalRequest { id: "a".into(), signal, process_id: process_id.into() };
    client.signal(signal(10, "")).await.unwrap();
    assert!(matches!(shim.next_call().await, ShimCall::Signal(call) if call.signal == 10 && call.process_id == "main"));
    assert_eq!(client.signal(signal(0, "")).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(client.signal(signal(65, "main")).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(client.signal(signal(9, "sidecar")).await.unwrap_err().code(), Code::NotFound);

    let delete = |force| v1::DeleteRequest { id: "a".into(), force };
    let refused = client.delete(delete(false)).await.unwrap_err();
    assert!(refused.code() == Code::FailedPrecondition && refused.message().contains("running"), "{refused:?}");

    let grace = |seconds| v1::StopRequest {
        id: "a".into(),
        grace_period: Some(prost_types::Duration { seconds, nanos: 0 }),
        signal: 0,
    };
    assert_eq!(client.stop(grace(-1)).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(client.stop(grace(604_801)).await.unwrap_err().code(), Code::InvalidArgument);
    let stopping = tokio::spawn({
        let mut client = client.clone();
        async move { client.stop(v1::StopRequest { id: "a".into(), grace_period: None, signal: 0 }).await }
    });
    assert!(matches!(shim.next_call().await, ShimCall::Stop(call) if call.grace_ms == 10_000), "the plan's own grace");
    shim.reached(State::Stopping);
    let answer = stopping.await.unwrap().unwrap().into_inner().container.unwrap();
    assert_eq!(answer.state(), v1::State::Stopping);

    let deleting = tokio::spawn({
        let mut client = client.clone();
        async move { client.delete(delete(true)).await }
    });
    assert!(matches!(shim.next_call().await, ShimCall::Stop(call) if call.grace_ms == 0));
    shim.exits(0);
    deleting.await.unwrap().unwrap();
    let signalled = client.signal(signal(9, "")).await.unwrap_err();
    assert_eq!(signalled.code(), Code::NotFound);
    let events = node.events("a", Kind::Deleted).await;
    let expected = ["RESERVED", "INITIALIZING", "CREATED", "RUNNING", "STOPPING", "WIPING", "COMPLETED", "DELETED"];
    assert_eq!(kinds(&events), expected);
    assert!(events[6].result.as_ref().unwrap().stopped);

    // A completed container stays completed: Stop changes nothing, Signal finds no process.
    let (shim, _) = node.run(request("b")).await;
    shim.exits(0);
    wait(&mut client, "b").await;
    let stopped =
        client.stop(v1::StopRequest { id: "b".into(), grace_period: None, signal: 0 }).await.unwrap().into_inner();
    assert_eq!(stopped.container.unwrap().state(), v1::State::Completed);
    let signal = v1::SignalRequest { id: "b".into(), signal: 9, process_id: String::new() };
    assert_eq!(client.signal(signal).await.unwrap_err().code(), Code::FailedPrecondition);
}

/// Stop and Delete reach a shim that is being reconnected. If the shim is never reconnected, Stop returns an error.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_loses_no_stop() {
    let node = Node::start().await;
    let mut client = node.client().await;
    for round in 0..5 {
        let id = format!("c{round}");
        let (shim, _) = node.run(request(&id)).await;
        shim.drops_connections();
        let stopping = tokio::spawn({
            let (mut client, id) = (client.clone(), id.clone());
            async move { client.stop(v1::StopRequest { id, ..Default::default() }).await }
        });
        assert!(matches!(shim.next_call().await, ShimCall::Stop(call) if call.grace_ms == 10_000));
        shim.reached(State::Stopping);
        let answer = stopping.await.unwrap().unwrap().into_inner().container.unwrap();
        assert_eq!(answer.state(), v1::State::Stopping);
        shim.drops_connections();
        let deleting = tokio::spawn({
            let mut client = client.clone();
            async move { client.delete(v1::DeleteRequest { id, force: true }).await }
        });
        assert!(matches!(shim.next_call().await, ShimCall::Stop(call) if call.grace_ms == 0));
        shim.exits(0);
        deleting.await.unwrap().unwrap();
    }
    let (shim, _) = node.run(request("silent")).await;
    shim.hangs_up();
    let refused = client.stop(v1::StopRequest { id: "silent".into(), ..Default::default() }).await.unwrap_err();
    assert!(
        refused.code() == Code::Unavailable && refused.message().contains("was not connected for 10 s"),
        "{refused:?}"
    );
    node.launcher.shim_lost("silent");
    wait(&mut client, "silent").await;
}

/// If a caller disconnects during Run, its retry returns the same container.
#[tokio::test(flavor = "multi_thread")]
async fn disconnected_caller_does_not_end_container() {
    let node = Node::start().await;
    let mut client = node.client().await;
    let call = tokio::spawn({
        let mut client = client.clone();
        async move { client.run(request("a")).await }
    });
    let shim = node.launcher.launched().await;
    call.abort();
    shim.runs();
    let answer = client.run(request("a")).await.unwrap().into_inner();
    assert!(!answer.created && answer.container.unwrap().state() == v1::State::Running);
    shim.exits(0);
}

/// Capacity is held until the shim has removed the container's resources, even if the daemon is killed. A deletion and
/// a request that needs the capacity wait for the removal.
#[tokio::test(flavor = "multi_thread")]
async fn capacity_is_held_until_removal() {
    let mut node = Node::start().await;
    let total = info(&node).await.total.unwrap().memory_bytes;
    let whole = |id: &str| {
        let limits = Some(v1::Limits { memory_bytes: total, ..Default::default() });
        v1::RunRequest { limits, ..request(id) }
    };
    for crash in [false, true] {
        let (shim, _) = node.run(whole("a")).await;
        shim.reached(State::Wiping);
        shim.record_exit(Some(Exit::Code(7)), None);
        shim.report(State::Completed);
        let mut client = node.client().await;
        let seven = Some(v1::exit_status::Status::Code(7));
        assert_eq!(wait(&mut client, "a").await.result.unwrap().exit.unwrap().status, seven, "the exit is reported");
        if crash {
            node.crash().await;
            client = node.client().await;
            assert_eq!(wait(&mut client, "a").await.result.unwrap().exit.unwrap().status, seven);
        }
        assert_eq!(info(&node).await.remaining.unwrap().memory_bytes, 0);
        let calls = node.launcher.calls().len();
        let deleted = tokio::spawn({
            let mut client = client.clone();
            async move { client.delete(v1::DeleteRequest { id: "a".into(), force: false }).await }
        });
        let next = tokio::spawn({
            let (mut client, request) = (client.clone(), whole("next"));
            async move { client.run(request).await }
        });
        // The waiting calls had time to proceed while others were served.
        for _ in 0..10 {
            let info = client.info(v1::InfoRequest {}).await.unwrap().into_inner();
            assert_eq!(info.remaining.unwrap().memory_bytes, 0);
        }
        assert!(!deleted.is_finished() && !next.is_finished() && node.launcher.calls().len() == calls);
        shim.leaves();
        deleted.await.unwrap().unwrap();
        let other = node.launcher.launched().await;
        other.runs();
        next.await.unwrap().unwrap();
        other.exits(0);
        wait(&mut client, "next").await;
        client.delete(v1::DeleteRequest { id: "next".into(), force: false }).await.unwrap();
        assert_eq!(info(&node).await.remaining.unwrap().memory_bytes, total);
    }
    // Control: if no capacity is about to be released, a request is refused immediately.
    let (_shim, _) = node.run(whole("lives")).await;
    let refused = node.client().await.run(whole("more")).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
}

async fn info(node: &Node) -> v1::InfoResponse {
    node.client().await.info(v1::InfoRequest {}).await.unwrap().into_inner()
}
