//! Image trees in containers: each tree equals the tree that umoci unpacks, for every source of the image.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{lchown, symlink};
use std::path::{Path, PathBuf};

use integration::api::pid;
use integration::cli::{CliOutput, command, finish, run};
use integration::daemon::Daemon;
use integration::images::{CHANGED, Endpoint as _, Image, PASSWORD, Registry, USER, inspect, layers, mode};
use integration::request::{RequestBuilder, program};
use integration::tree::{differences, differing_paths, listing, mount_on, of_container, remove_time};

type Tree = BTreeMap<PathBuf, String>;
/// A change to the entry of a given name.
type Change<'a> = &'a dyn Fn(&str);

/// Mount points in every container.
const MOUNTS: [&str; 3] = ["dev", "proc", "sys"];
/// Files with the container's name and name servers (docs/networks.md). They also change the time of their directory.
const NAMES: [&str; 3] = ["etc/hostname", "etc/hosts", "etc/resolv.conf"];
const LAYERS: usize = 4;

/// Returns the tree that umoci unpacked, comparable with a container's tree: with its mount points, and without the
/// files that differ in every container.
fn umoci_tree(root: &Path) -> Tree {
    let mut tree = listing(root);
    mount_on(&mut tree, &MOUNTS);
    without_names(&mut tree);
    tree
}

fn without_names(tree: &mut Tree) {
    tree.retain(|path, _| !NAMES.iter().any(|name| path == Path::new(name)));
    remove_time(tree, "etc");
}

/// Runs a container of the image, then removes the container and the image. Returns the container's tree and the
/// image's digest.
fn of_a_container(daemon: &Daemon, id: &str, reference: &str) -> (Tree, String) {
    let state = daemon.setup().state_dir();
    let container = daemon.api.started(program("/bin/sleep", &["100000"]).id(id).rootfs(reference));
    assert_eq!(layers(&state), LAYERS, "{id}");
    let mut tree = of_container(env!("CARGO_BIN_EXE_container-tree"), pid(&container));
    assert!(NAMES.iter().all(|name| tree.contains_key(Path::new(name))), "{id}");
    without_names(&mut tree);
    daemon.api.delete(id, true).unwrap();
    let digest = container.image.unwrap().digest;
    let removed = run(&daemon.socket(), &["image", "rm", &digest]);
    assert_eq!((removed.status, layers(&state)), (0, 0), "{removed:?}");
    (tree, digest)
}

fn assert_same_tree(id: &str, ours: &Tree, theirs: &Tree) {
    let differences = differences(ours, theirs);
    assert!(differences.is_empty(), "{id}:\n{}", differences.join("\n"));
}

/// Checks that the tree has every kind of entry. Otherwise the comparison would prove little.
fn holds_everything(tree: &Tree) {
    assert!(tree.len() > 1000, "{}", tree.len());
    for (path, reported) in CHANGED {
        let line = tree.get(Path::new(path));
        let fits = reported.map_or(line.is_none(), |reported| line.is_some_and(|line| line.contains(reported)));
        assert!(fits, "{path}: {line:?}");
    }
    for (what, least) in [
        ("mode 104755", 5),
        ("mode 102755", 2),
        ("mode 41777", 2),
        ("owner 0:42,", 3),
        ("owner 65534:42,", 1),
        ("security.capability", 1),
        ("user.of a directory", 1),
        ("link to ", 50),
        ("pipe", 1),
        ("first \"a/b/again\"", 2),
    ] {
        let count = tree.values().filter(|line| line.contains(what)).count();
        assert!(count >= least, "{what}: {count}");
    }
}

/// The tree is the same from a layout, from archives of both formats and from a registry, and the digest equals
/// skopeo's. An archive in Docker's format has no manifest digest, but its configuration has a digest.
#[test]
fn tree_from_every_source_matches_umoci() {
    let (image, registry, daemon) = (Image::debian(), Registry::start(false), Daemon::start());
    let theirs = umoci_tree(&image.unpacked());
    holds_everything(&theirs);
    let pushed = image.push(&registry, "debian:1");
    let (docker, oci) = (image.archive("docker-archive", "docker.io/team/debian:1"), image.archive("oci-archive", ""));
    image.readable(true);
    let name = registry.name("debian:1");
    assert_eq!(inspect(&format!("docker://{name}"), None, "{{.Digest}}"), pushed);
    for (id, reference, asked) in [
        ("layout", image.layout(), image.layout()),
        ("oci-archive", format!("oci-archive:{oci}"), format!("oci-archive:{oci}")),
        ("registry", format!("docker://{name}"), format!("docker://{name}")),
    ] {
        let (ours, digest) = of_a_container(&daemon, id, &reference);
        assert_same_tree(id, &ours, &theirs);
        assert_eq!(digest, inspect(&asked, None, "{{.Digest}}"), "{id}");
    }
    let docker = format!("docker-archive:{docker}");
    let (ours, digest) = of_a_container(&daemon, "docker-archive", &docker);
    assert_same_tree("docker-archive", &ours, &theirs);
    let (_, again) = of_a_container(&daemon, "again", &docker);
    assert!(digest == again && digest != pushed, "{digest} {again}");
    each_change_is_reported(&image.unpacked(), &ours);
}

/// Checks, as a control, that each single change of the tree is reported, and nothing else.
fn each_change_is_reported(root: &Path, ours: &Tree) {
    let at = |path: &str| root.join(path);
    let set = |path: &str, name: &str, value: &[u8]| {
        rustix::fs::lsetxattr(at(path), name, value, rustix::fs::XattrFlags::empty()).unwrap();
    };
    let changes: [(&str, Change<'_>); 10] = [
        ("usr/bin/passwd", &|path| mode(&at(path), 0o755)),
        ("usr/bin/chage", &|path| lchown(at(path), Some(0), Some(43)).unwrap()),
        ("a/absolute", &|path| lchown(at(path), Some(7), Some(9)).unwrap()),
        ("a/b", &|path| set(path, "user.of a directory", b"other")),
        ("a/capable", &|path| rustix::fs::lremovexattr(at(path), "security.capability").unwrap()),
        ("etc/debian_version", &|path| {
            let meta = fs::metadata(at(path)).unwrap();
            let other = vec![b'x'; meta.len() as usize];
            fs::write(at(path), other).unwrap();
            fs::File::open(at(path)).unwrap().set_modified(meta.modified().unwrap()).unwrap();
        }),
        ("usr/bin/env", &|path| fs::File::open(at(path)).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap()),
        ("usr/bin/stat", &|path| keeping_the_time(&at("usr/bin"), || fs::remove_file(at(path)).unwrap())),
        ("usr/bin/more-than-theirs", &|path| keeping_the_time(&at("usr/bin"), || fs::write(at(path), "").unwrap())),
        ("a/dangling-too", &|path| {
            // This change replaces a hard link with a separate link with the same target.
            let (first, target) = (at("a/dangling"), fs::read_link(at(path)).unwrap());
            keeping_the_time(&at("a"), || {
                fs::remove_file(at(path)).unwrap();
                symlink(target, at(path)).unwrap();
            });
            let meta = fs::symlink_metadata(first).unwrap();
            let time = |seconds, nanoseconds| rustix::fs::Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
            let last_modification = time(std::os::unix::fs::MetadataExt::mtime(&meta), 0);
            let times = rustix::fs::Timestamps { last_access: last_modification, last_modification };
            rustix::fs::utimensat(rustix::fs::CWD, at(path), &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
        }),
    ];
    let mut changed = BTreeSet::new();
    for (path, change) in changes {
        change(path);
        changed.insert(PathBuf::from(path));
        let reported: BTreeSet<PathBuf> = differing_paths(ours, &umoci_tree(root)).into_iter().cloned().collect();
        assert_eq!(reported, changed, "after {path}");
    }
}

fn keeping_the_time(dir: &Path, act: impl FnOnce()) {
    let before = fs::metadata(dir).unwrap().modified().unwrap();
    act();
    fs::File::open(dir).unwrap().set_modified(before).unwrap();
}

/// A registry that requires credentials serves the image only with the correct credentials. The tree is the same.
#[test]
fn closed_registry_requires_credentials() {
    let (image, registry, daemon) = (Image::debian(), Registry::start(true), Daemon::start());
    let (pushed, name) = (image.push(&registry, "debian:1"), registry.name("debian:1"));
    let pull = |more: &[&str], password: &str| -> CliOutput {
        let arguments = [&["image", "pull"], more, &[&*name]].concat();
        finish(command(Some(&daemon.socket()), &arguments).env("PW", password).spawn().unwrap())
    };
    let by_user = ["--registry-user", USER, "--registry-password", "@env:PW"];
    for refused in [pull(&[], ""), pull(&by_user, "wrong")] {
        assert_eq!((refused.status, layers(&daemon.setup().state_dir())), (125, 0), "{refused:?}");
    }
    let pulled = pull(&by_user, PASSWORD);
    assert_eq!((pulled.status, pulled.stdout.trim()), (0, &*pushed), "{pulled:?}");
    let credentials = format!("{USER}:{PASSWORD}");
    assert_eq!(inspect(&format!("docker://{name}"), Some(&credentials), "{{.Digest}}"), pushed);
    let (ours, digest) = of_a_container(&daemon, "closed", &format!("docker://{name}"));
    assert_same_tree("closed", &ours, &umoci_tree(&image.unpacked()));
    assert_eq!(digest, pushed);
}
