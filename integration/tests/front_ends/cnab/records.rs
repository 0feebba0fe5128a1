//! Records of other programs, unreadable records, outputs that are used as parameters (rules 40, 44, 49 of
//! docs/guides/cnab-rules.md), and Docker's socket (rule 50).

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use integration::daemon::Setup;
use serde_json::{Value, json};

use crate::cnab::world::{PASS, World, lamp};

/// Returns the paths of an installation's claims, oldest first.
fn claims(world: &World, name: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(world.claims().join("claims").join(name)).expect("claims");
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// A `writeOnly` value is never shown, even if another program wrote it into its claim (rule 40). As a control, the
/// value is found in that claim. An unreadable record is reported, and all other records are still listed.
#[test]
fn foreign_records_are_shown_without_secrets() {
    let world = World::new("echo x > /cnab/app/outputs/seen");
    let bundle = world.bundle(&lamp());
    for name in ["app", "broken", "whole"] {
        world.acts(&["install", name, "-b", &bundle]);
    }
    let claim = &claims(&world, "app")[0];
    let mut written: Value = serde_json::from_slice(&fs::read(claim).expect("a claim")).expect("JSON");
    written["parameters"]["pass"] = json!(PASS);
    written["custom"] = json!({ "io.example.other": "as another program writes it" });
    fs::write(claim, written.to_string()).expect("write");
    for arguments in [&["show", "app"][..], &["show", "app", "--json"], &["list"], &["claims", "app", "--json"]] {
        let ran = world.cnab(arguments);
        assert!(ran.status == 0 && !ran.stdout.contains(PASS) && !ran.stderr.contains(PASS), "{ran:?}");
    }
    assert!(world.cnab(&["show", "app"]).stdout.contains("(writeOnly)"));
    assert_eq!(world.reported(&["show", "app"])["parameters"], json!({ "pass": null, "period": 10 }));
    assert!(fs::read_to_string(claim).expect("a claim").contains(PASS), "control failed");

    let path = claims(&world, "broken")[0].clone();
    fs::write(&path, &fs::read(&path).expect("a claim")[..100]).expect("truncate");
    let ran = world.cnab(&["list", "--all", "--json"]);
    assert!(ran.status == 125 && ran.stderr.contains(&path.display().to_string()), "{ran:?}");
    let listed = ran.json();
    let states: Vec<_> = listed.as_array().expect("a list").iter().map(|it| (&it["name"], &it["state"])).collect();
    let (present, unknown) = (json!("present"), json!("unknown"));
    let expected = [(&json!("app"), &present), (&json!("broken"), &unknown), (&json!("whole"), &present)];
    assert_eq!(states, expected);
    assert!(
        world.act(&["upgrade", "broken"]).stderr.contains("is not a valid claim"),
        "an unreadable record is not used"
    );
    let ran = world.act(&["uninstall", "broken", "--force", "-b", &bundle]);
    assert!(ran.status == 0 && ran.stderr.contains("broken: all records removed"), "{ran:?}");
    assert_eq!(world.cnab(&["list", "--all"]).status, 0);
}

/// If a parameter has no other source, it gets the last output of an earlier action, or of a dependency that ran just
/// before (rule 49). A secret output stays secret.
#[test]
fn outputs_become_parameters() {
    let world = World::new(
        "[ $CNAB_BUNDLE_NAME = db ] && { echo -n \"db of $CNAB_ACTION\" > /cnab/app/outputs/address; exit; }\n\
         echo \"$CNAB_ACTION state=<$STATE> db=<$DB>\"; [ -n \"$KEY\" ] && echo key:$(echo -n $KEY | md5sum)\n\
         echo -n \"$STATE+\" > /cnab/app/outputs/state; echo -n canary-of-an-output-41 > /cnab/app/outputs/key",
    );
    let small = |name: &str| json!({ "schemaVersion": "v1.0.0", "name": name, "version": "1.0.0", "invocationImages": [{ "image": name }] });
    let text = json!({ "t": { "type": "string" }, "w": { "type": "string", "writeOnly": true } });
    let mut db = small("db");
    db["definitions"] = text.clone();
    db["outputs"] = json!({ "address": { "definition": "t", "path": "/cnab/app/outputs/address" } });
    let mut web = small("web");
    web["definitions"] = text;
    web["parameters"] = json!({
        "state": { "definition": "t", "applyTo": ["upgrade", "uninstall"], "required": true, "destination": { "env": "STATE" } },
        "db": { "definition": "t", "required": true, "destination": { "env": "DB" } },
        "key": { "definition": "t", "destination": { "env": "KEY" } },
    });
    web["outputs"] = json!({
        "state": { "definition": "t", "path": "/cnab/app/outputs/state" },
        "key": { "definition": "w", "path": "/cnab/app/outputs/key" },
    });
    web["requiredExtensions"] = json!(["io.cnab.dependencies", "io.cnab.parameter-sources"]);
    let output = |name: &str| json!({ "priority": ["output"], "sources": { "output": { "name": name } } });
    web["custom"] = json!({
        "io.cnab.dependencies": { "requires": { "db": { "bundle": "x/db" } } },
        "io.cnab.parameter-sources": {
            "state": output("state"), "key": output("key"),
            "db": { "priority": ["dependencies.output"], "sources": { "dependencies.output": { "dependency": "db", "name": "address" } } },
        },
    });
    let db_path = world.path("db.json");
    fs::write(&db_path, db.to_string()).expect("write");
    let (bundle, dependency) = (world.bundle(&web), format!("db={db_path}"));
    let image = format!("db#{}", world.rootfs.reference());
    let act = |arguments: &[&str]| {
        let ran = world.act(&[arguments, &["--image-override", &image]].concat());
        assert_eq!(ran.status, 0, "{arguments:?}: {ran:?}");
        ran.stdout.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        act(&["install", "app", "-b", &bundle, "--dependency", &dependency]),
        ["install state=<> db=<db of install>"]
    );
    let upgraded = act(&["upgrade", "app"]);
    assert_eq!(upgraded[0], "upgrade state=<+> db=<db of upgrade>");
    assert!(upgraded[1].starts_with("key:"), "the secret output was used, too: {upgraded:?}");
    assert_eq!(act(&["upgrade", "app", "-p", "state=mine", "-p", "db=other"])[0], "upgrade state=<mine> db=<other>");
    assert_eq!(world.reported(&["show", "app"])["parameters"], json!({ "db": "other", "state": "mine" }));
    let dir = world.claims().join("claims");
    let claims: Vec<PathBuf> = claims(&world, "app");
    assert!(
        claims.iter().all(|path| !fs::read_to_string(path).expect("a claim").contains("canary")),
        "{}",
        dir.display()
    );
    assert_eq!(act(&["uninstall", "app", "--reset-params"])[0], "uninstall state=<mine+> db=<db of upgrade>");
}

/// A bundle gets the host's own Docker socket if the operator and the user allow it; a bundle that does not require the
/// socket runs without it (rule 50).
#[test]
fn docker_socket_requires_operator_and_user() {
    const REPORT: &str =
        "[ -S /var/run/docker.sock ] && stat -c %i /var/run/docker.sock || echo none; id -u; cat /proc/self/uid_map";
    let bundle = |required: bool| {
        let mut bundle = json!({ "schemaVersion": "v1", "name": "d", "version": "1.0.0", "invocationImages": [{ "image": "d" }],
            "custom": { "io.cnab.docker": { "privileged": false } } });
        if required {
            bundle["requiredExtensions"] = json!(["io.cnab.docker"]);
        }
        bundle
    };
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("docker.sock");
    let _docker = UnixListener::bind(&socket).expect("a socket");
    let inode = fs::metadata(&socket).expect("a socket").ino();
    let config = format!("[policy]\ndocker_socket = '{}'\nallow_host_userns = true\n", socket.display());
    let world = World::from_parts(Setup::default().config(&config).start(), REPORT);
    let path = world.bundle(&bundle(true));
    let ran = world.act(&["install", "app", "-b", &path]);
    assert!(ran.status == 125 && ran.stderr.contains("allow it with --allow-docker-host-access"), "{ran:?}");
    let ran = world.acts(&["install", "app", "-b", &path, "--allow-docker-host-access"]);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines[..2], [inode.to_string().as_str(), "0"], "{ran:?}");
    assert!(lines[2].split_whitespace().eq(["0", "0", "4294967295"]), "the users of the tool are the host's: {ran:?}");
    let path = world.bundle(&bundle(false));
    assert!(world.acts(&["install", "without", "-b", &path]).stdout.starts_with("none\n"));
    fs::remove_file(&socket).expect("remove");
    let ran = world.act(&["upgrade", "app", "--allow-docker-host-access"]);
    assert!(ran.status == 125 && ran.stderr.contains("docker.sock cannot be mounted into a container"), "{ran:?}");

    let closed = World::new(REPORT);
    let path = closed.bundle(&bundle(true));
    let ran = closed.act(&["install", "app", "-b", &path, "--allow-docker-host-access"]);
    assert!(ran.status == 125 && ran.stderr.contains("(docker_socket)"), "{ran:?}");
}
