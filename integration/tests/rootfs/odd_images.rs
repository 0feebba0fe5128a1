//! Runs images that the specification allows and that common build tools rarely produce.

use integration::cli::run;
use integration::daemon::Daemon;
use integration::images::{HandmadeLayer, HandmadeLayout, arch};
use serde_json::json;

/// A repeated WORKDIR, COPY or ENV creates the same empty layer several times.
#[test]
fn image_with_repeated_layers_runs() {
    let (busybox, empty) = (HandmadeLayer::busybox(), HandmadeLayer::default());
    let file = HandmadeLayer::default().file("f", "x");
    let layers = [busybox, empty.clone(), file.clone(), empty.clone(), file, empty];
    let layout = HandmadeLayout::from_image(&json!({"Cmd": ["echo", "ok"]}), &layers);
    let daemon = Daemon::start();
    let ran = run(&daemon.socket(), &["run", &layout.reference()]);
    assert_eq!((ran.status, &*ran.stdout), (0, "ok\n"), "{ran:?}");
    // As a volume, the tree is mounted without an upper directory.
    let volume = format!("type=image,source={},target=/v", layout.reference());
    let ran = run(&daemon.socket(), &["run", "--mount", &volume, &layout.reference(), "cat", "/v/f"]);
    assert_eq!((ran.status, &*ran.stdout), (0, "x"), "{ran:?}");
}

/// `ENTRYPOINT [""]` resets the base image's entrypoint. Docker also accepts a string instead of a list.
#[test]
fn entrypoint_of_empty_string_runs_cmd() {
    let daemon = Daemon::start();
    for (config, expected) in [
        (json!({"Entrypoint": [""], "Cmd": ["echo", "ok"]}), "ok\n"),
        (json!({"Entrypoint": "", "Cmd": ["echo", "ok"]}), "ok\n"),
        (json!({"Entrypoint": "echo", "Cmd": "a b"}), "a b\n"),
    ] {
        let layout = HandmadeLayout::from_image(&config, &[HandmadeLayer::busybox()]);
        let ran = run(&daemon.socket(), &["run", &layout.reference()]);
        assert_eq!((ran.status, &*ran.stdout), (0, expected), "{config}: {ran:?}");
        let pulled = run(&daemon.socket(), &["image", "pull", "-q", &layout.reference()]);
        let shown = run(&daemon.socket(), &["image", "inspect", pulled.stdout.trim()]);
        assert_eq!(shown.status, 0, "{shown:?}");
    }
}

/// An index may contain no platforms and may contain indexes. The image's configuration states its platform.
#[test]
fn index_without_platforms_runs_the_hosts_image() {
    let layers = [HandmadeLayer::busybox()];
    let layout = HandmadeLayout::new();
    let command = |word: &str| json!({"Cmd": ["echo", word]});
    let foreign = layout.manifest("s390x", &command("foreign"), &layers);
    let ours = layout.manifest(arch(), &command("ours"), &layers);
    let inner = layout.index(&[foreign.clone(), ours]);
    let outer = layout.index(&[foreign.clone(), inner]);
    layout.set_index(&[outer]);
    let daemon = Daemon::start();
    let ran = run(&daemon.socket(), &["run", &layout.reference()]);
    assert_eq!((ran.status, &*ran.stdout), (0, "ours\n"), "{ran:?}");
    let nothing = layout.index(&[foreign]);
    layout.set_index(&[nothing]);
    let ran = run(&daemon.socket(), &["run", &layout.reference()]);
    assert!(ran.status == 125 && ran.stderr.contains("only for linux/s390x"), "{ran:?}");
}

/// If /etc is a link within the image, the link is followed. A link to a volume is not followed, and `run` prints a
/// warning.
#[test]
fn etc_as_link_gets_files_of_names() {
    let image = |target: &str| {
        let layer = HandmadeLayer::busybox().directory("usr").directory("usr/etc").directory("data");
        let layer = layer.directory("data/etc").symlink("etc", target);
        HandmadeLayout::from_image(&json!({"Cmd": ["cat", "/etc/resolv.conf", "/usr/etc/hostname"]}), &[layer])
    };
    let daemon = Daemon::start();
    let agent = |arguments: &[&str], reference: &str| {
        run(&daemon.socket(), &[&["run", "--dns", "192.0.2.7", "--hostname", "h"], arguments, &[reference]].concat())
    };
    for target in ["usr/etc", "/usr/etc", "../../usr/etc"] {
        let layout = image(target);
        let ran = agent(&[], &layout.reference());
        assert_eq!((ran.status, &*ran.stdout, &*ran.stderr), (0, "nameserver 192.0.2.7\nh\n", ""), "{target}: {ran:?}");
    }
    for (target, arguments) in [
        ("usr/none", &[][..]),
        ("/data", &["--mount", "type=empty,target=/data"]),
        ("/data/etc", &["--tmpfs", "/data"]),
        ("/proc/self/root/tmp", &[]),
    ] {
        let layout = image(target);
        let ran = agent(arguments, &layout.reference());
        assert_ne!(ran.status, 0, "{target}: {ran:?}");
        assert!(ran.stderr.contains("warning: rootfs: /etc/resolv.conf of the image was kept: "), "{target}: {ran:?}");
    }
}
