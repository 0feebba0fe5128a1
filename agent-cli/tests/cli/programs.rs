//! Tests that `agent-cli NAME` runs the program `agent-cli-NAME`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;

use crate::fake::Fake;
use crate::program::{Ended, agent_cli_in, bare, finish, script};

/// An agent-cli in its own directory, and another directory as the only directory in PATH.
struct Installed {
    own: tempfile::TempDir,
    path: tempfile::TempDir,
}

impl Installed {
    fn new() -> Self {
        let installed = Self { own: tempfile::tempdir().unwrap(), path: tempfile::tempdir().unwrap() };
        agent_cli_in(installed.own.path());
        installed
    }

    /// Installs agent-cli with a program next to it.
    fn with(name: &str, lines: &str) -> Self {
        let installed = Self::new();
        script(&installed.own.path().join(name), lines);
        installed
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = bare(&self.own.path().join("agent-cli"), args);
        command.env("PATH", self.path.path());
        command
    }

    fn run(&self, args: &[&str]) -> Ended {
        finish(self.command(args).spawn().unwrap())
    }
}

#[test]
fn own_directory_is_searched_before_path() {
    let installed = Installed::with("agent-cli-greet", "echo own");
    script(&installed.path.path().join("agent-cli-greet"), "echo path");
    assert_eq!(installed.run(&["greet"]).out(), "own\n");
    std::fs::remove_file(installed.own.path().join("agent-cli-greet")).unwrap();
    assert_eq!(installed.run(&["greet"]).out(), "path\n");
}

#[test]
fn relative_directories_of_path_are_not_searched() {
    let installed = Installed::new();
    let here = installed.path.path();
    std::fs::create_dir(here.join("bin")).unwrap();
    for program in ["agent-cli-greet", "bin/agent-cli-greet"] {
        script(&here.join(program), "echo relative");
    }
    for path in [".", "", "bin", "./bin", "bin:.:"] {
        let ended = finish(installed.command(&["greet"]).current_dir(here).env("PATH", path).spawn().unwrap());
        assert_eq!((ended.status, ended.out().as_str()), (Some(125), ""), "{path}");
        let help = finish(installed.command(&["--help"]).current_dir(here).env("PATH", path).spawn().unwrap());
        assert!(!help.out().contains("greet"), "{path}");
    }
    let absolute = format!("bin:{}", here.join("bin").display());
    let ended = finish(installed.command(&["greet"]).current_dir(here).env("PATH", absolute).spawn().unwrap());
    assert_eq!(ended.out(), "relative\n", "the control");
}

#[test]
fn command_takes_precedence_over_external_program() {
    let fake = Fake::start();
    let installed = Installed::with("agent-cli-ps", "echo program");
    script(&installed.own.path().join("agent-cli-help"), "echo program");
    let mut command = installed.command(&["ps", "--quiet"]);
    let ended = finish(command.env("EXECUTOR_SOCKET", fake.socket()).spawn().unwrap());
    assert_eq!((ended.status, ended.out().as_str()), (Some(0), ""), "{}", ended.err());
    for arguments in [&["help", "ps"][..], &["help"], &["--help"]] {
        let ended = installed.run(arguments);
        assert!(ended.status == Some(0) && ended.out().contains("Usage: agent-cli"), "{}", ended.out());
        assert!(!ended.out().contains("Programs:"), "{}", ended.out());
    }
}

#[test]
fn external_program_receives_unchanged_arguments() {
    let installed = Installed::with("agent-cli-args", "for word; do printf '%s\\n' \"$word\"; done");
    let words: [&[u8]; 11] = [
        b"--",
        b"-x",
        b"--socket",
        b"/s",
        b"--json",
        b"--help",
        b"",
        b"a b",
        b"--",
        b"not UTF-8: \xff\xfe",
        b"--version",
    ];
    for from in 0..words.len() {
        let words = &words[from..];
        let mut command = installed.command(&["args"]);
        let ended = finish(command.args(words.iter().map(|word| OsStr::from_bytes(word))).spawn().unwrap());
        let expected: Vec<u8> = words.iter().flat_map(|word| [word, &b"\n"[..]].concat()).collect();
        let (out, err) = (String::from_utf8_lossy(&ended.stdout), ended.err());
        assert!(ended.status == Some(0) && ended.stdout == expected, "{out:?} {err}");
    }
}

#[test]
fn global_flags_are_passed_in_environment() {
    let installed = Installed::with("agent-cli-env", "echo \"${EXECUTOR_SOCKET-none} ${EXECUTOR_JSON-none}\"");
    for (arguments, expected) in [
        (&["env"][..], "none none\n"),
        (&["--json", "env"], "none 1\n"),
        (&["--socket", "/a b", "env"], "/a b none\n"),
        (&["--json", "--socket=/a", "env", "--socket", "/b"], "/a 1\n"),
    ] {
        assert_eq!(installed.run(arguments).out(), expected, "{arguments:?}");
    }
    let mut command = installed.command(&["--socket", "/flag", "env"]);
    let ended = finish(command.env("EXECUTOR_SOCKET", "/variable").env("EXECUTOR_JSON", "1").spawn().unwrap());
    assert_eq!(ended.out(), "/flag 1\n");
}

#[test]
fn external_program_exit_status_is_returned() {
    let installed = Installed::with("agent-cli-end", "echo said >&2; [ $1 = -KILL ] && kill $1 $$; exit $1");
    for status in ["0", "1", "42", "125", "255"] {
        let ended = installed.run(&["end", status]);
        assert_eq!((ended.status, ended.err().as_str()), (status.parse().ok(), "said\n"));
    }
    let status = installed.command(&["end", "-KILL"]).status().unwrap();
    assert_eq!(status.signal(), Some(9));
}

#[test]
fn unexecutable_program_is_reported() {
    let installed = Installed::with("agent-cli-broken", "");
    let broken = installed.own.path().join("agent-cli-broken");
    let mut text = std::fs::read(&broken).unwrap();
    text.splice(..9, *b"#!/nosuch");
    std::fs::write(&broken, text).unwrap();
    let ended = installed.run(&["broken"]);
    let path = Path::new(&broken).display().to_string();
    assert!(ended.status == Some(126) && ended.err().contains(&path), "{:?} {}", ended.status, ended.err());
}

#[test]
fn help_lists_programs_and_asks_them() {
    let installed = Installed::with("agent-cli-greet", "echo \"help of greet: $*\"");
    script(&installed.path.path().join("agent-cli-other-one"), "");
    std::fs::write(installed.own.path().join("agent-cli-data"), "not executable").unwrap();
    let help = installed.run(&["--help"]);
    let listed = "Programs:\n  greet       agent-cli-greet\n  other-one   agent-cli-other-one\n";
    assert!(help.status == Some(0) && help.out().contains(listed), "{}", help.out());
    assert_eq!(installed.run(&["help", "greet"]).out(), "help of greet: --help\n");
    assert_eq!(installed.run(&["greet", "--help"]).out(), "help of greet: --help\n");
}

#[test]
fn unknown_command_error_names_searched_program() {
    let installed = Installed::new();
    for arguments in [&["nosuch"][..], &["help", "nosuch"], &["--json", "nosuch", "--flag"]] {
        let ended = installed.run(arguments);
        let hint = "there is no program agent-cli-nosuch next to agent-cli or in PATH";
        assert!(ended.status == Some(125) && ended.err().contains(hint), "{arguments:?}: {}", ended.err());
        assert_eq!(ended.out(), "");
    }
    let near = installed.run(&["inspec"]);
    assert!(near.err().contains("'inspect'"), "{}", near.err());
    // Invalid program names are not searched for.
    for name in ["No", "a/b", "../agent-cli"] {
        let ended = installed.run(&[name]);
        assert!(ended.status == Some(125) && !ended.err().contains("no program"), "{}", ended.err());
    }
}
