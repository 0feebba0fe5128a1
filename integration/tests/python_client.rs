//! A client in another language (Python's grpcio), which learns the interface by reflection.

#![allow(clippy::unwrap_used)] // where a test cannot go on, it fails

use std::path::{Path, PathBuf};
use std::process::Command;

use integration::daemon::Daemon;
use serde_json::Value;

/// The interpreter that `cargo xtask test` has prepared.
fn interpreter() -> PathBuf {
    let named = std::env::var_os("EXECUTOR_PYTHON");
    named.expect("EXECUTOR_PYTHON names no Python with grpcio: run `cargo xtask test`, which makes one").into()
}

#[test]
fn a_python_client_runs_a_run_action_with_secret_files() {
    let daemon = Daemon::start();
    let before = daemon.footprint();
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/client.py");
    let output = Command::new(interpreter()).arg(client).arg(daemon.socket()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["created"], true);
    assert_eq!(told["log"]["LOG_STREAM_STDOUT"], "vcap\nfrom python\nand one more\n");
    assert_eq!(told["log"]["LOG_STREAM_STDERR"], "to stderr\n");
    let container = &told["container"];
    assert_eq!((&container["state"], &container["result"]["exit"]["code"]), (&"STATE_COMPLETED".into(), &7.into()));
    let wipe = &container["result"]["wipe"];
    assert_eq!((&wipe["files"], &wipe["bytes"], &wipe["verified"]), (&2.into(), &"25".into(), &true.into()));
    let paths: Vec<&str> =
        container["files"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/etc/cf-service-bindings/db/password", "/run/one"]);
    assert!(!container.to_string().contains("from python"), "no value comes back: {container}");
    let refused = &told["refused"];
    assert_eq!(refused["code"], "INVALID_ARGUMENT");
    assert!(refused["message"].as_str().unwrap().contains("action.run.path"), "{refused}");
    daemon.is_back_at(&before);
}
