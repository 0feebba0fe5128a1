//! `agent-cli top`, on a terminal and through a pipe.

use std::path::Path;

use integration::daemon::{Daemon, kill};
use integration::request::{RequestBuilder as _, sh, sleeper};
use integration::terminal::{Terminal, plain};
use integration::{cli, wait};

/// Control sequence at the start of each drawing.
const HOME: &str = "\u{1b}[H";
const LEAVE: &str = "\u{1b}[?25h\u{1b}[?1049l";

/// A terminal that runs `top`.
struct Top(Terminal);

impl Top {
    fn start(socket: &Path, rows: u16, columns: u16) -> Self {
        Self(Terminal::start(socket, &["top"], (rows, columns)))
    }

    /// Returns the lines of the last complete drawing, without control sequences.
    fn lines(&self) -> Vec<String> {
        let text = self.0.text();
        let mut drawings = text.rsplit(HOME);
        let complete = drawings.find(|drawing| drawing.contains("\u{1b}[J")).unwrap_or_default();
        let complete = complete.split("\u{1b}[J").next().unwrap();
        complete.split("\r\n").map(plain).collect()
    }

    /// Presses keys, then waits until the drawing satisfies the condition.
    fn press(&mut self, keys: &[u8], what: &str, is_wanted: impl Fn(&[String]) -> bool) -> Vec<String> {
        self.0.press(keys);
        wait::until(what, || Some(self.lines()).filter(|lines| is_wanted(lines)))
    }
}

fn has(lines: &[String], text: &str) -> bool {
    lines.iter().any(|line| line.contains(text))
}

#[test]
fn top_sorts_filters_and_survives_restart() {
    let mut daemon = Daemon::start();
    daemon.api.started(sh("while :; do :; done").id("busy"));
    daemon.api.started(sleeper("web-1"));
    daemon.api.started(sleeper("web-2"));
    let mut top = Top::start(&daemon.socket(), 24, 100);
    let ids = |lines: &[String]| -> Vec<String> {
        let rows = lines.iter().skip(3).filter(|line| line.contains("running"));
        rows.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    };
    let share = |line: &String| line.contains(" % ") && !line.contains(" 0.0 % ");
    let lines = top.press(b"", "the busy one is first, with its share of the processors", |lines| {
        lines.first().is_some_and(|line| line.starts_with("3 of 3 containers")) && lines.get(3).is_some_and(share)
    });
    assert_eq!(ids(&lines).first().unwrap(), "busy", "{lines:#?}");
    assert!(has(&lines, "by cpu") && has(&lines, "allocated") && top.0.is_raw(), "{lines:#?}");
    let lines = top.press(b"i", "the table is sorted by id", |lines| has(lines, "by id"));
    assert_eq!(ids(&lines), ["busy", "web-1", "web-2"]);
    let lines = top.press(b"r", "the order is reversed", |lines| has(lines, "reversed"));
    assert_eq!(ids(&lines), ["web-2", "web-1", "busy"]);
    let lines = top.press(b"/web\r", "the table is filtered", |lines| has(lines, "2 of 3 containers"));
    assert_eq!(ids(&lines), ["web-2", "web-1"]);

    assert!(lines.iter().any(|line| line.len() > 40), "control: some line is longer than the terminal will be");
    top.0.resize(5, 40);
    top.press(b"", "the table fits the smaller terminal", |lines| {
        lines.len() <= 5 && lines.iter().all(|line| line.chars().count() <= 40)
    });
    top.0.resize(24, 100);
    top.press(b"", "the table fills the larger terminal", |lines| lines.iter().any(|line| line.len() > 40));

    daemon.kill();
    top.press(b"", "the missing executord is reported", |lines| has(lines, "executord is unavailable"));
    assert_eq!(ids(&top.lines()), ["web-2", "web-1"], "the last values stay visible");
    daemon.start_again();
    daemon.api.started(sleeper("web-3"));
    top.press(b"", "the next executord is followed", |lines| has(lines, "web-3") && !has(lines, "is unavailable"));

    top.0.press(b"q");
    let status = top.0.wait();
    assert!(status.success() && !top.0.is_raw(), "{status}");
    wait::until("the terminal's first screen is back", || top.0.text().ends_with(LEAVE).then_some(()));
    for id in ["busy", "web-1", "web-2", "web-3"] {
        daemon.api.delete(id, true).unwrap();
    }
}

#[test]
fn signal_restores_terminal() {
    let daemon = Daemon::start();
    let mut top = Top::start(&daemon.socket(), 24, 80);
    top.press(b"", "the empty table is drawn", |lines| has(lines, "0 of 0 containers"));
    assert!(top.0.is_raw());
    kill(top.0.pid(), 15);
    top.0.wait();
    assert!(!top.0.is_raw());
    wait::until("the terminal's first screen is back", || top.0.text().contains(LEAVE).then_some(()));
}

#[test]
fn through_a_pipe_tables_are_printed() {
    let daemon = Daemon::start();
    daemon.api.started(sleeper("web-1").label("team", "blue"));
    daemon.api.started(sleeper("db"));
    let reported = cli::run(&daemon.socket(), &["top", "-n", "2", "--sort", "id"]);
    assert_eq!(reported.status, 0, "{reported:?}");
    let (heads, rows): (Vec<&str>, Vec<&str>) =
        reported.stdout.lines().filter(|line| !line.is_empty()).partition(|line| line.starts_with("ID "));
    assert_eq!((heads.len(), rows.len()), (2, 4), "{reported:?}");
    assert!(
        rows[0].starts_with("db ") && rows[1].starts_with("web-1 ") && !reported.stdout.contains('\u{1b}'),
        "{reported:?}"
    );
    let json = cli::run(&daemon.socket(), &["--json", "top", "-b", "-n", "1", "--label", "team=blue"]).json_lines();
    assert!(json.len() == 1 && json[0]["id"] == "web-1", "{json:?}");
    let wrong = cli::run(&daemon.socket(), &["top", "-n", "0"]);
    assert!(wrong.status == 125 && wrong.stderr.contains("--iterations"), "{wrong:?}");
    for id in ["web-1", "db"] {
        daemon.api.delete(id, true).unwrap();
    }
}

/// `top` shows which containers are not ready.
#[test]
fn top_shows_containers_not_ready() {
    let daemon = Daemon::start();
    let run = ["run", "-d", "--name", "web", "--readiness", "exec:/bin/false", "--", "/bin/sleep", "1000"];
    assert_eq!(cli::run(&daemon.socket(), &run).status, 0);
    daemon.api.started(sleeper("plain"));
    let reported = cli::run(&daemon.socket(), &["top", "-n", "1", "--sort", "id"]);
    let rows: Vec<&str> = reported.stdout.lines().skip(1).collect();
    assert!(
        rows[0].starts_with("plain   running  ") && rows[1].starts_with("web     running (not ready)"),
        "{reported:?}"
    );
    for id in ["web", "plain"] {
        daemon.api.delete(id, true).unwrap();
    }
}
