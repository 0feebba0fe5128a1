//! Output of containers is sent to the journal and to syslog. The tests check received messages, receivers that must
//! not block a container, and reports of dropped output.

mod backpressure;
mod journald;
mod restart;
mod syslog;

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use executor_proto::v1::{Redaction, RunRequest};
use integration::daemon::{Daemon, Setup};
use integration::request::{RequestBuilder as _, sh};
use integration::{metrics, wait};

/// Creates a directory in a daemon's home that the daemon's user can enter.
fn directory(setup: &Setup) -> PathBuf {
    let path = setup.home().join("receiver");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Returns the configuration with metrics and this syslog receiver.
fn configuration(setup: &Setup, address: &str, more: &str) -> String {
    format!(
        "{}[logs]\ntargets = ['file', 'syslog']\nlabels = ['app']\n[logs.syslog]\naddress = '{address}'\n{more}\n",
        metrics::table(setup)
    )
}

/// Returns the value of a metric for a log target.
fn metric(daemon: &Daemon, name: &str, target: &str) -> u64 {
    metrics::value(daemon, &format!("{name}{{target=\"{target}\"}}")) as u64
}

/// Builds a request that prints its secret on both streams, and then once more in two writes.
fn printing(id: &str, redaction: Redaction) -> RunRequest {
    let script = "p=$(cat /etc/cf-service-bindings/db/password); echo \"secret=$p\"; echo \"secret=$p\" >&2; \
                  printf secret=canary-; echo 5c91d7e02b; echo plain";
    let mut request = sh(script).id(id).file("db/password", SECRET.as_bytes());
    request.redaction = redaction.into();
    request
}

const SECRET: &str = "canary-5c91d7e02b";

/// A message in the format of RFC 5424.
#[derive(Debug, PartialEq, Eq)]
struct Message {
    /// Fields from the priority to the message id, and the structured data.
    head: String,
    text: String,
}

impl Message {
    fn parse(bytes: &[u8]) -> Self {
        let message = std::str::from_utf8(bytes).unwrap();
        let (head, text) = message.split_once("] ").unwrap();
        Self { head: head.to_owned(), text: text.trim_start_matches('\u{feff}').to_owned() }
    }

    /// Returns the value of a parameter of the structured data.
    fn parameter(&self, name: &str) -> Option<u64> {
        let (_, after) = self.head.split_once(&format!(" {name}=\""))?;
        after.split('"').next()?.parse().ok()
    }
}

/// A receiver on a stream socket with the framing of RFC 6587, section 3.4.1. It reads only when the test calls it.
struct Receiver {
    listener: UnixListener,
}

/// A connection of a [`Receiver`].
struct Connection {
    stream: UnixStream,
    read: Vec<u8>,
}

impl Receiver {
    fn listen(path: &Path) -> Self {
        let _ = fs::remove_file(path);
        let listener = UnixListener::bind(path).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
        Self { listener }
    }

    fn accept(&self) -> Connection {
        let (stream, _) = self.listener.accept().unwrap();
        stream.set_read_timeout(Some(wait::DEFAULT_TIMEOUT)).unwrap();
        Connection { stream, read: Vec::new() }
    }
}

impl Connection {
    /// Reads the next message. Returns `None` at the end of the connection.
    fn next(&mut self) -> Option<Message> {
        loop {
            if let Some(space) = self.read.iter().take(8).position(|byte| *byte == b' ') {
                let length: usize = std::str::from_utf8(&self.read[..space]).unwrap().parse().unwrap();
                if self.read.len() > space + length {
                    let rest = self.read.split_off(space + 1 + length);
                    let frame = std::mem::replace(&mut self.read, rest);
                    return Some(Message::parse(&frame[space + 1..]));
                }
            }
            let mut buffer = [0; 1 << 16];
            match self.stream.read(&mut buffer).unwrap() {
                0 => return None,
                read => self.read.extend_from_slice(&buffer[..read]),
            }
        }
    }

    /// Reads messages up to the first message with this text.
    fn until(&mut self, text: &str) -> Vec<Message> {
        let mut all = Vec::new();
        while let Some(message) = self.next() {
            let is_last = message.text == text;
            all.push(message);
            if is_last {
                return all;
            }
        }
        panic!("{text:?} was not received: {all:?}");
    }
}
