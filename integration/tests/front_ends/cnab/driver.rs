//! Calls `cnab-executor` as cnab-go does: cnab-go finds the program in PATH, calls it with `--handles`, then sends an
//! operation on standard input. The driver gets the caller's environment with additions, and the caller reads the
//! outputs from its own directory.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use integration::cli::{CliOutput, finish};
use integration::daemon::kill;
use integration::dist;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cnab::world::{KEY, World};

/// Imitates the parts of cnab-go that call a driver.
struct Caller {
    path: TempDir,
    outputs: TempDir,
}

impl Caller {
    fn new() -> Self {
        let path = tempfile::tempdir().expect("a directory");
        symlink(dist::binary("agent-cli-cnab"), path.path().join("cnab-executor")).expect("symlink");
        Self { path, outputs: tempfile::tempdir().expect("a directory") }
    }

    fn command(&self, world: &World) -> Command {
        // cnab-go passes the program's name, not its path, as the first argument.
        let mut command = Command::new("cnab-executor");
        let path = std::env::var("PATH").expect("PATH");
        command.env("PATH", format!("{}:{path}", self.path.path().display()));
        command.env("EXECUTOR_SOCKET", world.daemon.socket()).env("EXECUTOR_CNAB_IMAGE", world.rootfs.reference());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts the driver as cnab-go's command driver does.
    fn start(&self, world: &World, operation: &Value) -> Child {
        let mut command = self.command(world);
        let mut added: Vec<String> = Vec::new();
        for (name, value) in operation["environment"].as_object().expect("a map") {
            command.env(name, value.as_str().expect("text"));
            added.push(name.clone());
        }
        if operation["outputs"].as_object().is_some_and(|outputs| !outputs.is_empty()) {
            command.env("CNAB_OUTPUT_DIR", self.outputs.path());
            added.push("CNAB_OUTPUT_DIR".into());
        }
        command.env("CNAB_VARS", added.join(",")).stdin(Stdio::piped());
        let mut child = command.spawn().expect("cnab-executor starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(operation.to_string().as_bytes()).expect("write");
        child
    }

    fn run(&self, world: &World, operation: &Value) -> CliOutput {
        finish(self.start(world, operation))
    }

    fn output(&self, path: &str) -> Option<String> {
        fs::read_to_string(PathBuf::from(self.outputs.path()).join(path.trim_start_matches('/'))).ok()
    }
}

fn operation(action: &str) -> Value {
    json!({
        "installation_name": "drv", "revision": "01E5G8ZYP714JVM8NHTJQ4FH15", "action": action, "parameters": { "port": 80 },
        "image": { "imageType": "docker", "image": "example/x:1" },
        "environment": {
            "CNAB_ACTION": action, "CNAB_INSTALLATION_NAME": "drv", "CNAB_BUNDLE_NAME": "x",
            "CNAB_REVISION": "01E5G8ZYP714JVM8NHTJQ4FH15", "KEY": KEY, "PORT": "80",
        },
        "files": { "/etc/lamp/key": KEY, "/cnab/bundle.json": "{}", "/cnab/claim.json": "{}", "/cnab/app/image-map.json": "{}" },
        "outputs": { "/cnab/app/outputs/a": "a", "/cnab/app/outputs/sub/b": "b", "/cnab/app/outputs/none": "none" },
        "Bundle": null,
    })
}

const TOOL: &str = "trap 'echo stopped > /cnab/app/outputs/a; exit 0' TERM
echo \"$CNAB_ACTION $CNAB_INSTALLATION_NAME $PORT ${CNAB_VARS-unset} ${CNAB_OUTPUT_DIR-unset}\"
[ \"$KEY\" = \"$(cat /etc/lamp/key)\" ] && echo same; echo \"$KEY\" >&2
mkdir -p /cnab/app/outputs/sub; echo 1 > /cnab/app/outputs/a; echo 2 > /cnab/app/outputs/sub/b
[ $CNAB_ACTION = fail ] && exit 3
[ $CNAB_ACTION = wait ] && { sleep 1000 & wait $!; }
exit 0";

#[test]
fn handles_prints_only_image_types() {
    let world = World::new(TOOL);
    let ran =
        finish(Caller::new().command(&world).arg("--handles").stdin(Stdio::null()).spawn().expect("agent-cli starts"));
    assert_eq!((ran.status, &*ran.stdout, &*ran.stderr), (0, "docker,oci\n", ""));
    // Parsed as in cnab-go: split at commas, then trimmed.
    let types: Vec<&str> = ran.stdout.split(',').map(str::trim).collect();
    assert_eq!(types, ["docker", "oci"], "an empty type would match every image without a type");
}

#[test]
fn operation_is_carried_out() {
    let world = World::new(TOOL);
    let caller = Caller::new();
    let ran = caller.run(&world, &operation("install"));
    assert_eq!((ran.status, &*ran.stdout), (0, "install drv 80 unset unset\nsame\n"), "{ran:?}");
    assert!(!ran.stderr.contains(KEY) && ran.stderr.contains("[REDACTED:"), "{ran:?}");
    assert_eq!(caller.output("/cnab/app/outputs/a").as_deref(), Some("1\n"));
    assert_eq!(caller.output("/cnab/app/outputs/sub/b").as_deref(), Some("2\n"));
    assert_eq!(caller.output("/cnab/app/outputs/none"), None, "the caller has its defaults");
    world.is_clean("after an operation");
}

#[test]
fn failed_run_tool_status_is_returned() {
    let world = World::new(TOOL);
    let caller = Caller::new();
    let ran = caller.run(&world, &operation("fail"));
    assert!(ran.status == 3 && ran.stderr.contains("exited with 3"), "{ran:?}");
    let mut wrong = operation("install");
    wrong["image"]["imageType"] = json!("qcow");
    assert!(caller.run(&world, &wrong).stderr.contains("qcow"));
    wrong["image"] = json!({ "image": "x", "contentDigest": format!("sha256:{}", "0".repeat(64)) });
    let ran = caller.run(&world, &wrong);
    assert!(ran.status == 125 && ran.stderr.contains("cannot be verified"), "{ran:?}");
}

#[test]
fn signals_stop_it_and_outputs_are_kept() {
    for signal in [2, 15] {
        let world = World::new(TOOL);
        let caller = Caller::new();
        let mut child = caller.start(&world, &operation("wait"));
        let mut reader = BufReader::new(child.stdout.take().expect("a pipe"));
        for expected in ["wait drv 80 unset unset\n", "same\n"] {
            let mut line = String::new();
            reader.read_line(&mut line).expect("output");
            assert_eq!(line, expected, "output is live");
        }
        child.stdout = Some(reader.into_inner());
        // Both outputs exist, and the tool is waiting.
        let container = integration::api::pid(&world.containers()[0]);
        let b = format!("/proc/{container}/root/cnab/app/outputs/sub/b");
        integration::wait::until("the tool is waiting", || (fs::read_to_string(&b).ok()? == "2\n").then_some(()));
        kill(child.id() as i32, signal);
        let ran = finish(child);
        assert!(ran.status != 0, "signal {signal}: {ran:?}");
        assert_eq!(caller.output("/cnab/app/outputs/a").as_deref(), Some("stopped\n"), "signal {signal}: {ran:?}");
        world.is_clean("after a signal");
    }
}
