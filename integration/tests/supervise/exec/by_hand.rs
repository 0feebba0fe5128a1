//! agent-cli on a real terminal. The script `by_hand.py` creates and operates the terminal.

use std::process::Command;

use integration::daemon::Daemon;
use integration::dist;

const SCRIPT: &str = include_str!("by_hand.py");

#[test]
fn agent_cli_at_a_terminal() {
    let daemon = Daemon::start();
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", SCRIPT]).arg(dist::binary("agent-cli")).arg("--socket").arg(daemon.socket());
    let ran = python.env_remove("EXECUTOR_SOCKET").output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{out}\n{err}");
    assert_eq!(out.matches("done").count(), 4, "{out}");
}
