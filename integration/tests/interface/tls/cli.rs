//! Tests agent-cli over TLS: flags, environment, contexts, companion programs, and all commands.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use integration::cli::{CliOutput, finish};
use integration::dist;
use integration::tls::TlsDaemon;
use integration::wait;
use sha2::{Digest as _, Sha256};

const VARIABLES: [&str; 8] = [
    "EXECUTOR_SOCKET",
    "EXECUTOR_ADDRESS",
    "EXECUTOR_TLS_CERT",
    "EXECUTOR_TLS_KEY",
    "EXECUTOR_TLS_CA",
    "EXECUTOR_TLS_SERVER_NAME",
    "EXECUTOR_CONTEXT",
    "EXECUTOR_JSON",
];

/// Builds an agent-cli command. Its environment names no executord, and its contexts are in the daemon's directory.
fn agent(tls: &TlsDaemon, arguments: &[&str]) -> Command {
    let mut command = Command::new(dist::binary("agent-cli"));
    for name in VARIABLES {
        command.env_remove(name);
    }
    command.env("EXECUTOR_CONTEXTS", tls.daemon.setup().home().join("contexts.toml"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(mut command: Command) -> CliOutput {
    finish(command.spawn().unwrap())
}

fn fine(command: Command) -> String {
    let ended = run(command);
    assert_eq!(ended.status, 0, "{ended:?}");
    ended.stdout
}

fn with_input(mut command: Command, input: &[u8]) -> CliOutput {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    finish(child)
}

/// Writes an archive in the format of `docker save`, with one layer of one file.
fn archive(path: &Path, content: &[u8]) {
    let entry = |tar: &mut tar::Builder<Vec<u8>>, name: &str, content: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, content).unwrap();
    };
    let mut layer = tar::Builder::new(Vec::new());
    entry(&mut layer, "content", content);
    let layer = layer.into_inner().unwrap();
    let digest = hex::encode(Sha256::digest(&layer));
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let config = serde_json::json!({
        "architecture": architecture, "os": "linux", "config": {},
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{digest}")] },
    });
    let manifest =
        serde_json::json!([{ "Config": "config.json", "RepoTags": ["over/tls:1"], "Layers": ["layer.tar"] }]);
    let mut whole = tar::Builder::new(Vec::new());
    entry(&mut whole, "manifest.json", manifest.to_string().as_bytes());
    entry(&mut whole, "config.json", config.to_string().as_bytes());
    entry(&mut whole, "layer.tar", &layer);
    std::fs::write(path, whole.into_inner().unwrap()).unwrap();
}

#[test]
fn address_from_flags_environment_or_context() {
    let tls = TlsDaemon::start("", "");
    let files = tls.operator();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let (cert, key, ca) = (path(&files.certificate), path(&files.key), path(&files.ca));
    let flags = ["--address", &tls.address, "--tls-cert", &cert, "--tls-key", &key, "--tls-ca", &ca];
    let reported = |command: Command| {
        let document: serde_json::Value = serde_json::from_str(&fine(command)).unwrap();
        document["socket"].as_str().unwrap().to_owned()
    };
    assert_eq!(reported(agent(&tls, &[&flags[..], &["info", "--json"]].concat())), tls.address);
    let by_environment = |arguments: &[&str]| {
        let mut command = agent(&tls, arguments);
        command.env("EXECUTOR_ADDRESS", &tls.address).env("EXECUTOR_TLS_CERT", &cert);
        command.env("EXECUTOR_TLS_KEY", &key).env("EXECUTOR_TLS_CA", &ca);
        command
    };
    assert_eq!(reported(by_environment(&["info", "--json"])), tls.address);
    let socket = path(&tls.daemon.socket());
    assert_eq!(reported(by_environment(&["info", "--json", "--socket", &socket])), socket, "a flag wins");
    fine(agent(&tls, &[&["context", "add", "remote"][..], &flags].concat()));
    fine(agent(&tls, &["context", "add", "here", "--socket", &socket, "--use"]));
    assert_eq!(reported(agent(&tls, &["info", "--json"])), socket);
    assert_eq!(reported(agent(&tls, &["--context", "remote", "info", "--json"])), tls.address);
    fine(agent(&tls, &["context", "use", "remote"]));
    assert_eq!(reported(agent(&tls, &["info", "--json"])), tls.address);
    let listed = fine(agent(&tls, &["context", "list"]));
    let rows: Vec<Vec<&str>> = listed.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows, [vec!["here", &*socket], vec!["remote", "*", &*tls.address]], "{listed}");
    let shown: serde_json::Value = serde_json::from_str(&fine(agent(&tls, &["context", "show", "--json"]))).unwrap();
    assert_eq!(
        (&shown["name"], &shown["in_use"], &shown["tls_key"]),
        (&"remote".into(), &true.into(), &(&*key).into())
    );
    // A companion program of agent-cli is connected to the same executord.
    let programs = tempfile::tempdir().unwrap();
    let program = programs.path().join("agent-cli-where");
    std::fs::write(&program, "#!/bin/sh\necho \"$EXECUTOR_ADDRESS $EXECUTOR_TLS_KEY $EXECUTOR_SOCKET\"\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    for arguments in [&["where"][..], &["--context", "remote", "where"], &[&flags[..], &["where"]].concat()] {
        let mut command = agent(&tls, arguments);
        command.env("PATH", format!("{}:/usr/bin:/bin", programs.path().display()));
        assert_eq!(fine(command), format!("{} {key} \n", tls.address), "{arguments:?}");
    }
    fine(agent(&tls, &["context", "remove", "remote"]));
    // Errors name the flag.
    for (arguments, why) in [
        (&["info", "--context", "remote"][..], "no context \"remote\"; known contexts: here"),
        (&["info", "--address", "127.0.0.1:1", "--tls-cert", "/x"], "needs --tls-key (EXECUTOR_TLS_KEY), --tls-ca"),
        (&["info", "--address", "a:1", "--socket", "/x"], "--socket and --address cannot be used together"),
        (&["info", "--tls-ca", "/x"], "--tls-ca (EXECUTOR_TLS_CA) needs --address (EXECUTOR_ADDRESS)"),
        (&["--local", "info", "--context", "x"], "--local and --context cannot be used together"),
        (&["context", "add", "a b", "--socket", "/x"], "is not a valid context name"),
        (&["context", "add", "a"], "--socket (EXECUTOR_SOCKET) or --address (EXECUTOR_ADDRESS) is missing"),
    ] {
        let ended = run(agent(&tls, arguments));
        assert!(ended.status == 125 && ended.stderr.contains(why), "{arguments:?}: {ended:?}");
    }
    let mut audit = by_environment(&["audit"]);
    audit.stdin(Stdio::null());
    assert!(run(audit).stderr.contains("audit searches only this machine"));
}

#[test]
fn everything_works_over_tls() {
    let tls = TlsDaemon::start("", "");
    let files = tls.operator();
    let over = |arguments: &[&str]| {
        let mut command = agent(&tls, arguments);
        command.env("EXECUTOR_ADDRESS", &tls.address).env("EXECUTOR_TLS_CERT", &files.certificate);
        command.env("EXECUTOR_TLS_KEY", &files.key).env("EXECUTOR_TLS_CA", &files.ca);
        command
    };
    let file = ["--file", "/run/secret=@-"];
    let script = "cat /run/secret | wc -c; echo to stderr >&2; exit 7";
    let arguments = [&["run", "--rm"][..], &file, &["--", "/bin/sh", "-c", script]].concat();
    let ended = with_input(over(&arguments), &[b'x'; 300_000]);
    assert_eq!((ended.status, &*ended.stdout, &*ended.stderr), (7, "300000\n", "to stderr\n"), "{ended:?}");
    // Attach without a terminal, write megabytes of output, execute a process, and copy in both directions.
    let script = "while read line; do echo \"got $line\"; done; head -c 5000000 /dev/zero; exit 3";
    let ended = with_input(over(&["run", "-i", "--rm", "--", "/bin/sh", "-c", script]), b"one\ntwo\n");
    assert!(ended.status == 3 && ended.stdout.starts_with("got one\ngot two\n"), "{}", ended.status);
    assert_eq!(ended.stdout.len(), 5_000_016);
    fine(over(&["run", "-d", "--name", "web", "--", "/bin/sh", "-c", "echo up; exec sleep 100000"]));
    wait::until("the line is logged", || (fine(over(&["logs", "web"])) == "up\n").then_some(()));
    let executed = with_input(over(&["exec", "-i", "web", "--", "/bin/sh", "-c", "cat; exit 4"]), b"typed");
    assert_eq!((executed.status, &*executed.stdout), (4, "typed"), "{executed:?}");
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let content: Vec<u8> = (0..3_000_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(at("in"), &content).unwrap();
    fine(over(&["cp", &at("in"), "web:/tmp/in"]));
    fine(over(&["cp", "web:/tmp/in", &at("out")]));
    assert!(std::fs::read(at("out")).unwrap() == content);
    archive(Path::new(&at("image.tar")), &content);
    fine(over(&["image", "import", &at("image.tar")]));
    assert!(fine(over(&["image", "ls"])).contains("over/tls"));
    fine(over(&["rm", "-f", "web"]));
    assert_eq!(fine(over(&["ps", "-aq"])), "");
}
