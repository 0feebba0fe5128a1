//! Tests single cases, with the messages that users see.

use std::collections::BTreeMap;

use super::*;
use crate::plan::{RestartMode, RestartPolicy};

fn process(log_source: &str) -> PlannedProcess {
    serde_json::from_value(serde_json::json!({
        "id": "x", "path": "/bin/true", "argument_count": 0, "dir": "/", "environment_names": [],
        "log_source": log_source, "suppress_log_output": false,
    }))
    .unwrap()
}

fn actions(setup: Option<Action>, action: Action, sidecars: Vec<Action>) -> Actions {
    Actions { setup, action, sidecars, restart: None, sidecar_limits: BTreeMap::new() }
}

fn steps(action: Action, runs: usize) -> Steps {
    let actions = actions(None, action, Vec::new());
    Steps::new(&actions, &vec![process("APP"); runs], &[])
}

fn exited(code: i32) -> RunEnd {
    RunEnd::Exited { exit: Exit::Code(code), out_of_memory: false, killed: false }
}

const NOW: Timestamp = Timestamp(1);

fn conclusion(exit: Option<i32>, failure: Option<&str>) -> Option<Conclusion> {
    Some(Conclusion { exit: exit.map(Exit::Code), failure: failure.map(str::to_owned), errno: 0 })
}

#[test]
fn serial_action_stops_at_first_error() {
    let mut steps = steps(Action::Serial(vec![Action::Run(0), Action::Run(1), Action::Run(2)]), 3);
    assert_eq!(steps.start(NOW), [StepOrder::Start(0)]);
    assert_eq!(steps.ended(0, exited(0), NOW), [StepOrder::Start(1)]);
    assert_eq!(steps.conclusion(), None);
    assert_eq!(steps.ended(1, exited(3), NOW), []);
    assert_eq!(steps.conclusion(), conclusion(Some(3), Some("APP: Exited with status 3")));
    let states: Vec<StepState> = steps.records().iter().map(|step| step.state).collect();
    assert_eq!(states, [StepState::Failed, StepState::Succeeded, StepState::Failed, StepState::Pending]);
}

#[test]
fn timeout_cancels_action_and_reports_limit() {
    let action = Action::Timeout { action: Box::new(Action::Run(0)), after: Duration::from_secs(30) };
    let mut steps = steps(action, 1);
    let begun = steps.start(NOW);
    let [StepOrder::Expire(step, after), StepOrder::Start(0)] = begun[..] else { panic!("{begun:?}") };
    assert_eq!(after, Duration::from_secs(30));
    assert_eq!(steps.expired(step, NOW), [StepOrder::Cancel(0)]);
    assert_eq!(steps.expired(step, NOW), [], "once");
    assert_eq!(steps.ended(0, exited(143), NOW), []);
    assert_eq!(steps.conclusion(), conclusion(Some(143), Some("exceeded 30s timeout")));
}

#[test]
fn codependent_actions_end_together() {
    let mut steps = steps(Action::Codependent(vec![Action::Run(0), Action::Run(1)]), 2);
    assert_eq!(steps.start(NOW), [StepOrder::Start(0), StepOrder::Start(1)]);
    assert_eq!(steps.ended(1, exited(0), NOW), [StepOrder::Cancel(0)]);
    assert_eq!(steps.ended(0, exited(143), NOW), []);
    assert_eq!(steps.conclusion(), conclusion(Some(143), Some("Codependent step exited")));
}

#[test]
fn sidecar_exit_without_error_is_ignored() {
    let actions = actions(Some(Action::Run(0)), Action::Run(1), vec![Action::Run(2)]);
    let mut steps = Steps::new(&actions, &[process("SETUP"), process("APP"), process("SIDE")], &[]);
    assert_eq!(steps.start(NOW), [StepOrder::Start(0)]);
    assert_eq!(steps.ended(0, exited(0), NOW), [StepOrder::Start(1), StepOrder::Start(2)]);
    assert_eq!(steps.ended(1, exited(0), NOW), [StepOrder::Cancel(2)]);
    assert_eq!(steps.ended(2, RunEnd::Exited { exit: Exit::Signal(15), out_of_memory: false, killed: false }, NOW), []);
    let ended = steps.conclusion().unwrap();
    assert_eq!((ended.exit, ended.failure), (Some(Exit::Code(0)), None));
}

#[test]
fn messages_follow_what_happens() {
    let messages = Messages {
        start: "Staging...".into(),
        success: "Staged".into(),
        failure_prefix: "Staging failed".into(),
        log_source: "STG".into(),
    };
    let action = Action::EmitProgress { action: Box::new(Action::Run(0)), messages };
    let message = |failed, text: &str| StepOrder::Say { log_source: "STG".into(), failed, text: text.into() };
    let mut failing = steps(action.clone(), 1);
    assert_eq!(failing.start(NOW), [message(false, "Staging..."), StepOrder::Start(0)]);
    assert_eq!(failing.ended(0, exited(1), NOW), [message(true, "Staging failed: APP: Exited with status 1")]);
    let mut absent = steps(action.clone(), 1);
    absent.start(NOW);
    let not_started = RunEnd::NotStarted { why: "exec /nope: No such file or directory".into(), errno: 0 };
    assert_eq!(absent.ended(0, not_started, NOW), [message(true, "Staging failed")]);
    assert_eq!(absent.conclusion(), conclusion(None, Some("exec /nope: No such file or directory")));
    let mut well = steps(action, 1);
    well.start(NOW);
    assert_eq!(well.ended(0, exited(0), NOW), [message(false, "Staged")]);
    assert_eq!(well.conclusion(), conclusion(Some(0), None));
}

/// The first failure decides: a program that was not found, or the exit status of a process.
#[test]
fn first_failure_gives_error_number() {
    let absent = || RunEnd::NotStarted { why: "exec /nope: No such file or directory".into(), errno: 2 };
    let runs = || vec![Action::Run(0), Action::Run(1)];
    let timeout = Action::Timeout { action: Box::new(Action::Parallel(runs())), after: Duration::from_secs(30) };
    let table = [
        (Action::Serial(runs()), [absent(), exited(3)], (None, 2)),
        (Action::Serial(runs()), [exited(0), absent()], (None, 2)),
        (Action::Parallel(runs()), [absent(), exited(3)], (None, 2)),
        (Action::Parallel(runs()), [exited(3), absent()], (Some(Exit::Code(3)), 0)),
        (Action::Parallel(runs()), [absent(), exited(0)], (None, 2)),
        (Action::Codependent(runs()), [absent(), exited(143)], (None, 2)),
        (Action::Codependent(runs()), [exited(3), absent()], (Some(Exit::Code(3)), 0)),
        (Action::Try(Box::new(Action::Parallel(runs()))), [absent(), exited(3)], (Some(Exit::Code(0)), 0)),
        (timeout, [absent(), exited(0)], (None, 2)),
    ];
    for (action, ends, expected) in table {
        let mut steps = steps(action.clone(), 2);
        steps.start(NOW);
        for (process, end) in ends.clone().into_iter().enumerate() {
            if steps.conclusion().is_none() {
                steps.ended(process, end, NOW);
            }
        }
        let conclusion = steps.conclusion().unwrap();
        assert_eq!((conclusion.exit, conclusion.errno), expected, "{action:?} {ends:?}");
    }
}

#[test]
fn a_stop_before_the_start_starts_nothing() {
    let mut steps = steps(Action::Run(0), 1);
    assert_eq!(steps.cancel(NOW), []);
    assert_eq!(steps.conclusion(), conclusion(None, None));
}

#[test]
fn memory_and_grace_are_reported() {
    let mut starved = steps(Action::Run(0), 1);
    starved.start(NOW);
    let killed = RunEnd::Exited { exit: Exit::Signal(9), out_of_memory: true, killed: false };
    starved.ended(0, killed, NOW);
    assert_eq!(starved.conclusion().unwrap().failure.unwrap(), "APP: Exited with status 137 (out of memory)");
    let mut stubborn = steps(Action::Run(0), 1);
    stubborn.start(NOW);
    assert_eq!(stubborn.cancel(NOW), [StepOrder::Cancel(0)]);
    stubborn.ended(0, RunEnd::Exited { exit: Exit::Signal(9), out_of_memory: false, killed: true }, NOW);
    assert_eq!(stubborn.records()[0].error.as_deref(), Some("exceeded graceful shutdown interval"));
}

fn transfer(artifact: &str, direction: &str) -> PlannedTransfer {
    serde_json::from_value(serde_json::json!({
        "id": "action", "direction": direction, "artifact": artifact, "path": "/app", "log_source": "CELL",
        "user": {"user": {"id": 0}, "group": null},
    }))
    .unwrap()
}

#[test]
fn a_transfer_reports_of_itself() {
    let message = |failed, text: &str| StepOrder::Say { log_source: "CELL".into(), failed, text: text.into() };
    let steps_of = |artifact: &str, direction: &str, action: Action| {
        Steps::new(&actions(None, action, Vec::new()), &[], &[transfer(artifact, direction)])
    };
    let mut well = steps_of("droplet", "download", Action::Download(0));
    assert_eq!(well.start(NOW), [message(false, "Downloading droplet..."), StepOrder::Transfer(0)]);
    assert!(well.transfer_began(0).is_some());
    assert_eq!(well.transferred(0, TransferEnd::Done(1536), NOW), [message(false, "Downloaded droplet (1.5K)")]);
    assert_eq!(well.conclusion(), conclusion(Some(0), None));
    assert_eq!(well.transferred(0, TransferEnd::Done(1), NOW), [], "once");
    let mut failing = steps_of("droplet", "upload", Action::Upload(0));
    assert_eq!(failing.start(NOW), [message(false, "Uploading droplet..."), StepOrder::Transfer(0)]);
    let end = TransferEnd::Failed("the server answered 500".into());
    let reported = "Uploading droplet failed: the server answered 500";
    assert_eq!(failing.transferred(0, end, NOW), [message(true, reported)]);
    let reported = "Failed to upload droplet: the server answered 500";
    assert_eq!(failing.conclusion(), conclusion(None, Some(reported)));
    assert_eq!(failing.records()[0].log_source, "CELL");
    let mut silent = steps_of("", "download", Action::Download(0));
    assert_eq!(silent.start(NOW), [StepOrder::Transfer(0)]);
    assert_eq!(silent.cancel(NOW), [StepOrder::CancelTransfer(0)]);
    assert_eq!(silent.transferred(0, TransferEnd::Cancelled, NOW), []);
    assert_eq!((silent.records()[0].state, silent.conclusion()), (StepState::Cancelled, conclusion(None, None)));
    let mut unnamed = steps_of("", "download", Action::Download(0));
    unnamed.start(NOW);
    let end = TransferEnd::Failed("too slow".into());
    assert_eq!(unnamed.transferred(0, end, NOW), [message(true, "Downloading failed: too slow")]);
    assert_eq!(unnamed.conclusion(), conclusion(None, Some("Failed to download: too slow")));
}

#[test]
fn sizes_are_written_as_in_cloud_foundry() {
    let table =
        [(0, "0"), (1, "1B"), (1023, "1023B"), (1024, "1K"), (1536, "1.5K"), (12 << 20, "12M"), (u64::MAX, "16E")];
    for (bytes, text) in table {
        assert_eq!(short_size(bytes), text, "{bytes}");
    }
}

#[test]
fn durations_are_written_as_in_go() {
    for (millis, text) in [
        (1, "1ms"),
        (1_500, "1.5s"),
        (30_000, "30s"),
        (60_000, "1m0s"),
        (90_050, "1m30.05s"),
        (3_600_000, "1h0m0s"),
        (3_661_001, "1h1m1.001s"),
        (90_000_000, "25h0m0s"),
    ] {
        assert_eq!(go_duration(Duration::from_millis(millis)), text);
    }
}

fn restarting(mode: RestartMode, action: Action, runs: usize) -> Steps {
    let restart = Some(RestartPolicy { mode, delay_min: Duration::from_secs(10), delay_max: Duration::from_secs(300) });
    let actions = Actions { restart, ..actions(None, action, Vec::new()) };
    Steps::new(&actions, &vec![process(""); runs], &[])
}

fn at(seconds: u64) -> Timestamp {
    Timestamp(seconds * 1_000_000_000)
}

/// Extracts the log line and the delay from the commands after an exit that is followed by a restart.
fn pause(orders: &[StepOrder]) -> (String, Timer, u64) {
    let [StepOrder::Clear(text), StepOrder::Expire(timer, pause)] = orders else { panic!("{orders:?}") };
    (text.clone(), *timer, pause.as_secs())
}

#[test]
fn restart_delay_grows_and_resets() {
    let mut steps = restarting(RestartMode::Always, Action::Run(0), 1);
    assert_eq!(steps.start(at(0)), [StepOrder::Start(0)]);
    let mut now = 0;
    let mut texts = Vec::new();
    for (ran, code) in [(1, 3), (2, 0), (3, 3), (3, 3), (3, 3), (3, 3), (3, 3), (599, 3), (600, 3), (1, 3)] {
        now += ran;
        steps.set_uptime(Duration::from_secs(now));
        let (text, timer, waits) = pause(&steps.ended(0, exited(code), at(now)));
        assert_eq!(steps.restarts().unwrap().next_at, Some(at(now + waits)));
        assert!(!steps.is_done(0) && steps.conclusion().is_none());
        now += waits;
        steps.set_uptime(Duration::from_secs(now));
        texts.push(text);
        assert_eq!(steps.expired(timer, at(now)), [StepOrder::Start(0)]);
        assert_eq!(steps.expired(timer, at(now)), [], "once");
    }
    let words = ["now", "in 10s", "in 20s", "in 40s", "in 1m20s", "in 2m40s", "in 5m0s", "in 5m0s", "now", "in 10s"];
    for (index, (text, words)) in texts.iter().zip(words).enumerate() {
        let status = if index == 1 { 0 } else { 3 };
        assert_eq!(*text, format!("restarting {words}: Exited with status {status}"));
    }
    let restarts = steps.restarts().unwrap();
    assert_eq!((restarts.count, restarts.started_at, restarts.next_at), (10, Some(at(now)), None));
}

#[test]
fn restart_on_failure_respects_limit() {
    let mut steps = restarting(RestartMode::OnFailure(Some(1)), Action::Run(0), 1);
    steps.start(at(0));
    let (_, timer, _) =
        pause(&steps.ended(0, RunEnd::NotStarted { why: "exec /nope: No such file".into(), errno: 2 }, at(1)));
    let last = steps.restarts().unwrap().last.clone().unwrap();
    assert_eq!((last.exit, &*last.reason, last.finished_at), (None, "exec /nope: No such file", at(1)));
    steps.expired(timer, at(1));
    assert_eq!(steps.ended(0, exited(5), at(2)), []);
    assert!(steps.is_done(0));
    assert_eq!(steps.conclusion(), conclusion(Some(5), Some("Exited with status 5")));
    let mut well = restarting(RestartMode::OnFailure(None), Action::Run(0), 1);
    well.start(at(0));
    assert_eq!(well.ended(0, exited(0), at(1)), []);
    assert_eq!(well.conclusion(), conclusion(Some(0), None));
}

#[test]
fn clock_jumps_change_no_pause() {
    const HOUR: u64 = 3600;
    let mut steps = restarting(RestartMode::Always, Action::Run(0), 1);
    steps.start(at(20 * HOUR));
    let mut uptime = 0;
    // Duration of each run in seconds, the date after the run, and the expected delay.
    for (ran, date, expected) in [(1, 26 * HOUR, 0), (1, 14 * HOUR, 10), (1, 20 * HOUR, 20), (700, 8 * HOUR, 0)] {
        uptime += ran;
        steps.set_uptime(Duration::from_secs(uptime));
        let (_, timer, waits) = pause(&steps.ended(0, exited(3), at(date)));
        assert_eq!(waits, expected, "after {ran} s");
        uptime += waits;
        steps.set_uptime(Duration::from_secs(uptime));
        steps.expired(timer, at(date + waits));
    }
}

#[test]
fn stop_cancels_pending_restart() {
    let mut steps = restarting(RestartMode::Always, Action::Run(0), 1);
    steps.start(at(0));
    let (_, timer, _) = pause(&steps.ended(0, exited(7), at(1)));
    assert_eq!(steps.cancel(at(1)), []);
    assert!(steps.is_done(0));
    assert_eq!(steps.expired(timer, at(1)), []);
    assert_eq!(steps.conclusion(), conclusion(Some(7), None));
    assert_eq!(steps.restarts().unwrap().next_at, None);
    let mut running = restarting(RestartMode::Always, Action::Run(0), 1);
    running.start(at(0));
    assert_eq!(running.cancel(at(1)), [StepOrder::Cancel(0)]);
    assert_eq!(running.ended(0, exited(143), at(2)), []);
    assert_eq!(running.conclusion(), conclusion(Some(143), None));
    let mut lost = restarting(RestartMode::Always, Action::Run(0), 1);
    lost.start(at(0));
    pause(&lost.ended(0, exited(7), at(1)));
    lost.forbid_restarts(at(1));
    assert_eq!(lost.conclusion(), conclusion(Some(7), Some("Exited with status 7")));
}

#[test]
fn stale_timeout_does_not_affect_later_run() {
    let action = Action::Timeout { action: Box::new(Action::Run(0)), after: Duration::from_secs(30) };
    let mut steps = restarting(RestartMode::Always, action, 1);
    let begun = steps.start(at(0));
    let [StepOrder::Expire(first, _), StepOrder::Start(0)] = begun[..] else { panic!("{begun:?}") };
    let (_, timer, _) = pause(&steps.ended(0, exited(0), at(20)));
    let begun = steps.expired(timer, at(20));
    let [StepOrder::Expire(second, _), StepOrder::Start(0)] = begun[..] else { panic!("{begun:?}") };
    assert_eq!(steps.expired(first, at(30)), []);
    assert_eq!(steps.expired(second, at(50)), [StepOrder::Cancel(0)]);
    let (text, ..) = pause(&steps.ended(0, exited(143), at(51)));
    assert_eq!(text, "restarting in 10s: exceeded 30s timeout");
}

#[test]
fn unhealthy_run_restarts_within_policy_limit() {
    let why = || "Instance became unhealthy: no answer".to_owned();
    let mut steps = restarting(RestartMode::OnFailure(Some(1)), Action::Run(0), 1);
    steps.start(at(0));
    assert_eq!(steps.run_again_for(why(), at(5)), RestartOutcome::Follows(vec![StepOrder::Cancel(0)]));
    assert_eq!(steps.run_again_for(why(), at(5)), RestartOutcome::IsEnding);
    let (text, timer, _) = pause(&steps.ended(0, exited(0), at(6)));
    assert_eq!(text, "restarting now: Instance became unhealthy: no answer");
    assert_eq!(steps.expired(timer, at(6)), [StepOrder::Start(0)]);
    assert_eq!(steps.run_again_for(why(), at(7)), RestartOutcome::NotPermitted, "the restart is requested only once");
    let mut without = self::steps(Action::Run(0), 1);
    without.start(at(0));
    assert_eq!(without.run_again_for(why(), at(1)), RestartOutcome::NotPermitted);
}

#[test]
fn setup_is_not_repeated_and_sidecars_are() {
    let restart = Some(RestartPolicy {
        mode: RestartMode::Always,
        delay_min: Duration::from_secs(1),
        delay_max: Duration::from_secs(1),
    });
    let actions = Actions { restart, ..actions(Some(Action::Run(0)), Action::Run(1), vec![Action::Run(2)]) };
    let mut steps = Steps::new(&actions, &[process("SETUP"), process("APP"), process("SIDE")], &[]);
    assert_eq!(steps.start(at(0)), [StepOrder::Start(0)]);
    assert!(steps.is_last_run(0) && !steps.is_last_run(1));
    assert_eq!(steps.ended(0, exited(0), at(1)), [StepOrder::Start(1), StepOrder::Start(2)]);
    assert!(steps.is_done(0));
    assert_eq!(steps.ended(2, exited(9), at(2)), [StepOrder::Cancel(1)]);
    let (text, timer, _) = pause(&steps.ended(1, exited(143), at(3)));
    assert_eq!(text, "restarting now: SIDE: Exited with status 9");
    assert_eq!(steps.expired(timer, at(3)), [StepOrder::Start(1), StepOrder::Start(2)]);
}
