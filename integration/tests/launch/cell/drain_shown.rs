//! Output of `agent-cli drain`: a progress bar on a terminal, lines through a pipe, JSON documents with --json.

use std::io::{BufRead as _, BufReader};
use std::path::Path;

use executor_proto::v1::State;
use integration::cli::CliOutput;
use integration::daemon::Daemon;
use integration::request::{RequestBuilder as _, sh};
use integration::terminal::{Terminal, plain};
use integration::{cli, wait};

use crate::cell::drain::{ENDS, IGNORES, undrain};

/// Starts ten containers, two of which ignore SIGTERM for longer than any drain here takes.
fn containers(daemon: &Daemon) {
    for index in 0..10 {
        let (script, grace) = if index < 2 { (IGNORES, 3_600_000) } else { (ENDS, 30_000) };
        daemon.api.up(sh(script).id(&format!("c{index}")).grace_ms(grace));
    }
}

fn remove(daemon: &Daemon) {
    daemon.api.ids().iter().for_each(|id| daemon.api.delete(id, true).unwrap());
}

/// Returns the drawn lines of the progress bar, without control sequences.
fn drawings(terminal: &Terminal) -> Vec<String> {
    terminal.text().split('\r').map(plain).filter(|line| line.contains("draining")).collect()
}

fn drain(socket: &Path, deadline: &str, columns: u16) -> Terminal {
    Terminal::start(socket, &["drain", "--deadline", deadline], (24, columns))
}

#[test]
fn drain_bar_counts_down_and_is_erased() {
    let daemon = Daemon::start();
    containers(&daemon);
    let mut terminal = drain(&daemon.socket(), "1h", 100);
    let last = |wanted: &str| {
        let is_wanted = |line: &String| line.contains(wanted);
        wait::until(wanted, || drawings(&terminal).pop().filter(is_wanted))
    };
    let line = last("8/10 completed, 2 stopping; deadline in 59m");
    let seconds = |line: &str| line.split("59m").nth(1).map(str::to_owned);
    wait::until("the deadline counts down without an event", || {
        drawings(&terminal).pop().filter(|now| seconds(now).is_some() && seconds(now) != seconds(&line))
    });
    assert!(line.chars().count() > 40, "control: the line is longer than the terminal will be: {line}");
    terminal.resize(24, 40);
    wait::until_ok("the line fits the smaller terminal", || {
        let line = drawings(&terminal).pop().unwrap();
        if line.chars().count() <= 40 && line.contains("8/10") { Ok(()) } else { Err(line) }
    });

    // Ctrl-C ends this command and not the drain.
    terminal.press(b"\x03");
    assert_eq!(terminal.wait().code(), Some(130));
    wait::until("the hint is printed", || terminal.text().contains("`agent-cli undrain` cancels it").then_some(()));
    let text = terminal.text();
    let (_, end) = text.rsplit_once("draining").unwrap();
    let (cleared, reported) = end.split_once("agent-cli: the drain continues").unwrap();
    assert!(cleared.contains("\u{1b}[2K") && reported.ends_with("\r\n"), "the bar is gone: {end:?}");
    assert!(["c0", "c1"].iter().all(|id| daemon.api.get(id).unwrap().state() == State::Stopping));

    // The same command joins the drain with an earlier deadline. At the end the command lists the killed containers.
    let mut terminal = drain(&daemon.socket(), "1s", 100);
    assert!(terminal.wait().success());
    let end = "drained: 10 completed, 2 killed\r\nkilled: c0\r\nkilled: c1\r\n";
    wait::until("the result is printed", || terminal.text().ends_with(end).then_some(()));
    undrain(&daemon);
    remove(&daemon);
}

#[test]
fn drain_prints_lines_to_pipe_or_json() {
    let daemon = Daemon::start();
    for arguments in [&["drain", "--deadline", "1m"][..], &["--json", "drain", "--deadline", "1m"]] {
        containers(&daemon);
        let mut child = cli::command(Some(&daemon.socket()), arguments).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut stdout = String::new();
        let mut reads = |until: &[&str]| {
            for line in lines.by_ref() {
                stdout += &format!("{line}\n");
                if until.iter().any(|text| line.contains(text)) {
                    return;
                }
            }
        };
        // Eight containers have exited. The other two wait for the deadline, which another client moves to an earlier
        // time.
        reads(&["8 of 10 completed, 2 stopping, 0 killed", "\"ended\":8"]);
        assert_eq!(cli::run(&daemon.socket(), &["drain", "--deadline", "1s"]).status, 0);
        reads(&[]);
        let reported = CliOutput { stdout, ..cli::finish(child) };
        assert!(
            reported.status == 0 && reported.stderr.is_empty() && !reported.stdout.contains('\u{1b}'),
            "{reported:?}"
        );
        if arguments[0] == "--json" {
            let documents = reported.json_lines();
            let last = documents.last().unwrap();
            assert_eq!(
                (&last["done"], &last["ended"], &last["killed"]),
                (&true.into(), &10.into(), &["c0", "c1"].into())
            );
            assert!(
                documents.len() > 2 && documents.iter().rev().skip(1).all(|one| one["done"] == false),
                "{reported:?}"
            );
        } else {
            let (progress, end): (Vec<&str>, Vec<&str>) =
                reported.stdout.lines().partition(|line| line.contains(" of 10 "));
            assert!(
                progress.iter().any(|line| line.starts_with("8 of 10 completed, 2 stopping, 0 killed")),
                "{reported:?}"
            );
            assert_eq!(end, ["drained: 10 completed, 2 killed", "killed: c0", "killed: c1"]);
        }
        undrain(&daemon);
        remove(&daemon);
    }
}
