//! Runs attacks from six attacker positions: the short version of `cargo xtask adversary` (docs/adversary.md), without
//! the attacks that wait for time limits.

#![allow(clippy::unwrap_used)] // a test that cannot continue fails

use std::process::{Command, Output};

use integration::dist;
use serde_json::Value;

fn adversary(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_executor-adversary"));
    command.arg("--json").args(arguments);
    command
}

fn rows(output: &Output) -> Vec<Value> {
    let reported = String::from_utf8_lossy(&output.stderr);
    eprint!("{reported}");
    let figures: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {reported}"));
    figures["attacks"].as_array().unwrap().clone()
}

#[test]
fn no_attack_goes_through() {
    let output = adversary(&["--quick"]).output().unwrap();
    let rows = rows(&output);
    let bad: Vec<&Value> = rows.iter().filter(|row| row["outcome"] != "held").collect();
    assert!(bad.is_empty() && output.status.success(), "{bad:#?}");
    for position in ["client", "container", "executord", "image", "server"] {
        assert!(rows.iter().any(|row| row["position"] == position), "{position}");
    }
}

/// As a control, attacks on the control binaries, which wipe nothing, are reported as successful.
#[test]
fn successful_attack_is_reported() {
    let mut command = adversary(&["--filter", "secrets: of requests that are refused"]);
    let output = command.env("EXECUTOR_DIST", dist::control()).output().unwrap();
    let rows = rows(&output);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!((rows.len(), &rows[0]["outcome"]), (1, &"WENT THROUGH".into()), "{rows:#?}");
}
