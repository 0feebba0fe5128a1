//! Installations in real containers. The rules are in docs/guides/bundles.md.

use std::io::{BufRead as _, BufReader};

use executor_proto::v1::event::Kind;
use integration::images::{Endpoint, Image, Registry};

use crate::bundles::world::{SECRET, World, condition, contains};

fn good() -> (String, String) {
    ("True".into(), "Healthy".into())
}

/// Rules I4 to I6: old pods are removed when the new pods are ready; if a new pod fails, the old pods are kept; nothing
/// is left after removal.
#[test]
fn bundle_is_installed_upgraded_rolled_back_removed() {
    let world = World::new();
    let (one, two, bad) =
        (world.plain("one", "first", true), world.plain("two", "second", true), world.plain("bad", "never", false));
    let before = world.daemon.footprint();
    world.installs(&["install", "demo", &one]);
    assert_eq!((world.namespaces(), condition(&world.status("demo"), "Healthy")), (vec!["demo-r1".into()], good()));
    world.installs(&["upgrade", "demo", &two]);
    assert_eq!(world.namespaces(), ["demo-r2"]);

    let failed = world.bundle(&["upgrade", "demo", &bad, "--wait", "3s", "--image-override", &world.image()]);
    assert!(failed.status == 125 && failed.stderr.contains("revision 3 is not installed"), "{failed:?}");
    let status = world.status("demo");
    assert_eq!(world.namespaces(), ["demo-r2"]);
    assert_eq!(condition(&status, "Installed"), ("False".into(), "UpgradeFailed".into()));
    assert_eq!(condition(&status, "Healthy"), good());

    world.good(&["rollback", "demo"]);
    assert_eq!(world.namespaces(), ["demo-r4"]);
    // Check that the containers had the Secret and that no file of the installation contains it.
    assert!(contains(&world.path("one"), SECRET.as_bytes()), "control failed");
    for directory in ["home", "runtime"] {
        assert!(!contains(&world.path(directory), SECRET.as_bytes()), "{directory}");
    }
    world.good(&["uninstall", "demo"]);
    assert!(world.namespaces().is_empty());
    world.daemon.wait_until_back_at(&before);
}

/// agent-cli is killed as soon as an event occurs in the daemon; the next command finishes or undoes the work.
#[test]
fn killed_upgrade_is_repaired_by_next_command() {
    let world = World::new();
    let (one, two) = (world.plain("one", "first", true), world.plain("two", "second", true));
    let image = world.image();
    world.installs(&["install", "demo", &one]);
    for kind in [Kind::PodReady, Kind::Reserved, Kind::Running, Kind::Completed] {
        let mut events = world.daemon.api.events_after(world.daemon.api.info().cursor);
        let mut child =
            world.command("bundle", &["upgrade", "demo", &two, "--image-override", &image]).spawn().unwrap();
        events.until(|event| event.event.as_ref().is_some_and(|event| event.kind() == kind));
        child.kill().unwrap();
        child.wait().unwrap();
        world.installs(&["upgrade", "demo", &one]);
        let status = world.status("demo");
        let current: Vec<String> = status["installation"]["revisions"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|it| it["state"] == "current")
            .map(|it| format!("demo-r{}", it["number"]))
            .collect();
        assert_eq!((world.namespaces(), condition(&status, "Healthy")), (current, good()), "{kind:?}");
    }
    world.good(&["uninstall", "demo"]);
    assert!(world.namespaces().is_empty());
}

/// Rule I5: followers receive the events of every command that changes an installation.
#[test]
fn followers_receive_installation_events() {
    let world = World::new();
    let (one, bad) = (world.plain("one", "first", true), world.plain("bad", "never", false));
    let mut follower = world.command("bundle", &["events", "--follow", "--json"]).spawn().unwrap();
    world.installs(&["install", "demo", &one]);
    let failed = world.bundle(&["upgrade", "demo", &bad, "--wait", "2s", "--image-override", &world.image()]);
    assert_eq!(failed.status, 125, "{failed:?}");
    let reported = world.good(&["events", "demo"]).stdout;
    assert!(
        reported.lines().count() == 9 && reported.contains(" demo revision 2: Installed False UpgradeFailed: "),
        "{reported}"
    );
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    let mut next = || {
        let event: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(event["installation"], "demo");
        assert!(!event.to_string().contains(SECRET), "{event}");
        let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
        format!("{} {} {}", text("type"), text("status"), text("reason"))
    };
    for expected in [
        "Progressing True Installing",
        "Unpacked True UnpackSuccessful",
        "Installed True InstallationSucceeded",
        "Healthy True Healthy",
        "Progressing False Settled",
        "Progressing True Installing",
        "Unpacked True UnpackSuccessful",
        "Installed False UpgradeFailed",
        "Progressing False Settled",
    ] {
        assert_eq!(next(), expected);
    }
    // The follower has received all events so far. Its last event may be lost, because the removal also deletes the
    // installation's events.
    world.good(&["uninstall", "demo"]);
    assert_eq!(world.bundle(&["events", "demo"]).status, 125, "the installation is removed");
    let mut last = next();
    if last == "Progressing True Uninstalling" {
        last = next();
    }
    assert_eq!(last, "Uninstalled True Uninstalled");
    follower.kill().unwrap();
    follower.wait().unwrap();
}

/// Bundles of a catalog from a registry are upgraded along the upgrade graph.
#[test]
fn operator_follows_its_catalog() {
    let world = World::new();
    let registry = Registry::start(false);
    let mut catalog = "schema: olm.package\nname: demo\ndefaultChannel: stable\n".to_owned();
    let mut entries = String::new();
    for (version, before) in [("1.0.0", ""), ("2.0.0", "1.0.0"), ("3.0.0", "2.0.0")] {
        let files = world.operator(version);
        let image = Image::new();
        image.copy_to(&files.join("manifests"), "manifests");
        image.copy_to(&files.join("metadata"), "metadata");
        image.commit();
        let name = format!("demo:v{version}");
        image.push(&registry, &name);
        let reference = registry.name(&name);
        catalog += &format!(
            "---\nschema: olm.bundle\npackage: demo\nname: demo.v{version}\nimage: {reference}\nproperties:\n- {{type: olm.package, value: {{packageName: demo, version: {version}}}}}\n"
        );
        entries += &format!("- name: demo.v{version}\n");
        if !before.is_empty() {
            entries += &format!("  replaces: demo.v{before}\n");
        }
    }
    catalog += &format!("---\nschema: olm.channel\npackage: demo\nname: stable\nentries:\n{entries}");
    let catalog = world.write("catalog.yaml", &catalog);
    world.installs(&["install", "demo", "--catalog", &catalog, "--package", "demo", "--version", "1.0.0"]);
    let explained = world.good(&["upgrade", "demo", "--dry-run", "--json"]).json();
    let steps: Vec<_> = explained["steps"].as_array().unwrap().iter().map(|it| it["to"]["name"].clone()).collect();
    assert_eq!(steps, ["demo.v2.0.0", "demo.v3.0.0"]);
    assert_eq!(world.namespaces(), ["demo-r1"]);
    world.good(&["upgrade", "demo"]);
    let status = world.status("demo");
    assert_eq!(world.namespaces(), ["demo-r3"]);
    let last = &status["installation"]["revisions"][2];
    assert_eq!(
        (last["bundle"].as_str(), last["pin"].as_str().map(|pin| &pin[..7])),
        (Some("demo.v3.0.0"), Some("sha256:"))
    );
    // The recorded reference contains the image's digest.
    assert!(last["source"]["reference"].as_str().unwrap().contains("@sha256:"));
    let newest = world.bundle(&["upgrade", "demo"]);
    assert!(newest.status == 125 && newest.stderr.contains("demo.v3.0.0 is the newest"), "{newest:?}");
    world.good(&["uninstall", "demo"]);
}
