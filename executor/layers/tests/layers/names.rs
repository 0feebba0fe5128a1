//! Tests names that escape the tree: by `..`, from `/`, by links, and by entries that are replaced by links.

use std::path::{Path, PathBuf};

use executor_layers::UnpackError;
use executor_tar::TarError;

use crate::harness::{Layer, Sandbox, attack, diff_id};

/// Returns the path, relative to the root of a layer's tree, that corresponds to a sandbox's `outside/file` on the
/// host.
fn inside(sandbox_path: &Path) -> PathBuf {
    sandbox_path.strip_prefix("/").unwrap().join("outside/file")
}

fn refused(result: &Result<(), UnpackError>, why: &str) {
    match result {
        Err(error @ UnpackError::Archive(TarError::Entry { .. })) if error.to_string().contains(why) => {}
        other => panic!("{other:?} is not a refusal with {why:?}"),
    }
}

#[test]
fn dotdot_names_stay_inside_layer() {
    let up = |_: &Sandbox| vec![Layer::new().file("../../outside/file", "x").bytes()];
    refused(&attack(up).0, "`../../outside/file` escapes the layer");
    let from_below = |_: &Sandbox| vec![Layer::new().dir("a/", 0o755).file("a/../../../outside/file", "x").bytes()];
    refused(&attack(from_below).0, "escapes the layer");
    // Names that stay inside are accepted.
    let sandbox = Sandbox::new();
    let layer = sandbox.unpack(&[], &Layer::new().dir("a/", 0o755).file("a/../b/./c", "x").bytes()).unwrap();
    assert_eq!(sandbox.merged(&[layer])[Path::new("b/c")].content, b"x");
}

#[test]
fn absolute_names_are_names_of_the_tree() {
    let place = std::cell::RefCell::new(PathBuf::new());
    let (result, tree) = attack(|sandbox| {
        place.replace(inside(sandbox.path()));
        vec![Layer::new().file(&format!("{}/file", sandbox.outside()), "x").bytes()]
    });
    result.unwrap();
    assert_eq!(tree[&*place.borrow()].content, b"x");
}

#[test]
fn nothing_is_written_through_a_link() {
    for absolute in [true, false] {
        let place = std::cell::RefCell::new(PathBuf::new());
        let (result, tree) = attack(|sandbox| {
            place.replace(inside(sandbox.path()));
            let to = if absolute { sandbox.outside() } else { "../../outside".into() };
            vec![Layer::new().symlink("d", &to).file("d/file", "x").bytes()]
        });
        result.unwrap();
        // The link is resolved within the tree, as in the container.
        let place = if absolute { place.borrow().clone() } else { PathBuf::from("outside/file") };
        assert_eq!(tree[&place].content, b"x", "{absolute}");
    }
    let file = |sandbox: &Sandbox| {
        vec![Layer::new().symlink("f", &format!("{}/file", sandbox.outside())).file("f", "x").bytes()]
    };
    let (result, tree) = attack(file);
    result.unwrap();
    assert_eq!((tree[Path::new("f")].kind, &*tree[Path::new("f")].content), ('f', &b"x"[..]));
}

#[test]
fn directory_replaced_by_link_stays_inside_root() {
    let one_layer = |sandbox: &Sandbox| {
        let layer = Layer::new().dir("d/", 0o755).file("d/file", "1");
        vec![layer.symlink("d", &sandbox.outside()).file("d/file", "x").bytes()]
    };
    attack(one_layer).0.unwrap();
    let place = std::cell::RefCell::new(PathBuf::new());
    let (result, tree) = attack(|sandbox| {
        place.replace(inside(sandbox.path()));
        vec![
            Layer::new().dir("d/", 0o755).file("d/file", "1").bytes(),
            Layer::new().symlink("d", &sandbox.outside()).bytes(),
            Layer::new().file("d/file", "x").bytes(),
        ]
    });
    result.unwrap();
    assert_eq!(tree[Path::new("d")].kind, 'l');
    assert_eq!(tree[&*place.borrow()].content, b"x");
}

#[test]
fn links_in_a_circle_are_reported() {
    let sandbox = Sandbox::new();
    let layer = Layer::new().symlink("a", "b").symlink("b", "a").file("a/file", "x").bytes();
    refused(&sandbox.unpack(&[], &layer).map(drop), "more than 255 symbolic links");
}

/// A hard link to a file outside is refused, because it would expose the file and make it writable.
#[test]
fn hard_links_lead_to_nothing_outside() {
    let absolute = |sandbox: &Sandbox| {
        vec![Layer::new().hard_link("x", &format!("{}/file", sandbox.outside())).file("x", "written").bytes()]
    };
    refused(&attack(absolute).0, "which does not exist");
    let up = |_: &Sandbox| vec![Layer::new().hard_link("x", "../../outside/file").file("x", "written").bytes()];
    refused(&attack(up).0, "escapes the layer");
    let through_a_link = |sandbox: &Sandbox| {
        let layer = Layer::new().symlink("d", &sandbox.outside()).hard_link("x", "d/file");
        vec![layer.file("x", "written").bytes()]
    };
    refused(&attack(through_a_link).0, "which does not exist");
    let to_a_link = |sandbox: &Sandbox| {
        let layer = Layer::new().symlink("l", &format!("{}/file", sandbox.outside())).hard_link("x", "l");
        vec![layer.file("l", "written").file("x", "written").bytes()]
    };
    attack(to_a_link).0.unwrap();
    let sandbox = Sandbox::new();
    refused(&sandbox.unpack(&[], &Layer::new().hard_link("x", "/etc/shadow").bytes()).map(drop), "does not exist");
    let link = Layer::new().dir("d/", 0o755).hard_link("x", "d").bytes();
    refused(&sandbox.unpack(&[], &link).map(drop), "a directory");
}

#[test]
fn whiteouts_remove_nothing_but_names() {
    let up = |_: &Sandbox| vec![Layer::new().dir("d/", 0o755).file(".wh...", "").bytes()];
    refused(&attack(up).0, "a whiteout without a name");
    let out = |_: &Sandbox| vec![Layer::new().file("../../.wh.outside", "").bytes()];
    refused(&attack(out).0, "escapes the layer");
    let through = |sandbox: &Sandbox| {
        vec![Layer::new().symlink("d", &sandbox.path().display().to_string()).file("d/.wh.outside", "").bytes()]
    };
    attack(through).0.unwrap();
    for name in [".wh.", ".wh..", "d/.wh.."] {
        let sandbox = Sandbox::new();
        let layer = Layer::new().file("d/file", "x").file(name, "").bytes();
        refused(&sandbox.unpack(&[], &layer).map(drop), "a whiteout without a name");
    }
}

#[test]
fn the_root_stays_a_directory() {
    for name in ["/", ".", "./", "a/.."] {
        let sandbox = Sandbox::new();
        for layer in [
            Layer::new().symlink(name, &sandbox.outside()),
            Layer::new().hard_link(name, "a"),
            Layer::new().file(name, "x"),
        ] {
            refused(&sandbox.unpack(&[], &layer.bytes()).map(drop), "the root directory");
        }
        let hard = Layer::new().hard_link("a", name).bytes();
        refused(&sandbox.unpack(&[], &hard).map(drop), "the root directory");
        let layer = Layer::new().dir(name, 0o750).bytes();
        sandbox.unpack(&[], &layer).unwrap();
        assert!(sandbox.store.has(&diff_id(&layer), &[]));
    }
}

fn is_device(result: &Result<(), UnpackError>, why: &str) {
    match result {
        Err(error @ UnpackError::Device { .. }) if error.to_string().contains(why) => {}
        other => panic!("{other:?} is not a refusal of a device with {why:?}"),
    }
}

/// If a layer has devices in `/dev`, which containers never see, they are skipped and reported, in any spelling of the
/// path. Hard links to them are skipped in `/dev` and refused elsewhere. The control: a device elsewhere is refused.
#[test]
fn dev_devices_are_skipped_and_reported() {
    let debian = || Layer::new().dir("dev/", 0o755).device("dev/null", 1, 3).device("./dev/console", 5, 1);
    let archive = debian().device("/dev/sub/../sda", 8, 0).hard_link("dev/core", "dev/null").file("etc/x", "x").bytes();
    let sandbox = Sandbox::new();
    let layer = sandbox.unpack(&[], &archive).unwrap();
    let tree = sandbox.merged(&[layer]);
    assert_eq!(tree[Path::new("etc/x")].content, b"x");
    let below: Vec<&PathBuf> =
        tree.keys().filter(|path| path.starts_with("dev") && **path != Path::new("dev")).collect();
    assert_eq!(below, Vec::<&PathBuf>::new());
    let reported = sandbox.store.warning(&layer, &[]).unwrap();
    let expected = "4 devices below /dev were skipped, because each container has its own /dev: dev/console, dev/core, dev/null, dev/sda";
    assert_eq!(reported, format!("layer {layer}: {expected}"));
    assert_eq!(sandbox.store.open(&[layer]).unwrap().warnings, [reported]);

    let elsewhere = debian().device("etc/mem", 1, 1).bytes();
    is_device(&sandbox.unpack(&[], &elsewhere).map(drop), "`etc/mem` is a device");
    let linked = debian().hard_link("etc/null", "dev/null").bytes();
    is_device(&sandbox.unpack(&[], &linked).map(drop), "`etc/null` is a device");
    let plain = sandbox.unpack(&[], &Layer::new().file("dev/null", "a file").bytes()).unwrap();
    assert_eq!(sandbox.store.warning(&plain, &[]), None, "the control");
    // The warning about a large number of devices stays short.
    let flood = (0..5000).fold(Layer::new(), |layer, n| layer.device(&format!("dev/{n}{}", "x".repeat(80)), 1, 3));
    let layer = sandbox.unpack(&[], &flood.bytes()).unwrap();
    let reported = sandbox.store.warning(&layer, &[]).unwrap();
    assert!(reported.contains("5000 devices") && reported.ends_with(", ...") && reported.len() < 1024, "{reported}");
}

#[test]
fn devices_are_refused_unless_they_are_allowed() {
    let memory = Layer::new().device("mem", 1, 1).bytes();
    let mut sandbox = Sandbox::new();
    is_device(&sandbox.unpack(&[], &memory).map(drop), "launcher.image_devices");
    sandbox.devices = true;
    let layer = sandbox.unpack(&[], &memory).unwrap();
    let device = &sandbox.merged(&[layer])[Path::new("mem")];
    assert_eq!((device.kind, device.device, device.mode), ('c', 0x101, 0o666));
    // A device that is a whiteout of overlayfs is never allowed.
    refused(&sandbox.unpack(&[], &Layer::new().device("w", 0, 0).bytes()).map(drop), "a device 0:0");
}
