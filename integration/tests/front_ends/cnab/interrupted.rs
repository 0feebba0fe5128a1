//! Actions whose caller exits before they complete (rule 47 of docs/guides/cnab-rules.md).

use std::io::{BufRead as _, BufReader};
use std::process::Child;

use integration::cli::finish;
use integration::daemon::kill;
use integration::wait;
use serde_json::{Value, json};

use crate::cnab::world::{World, lamp};

/// Run tool that runs until it receives a signal or a file exists.
const TOOL: &str = "trap 'echo stopped > /cnab/app/outputs/seen; exit 0' TERM; echo up
if [ $CNAB_ACTION = install ]; then while [ ! -e /cnab/app/outputs/go ]; do sleep 0.1; done; fi
echo \"$KEY went on\"; echo done > /cnab/app/outputs/seen";

/// Starts an install and waits until its run tool runs.
fn started(world: &World, bundle: &str) -> Child {
    let (creds, image) = (world.path("creds.json"), world.rootfs.reference());
    let mut child = world
        .command(&["install", "app", "-b", bundle, "-c", &creds, "--image-override", &image])
        .spawn()
        .expect("agent-cli starts");
    let mut line = String::new();
    let mut reader = BufReader::new(child.stdout.take().expect("a pipe"));
    reader.read_line(&mut line).expect("output");
    assert_eq!(line, "up\n", "output is live");
    child.stdout = Some(reader.into_inner());
    child
}

/// Creates the file in the container that lets the run tool continue.
fn go(world: &World) {
    let pid = integration::api::pid(&world.containers()[0]);
    std::fs::write(format!("/proc/{pid}/root/cnab/app/outputs/go"), "").expect("write");
}

fn shown(world: &World, field: &str) -> Value {
    world.reported(&["show", "app"])[field].clone()
}

#[test]
fn killed_agent_cli_leaves_consistent_claim() {
    let world = World::new(TOOL);
    let bundle = world.bundle(&lamp());
    let mut child = started(&world, &bundle);
    child.kill().expect("kill");
    child.wait().expect("wait");
    assert_eq!((shown(&world, "status"), shown(&world, "state")), (json!("running"), json!("undefined")));
    let container = shown(&world, "container");
    assert!(container.as_str().is_some_and(|id| id.starts_with("cnab-")), "{container}");
    go(&world);
    wait::until("the process has exited", || (shown(&world, "status") == "succeeded").then_some(()));
    assert_eq!(shown(&world, "state"), "present");
    assert_eq!(world.reported(&["outputs", "app", "seen"])["value"], "done\n", "outputs are fetched afterwards");
    let log = world.cnab(&["logs", "app"]).stdout;
    assert!(log.starts_with("up\n") && log.contains("went on") && !log.contains("canary"), "{log}");
    world.is_clean("after a kill");
    world.acts(&["upgrade", "app"]);
}

#[test]
fn next_action_waits_for_running_one() {
    let world = World::new(TOOL);
    let bundle = world.bundle(&lamp());
    let mut child = started(&world, &bundle);
    child.kill().expect("kill");
    child.wait().expect("wait");
    let (creds, image) = (world.path("creds.json"), world.rootfs.reference());
    let mut next =
        world.command(&["upgrade", "app", "-c", &creds, "--image-override", &image]).spawn().expect("agent-cli starts");
    let mut errors = BufReader::new(next.stderr.take().expect("a pipe"));
    let mut reported = String::new();
    while !reported.contains("is still running") {
        assert!(errors.read_line(&mut reported).expect("a line") > 0, "{reported}");
    }
    // No other action can start while this action is running.
    let third = world.act(&["uninstall", "app"]);
    assert!(third.status == 125 && third.stderr.contains("another agent-cli command is working on app"), "{third:?}");
    let forced = world.act(&["uninstall", "app", "--force"]);
    assert!(
        forced.status == 125 && forced.stderr.contains("another agent-cli command is working on app"),
        "{forced:?}"
    );
    assert!(!forced.stderr.contains("all records removed"), "{forced:?}");
    go(&world);
    let ran = finish(next);
    assert_eq!(ran.status, 0, "{ran:?}");
    let statuses: Vec<Value> = world
        .reported(&["claims", "app"])
        .as_array()
        .expect("a list")
        .iter()
        .map(|claim| claim["status"].clone())
        .collect();
    assert_eq!(statuses, ["succeeded", "succeeded"]);
}

/// If a claim has no container, or its container was removed, the next action resolves the claim.
#[test]
fn claim_without_container_is_resolved() {
    let world = World::new(TOOL);
    let bundle = world.bundle(&lamp());
    let mut child = started(&world, &bundle);
    child.kill().expect("kill");
    child.wait().expect("wait");
    let id = shown(&world, "container").as_str().expect("an id").to_owned();
    world.daemon.api.delete(&id, true).expect("Delete");
    assert_eq!((shown(&world, "status"), shown(&world, "state")), (json!("unknown"), json!("undefined")));
    // Restore the pending state. A kill between the claim and the creation of the container leaves this state.
    let claim = shown(&world, "claim").as_str().expect("an id").to_owned();
    let results = world.claims().join("results").join(claim);
    let mut files: Vec<_> = std::fs::read_dir(&results).expect("results").flatten().map(|entry| entry.path()).collect();
    files.sort();
    files[1..].iter().for_each(|file| std::fs::remove_file(file).expect("remove"));
    assert_eq!(shown(&world, "status"), "failed");
    assert!(shown(&world, "message").as_str().is_some_and(|text| text.contains("before the container was created")));
    world.tool("echo x > /cnab/app/outputs/seen");
    world.acts(&["install", "app"]);
}

#[test]
fn ctrl_c_cancels_and_outputs_are_kept() {
    let world = World::new(TOOL);
    let bundle = world.bundle(&lamp());
    let child = started(&world, &bundle);
    kill(child.id() as i32, 2);
    let ran = finish(child);
    assert!(ran.status == 125 && ran.stderr.contains("canceled"), "{ran:?}");
    assert_eq!((shown(&world, "status"), shown(&world, "state")), (json!("canceled"), json!("undefined")));
    assert_eq!(world.reported(&["outputs", "app", "seen"])["value"], "stopped\n");
    world.is_clean("after a cancellation");
    let ran = world.act(&["uninstall", "app", "--force"]);
    assert_eq!(ran.status, 0, "{ran:?}");
    assert_eq!(world.reported(&["list", "--all"]), json!([]));
    assert!(world.cnab(&["show", "app"]).stderr.contains("no installation"));
}

/// Without executord, the last recorded state is shown with the remark that executord cannot be reached.
#[test]
fn show_without_executord_marks_recorded_state() {
    let mut world = World::new(TOOL);
    let bundle = world.bundle(&lamp());
    let mut child = started(&world, &bundle);
    child.kill().expect("kill");
    child.wait().expect("wait");
    world.daemon.terminate();
    let shown = world.reported(&["show", "app"]);
    assert_eq!((&shown["status"], &shown["asked"]), (&json!("running"), &json!(false)));
    assert!(world.cnab(&["show", "app"]).stdout.contains("cannot be reached"));
    world.daemon.start_again();
    go(&world);
    wait::until("the process has exited", || (world.reported(&["show", "app"])["status"] == "succeeded").then_some(()));
}
