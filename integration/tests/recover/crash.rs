//! kill -9 at system calls: tests a sample of `cargo xtask crash`, which kills at every call (docs/crash.md).

use std::process::Command;

use integration::{dist, warm_pool};

/// Number of kills during the life cycles of containers.
const SAMPLE: &str = "45";
/// Number of kills of executord while it fetches secrets.
const FETCHES: &str = "12";
/// Number of kills while certificates are renewed.
const RENEWALS: &str = "16";
/// Number of kills of `agent-cli bundle`.
const INSTALLATIONS: &str = "16";
/// Number of kills during the life cycles of Kubernetes pods.
const PODS: &str = "15";
/// Environment variable with the offset of a sample. Set it to repeat a failed sample.
const OFFSET: &str = "EXECUTOR_CRASH_OFFSET";

fn executor_crash() -> Command {
    Command::new(env!("CARGO_BIN_EXE_executor-crash"))
}

#[test]
fn kill_at_any_call_leaves_nothing() {
    let mut command = executor_crash();
    command.args(["--sample", SAMPLE, "--json"]).args(warm_pool::is_enabled().then_some("--warm-pool"));
    if let Ok(offset) = std::env::var(OFFSET) {
        command.args(["--offset", &offset]);
    }
    let output = command.output().unwrap();
    let reported = String::from_utf8_lossy(&output.stderr);
    eprint!("{reported}");
    assert!(output.status.success(), "to repeat the failure, set {OFFSET} to the reported offset:\n{reported}");
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for target in figures["targets"].as_array().unwrap() {
        // As a control, processes were killed, and the outcome of every container is counted.
        let of = |name: &str| target[name].as_u64().unwrap();
        assert!(of("kills") > 0 || of("calls") < 200, "{target}");
        assert_eq!(of("known") + of("unknown") + of("refused"), of("kills"), "{target}");
    }
}

/// Kills executord while it fetches secrets by reference, at the start and again later.
#[test]
fn kill_during_fetch_or_renewal_leaves_nothing() {
    let sample = ["--references", "--target", "executord", "--sample", FETCHES, "--json"];
    let output = executor_crash().args(sample).output().unwrap();
    let reported = String::from_utf8_lossy(&output.stderr);
    eprint!("{reported}");
    assert!(output.status.success(), "{reported}");
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |name: &str| figures["targets"][0][name].as_u64().unwrap();
    assert!(of("kills") > 0, "{figures}");
    assert_eq!(of("known") + of("refused"), of("kills"), "{figures}");
}

/// Kills processes while a container's certificate is renewed.
#[test]
fn kill_during_renewal_leaves_matching_pair() {
    let output = executor_crash().args(["--renewals", "--sample", RENEWALS, "--json"]).output().unwrap();
    let reported = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{reported}");
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let targets = figures["targets"].as_array().unwrap();
    let of = |target: &serde_json::Value, name: &str| target[name].as_u64().unwrap();
    assert!(targets.len() == 5 && targets.iter().all(|it| of(it, "calls") > 0), "{figures}");
    assert!(targets.iter().map(|it| of(it, "kills")).sum::<u64>() > 8, "{figures}");
}

/// CRI rule C43 of docs/guides/cri-rules.md: executor-cri, executord or the launcher is killed during the life cycle of
/// a Kubernetes pod. The pod's container runs exactly once, and nothing is left.
#[test]
fn pod_outlives_each_killed_process() {
    let mut command = executor_crash();
    command.args(["--pods", "--sample", PODS, "--json"]);
    if let Ok(offset) = std::env::var(OFFSET) {
        command.args(["--offset", &offset]);
    }
    let output = command.output().unwrap();
    let reported = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "to repeat the failure, set {OFFSET} to the reported offset:\n{reported}");
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let targets = figures["targets"].as_array().unwrap();
    let count = |target: &serde_json::Value, name: &str| target[name].as_u64().unwrap();
    assert!(targets.len() == 3 && targets.iter().all(|it| count(it, "calls") > 0), "{figures}");
    assert!(targets.iter().all(|it| count(it, "known") == count(it, "kills")), "{figures}");
    assert!(targets.iter().map(|it| count(it, "kills")).sum::<u64>() > 8, "{figures}");
}

/// `agent-cli bundle` is killed at system calls that change something. The next command finishes or undoes the work.
#[test]
fn installation_is_repaired_after_any_kill() {
    let operations = ["--operation", "install,upgrade,rollback,uninstall", "--sample", INSTALLATIONS, "--json"];
    let mut command = executor_crash();
    command.args(operations);
    if let Ok(offset) = std::env::var(OFFSET) {
        command.args(["--offset", &offset]);
    }
    let output = command.output().unwrap();
    let reported = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "to repeat the failure, set {OFFSET} to the reported offset:\n{reported}");
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let kills: Vec<u64> = figures["targets"].as_array().unwrap().iter().filter_map(|it| it["kills"].as_u64()).collect();
    assert!(kills.len() == 4 && kills.iter().all(|kills| *kills > 0), "{figures}");
}

/// As a control, the control binaries, which wipe nothing, leave secrets that the search finds.
#[test]
fn control_without_wipe_leaves_secrets() {
    let mut command = executor_crash();
    command.env("EXECUTOR_DIST", dist::control()).args(["--target", "executord", "--at", "20"]);
    let output = command.output().unwrap();
    let reported = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{reported}");
    assert!(reported.contains("a secret remains: ") && reported.contains("in memory of executord"), "{reported}");
}
