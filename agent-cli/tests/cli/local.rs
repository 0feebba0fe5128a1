//! Tests `--local` with a script instead of executord. The script's socket is a link to the socket of the fake.

use std::path::PathBuf;
use std::process::Command;

use rustix::process::{Signal, geteuid};

use crate::fake::{Call, Fake, exited};
use crate::program::{self, Ended, Lines, agent_cli_in, bare, finish, send};

/// An installed agent-cli, with `script` as executord next to it.
struct Installed {
    dir: tempfile::TempDir,
}

impl Installed {
    fn with(script: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        agent_cli_in(dir.path());
        program::script(&dir.path().join("executord"), script);
        Self { dir }
    }

    /// Installs an executord that serves through the fake, records its invocation, and cleans up when it is terminated.
    fn serving(fake: &Fake) -> Self {
        Self::with(&format!(
            "run=$3 state=$5 notes=${{0%/*}}\n\
             echo \"$@\" > \"$notes/arguments\"\n\
             env > \"$notes/environment\"\n\
             trap 'rm -r \"$run\"; kill $!; exit 0' TERM\n\
             trap 'echo INT >> \"$notes/signals\"' INT\n\
             mkdir -p \"$run\" \"$state\"\n\
             ln -s {} \"$run/executor.sock\"\n\
             while :; do sleep 1000 & wait; done",
            fake.socket().display(),
        ))
    }

    fn note(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }

    /// Returns the temporary directory: the run directory, which contains the state directory.
    fn home(&self) -> PathBuf {
        self.note("arguments").split_whitespace().nth(2).unwrap().into()
    }

    fn command(&self, args: &[&str]) -> Command {
        bare(&self.dir.path().join("agent-cli"), args)
    }

    fn run(&self, args: &[&str]) -> Ended {
        finish(self.command(args).spawn().unwrap())
    }
}

#[test]
fn local_uses_and_stops_private_executord() {
    if !geteuid().is_root() {
        let program = Installed::with("exit 0").run(&["--local", "info"]);
        assert!(program.status == Some(125) && program.err().contains("needs root"), "{}", program.err());
        return;
    }
    let fake = Fake::with(|shared, id| shared.complete(id, exited(3)));
    let installed = Installed::serving(&fake);
    let mut command = installed.command(&["--local", "run", "--file", "a=@env:TOKEN", "--", "x"]);
    let program = finish(command.env("TOKEN", "canary-3fa8").spawn().unwrap());
    assert_eq!((program.status, program.err().as_str()), (Some(3), ""));
    let arguments = installed.note("arguments");
    let home = installed.home();
    assert_eq!(arguments.trim(), format!("--ephemeral --run-dir {0} --state-dir {0}/state", home.display()));
    assert!(!home.exists(), "{}", home.display());
    assert!(!installed.note("environment").contains("canary-3fa8"));
    assert_eq!(installed.run(&["--local", "info"]).status, Some(0));
}

/// Ctrl-C stops the container before executord exits. The terminal signals a whole process group, so executord must be
/// in another group.
#[test]
fn ctrl_c_stops_the_container_before_executord() {
    if !geteuid().is_root() {
        return;
    }
    use std::os::unix::process::CommandExt;
    let fake = Fake::start();
    let installed = Installed::serving(&fake);
    let child = installed.command(&["--local", "run", "--", "x"]).process_group(0).spawn().unwrap();
    fake.called("Wait", 1, |call| matches!(call, Call::Wait(_)));
    rustix::process::kill_process_group(program::pid(&child), Signal::INT).unwrap();
    assert_eq!(finish(child).status, Some(143));
    assert_eq!(installed.note("signals"), "");
    assert!(!installed.home().exists());
}

/// Ctrl-C also stops the private executord of commands that run no container.
#[test]
fn ctrl_c_during_events_stops_private_executord() {
    if !geteuid().is_root() {
        return;
    }
    let fake = Fake::start();
    let installed = Installed::serving(&fake);
    let mut child = installed.command(&["--local", "events"]).spawn().unwrap();
    fake.called("WatchEvents", 1, |call| matches!(call, Call::Watch(_)));
    fake.add("web-1", executor_proto::v1::State::Running);
    fake.shared.complete("web-1", exited(0));
    let mut lines = Lines::from_child(&mut child);
    assert!(lines.next().contains("web-1"));
    send(&child, Signal::INT);
    let program = finish(child);
    assert_eq!((program.status, program.err().as_str()), (Some(130), ""));
    assert!(!installed.home().exists());
}

/// With --local, an external program runs as a child: it gets the private executord's socket, and agent-cli returns its
/// status after executord was stopped.
#[test]
fn a_program_uses_the_private_executord() {
    if !geteuid().is_root() {
        return;
    }
    let fake = Fake::start();
    let installed = Installed::serving(&fake);
    let program = installed.dir.path().join("agent-cli-where");
    program::script(&program, "echo \"$EXECUTOR_SOCKET\"; exit 42");
    let ended = installed.run(&["--local", "where"]);
    let socket = installed.home().join("executor.sock");
    assert_eq!((ended.status, ended.out().trim()), (Some(42), socket.to_str().unwrap()), "{}", ended.err());
    assert!(!installed.home().exists());
    program::script(&program, "kill -KILL $$");
    assert_eq!(installed.run(&["--local", "where"]).status, Some(128 + 9));
}

#[test]
fn early_executord_error_is_printed() {
    if !geteuid().is_root() {
        return;
    }
    let installed = Installed::with("mkdir -p \"$3\"; echo \"cannot bind: no cgroup\" >&2; exit 2");
    let program = installed.run(&["--local", "info"]);
    assert_eq!(program.status, Some(125));
    assert!(
        program.err().contains("exit status: 2") && program.err().contains("cannot bind: no cgroup"),
        "{}",
        program.err()
    );
}

#[test]
fn lost_private_executord_ends_command() {
    if !geteuid().is_root() {
        return;
    }
    let fake = Fake::start();
    let installed = Installed::with(&format!(
        "mkdir -p \"$3\"; ln -s {} \"$3/executor.sock\"; read line < {}; rm -r \"$3\"",
        fake.socket().display(),
        fake.socket().with_file_name("fifo").display()
    ));
    let fifo = fake.socket().with_file_name("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let child = installed.command(&["--local", "run", "--", "x"]).spawn().unwrap();
    fake.called("Wait", 1, |call| matches!(call, Call::Wait(_)));
    drop(std::fs::OpenOptions::new().write(true).open(&fifo).unwrap());
    let program = finish(child);
    assert_eq!(program.status, Some(125));
    assert!(program.err().contains("private executord exited"), "{}", program.err());
}
