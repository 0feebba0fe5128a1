//! Outputs with agent-cli: `run --output-to`, `cp` and `inspect`, with a real daemon and a private daemon.

use std::fs;

use integration::cli::{command, finish, run};
use integration::daemon::Daemon;
use integration::rootfs::Rootfs;

const CANARY: &str = "canary-of-the-copied-3fa1";

#[test]
fn outputs_come_before_the_container_goes() {
    let (daemon, rootfs, home) = (Daemon::start(), Rootfs::busybox(), tempfile::tempdir().unwrap());
    let before = daemon.footprint();
    let script = "cd /srv; mkdir sub; echo 1 >a; echo 2 >sub/b; chmod 750 a; busybox ln -s key link; exit 3";
    for private in [false, true] {
        let to = home.path().join(if private { "private" } else { "shared" });
        let reference = rootfs.reference();
        let shown = to.display().to_string();
        let arguments = ["run", "--rootfs", &reference, "--file", "/srv/key=@env:KEY", "--output-dir", "/srv"];
        let arguments = [&arguments[..], &["--output-to", &shown, "--", "sh", "-c", script]].concat();
        let socket = daemon.socket();
        let mut command = command((!private).then_some(socket.as_path()), &arguments);
        let ran = finish(command.env("KEY", CANARY).spawn().unwrap());
        assert_eq!((ran.status, &*ran.stdout), (3, ""), "{ran:?}");
        let reported = "agent-cli: not captured: /srv/key: a secret file\nagent-cli: not captured: /srv/link: a symbolic link\n\
            agent-cli: outputs: 2 files, 4 bytes; 2 not captured\n";
        assert_eq!(ran.stderr, reported);
        assert_eq!(fs::read_to_string(to.join("a")).unwrap(), "1\n");
        assert_eq!(fs::read_to_string(to.join("sub/b")).unwrap(), "2\n");
        assert_eq!(fs::read_dir(&to).unwrap().count(), 2);
        let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(to.join("a")).unwrap());
        assert_eq!(mode & 0o777 & !0o022, 0o750);
    }
    daemon.wait_until_back_at(&before);
}

#[test]
fn cp_from_a_kept_container() {
    let (daemon, home) = (Daemon::start(), tempfile::tempdir().unwrap());
    let socket = daemon.socket();
    let script = "head -c 3000000 /dev/urandom >/tmp/large; sha256sum </tmp/large; echo small >/tmp/small";
    let outputs = ["--output", "/tmp/large", "--output", "/tmp/small", "--output", "/tmp/none"];
    let ran = run(&socket, &[&["run", "--id", "kept", "--keep"], &outputs[..], &["--", "sh", "-c", script]].concat());
    assert_eq!(ran.status, 0, "{ran:?}");
    let at = |name: &str| home.path().join(name).display().to_string();
    let copied = run(&socket, &["cp", "kept:/tmp/large", &at("x")]);
    assert_eq!((copied.status, &*copied.stdout, &*copied.stderr), (0, "", ""));
    let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(fs::read(at("x")).unwrap()));
    assert!(ran.stdout.starts_with(&digest), "byte for byte");
    let piped = command(Some(&socket), &["cp", "kept:/tmp/large", "-"]).output().unwrap();
    assert_eq!(piped.stdout, fs::read(at("x")).unwrap());
    let all = run(&socket, &["cp", "--json", "kept:", &at("all")]);
    assert_eq!((all.status, &all.json()["skipped"][0]["reason"]), (125, &"no such file".into()), "{all:?}");
    assert_eq!(fs::read_to_string(at("all/small")).unwrap(), "small\n");
    let shown = run(&socket, &["inspect", "kept"]).stdout;
    assert!(shown.contains("2 files, 2.8 MiB; 1 not captured") && shown.contains("/tmp/large, /tmp/small"), "{shown}");
    let summary = &run(&socket, &["inspect", "kept", "--json"]).json()["result"]["outputs"];
    assert_eq!((&summary["files"], &summary["bytes"]), (&2.into(), &3_000_006.into()));
    let missing = run(&socket, &["cp", "kept:/tmp/nothing", &at("y")]);
    assert!(missing.status == 125 && missing.stderr.contains("has no output \"/tmp/nothing\""), "{missing:?}");
    assert_eq!(run(&socket, &["rm", "kept"]).status, 0);
    assert!(run(&socket, &["cp", "kept:/tmp/small", &at("z")]).stderr.contains("no container"));
}
