//! Runs the program without an executord, as agent-cli, cnab-go and package builds do.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

const PROGRAM: &str = env!("CARGO_BIN_EXE_agent-cli-cnab");

fn run(program: &Path, args: &[&str]) -> Output {
    Command::new(program).args(args).env_remove("EXECUTOR_SOCKET").env_remove("EXECUTOR_JSON").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn manual_and_completions_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("new/dir");
    for what in ["man", "completions"] {
        let output = run(Path::new(PROGRAM), &["generate", what, "--out", out.to_str().unwrap()]);
        assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    }
    let page = |name: &str| std::fs::read_to_string(out.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(page("agent-cli-cnab.1").contains("EXIT STATUS"));
    assert!(page("agent-cli-cnab-install.1").contains("image\\-override"));
    for name in ["agent-cli-cnab.bash", "_agent-cli-cnab", "agent-cli-cnab.fish"] {
        assert!(page(name).contains("uninstall"), "{name}");
    }
}

#[test]
fn help_names_the_command_that_people_type() {
    let output = run(Path::new(PROGRAM), &["--help"]);
    assert!(output.status.success() && text(&output.stdout).contains("Usage: agent-cli cnab "), "{output:?}");
}

/// If the program is run as `cnab-executor`, it is a driver. cnab-go finds drivers by name; the Debian package and
/// `cargo xtask build` create a link with that name.
#[test]
fn cnab_executor_link_runs_as_driver() {
    let dir = tempfile::tempdir().unwrap();
    let driver = dir.path().join("cnab-executor");
    symlink(PROGRAM, &driver).unwrap();
    let output = run(&driver, &["--handles"]);
    assert_eq!((text(&output.stdout).as_str(), output.status.code()), ("docker,oci\n", Some(0)));
    let output = run(&driver, &["install"]);
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(125) && said.starts_with("cnab-executor: "), "{output:?}");
    assert_eq!(run(Path::new(PROGRAM), &["--handles"]).status.code(), Some(125), "the control");
}
