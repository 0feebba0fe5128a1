//! Tests a client in another language (Python's grpcio) that finds the interface by reflection.

use std::path::{Path, PathBuf};
use std::process::Command;

use integration::api::pid;
use integration::daemon::Daemon;
use integration::guide::{Guide, GuideShell, packaged_daemon};
use integration::request::{RequestBuilder, program};
use integration::rootfs::Rootfs;
use integration::runtime::{TOKEN, socket};
use serde_json::Value;

/// Returns the interpreter that `cargo xtask test` prepared.
fn interpreter() -> PathBuf {
    let named = std::env::var_os("EXECUTOR_PYTHON");
    named.expect("EXECUTOR_PYTHON names no Python with grpcio: run `cargo xtask test`, which makes one").into()
}

#[test]
fn python_client_runs_action_with_secret_files() {
    let daemon = Daemon::start();
    let before = daemon.footprint();
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/client.py");
    let output = Command::new(interpreter()).arg(client).arg(daemon.socket()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let reported: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(reported["created"], true);
    assert_eq!(reported["log"]["LOG_STREAM_STDOUT"], "vcap\nfrom python\nand one more\n");
    assert_eq!(reported["log"]["LOG_STREAM_STDERR"], "to stderr\n");
    let container = &reported["container"];
    assert_eq!((&container["state"], &container["result"]["exit"]["code"]), (&"STATE_COMPLETED".into(), &7.into()));
    let wipe = &container["result"]["wipe"];
    assert_eq!((&wipe["files"], &wipe["bytes"], &wipe["verified"]), (&2.into(), &"25".into(), &true.into()));
    let paths: Vec<&str> =
        container["files"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/etc/cf-service-bindings/db/password", "/run/one"]);
    assert!(!container.to_string().contains("from python"), "no value is returned: {container}");
    let refused = &reported["refused"];
    assert_eq!(refused["code"], "INVALID_ARGUMENT");
    assert!(refused["message"].as_str().unwrap().contains("action.run.path"), "{refused}");
    daemon.wait_until_back_at(&before);
}

/// A Python client gets its secrets in consecutive calls, although the server closes the connection after each call.
#[test]
fn python_client_reads_its_secrets() {
    let daemon = Daemon::start();
    let request = program("/bin/sh", &["-c", "exec sleep 100000", ""]).id("one").runtime_token(TOKEN);
    let request = request.file("f", b"content\n").secret_env("PW", "variable").secret_arg(2, "argument");
    let init = pid(&daemon.api.started(request));
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/secrets_client.py");
    let token = format!("/proc/{init}/root{TOKEN}");
    let mut command = Command::new(interpreter());
    command.arg(client).arg(daemon.socket()).arg(socket(&daemon)).arg(token).env("PYTHONDONTWRITEBYTECODE", "1");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let reported: Value = serde_json::from_slice(&output.stdout).unwrap();
    let expected = serde_json::json!({
        "environment": [{"name": "PW", "value": "variable"}],
        "arguments": [{"index": 2, "value": "argument"}],
        "files": [{"path": "/etc/cf-service-bindings/f", "content": "Y29udGVudAo="}],
    });
    assert_eq!(reported["answers"], Value::from(vec![expected; 10]));
    assert_eq!(reported["refused"], "UNAUTHENTICATED");
}

/// The commands of docs/guides/python.md work as written, with the packaged configuration.
#[test]
fn guide_works_as_it_says() {
    let rootfs = Rootfs::busybox();
    let daemon = packaged_daemon(&rootfs);
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let guide = Guide::read("docs/guides/python.md");
    assert!(guide.commands() > 2, "the guide has too few commands");
    std::os::unix::fs::symlink(repository.join("proto"), dir.path().join("proto")).unwrap();
    let python = interpreter();
    let path = std::env::var_os("PATH").unwrap();
    let path = python.parent().map(Path::to_owned).into_iter().chain(std::env::split_paths(&path));
    let path = std::env::join_paths(path).unwrap();
    guide.run(&GuideShell {
        dir: dir.path().into(),
        env: vec![
            ("EXECUTOR_SOCKET", daemon.socket().into()),
            ("EXECUTOR_ROOTFS", rootfs.reference().into()),
            ("PATH", path),
        ],
    });
}
