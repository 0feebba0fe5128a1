//! Tests executor-cri with real containers: the rules and complaints of `docs/guides/cri-rules.md`. `cargo xtask
//! engines-test` also tests executor-cri with critest.

#![allow(clippy::unwrap_used)] // a test that cannot continue fails; the lint does not count its helpers as tests

mod bad_input;
mod churn;
mod csi;
mod dead_mounts;
mod errors;
mod images;
mod lifecycle;
mod logs;
mod network;
mod privileged;
mod reboot;
mod restarts;
mod secrets;
mod stalls;
mod stats;
mod streaming;
mod times;
mod users;
mod values;

use integration::cri::KubernetesNode;
use tonic::{Code, Status};

/// Executes a shell script in a container, and returns its output.
fn output(node: &KubernetesNode, id: &str, script: &str) -> String {
    let done = node.exec(id, &["sh", "-c", script], 10).unwrap();
    assert_eq!(done.exit_code, 0, "{script}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// Checks the code of an error, the parts of its message, and that the message has one line.
fn has_code(error: &Status, code: Code, parts: &[&str]) {
    assert_eq!(error.code(), code, "{error:?}");
    for part in parts {
        assert!(error.message().contains(part), "{part}: {error:?}");
    }
    assert!(!error.message().contains('\n'), "the message has several lines: {error:?}");
}
