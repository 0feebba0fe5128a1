//! Runs the programs as agent-cli and packagers do, without an executord. A stub replaces `agent-cli-kube`: it creates
//! a file for each play, and kills its caller on request.

#![allow(clippy::unwrap_used)] // a failed unwrap fails the test

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_agent-cli-bundle");

/// Stub of `agent-cli-kube`. The stub counts its calls and kills its caller before or after the call named in the file
/// `kill`. If the file `fail` exists, plays fail.
const PLAYER: &str = r#"#!/bin/sh
cd "$PLAYS" || exit 1
calls=$(($(cat calls) + 1)); echo $calls > calls
kill_at() { if [ "$(cat kill 2>/dev/null)" = "$calls $1" ]; then kill -9 $PPID; sleep 1; exit 1; fi; }
kill_at before
case $1 in
play)
    cat > input; grep -q TOP-SECRET input && echo "$3" >> secrets; rm input
    : > "play-$3"
    if [ -e fail ]; then echo "agent-cli: pod demo is not ready" >&2; exit 125; fi ;;
down) rm -f "play-$2" ;;
ps) if [ -e "play-$3" ]; then echo '[{"name": "demo", "ready": true}]'; else echo '[]'; fi ;;
esac
kill_at after
exit 0
"#;

struct World {
    dir: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["plays", "bin", "home"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join("player"), PLAYER).unwrap();
        // Copy the program, so that it does not find the real `agent-cli-kube` in its own directory. Child processes
        // copy: if this process wrote a program, a concurrent fork could inherit the open file (ETXTBSY).
        for (from, to) in [(Path::new("player"), "agent-cli-kube"), (Path::new(PROGRAM), "agent-cli-bundle")] {
            let mut install = Command::new("install");
            install.current_dir(dir.path()).args(["-m", "755"]).arg(from).arg(Path::new("bin").join(to));
            assert!(install.status().unwrap().success());
        }
        symlink("agent-cli-bundle", dir.path().join("bin/agent-cli-catalog")).unwrap();
        let world = Self { dir };
        world.set("calls", "0\n");
        world
    }

    fn set(&self, file: &str, text: &str) {
        fs::write(self.dir.path().join("plays").join(file), text).unwrap();
    }

    fn unset(&self, file: &str) {
        let _ = fs::remove_file(self.dir.path().join("plays").join(file)); // it may not exist
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.dir.path().join("bin").join(program));
        command.current_dir(self.dir.path()).env("HOME", self.dir.path().join("home"));
        command.env("PLAYS", self.dir.path().join("plays")).env_remove("EXECUTOR_SOCKET").env_remove("EXECUTOR_JSON");
        command
    }

    fn run_as(&self, program: &str, args: &[&str]) -> Output {
        self.command(program).args(args).output().unwrap()
    }

    fn run(&self, args: &[&str]) -> Output {
        self.run_as("agent-cli-bundle", args)
    }

    #[track_caller]
    fn good(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    #[track_caller]
    fn refused(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(!output.status.success(), "{args:?} was done");
        text(&output.stderr)
    }

    fn plays(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(self.dir.path().join("plays")).unwrap().map(|entry| entry.unwrap().file_name());
        entries.filter_map(|name| name.to_str()?.strip_prefix("play-").map(str::to_owned)).collect()
    }

    fn calls(&self) -> u32 {
        fs::read_to_string(self.dir.path().join("plays/calls")).unwrap().trim().parse().unwrap()
    }

    /// Writes a plain bundle, with a Secret if `secret` is not empty.
    fn bundle(&self, name: &str, secret: &str) -> PathBuf {
        let manifests = self.dir.path().join(name).join("manifests");
        fs::create_dir_all(&manifests).unwrap();
        let pod = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: demo, namespace: x}}\nspec: {{containers: [{{name: demo, image: {name}}}]}}\n"
        );
        fs::write(manifests.join("pod.yaml"), pod).unwrap();
        if !secret.is_empty() {
            let secret = format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\nstringData: {{a: {secret}}}\n");
            fs::write(manifests.join("secret.yaml"), secret).unwrap();
        }
        self.dir.path().join(name)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the status and reason of a condition in the output of `status --json`.
fn condition(status: &str, kind: &str) -> (String, String) {
    let status: Value = serde_json::from_str(status).unwrap();
    let conditions = status["installation"]["conditions"].as_array().unwrap();
    let found = conditions.iter().find(|it| it["type"] == kind).unwrap();
    (found["status"].as_str().unwrap().into(), found["reason"].as_str().unwrap().into())
}

#[test]
fn manual_and_completions_exist_for_both_programs() {
    let world = World::new();
    for (program, command) in [("agent-cli-bundle", "rollback"), ("agent-cli-catalog", "mermaid")] {
        for what in ["man", "completions"] {
            let output = world.run_as(program, &["generate", what, "--out", "out"]);
            assert!(output.status.success(), "{}", text(&output.stderr));
        }
        assert!(world.dir.path().join(format!("out/{program}-{command}.1")).is_file());
        let completions = fs::read_to_string(world.dir.path().join(format!("out/{program}.bash"))).unwrap();
        assert!(completions.contains(command) && !completions.contains("run-bound"));
        let help = world.run_as(program, &["--help"]);
        assert!(text(&help.stdout).contains(&format!("Usage: {} ", program.replacen("cli-", "cli ", 1))), "{help:?}");
    }
}

#[test]
fn i6_bundle_installs_upgrades_rolls_back_uninstalls() {
    let world = World::new();
    world.bundle("one", "");
    world.bundle("two", "");
    assert!(world.good(&["install", "demo", "one"]).starts_with("demo: revision 1 is "));
    assert!(world.refused(&["install", "demo", "two"]).contains("is installed already (revision 1)"));
    world.good(&["upgrade", "demo", "two"]);
    assert_eq!(world.plays(), BTreeSet::from(["demo-r2".to_owned()]));
    world.good(&["rollback", "demo"]);
    assert_eq!(world.plays(), BTreeSet::from(["demo-r3".to_owned()]));
    let status = world.good(&["--json", "status", "demo"]);
    assert_eq!(condition(&status, "Healthy"), ("True".into(), "Healthy".into()));
    let status: Value = serde_json::from_str(&status).unwrap();
    let pins: Vec<&str> =
        status["installation"]["revisions"].as_array().unwrap().iter().map(|it| it["pin"].as_str().unwrap()).collect();
    assert!(pins.len() == 3 && pins[0] == pins[2] && pins[0] != pins[1], "{pins:?}");
    assert!(world.good(&["list"]).contains("demo"));
    world.good(&["uninstall", "demo"]);
    assert!(world.plays().is_empty() && world.good(&["list"]).lines().count() == 1);
    assert!(world.refused(&["uninstall", "demo"]).contains("there is no installation"));
}

#[test]
fn failed_revision_leaves_previous_one() {
    let world = World::new();
    world.bundle("one", "");
    world.bundle("two", "");
    world.good(&["install", "demo", "one"]);
    world.set("fail", "");
    assert!(
        world.refused(&["upgrade", "demo", "two"]).contains("demo: revision 2 is not installed: pod demo is not ready")
    );
    world.unset("fail");
    assert_eq!(world.plays(), BTreeSet::from(["demo-r1".to_owned()]));
    let status = world.good(&["--json", "status", "demo"]);
    assert_eq!(condition(&status, "Installed"), ("False".into(), "UpgradeFailed".into()));
    assert_eq!(condition(&status, "Healthy"), ("True".into(), "Healthy".into()));
    assert_eq!(condition(&status, "Unpacked"), ("True".into(), "UnpackSuccessful".into()));
    // Rule I5: an unreadable bundle is recorded as a condition.
    fs::write(world.dir.path().join("two/manifests/bad.yaml"), "a: [").unwrap();
    assert!(world.refused(&["upgrade", "demo", "two"]).contains("is refused: 1 fault"));
    let status = world.good(&["--json", "status", "demo"]);
    assert_eq!(condition(&status, "Unpacked"), ("False".into(), "UnpackFailed".into()));
    assert_eq!(world.plays(), BTreeSet::from(["demo-r1".to_owned()]));
    fs::remove_file(world.dir.path().join("two/manifests/bad.yaml")).unwrap();
    world.good(&["upgrade", "demo", "two"]);
    assert_eq!(world.plays(), BTreeSet::from(["demo-r3".to_owned()]));
}

#[test]
fn follower_reports_changes_of_new_records() {
    let world = World::new();
    world.bundle("one", "");
    world.bundle("two", "");
    let mut follower = world.command("agent-cli-bundle");
    follower.args(["--json", "--installations-dir", "home/a/b", "events", "--follow"]).stdout(Stdio::piped());
    let mut follower = follower.spawn().unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    let mut reported = |kind: &str| loop {
        let event: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        if event["type"] == kind {
            break event["reason"].as_str().unwrap().to_owned();
        }
    };
    for _ in 0..2 {
        world.good(&["--installations-dir", "home/a/b", "install", "demo", "one"]);
        assert_eq!(reported("Installed"), "InstallationSucceeded");
        world.set("fail", "");
        world.refused(&["--installations-dir", "home/a/b", "upgrade", "demo", "two"]);
        world.unset("fail");
        assert_eq!(reported("Installed"), "UpgradeFailed");
        world.good(&["--installations-dir", "home/a/b", "uninstall", "demo"]);
        assert_eq!(reported("Uninstalled"), "Uninstalled");
        // The follower continues when the directories are removed.
        fs::remove_dir_all(world.dir.path().join("home/a")).unwrap();
    }
    follower.kill().unwrap();
    follower.wait().unwrap();
}

#[test]
fn rollback_to_changed_source_is_refused() {
    let world = World::new();
    let one = world.bundle("one", "");
    world.bundle("two", "");
    world.good(&["install", "demo", "one"]);
    world.good(&["upgrade", "demo", "two"]);
    fs::write(one.join("manifests/more.yaml"), "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: z}\n").unwrap();
    assert!(world.refused(&["rollback", "demo"]).contains("has changed since revision 1"));
    let status = world.good(&["--json", "status", "demo"]);
    assert_eq!(condition(&status, "Unpacked"), ("False".into(), "UnpackFailed".into()));
    assert_eq!(condition(&status, "Installed"), ("True".into(), "InstallationSucceeded".into()));
    assert_eq!(world.plays(), BTreeSet::from(["demo-r2".to_owned()]));
}

/// If a command is killed before or after any of its calls, the next command finishes or undoes its work.
#[test]
fn killed_command_is_finished_or_undone_next() {
    for command in ["install", "upgrade", "rollback", "uninstall"] {
        let mut kills = 0;
        for at in 1..20 {
            let mut killed = false;
            for when in ["before", "after"] {
                let world = World::new();
                world.bundle("one", "TOP-SECRET");
                world.bundle("two", "");
                if command != "install" {
                    world.good(&["install", "demo", "one"]);
                }
                if command == "rollback" {
                    world.good(&["upgrade", "demo", "two"]);
                }
                let args: &[&str] = match command {
                    "install" => &["install", "demo", "one"],
                    "upgrade" => &["upgrade", "demo", "two"],
                    other => &[other, "demo"],
                };
                world.set("kill", &format!("{} {when}", world.calls() + at));
                let output = world.run(args);
                if output.status.code().is_some() {
                    continue; // the command makes fewer calls
                }
                (killed, kills) = (true, kills + 1);
                world.unset("kill");
                let at = format!("{command}, call {at}, {when}");
                // The record is consistent after every kill.
                let listed: Value = serde_json::from_str(&world.good(&["--json", "list"])).unwrap();
                assert_eq!(listed.as_array().map(Vec::len), Some(1), "{at}");
                // The next command succeeds, and no other play remains.
                if command == "uninstall" {
                    world.good(&["uninstall", "demo"]);
                    assert!(world.plays().is_empty(), "{at}: {:?}", world.plays());
                    continue;
                }
                let next = if command == "install"
                    && !text(&world.run(&["install", "demo", "one"]).stderr).contains("installed already")
                {
                    "install"
                } else {
                    world.good(&["upgrade", "demo", "two"]);
                    "upgrade"
                };
                let status: Value = serde_json::from_str(&world.good(&["--json", "status", "demo"])).unwrap();
                let revisions = status["installation"]["revisions"].as_array().unwrap();
                let current: Vec<_> = revisions
                    .iter()
                    .filter(|it| it["state"] == "current")
                    .map(|it| format!("demo-r{}", it["number"]))
                    .collect();
                assert_eq!(world.plays().into_iter().collect::<Vec<_>>(), current, "{at}, then {next}");
                assert_eq!((current.len(), &status["unfinished"]), (1, &Value::Bool(false)), "{at}, then {next}");
                // No file of the records holds a Secret.
                assert!(!contains(&world.dir.path().join("home"), b"TOP-SECRET"), "{at}");
            }
            if !killed {
                break;
            }
        }
        assert!(kills >= 2, "{command} was killed {kills} times");
    }
}

/// Returns true if a file below the directory contains the bytes `wanted`.
fn contains(directory: &Path, wanted: &[u8]) -> bool {
    fs::read_dir(directory).unwrap().map(Result::unwrap).any(|entry| match entry.file_type().unwrap().is_dir() {
        true => contains(&entry.path(), wanted),
        false => fs::read(entry.path()).unwrap().windows(wanted.len()).any(|window| window == wanted),
    })
}

#[test]
fn secrets_reach_the_play_and_nothing_else() {
    let world = World::new();
    world.bundle("one", "TOP-SECRET");
    world.good(&["install", "demo", "one"]);
    let played = fs::read_to_string(world.dir.path().join("plays/secrets")).unwrap();
    assert_eq!(played, "demo-r1\n", "control: the play has the value");
    assert!(!contains(&world.dir.path().join("home"), b"TOP-SECRET"));
    let shown = world.good(&["inspect", "one"])
        + &world.good(&["--json", "inspect", "one"])
        + &world.good(&["--json", "status", "demo"]);
    assert!(!shown.contains("TOP-SECRET"));
    assert!(world.good(&["unpack", "one", "out"]).contains("skipped, because it holds a Secret"));
    assert!(!contains(&world.dir.path().join("out"), b"TOP-SECRET"));
    world.good(&["unpack", "--with-secrets", "one", "all"]);
    assert!(contains(&world.dir.path().join("all"), b"TOP-SECRET"));
}

#[test]
fn objects_needing_api_server_require_partial_flag() {
    let world = World::new();
    let one = world.bundle("one", "");
    fs::write(
        one.join("manifests/role.yaml"),
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: r}\nrules: []\n",
    )
    .unwrap();
    let reported = world.refused(&["install", "demo", "one"]);
    assert!(
        reported.contains("Role r: no API server that grants access (RBAC)") && reported.contains("--partial"),
        "{reported}"
    );
    assert!(world.plays().is_empty() && world.good(&["list"]).lines().count() == 1);
    // Rule I5: a bundle that is refused while another revision runs is recorded as a condition.
    world.bundle("two", "");
    world.good(&["install", "demo", "two"]);
    assert!(world.refused(&["upgrade", "demo", "one"]).contains("--partial"));
    let status = world.good(&["--json", "status", "demo"]);
    assert_eq!(condition(&status, "Installed"), ("False".into(), "BundleLoadFailed".into()));
    let shown = world.good(&["status", "demo"]);
    let line = shown.lines().find(|line| line.contains("BundleLoadFailed")).unwrap();
    assert!(line.contains("Role r: no API server") && line.ends_with("revision 1 remains installed"), "{shown}");
    assert_eq!(world.plays(), BTreeSet::from(["demo-r1".to_owned()]));
    world.good(&["upgrade", "demo", "one", "--partial"]);
    let status = world.good(&["--json", "status", "demo"]);
    assert_eq!(condition(&status, "Installed"), ("True".into(), "InstallationSucceeded".into()));
}

/// Rule I1: a bundle's content matches its pin. Rule I2: a source is complete. Rule I3: a source is pinned.
#[test]
fn i1_i2_i3_pinned_sources_are_immutable() {
    let world = World::new();
    let one = world.bundle("one", "");
    let dir = world.dir.path();
    let git = |args: &[&str]| {
        let output = Command::new("git")
            .args(["-C", one.to_str().unwrap(), "-c", "user.name=x", "-c", "user.email=x@example.com"])
            .args(args)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).trim().to_owned()
    };
    git(&["init", "-q"]);
    git(&["add", "."]);
    git(&["commit", "-q", "-m", "x"]);
    let commit = git(&["rev-parse", "HEAD"]);
    // Uncommitted changes and git attributes are ignored.
    fs::write(one.join("manifests/pod.yaml"), "a: [").unwrap();
    let inspect =
        |source: &str| -> Value { serde_json::from_str(&world.good(&["--json", "inspect", source])).unwrap() };
    let found = inspect(&format!("git:{}@{commit}", one.display()));
    assert_eq!((found["pin"].as_str(), found["format"].as_str()), (Some(&*commit), Some("plain+v0")));
    let digest = found["digest"].as_str().unwrap().to_owned();
    for bad in [
        "git:one",
        "git:one@main",
        &format!("git:one@{commit}#../x"),
        &format!("git:http://x/y@{commit}"),
        "docker://A B",
        "missing",
    ] {
        assert!(!world.run(&["inspect", bad]).status.success(), "{bad}");
    }
    // The same files have the same digest in a directory, an archive and an image.
    git(&["checkout", "-q", "."]);
    assert_eq!(inspect("one")["digest"], digest);
    let tar = Command::new("tar")
        .current_dir(&one)
        .args(["--exclude=.git", "-czf", "../one.tgz", "manifests"])
        .status()
        .unwrap();
    assert!(tar.success() && inspect("one.tgz")["digest"] == digest && dir.join("one.tgz").is_file());
}
