//! Processes with a terminal, as seen by a client of the interface.

use executor_proto::v1::{ExecStart, RunRequest, WindowSize};
use integration::daemon::{Daemon, Setup};
use integration::request::{RequestBuilder as _, sh};
use integration::rootfs::Rootfs;
use integration::streams::{Executed, executed, script, start};
use integration::terminal::Terminal;
use integration::{host, wait};

use crate::exec::sleeping;

fn on_terminal(daemon: &Daemon, text: &str) -> Executed {
    Executed::start(&daemon.api, ExecStart { terminal: true, ..script("c", text) }).expect("a running process")
}

#[test]
fn standard_streams_are_one_controlling_terminal() {
    let daemon = sleeping("c");
    let text = "for fd in 0 1 2; do test -t $fd && echo tty$fd; done; echo err >&2; : </dev/tty && echo controls; \
                tty; echo $TERM";
    let reported = on_terminal(&daemon, text).end().unwrap();
    let text = reported.text().replace("\r\n", "\n");
    assert!(text.starts_with("tty0\ntty1\ntty2\nerr\ncontrols\n/dev/pts/"), "{text}");
    assert!(text.contains("\nxterm\n") && reported.stderr.is_empty(), "{text}");
    assert_eq!(reported.exit, Some(Ok(0)));
    let none = executed(&daemon.api, script("c", "test -t 0 || test -t 1 || test -t 2 || : </dev/tty")).unwrap();
    assert_ne!(none.exit, Some(Ok(0)), "control: without a requested terminal, the process has none");
}

#[test]
fn terminal_size_is_set_and_resized() {
    let daemon = sleeping("c");
    let size = |window| {
        let start = ExecStart { terminal: true, window, ..start("c", "/usr/bin/stty", &["size"]) };
        executed(&daemon.api, start).unwrap().text()
    };
    assert_eq!(size(None), "24 80\r\n");
    assert_eq!(size(Some(WindowSize { rows: 7, columns: 133 })), "7 133\r\n");
    let mut watcher = on_terminal(&daemon, "trap 'stty size; exit 6' WINCH; echo ready; while :; do sleep 0.01; done");
    watcher.until("ready");
    watcher.resize(50, 200);
    let watcher = watcher.end().unwrap();
    assert!(watcher.text().contains("50 200"), "{}", watcher.text());
    assert_eq!(watcher.exit, Some(Ok(6)));
}

/// A program on a terminal has the size of the caller's window from its first instruction, after a warm and a cold
/// start.
#[test]
fn run_terminal_begins_with_callers_size() {
    for ready in [0, 1] {
        let daemon = Setup::default().config(&format!("[warm_pool]\nsize = {ready}\n")).start();
        for (rows, columns) in [(31, 117), (50, 200), (7, 133), (24, 80), (2, 9), (100, 300), (43, 132), (25, 81)] {
            daemon.api.wait_until_warm_pool_is_ready();
            let busybox = Rootfs::busybox();
            let program = ["run", "-it", "--rm", "--rootfs", &busybox.reference(), "/bin/busybox", "stty", "size"];
            let mut terminal = Terminal::start(&daemon.socket(), &program, (rows, columns));
            assert!(terminal.wait().success(), "{}", terminal.text());
            assert_eq!(terminal.text().trim(), format!("{rows} {columns}"));
        }
    }
    let daemon = Daemon::start();
    let request = RunRequest { terminal: true, ..sh("stty size").id("default") };
    daemon.api.run_to_end(request);
    assert_eq!(
        daemon.api.output("default").text().trim(),
        "24 80",
        "control: default size, because the caller has no window"
    );
}

/// A shell with job control works: typed input is echoed, Ctrl-C kills the foreground job and not the shell, Ctrl-Z
/// stops the job, and the shell exits on Ctrl-D.
#[test]
fn shell_is_used_as_by_hand() {
    let daemon = sleeping("c");
    let bash = ExecStart { terminal: true, ..start("c", "/bin/bash", &["--norc", "-i"]) };
    let mut shell = Executed::start(&daemon.api, bash).unwrap();
    shell.send_input(b"PS1='rea''dy> '\n");
    shell.until("ready> ");
    shell.send_input(b"echo a$((40+2))b\n");
    shell.until("a42b");
    shell.send_input(b"(echo go''ing; sleep 1000)\n");
    shell.until("going");
    // bash can lose a signal during a fork.
    let sleeps = |pid: &i32| host::status(*pid, "Name").as_deref() == Some("sleep");
    wait::until("sleep runs", || host::descendants(shell.pid).iter().any(sleeps).then_some(()));
    shell.send_input(b"\x03");
    shell.until("^C");
    shell.send_input(b"echo still-$((1))\n");
    shell.until("still-1");
    shell.send_input(b"(echo be''gins; sleep 2000)\n");
    shell.until("begins");
    shell.send_input(b"\x1a");
    shell.until("topped");
    shell.send_input(b"kill -9 %1; exit 9\n");
    shell.send_input(b"exit 9\n");
    assert_eq!(shell.end().unwrap().exit, Some(Ok(9)));
}

/// All output that a process writes before its exit is delivered, even large output.
#[test]
fn terminal_output_is_complete() {
    let daemon = sleeping("c");
    for text in ["seq 1 20000", "seq 1 20000 | tr '\\n' ' '"] {
        let expected = executed(&daemon.api, script("c", text)).unwrap().text();
        let got = on_terminal(&daemon, text).end().unwrap().text().replace("\r\n", "\n");
        assert!(got == expected && got.len() > 100_000, "{} of {} bytes", got.len(), expected.len());
    }
}

/// A `/dev/ptmx` that the container replaced with a regular file is refused as a terminal multiplexer.
#[test]
fn false_multiplexer_is_refused() {
    let daemon = Daemon::start();
    let trick = "rm /dev/ptmx; echo >/dev/ptmx; echo changed; sleep 100000";
    daemon.api.started(sh(trick).id("c"));
    wait::until("the container has changed /dev/ptmx", || {
        daemon.api.logs_so_far("c").contains("changed").then_some(())
    });
    let reported = on_terminal(&daemon, "echo fooled").end().unwrap();
    assert!(reported.failure.unwrap().message.contains("/dev/ptmx is not the kernel's terminal multiplexer"));
}
