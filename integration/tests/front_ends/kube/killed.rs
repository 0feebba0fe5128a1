//! If a command is killed, the next command completes its work: rule P64 of docs/guides/kube-rules.md.

use executor_proto::v1::event::Kind;
use serde_json::json;

use crate::kube::world::{KubeFixture, OLD, VARIABLE};

/// Kills a command as soon as the event of this kind arrives for the container.
fn cut_off(world: &KubeFixture, arguments: &[&str], id: &str, kind: Kind) {
    let mut events = world.daemon.api.events_after(world.daemon.api.info().cursor);
    let mut child = world.command(arguments).spawn().unwrap();
    events.until(|event| event.event.as_ref().is_some_and(|event| event.container_id == id && event.kind() == kind));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn next_play_finishes_interrupted_play() {
    let world = KubeFixture::new();
    let path = world.objects(OLD, VARIABLE, "hello");
    let image = world.image();
    let play = ["play", &*path, "--image-override", &*image];
    let before = world.daemon.footprint();
    for (id, kind) in [
        ("default_web", Kind::PodReady),
        ("default_web_prepare", Kind::Running),
        ("default_web_proxy", Kind::Running),
        ("default_web_app", Kind::Reserved),
    ] {
        cut_off(&world, &play, id, kind);
        world.play_ok(&path);
        let ps = world.reported(&["ps"]);
        assert_eq!(
            (ps[0]["ready"].as_bool(), ps[0]["containers"].as_array().unwrap().len()),
            (Some(true), 4),
            "{id}: {ps}"
        );
        assert_eq!(world.kube(&["down", "web"]).status, 0);
        cut_off(&world, &play, id, kind);
        assert_eq!(world.kube(&["down", "web"]).status, 0);
        assert_eq!(world.containers().len(), 0, "{id}");
        assert!(!world.search_files(world.daemon.setup().home()).found(), "{id}");
    }
    world.daemon.wait_until_back_at(&before);
}

#[test]
fn p64_next_down_finishes_interrupted_down() {
    let world = KubeFixture::new();
    let path = world.objects(OLD, VARIABLE, "hello");
    let before = world.daemon.footprint();
    for (id, kind) in [
        ("default_web_app", Kind::Stopping),
        ("default_web_app", Kind::Completed),
        ("default_web_proxy", Kind::Stopping),
        ("default_web_proxy", Kind::Completed),
        ("default_web_app", Kind::Deleted),
    ] {
        world.play_ok(&path);
        cut_off(&world, &["down", "web"], id, kind);
        assert_eq!(world.kube(&["down", "web"]).status, 0, "{id} {kind:?}");
        assert_eq!((world.containers().len(), world.reported(&["ps"])), (0, json!([])), "{id} {kind:?}");
        assert!(!world.search_files(world.daemon.setup().home()).found(), "{id} {kind:?}");
    }
    world.daemon.wait_until_back_at(&before);
}
