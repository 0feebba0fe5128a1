//! Metrics and traces: data that an operator's tools get, and data that they must not get.

mod bounds;
mod dashboard;
mod scraped;
mod traces;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use integration::daemon::{Daemon, Setup};

/// Accept header for OpenMetrics.
const OPEN: &str = "application/openmetrics-text;version=1.0.0";

/// Starts a daemon that serves metrics on a unix socket. `keys` are further keys of the configuration table.
fn daemon(keys: &str) -> Daemon {
    let setup = Setup::default();
    let config = format!("[metrics]\nlisten = \"unix:{}\"\n{keys}\n", setup.run_dir().join("metrics.sock").display());
    setup.config(&config).start()
}

fn socket(daemon: &Daemon) -> PathBuf {
    daemon.setup().run_dir().join("metrics.sock")
}

/// An HTTP response.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    /// Reads a response until the connection closes.
    fn read(mut from: impl Read) -> Self {
        let mut all = Vec::new();
        // If the server refuses a request before it was sent completely, it resets the connection after its response.
        let _ = from.read_to_end(&mut all);
        let all = String::from_utf8(all).unwrap();
        let (head, body) = all.split_once("\r\n\r\n").unwrap_or((&all, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Self { status, head: head.to_lowercase(), body: body.to_owned() }
    }
}

/// Sends the bytes of a request to the metrics socket.
fn send(daemon: &Daemon, request: &str) -> Answer {
    let mut stream = UnixStream::connect(socket(daemon)).unwrap();
    stream.set_read_timeout(Some(integration::wait::DEFAULT_TIMEOUT)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    Answer::read(stream)
}

/// Scrapes with this Accept header.
fn scrape(daemon: &Daemon, accept: &str) -> String {
    let answer = send(daemon, &format!("GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: {accept}\r\n\r\n"));
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body
}

/// Returns the value of a series. `series` includes the labels.
fn value(text: &str, series: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    rest.split(' ').next()?.parse().ok()
}

/// Builds a command that runs Python with the packages that `cargo xtask test` installs.
fn python(arguments: &[&str]) -> Command {
    let named = std::env::var_os("EXECUTOR_PYTHON").expect("EXECUTOR_PYTHON is not set: run `cargo xtask test`");
    let mut command = Command::new(named);
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Requests a path from a server on a loopback port.
fn get(port: u16, path: &str) -> Option<Answer> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(integration::wait::DEFAULT_TIMEOUT)).ok()?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).ok()?;
    Some(Answer::read(stream))
}
