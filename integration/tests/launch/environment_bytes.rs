//! Values of environment variables that are not UTF-8. See CRI rules G18 and C23 of docs/guides/cri-rules.md.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use executor_proto::v1::{EnvironmentVariable, ExecStart, RunRequest};
use integration::api::{exit, pid};
use integration::cli;
use integration::daemon::Daemon;
use integration::request::{RequestBuilder as _, sh};
use integration::runtime::{TOKEN, socket, token, with_token};
use integration::streams::{executed, script};
use tonic::Code;
use tonic_types::StatusExt as _;

/// Value of a public variable in Latin-1, which is not valid UTF-8.
const PUBLIC: &[u8] = b"caf\xe9 public";
const SECRET: &[u8] = b"canary-caf\xe9-hunter2\xff";

fn variable(name: &str, value: &[u8]) -> EnvironmentVariable {
    EnvironmentVariable { name: name.into(), value_bytes: value.into(), ..EnvironmentVariable::default() }
}

/// Adds a variable for all processes, a public variable and a secret variable to the request.
fn with_variables(request: RunRequest) -> RunRequest {
    let request = RunRequest { environment: vec![variable("SHARED", PUBLIC)], ..request };
    request.action(|run| {
        run.env.push(variable("PUBLIC", PUBLIC));
        run.secret_environment.push(variable("SECRET", SECRET));
    })
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[test]
fn values_reach_processes_as_bytes() {
    let daemon = Daemon::start();
    let show = "printf '%s|%s|%s\\n' \"$PUBLIC\" \"$SHARED\" \"$SECRET\"";
    let expected = [PUBLIC, b"|", PUBLIC, b"|", SECRET, b"\n"].concat();
    let open = daemon.api.run_to_end(with_variables(sh(show).id("open").unmasked()));
    assert_eq!(exit(&open), Ok(0));
    assert_eq!(daemon.api.output("open").stdout, expected);
    // The secret value is masked as bytes. As a control, the other values are not masked.
    daemon.api.run_to_end(with_variables(sh(show).id("masked")));
    let masked = daemon.api.output("masked").stdout;
    assert!(contains(&masked, PUBLIC) && !contains(&masked, b"hunter2"), "{}", masked.escape_ascii());
    // A request with other bytes is a different request.
    let other = with_variables(sh(show).id("masked")).action(|run| run.env[0].value_bytes = b"caf\xe8 public".into());
    assert_eq!(daemon.api.run(other).unwrap_err().code(), Code::AlreadyExists);

    let request = RunRequest { keep_environment: true, ..sh("echo up; exec sleep 100000").id("c") };
    let container = daemon.api.up(with_variables(request).runtime_token(TOKEN));
    let start = ExecStart { env: vec![variable("OWN", SECRET)], ..script("c", "printf %s \"$OWN\"") };
    assert_eq!(executed(&daemon.api, start).unwrap().stdout, SECRET);
    let start = ExecStart { container_environment: true, ..script("c", show) };
    assert_eq!(executed(&daemon.api, start).unwrap().stdout, expected);
    let secrets = with_token(&socket(&daemon), &token(pid(&container))).unwrap();
    assert_eq!(secrets.environment, [variable("SECRET", SECRET)]);
}

#[test]
fn invalid_environment_values_are_refused() {
    let daemon = Daemon::start();
    let mut two = variable("TWO", b"canary\xff");
    two.value = "canary".into();
    let long = variable("LONG", &[0xff; 131_072]);
    let request = sh("true").id("c").action(|run| {
        run.env = vec![variable("NUL", b"canary\xff\0"), long];
        run.secret_environment = vec![two.clone()];
    });
    let request = RunRequest { environment: vec![two.clone()], ..request };
    let status = daemon.api.run(request).unwrap_err();
    assert!(status.code() == Code::InvalidArgument && !status.message().contains("canary"), "{status:?}");
    let found = status.get_details_bad_request().unwrap().field_violations;
    let mut fields: Vec<String> = found.into_iter().map(|violation| violation.field).collect();
    fields.sort_unstable();
    let expected = [
        "action.run.env[0].value",
        "action.run.env[1].value",
        "action.run.secret_environment[0].value_bytes",
        "environment[0].value_bytes",
    ];
    assert_eq!(fields, expected);
    daemon.api.up(sh("echo up; exec sleep 100000").id("c"));
    let start = ExecStart { env: vec![two], ..script("c", "true") };
    let status = executed(&daemon.api, start).err().unwrap();
    assert!(status.message().contains("start.env[0].value_bytes"), "{status:?}");
}

#[test]
fn command_line_passes_bytes() {
    let daemon = Daemon::start();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), [SECRET, b"\n"].concat()).unwrap();
    let secret = format!("SECRET=@{}", file.path().display());
    let show = "printf '%s|%s' \"$RAW\" \"$SECRET\"";
    let line =
        ["run", "--name", "c", "--redact", "none", "-e", "RAW", "--secret-env", &secret, "--", "/bin/sh", "-c", show];
    let mut command = cli::command(Some(&daemon.socket()), &line);
    let output = command.env("RAW", OsStr::from_bytes(PUBLIC)).output().unwrap();
    assert_eq!(output.stdout, [PUBLIC, b"|", SECRET].concat(), "{}", output.stderr.escape_ascii());
}
