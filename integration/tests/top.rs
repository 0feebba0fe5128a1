//! `agent-cli top`, on a terminal and through a pipe.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails; its helpers do not count as tests to the lint

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use integration::daemon::Daemon;
use integration::request::{RequestBuilder as _, sh, sleeper};
use integration::{cli, dist, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// Begins each drawing.
const HOME: &str = "\u{1b}[H";
const LEAVE: &str = "\u{1b}[?25h\u{1b}[?1049l";

/// A terminal with `top` on it, as the only process of its session.
struct Terminal {
    keys: File,
    /// The terminal's other end, for its settings.
    other: OwnedFd,
    child: Child,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Terminal {
    fn top(socket: &Path, rows: u16, columns: u16) -> Self {
        let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&keys).unwrap();
        unlockpt(&keys).unwrap();
        let name = ptsname(&keys, Vec::new()).unwrap();
        let other = open(&*name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let keys = File::from(keys);
        let end = || Stdio::from(other.try_clone().unwrap());
        set_size(&keys, rows, columns);
        let child = Command::new("setsid")
            .args(["--ctty", "--wait"])
            .arg(dist::binary("agent-cli"))
            .arg("--socket")
            .arg(socket)
            .arg("top")
            .env("TERM", "xterm")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let written = Arc::new(Mutex::new(Vec::new()));
        let (mut from, to) = (keys.try_clone().unwrap(), Arc::clone(&written));
        std::thread::spawn(move || {
            let mut some = [0; 4096];
            while let Ok(length @ 1..) = from.read(&mut some) {
                to.lock().unwrap().extend_from_slice(&some[..length]);
            }
        });
        Self { keys, other, child, written }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    /// The last drawing that is complete, without what it does to the terminal, as lines.
    fn lines(&self) -> Vec<String> {
        let text = self.text();
        let mut drawings = text.rsplit(HOME);
        let complete = drawings.find(|drawing| drawing.contains("\u{1b}[J")).unwrap_or_default();
        let complete = complete.split("\u{1b}[J").next().unwrap();
        complete.split("\r\n").map(plain).collect()
    }

    /// Presses keys, and waits until the drawing is as wanted.
    fn press(&mut self, keys: &[u8], what: &str, is_wanted: impl Fn(&[String]) -> bool) -> Vec<String> {
        self.keys.write_all(keys).unwrap();
        wait::until(what, || Some(self.lines()).filter(|lines| is_wanted(lines)))
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(self.other.as_fd()).unwrap().local_modes.contains(LocalModes::ICANON)
    }
}

fn set_size(terminal: &File, rows: u16, columns: u16) {
    tcsetwinsize(terminal, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}

/// Removes escape sequences.
fn plain(line: &str) -> String {
    let (mut text, mut characters) = (String::new(), line.chars());
    while let Some(character) = characters.next() {
        match character {
            '\u{1b}' => drop(characters.find(char::is_ascii_alphabetic)),
            other => text.push(other),
        }
    }
    text
}

fn has(lines: &[String], text: &str) -> bool {
    lines.iter().any(|line| line.contains(text))
}

#[test]
fn a_screen_is_sorted_filtered_and_survives_a_resize_and_a_restart() {
    let mut daemon = Daemon::start();
    daemon.api.started(sh("while :; do :; done").id("busy"));
    daemon.api.started(sleeper("web-1"));
    daemon.api.started(sleeper("web-2"));
    let mut top = Terminal::top(&daemon.socket(), 24, 100);
    let ids = |lines: &[String]| -> Vec<String> {
        let rows = lines.iter().skip(3).filter(|line| line.contains("running"));
        rows.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    };
    let share = |line: &String| line.contains(" % ") && !line.contains(" 0.0 % ");
    let lines = top.press(b"", "the busy one is first, with its share of the processors", |lines| {
        lines.first().is_some_and(|line| line.starts_with("3 of 3 containers")) && lines.get(3).is_some_and(share)
    });
    assert_eq!(ids(&lines).first().unwrap(), "busy", "{lines:#?}");
    assert!(has(&lines, "by cpu") && has(&lines, "allocated") && top.is_raw(), "{lines:#?}");
    let lines = top.press(b"i", "it is sorted by id", |lines| has(lines, "by id"));
    assert_eq!(ids(&lines), ["busy", "web-1", "web-2"]);
    let lines = top.press(b"r", "it is reversed", |lines| has(lines, "reversed"));
    assert_eq!(ids(&lines), ["web-2", "web-1", "busy"]);
    let lines = top.press(b"/web\r", "it is filtered", |lines| has(lines, "2 of 3 containers"));
    assert_eq!(ids(&lines), ["web-2", "web-1"]);

    assert!(lines.iter().any(|line| line.len() > 40), "the control: some line is longer than the terminal will be");
    set_size(&top.keys, 5, 40);
    top.press(b"", "it fits the smaller terminal", |lines| {
        lines.len() <= 5 && lines.iter().all(|line| line.chars().count() <= 40)
    });
    set_size(&top.keys, 24, 100);
    top.press(b"", "it fills the larger one", |lines| lines.iter().any(|line| line.len() > 40));

    daemon.kill();
    top.press(b"", "executord's absence is told", |lines| has(lines, "executord is away"));
    assert_eq!(ids(&top.lines()), ["web-2", "web-1"], "the last reading stays");
    daemon.start_again();
    daemon.api.started(sleeper("web-3"));
    top.press(b"", "the next executord is followed", |lines| has(lines, "web-3") && !has(lines, "is away"));

    top.keys.write_all(b"q").unwrap();
    let status = wait::until("it ends", || top.child.try_wait().unwrap());
    assert!(status.success() && !top.is_raw(), "{status}");
    wait::until("the terminal's first screen is back", || top.text().ends_with(LEAVE).then_some(()));
    for id in ["busy", "web-1", "web-2", "web-3"] {
        daemon.api.delete(id, true).unwrap();
    }
}

#[test]
fn a_signal_leaves_the_terminal_as_it_was() {
    let daemon = Daemon::start();
    let mut top = Terminal::top(&daemon.socket(), 24, 80);
    top.press(b"", "it is drawn", |lines| has(lines, "0 of 0 containers"));
    assert!(top.is_raw());
    // setsid has become agent-cli.
    kill(Pid::from_raw(top.child.id() as i32), Signal::SIGTERM).unwrap();
    wait::until("it ends", || top.child.try_wait().unwrap());
    assert!(!top.is_raw());
    wait::until("the terminal's first screen is back", || top.text().contains(LEAVE).then_some(()));
}

#[test]
fn through_a_pipe_tables_are_printed() {
    let daemon = Daemon::start();
    daemon.api.started(sleeper("web-1").label("team", "blue"));
    daemon.api.started(sleeper("db"));
    let told = cli::run(&daemon.socket(), &["top", "-n", "2", "--sort", "id"]);
    assert_eq!(told.status, 0, "{told:?}");
    let (heads, rows): (Vec<&str>, Vec<&str>) =
        told.stdout.lines().filter(|line| !line.is_empty()).partition(|line| line.starts_with("ID "));
    assert_eq!((heads.len(), rows.len()), (2, 4), "{told:?}");
    assert!(rows[0].starts_with("db ") && rows[1].starts_with("web-1 ") && !told.stdout.contains('\u{1b}'), "{told:?}");
    let json = cli::run(&daemon.socket(), &["--json", "top", "-b", "-n", "1", "--label", "team=blue"]).json_lines();
    assert!(json.len() == 1 && json[0]["id"] == "web-1", "{json:?}");
    let wrong = cli::run(&daemon.socket(), &["top", "-n", "0"]);
    assert!(wrong.status == 125 && wrong.stderr.contains("--iterations"), "{wrong:?}");
    for id in ["web-1", "db"] {
        daemon.api.delete(id, true).unwrap();
    }
}
