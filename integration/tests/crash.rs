//! kill -9 at system calls: a sample of what `cargo xtask crash` does at every one (see docs/crash.md).

#![allow(clippy::unwrap_used)] // where a test cannot go on, it fails

use std::process::Command;

use integration::dist;

/// Calls of all lives at which something is killed.
const SAMPLE: &str = "90";
/// Where a sample begins, as a failure told: the same calls again.
const OFFSET: &str = "EXECUTOR_CRASH_OFFSET";

fn executor_crash() -> Command {
    Command::new(env!("CARGO_BIN_EXE_executor-crash"))
}

#[test]
fn nothing_is_left_and_every_fate_is_known_wherever_a_process_is_killed() {
    let mut command = executor_crash();
    command.args(["--sample", SAMPLE, "--json"]);
    if let Ok(offset) = std::env::var(OFFSET) {
        command.args(["--offset", &offset]);
    }
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    eprint!("{told}");
    assert!(output.status.success(), "again with {OFFSET} as told:\n{told}");
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for target in figures["targets"].as_array().unwrap() {
        // The control: processes were killed, in the number that was asked for, and the containers had fates.
        let of = |name: &str| target[name].as_u64().unwrap();
        assert!(of("kills") > 0 || of("calls") < 200, "{target}");
        assert_eq!(of("known") + of("unknown") + of("refused"), of("kills"), "{target}");
    }
}

/// The control: binaries that wipe nothing are caught.
#[test]
fn a_secret_that_stays_is_found() {
    let mut command = executor_crash();
    command.env("EXECUTOR_DIST", dist::control()).args(["--target", "executord", "--at", "20"]);
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("the secret is left: ") && told.contains("in memory of executord"), "{told}");
}
