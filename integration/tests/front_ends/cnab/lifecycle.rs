//! Tests installations from their install to their uninstall.

use std::fs;

use serde_json::{Value, json};

use crate::cnab::world::{KEY, World, lamp, search};

/// Prints the inputs that are not secret, then the secrets, so that the log contains them.
const TOOL: &str = r#"
same() { [ "$1" = "$2" ] && echo same || echo other; }
echo "$CNAB_ACTION:$CNAB_INSTALLATION_NAME:$CNAB_BUNDLE_NAME:$PERIOD" > /cnab/app/outputs/seen
echo "key $(same "$KEY" "$(cat /etc/lamp/key)") and pass $(same "$PASS" "$(cat /etc/lamp/pass)")" >> /cnab/app/outputs/seen
grep -q "\"revision\":\"$CNAB_REVISION\"" /cnab/claim.json && echo "claim fits" >> /cnab/app/outputs/seen
echo "$KEY $PASS"; cat /etc/lamp/key /etc/lamp/pass /cnab/claim.json
grep -c . /cnab/bundle.json
"#;

fn seen(world: &World) -> String {
    let outputs = world.reported(&["outputs", "app", "seen"]);
    outputs["value"].as_str().expect("text").to_owned()
}

/// A request that executord refuses leaves no installation. As a control, the same install without the limit succeeds.
#[test]
fn install_with_refused_limit_records_nothing() {
    let world = World::new(TOOL);
    let bundle = world.bundle(&lamp());
    let pass = format!("pass=@{}", world.path("pass"));
    let install = ["install", "app", "-b", &bundle, "-p", &pass];
    let ran = world.act(&[&install[..], &["--memory", "1K"]].concat());
    assert!(ran.status == 125 && ran.stderr.contains("--memory: "), "{ran:?}");
    assert_ne!(world.cnab(&["show", "app"]).status, 0);
    assert!(world.containers().is_empty());
    world.acts(&install);
    assert_eq!(world.cnab(&["show", "app"]).status, 0);
}

/// A bundle's lifecycle follows rules 3, 4, 7, 8, 12, 15, 40 and 43 to 47 (docs/guides/cnab-rules.md): an install, two
/// upgrades and an uninstall make four revisions, and a status makes none; after each step no file contains a
/// credential.
#[test]
fn bundle_goes_through_its_life() {
    let world = World::new(TOOL);
    let bundle = world.bundle(&lamp());
    let pass = format!("pass=@{}", world.path("pass"));
    let ran = world.acts(&["install", "app", "-b", &bundle, "-p", &pass]);
    assert!(ran.stdout.contains("[REDACTED:") && !ran.stdout.contains("canary"), "{ran:?}");
    assert_eq!(seen(&world), "install:app:lamp:10\nkey same and pass same\nclaim fits\n");
    world.is_clean("after install");
    world.acts(&["upgrade", "app", "-p", "period=20", "-p", &pass]);
    assert!(seen(&world).starts_with("upgrade:app:lamp:20\nkey same and pass same\n"), "{}", seen(&world));
    world.is_clean("after upgrade");
    world.acts(&["invoke", "app", "--action", "org.example.status"]);
    assert!(
        seen(&world).starts_with("org.example.status:app:lamp:20\n"),
        "a value given once is kept: {}",
        seen(&world)
    );
    world.is_clean("after a status");
    world.acts(&["upgrade", "app", "--reset-params"]);
    assert!(seen(&world).starts_with("upgrade:app:lamp:10\n"), "{}", seen(&world));
    world.is_clean("after another upgrade");
    assert_eq!(world.reported(&["show", "app"])["state"], "present");
    assert_eq!(world.reported(&["show", "app"])["parameters"], json!({ "period": 10 }));
    world.acts(&["uninstall", "app"]);
    world.is_clean("after uninstall");

    let claims = world.reported(&["claims", "app"]);
    let claims = claims.as_array().expect("a list");
    let column = |name: &str| -> Vec<&str> { claims.iter().map(|claim| claim[name].as_str().expect("text")).collect() };
    assert_eq!(column("action"), ["install", "upgrade", "org.example.status", "upgrade", "uninstall"]);
    assert!(column("status").iter().all(|status| *status == "succeeded"));
    let mut revisions = column("revision");
    assert_eq!(revisions[1], revisions[2], "a status is no change");
    revisions.dedup();
    assert_eq!(revisions.len(), 4);
    let mut sorted = column("id");
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted, column("id"), "claim ids are unique and ascending");

    // The installation is gone, but its last claim is kept (rule 45).
    assert_eq!(world.reported(&["list"]), json!([]));
    assert_eq!(world.reported(&["list", "--all"])[0]["state"], "absent");
    assert!(world.act(&["upgrade", "app"]).stderr.contains("app is not installed"));
    assert!(world.cnab(&["logs", "app"]).stdout.contains("[REDACTED:"));

    // As a control, the same search finds a credential in a file.
    fs::write(world.claims().join("forgotten"), format!("{{\"key\":\"{KEY}\"}}")).expect("write");
    assert!(search(world.daemon.setup().home()).found());
}

/// A name that is already installed cannot be installed again (rule 5).
#[test]
fn installed_name_is_not_installed_again() {
    let world = World::new("true");
    let bundle = world.bundle(
        &json!({ "schemaVersion": "v1", "name": "x", "version": "1.0.0", "invocationImages": [{ "image": "x" }] }),
    );
    world.acts(&["install", "a/b c", "-b", &bundle]);
    let ran = world.act(&["install", "a/b c", "-b", &bundle]);
    assert!(ran.status == 125 && ran.stderr.contains("a/b c is installed already"), "{ran:?}");
    assert_eq!(
        world.reported(&["claims", "a/b c"]).as_array().map(Vec::len),
        Some(1),
        "the refused action was recorded"
    );
    assert!(world.act(&["install", "a\tb", "-b", &bundle]).stderr.contains("only letters, marks"));
    for action in ["upgrade", "uninstall"] {
        let ran = world.act(&[action, "other"]);
        assert!(ran.status == 125 && ran.stderr.contains("other is not installed\n"), "{ran:?}");
        assert!(world.act(&[action, "other", "-b", &bundle]).stderr.contains("other is not installed"));
    }
    let ran = world.act(&["uninstall", "other", "--force"]);
    assert!(ran.status == 125 && ran.stderr.contains("no installation \"other\""), "{ran:?}");
    assert!(world.act(&["invoke", "other", "--action", "x.y"]).stderr.contains("use --bundle FILE"));
    let ran = world.cnab(&["upgrade", "a/b c", "-c", "nosuchset"]);
    assert!(ran.status == 125 && ran.stderr.contains("no such credential set"), "{ran:?}");
    assert!(ran.stderr.contains(&world.claims().join("credentials").display().to_string()), "{ran:?}");
}

/// A failed action is recorded as failed, existing outputs are kept, and the next action succeeds (rules 2, 39 and 47).
#[test]
fn failure_is_recorded_and_next_action_allowed() {
    let world = World::new("echo half > /cnab/app/outputs/seen; echo no >&2; exit 7");
    let bundle = world.bundle(&lamp());
    let ran = world.act(&["install", "app", "-b", &bundle]);
    assert!(ran.status == 7 && ran.stderr.contains("exited with 7"), "{ran:?}");
    let shown = world.reported(&["show", "app"]);
    assert_eq!((&shown["state"], &shown["status"]), (&json!("undefined"), &json!("failed")));
    assert_eq!(world.reported(&["outputs", "app", "seen"])["value"], "half\n");
    assert_eq!(world.cnab(&["logs", "app"]).stdout, "no\n");

    // A missing output without a default is also a failure (rule 39).
    world.tool("true");
    let ran = world.act(&["install", "app"]);
    assert!(ran.status == 125 && ran.stderr.contains("/outputs/seen: is missing at"), "{ran:?}");
    world.tool("echo x > /cnab/app/outputs/seen");
    world.acts(&["upgrade", "app"]);
    assert_eq!(world.reported(&["outputs", "app", "colour"])["value"], "unlit", "the output does not have its default");
    assert_eq!(world.reported(&["show", "app"])["state"], "present");

    // The run tool is missing.
    fs::remove_file(world.rootfs.path().join("cnab/app/run")).expect("remove");
    let ran = world.act(&["upgrade", "app"]);
    assert!(ran.status == 127 && ran.stderr.contains("/cnab/app/run"), "{ran:?}");
    assert_eq!(world.reported(&["show", "app"])["status"], "failed");
    world.is_clean("after failures");
}

/// A stateless action requires no credentials and leaves no record (rule 34).
#[test]
fn stateless_action_leaves_no_record() {
    let world =
        World::new("echo \"help for $CNAB_INSTALLATION_NAME ${CNAB_REVISION-none}\"; echo x > /cnab/app/outputs/seen");
    let bundle = world.bundle(&lamp());
    let image = world.rootfs.reference();
    let ran =
        world.cnab(&["invoke", "missing", "--action", "org.example.help", "-b", &bundle, "--image-override", &image]);
    assert_eq!((ran.status, &*ran.stdout), (0, "help for missing none\n"), "{ran:?}");
    assert!(!world.claims().exists(), "nothing was written");
    let ran = world.cnab(&["install", "missing", "-b", &bundle, "--image-override", &image]);
    assert!(ran.status == 125 && ran.stderr.contains("/credentials/key: is required"), "{ran:?}");
    assert!(!world.claims().join("claims").exists());
}

/// An image that cannot be verified is not run, unless the caller allows it (rule 27).
#[test]
fn unverifiable_image_is_not_run() {
    let world = World::new("echo x > /cnab/app/outputs/seen");
    let mut bundle = lamp();
    bundle["invocationImages"][0]["contentDigest"] = format!("sha256:{}", "0".repeat(64)).into();
    let path = world.bundle(&bundle);
    let ran = world.act(&["install", "app", "-b", &path]);
    assert!(ran.status == 125 && ran.stderr.contains("cannot be verified"), "{ran:?}");
    world.acts(&["install", "app", "-b", &path, "--insecure-ignore-digest"]);
    let without = world.bundle(&lamp());
    let ran = world.acts(&["upgrade", "app", "-b", &without]);
    assert!(ran.stderr.contains("no contentDigest"), "the missing digest is reported: {ran:?}");
}

/// Dependencies are installed first, in the bundle's order, and uninstalled last, in the reverse order (rule 48).
#[test]
fn dependencies_are_run_in_sequence() {
    let world = World::new("echo \"$CNAB_ACTION $CNAB_INSTALLATION_NAME $SIZE\"");
    let small = |name: &str| {
        json!({
            "schemaVersion": "v1", "name": name, "version": "1.2.3", "invocationImages": [{ "image": name }],
            "definitions": { "size": { "type": "integer", "default": 1 } },
            "parameters": { "size": { "definition": "size", "destination": { "env": "SIZE" } } },
        })
    };
    let mut main = small("web");
    main["requiredExtensions"] = json!(["io.cnab.dependencies"]);
    main["custom"] = json!({ "io.cnab.dependencies": {
        "sequence": ["sea", "db"],
        "requires": { "db": { "bundle": "x/db", "version": { "ranges": ["1.2.x"] } }, "sea": { "bundle": "x/sea" } },
    } });
    let write = |name: &str, bundle: &Value| {
        let path = world.path(name);
        fs::write(&path, bundle.to_string()).expect("write");
        path
    };
    let (web, db, sea) = (write("web", &main), write("db", &small("db")), write("sea", &small("sea")));
    let (image, db, sea) = (world.rootfs.reference(), format!("db={db}"), format!("sea={sea}"));
    let images = [format!("db#{image}"), format!("sea#{image}")];
    let act = |arguments: &[&str]| {
        world.act(&[arguments, &["--image-override", &images[0], "--image-override", &images[1]]].concat())
    };
    let ran = act(&["install", "app", "-b", &web, "--dependency", &sea]);
    assert!(ran.status == 125 && ran.stderr.contains("--dependency db=FILE"), "{ran:?}");
    let ran = act(&[
        "install",
        "app",
        "-b",
        &web,
        "--dependency",
        &sea,
        "--dependency",
        &db,
        "-p",
        "db#size=5",
        "-p",
        "size=2",
    ]);
    assert_eq!(ran.stdout, "install app-sea 1\ninstall app-db 5\ninstall app 2\n", "{ran:?}");
    let ran = act(&["uninstall", "app"]);
    assert_eq!(ran.stdout, "uninstall app 2\nuninstall app-db 5\nuninstall app-sea 1\n", "{ran:?}");
    let newer = write("newer", &{
        let mut newer = small("db");
        newer["version"] = json!("1.3.0");
        newer
    });
    let ran = act(&["install", "app", "-b", &web, "--dependency", &sea, "--dependency", &format!("db={newer}")]);
    assert!(ran.status == 125 && ran.stderr.contains("1.3.0") && ran.stderr.contains("1.2.x"), "{ran:?}");
}
