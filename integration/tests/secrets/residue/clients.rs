//! executord wipes secrets from its memory while clients keep their connections open.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use executor_residue::Canary;
use integration::daemon::Daemon;
use integration::request::{RequestBuilder as _, sh};

use crate::residue::memory::{RUN, is_gone};

/// A client in another language that makes calls over one persistent connection.
struct Caller {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Caller {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, answers }
    }

    fn call(&mut self, method: &str, request: &impl prost::Message) -> String {
        let line = format!("{method} {}\n", BASE64_STANDARD.encode(request.encode_to_vec()));
        self.child.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn env(name: &str) -> PathBuf {
    std::env::var_os(name).unwrap_or_else(|| panic!("{name} is not set: run `cargo xtask test`")).into()
}

/// Clients with gRPC's C core (Python, C++, Ruby) and with Node's library keep their connection, and executord still
/// wipes their secrets from its memory: after the first run of a connection and after the sixtieth, small and large.
#[test]
fn secrets_are_wiped_despite_open_connections() {
    let daemon = Daemon::start();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let socket = daemon.socket();
    type Program<'a> = (&'a str, Box<dyn Fn() -> Command + 'a>);
    let callers: [Program<'_>; 2] = [
        (
            "python",
            Box::new(|| {
                let mut command = Command::new(env("EXECUTOR_PYTHON"));
                command.arg(here.join("python/calls.py")).arg(&socket).env("PYTHONDONTWRITEBYTECODE", "1");
                command
            }),
        ),
        (
            "node",
            Box::new(|| {
                let mut command = Command::new("node");
                command
                    .arg(here.join("clients/grpc.js"))
                    .arg(env("EXECUTOR_CLIENTS").join("node_modules"))
                    .arg(&socket);
                command
            }),
        ),
    ];
    for (language, start) in callers {
        // Each of these sizes is sent by the first call of a connection.
        let mut caller = None;
        for size in [32, 64, 256, 1024, 4096, 8000, 16_384, 30_000, 65_536, 120_000, 300_000, 600_000, 900_000] {
            let mut fresh = Caller::start(&mut start());
            run_with(&daemon, &mut fresh, &format!("{language}-{size}"), size);
            caller = Some(fresh);
        }
        let mut caller = caller.unwrap();
        for number in 0..60 {
            let size = [64, 3000, 70_000][number % 3];
            run_with(&daemon, &mut caller, &format!("{language}-again-{number}"), size);
        }
    }
}

fn run_with(daemon: &Daemon, caller: &mut Caller, id: &str, size: usize) {
    let (secret, value) = (Canary::random(size).unwrap(), Canary::random(64).unwrap());
    let request = sh("exit 0").id(id).file("/etc/x/f", secret.as_bytes()).secret_env("A", value.as_str());
    assert_eq!(caller.call(RUN, &request), "OK", "{id}");
    for secret in [&secret, &value] {
        is_gone(daemon, secret, id);
    }
    daemon.api.wait(id).unwrap();
    daemon.api.delete(id, false).unwrap();
}
