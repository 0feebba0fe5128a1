//! Copies from and to a running container, with agent-cli and with direct calls.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt, symlink};
use std::path::Path;
use std::process::Stdio;

use executor_proto::v1::{GetArchiveRequest, RunRequest, Tmpfs};
use integration::cli::{CliOutput, command, finish, run};
use integration::daemon::{Daemon, Setup};
use integration::request::{RequestBuilder as _, sh, sleeper};
use integration::rootfs::Rootfs;
use integration::streams::{executed, script};
use integration::wait;
use tonic::Code;

use crate::exec::sleeping;

const CANARY: &str = "canary-of-the-archives-77e2";

fn shell_output(daemon: &Daemon, text: &str) -> String {
    let executed = executed(&daemon.api, script("c", text)).expect("the process runs");
    assert_eq!(executed.exit, Some(Ok(0)), "{text}: {}", String::from_utf8_lossy(&executed.stderr));
    executed.text()
}

fn cp(daemon: &Daemon, arguments: &[&str]) -> CliOutput {
    run(&daemon.socket(), &[&["cp"], arguments].concat())
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("the path exists").permissions().mode() & 0o7777
}

/// A tree is copied into a container and out of it, and is unchanged. The image contains no program for the copy.
#[test]
fn copied_tree_round_trips_unchanged() {
    let (daemon, rootfs, home) = (Daemon::start(), Rootfs::busybox(), tempfile::tempdir().unwrap());
    daemon.api.started(RunRequest { rootfs: rootfs.reference(), ..sleeper("c") });
    let at = |name: &str| home.path().join(name).display().to_string();
    let from = home.path().join("from");
    let deep = from.join("d".repeat(120)).join("e".repeat(120));
    fs::create_dir_all(&deep).unwrap();
    let content: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).take(3_000_000).collect();
    fs::write(deep.join("large"), &content).unwrap();
    fs::set_permissions(deep.join("large"), PermissionsExt::from_mode(0o640)).unwrap();
    fs::set_permissions(&deep, PermissionsExt::from_mode(0o751)).unwrap();
    symlink("../nowhere", from.join("link")).unwrap();
    shell_output(&daemon, "busybox mkdir /there; busybox rm -f /bin/tar; echo old >/file");
    // Copy to a new name, to an existing directory, only the directory's content, and a file over another file.
    for (source, destination) in
        [("from", "c:/new"), ("from", "c:/there"), ("from/.", "c:/there"), ("from/.", "c:/new/")]
    {
        let copied = cp(&daemon, &[&at(source), destination]);
        assert_eq!((copied.status, &*copied.stderr), (0, ""), "{source} {destination}");
    }
    fs::write(home.path().join("file"), "new").unwrap();
    assert_eq!(cp(&daemon, &[&at("file"), "c:/file"]).status, 0);
    assert_eq!(shell_output(&daemon, "busybox cat /file; busybox stat -c %u:%g /file"), "new0:0\n");
    assert_eq!(shell_output(&daemon, "busybox ls /there; busybox readlink /there/from/link").lines().count(), 4);
    shell_output(&daemon, "busybox rm -rf /bin /usr /lib /lib64 2>/dev/null; echo gone");
    for (source, destination, top) in [
        ("c:/new", "out", "out"),
        ("c:/new", "out", "out/new"),
        ("c:/new/.", "flat", "flat"),
        ("c:/there/from", "x", "x"),
    ] {
        let copied = cp(&daemon, &[source, &at(destination)]);
        assert_eq!((copied.status, &*copied.stderr), (0, ""), "{source}");
        let top = home.path().join(top);
        let there = top.join(deep.strip_prefix(&from).unwrap());
        assert!(fs::read(there.join("large")).unwrap() == content, "byte for byte");
        assert_eq!((mode(&there.join("large")), mode(&there)), (0o640, 0o751));
        assert_eq!(fs::read_link(top.join("link")).unwrap(), Path::new("../nowhere"));
    }
    let json = cp(&daemon, &["--json", "c:/file", &at("one")]).json();
    assert_eq!((&json["entries"], &json["bytes"]), (&1.into(), &3.into()));
    assert_eq!(fs::read(at("one")).unwrap(), b"new");
}

/// A sparse file uses no more disk space after a copy, in either direction. A copy of an endless file is limited.
#[test]
fn cp_sparse_file_keeps_holes() {
    use std::os::unix::fs::MetadataExt as _;
    const LENGTH: u64 = 256 << 20;
    const BLOCKS_MAX: u64 = 4096; // 2 MiB in blocks of 512 bytes; without holes it would be 524,288
    let (daemon, home) = (sleeping("c"), tempfile::tempdir().unwrap());
    let at = |name: &str| home.path().join(name).display().to_string();
    let file = fs::File::create(at("sparse")).unwrap();
    file.set_len(LENGTH).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"in the middle", LENGTH / 2).unwrap();
    for (source, destination) in [(at("sparse"), "c:/tmp/sparse".to_owned()), ("c:/tmp/sparse".to_owned(), at("out"))] {
        let copied = cp(&daemon, &[&source, &destination]);
        assert_eq!((copied.status, &*copied.stderr), (0, ""));
    }
    let inside = shell_output(&daemon, "stat -c '%s %b' /tmp/sparse");
    let (size, blocks) = inside.trim().split_once(' ').unwrap();
    assert!(size.parse() == Ok(LENGTH) && blocks.parse::<u64>().unwrap() < BLOCKS_MAX, "{inside}");
    let out = fs::metadata(at("out")).unwrap();
    assert!(out.len() == LENGTH && out.blocks() < BLOCKS_MAX, "{out:?}");
    let mut middle = [0; 13];
    std::os::unix::fs::FileExt::read_exact_at(&fs::File::open(at("out")).unwrap(), &mut middle, LENGTH / 2).unwrap();
    assert_eq!(&middle, b"in the middle");
    for destination in [at("bounded"), "-".to_owned()] {
        let arguments = ["cp", "--max-size", "1M", "c:/tmp/sparse", &*destination];
        let refused = command(Some(&daemon.socket()), &arguments).output().unwrap();
        let message = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(125), "{message}");
        assert!(message.contains("cp c:/tmp/sparse: the copy is larger than 1048576 bytes; --max-size"), "{message}");
        assert!(refused.stdout.len() <= 1 << 20);
    }
    assert!(!home.path().join("bounded").exists(), "the archive is not unpacked in part");
}

/// If the source or destination is a dash, agent-cli writes or reads a tar archive.
#[test]
fn dash_is_an_archive() {
    let (daemon, home) = (sleeping("c"), tempfile::tempdir().unwrap());
    shell_output(
        &daemon,
        "mkdir -p /tmp/a/b; echo one >/tmp/a/b/f; ln /tmp/a/b/f /tmp/a/b/g; ln -s f /tmp/a/b/l; mkfifo /tmp/a/p",
    );
    let archive = command(Some(&daemon.socket()), &["cp", "c:/tmp/a", "-"]).output().unwrap();
    assert!(archive.status.success(), "{archive:?}");
    let tar = |arguments: &[&str]| {
        let mut tar = std::process::Command::new("tar");
        let mut tar = tar.args(arguments).current_dir(&home).stdin(Stdio::piped()).spawn().unwrap();
        tar.stdin.take().unwrap().write_all(&archive.stdout).unwrap();
        assert!(tar.wait().unwrap().success());
    };
    tar(&["-x"]);
    let below = home.path().join("a/b");
    assert_eq!(fs::read(below.join("l")).unwrap(), b"one\n");
    assert_eq!(fs::metadata(below.join("f")).unwrap().nlink(), 2, "two names of one file");
    let mut into = command(Some(&daemon.socket()), &["cp", "-", "c:/tmp"]).stdin(Stdio::piped()).spawn().unwrap();
    shell_output(&daemon, "rm -r /tmp/a");
    into.stdin.take().unwrap().write_all(&archive.stdout).unwrap();
    assert_eq!(finish(into).status, 0);
    assert_eq!(
        shell_output(&daemon, "cat /tmp/a/b/l; stat -c %h /tmp/a/b/f; test -p /tmp/a/p && echo pipe"),
        "one\n2\npipe\n"
    );
    let mut damaged = command(Some(&daemon.socket()), &["cp", "-", "c:/tmp"]).stdin(Stdio::piped()).spawn().unwrap();
    damaged.stdin.take().unwrap().write_all(&archive.stdout[..700]).unwrap();
    let damaged = finish(damaged);
    assert!(damaged.status == 125 && damaged.stderr.contains("the archive is damaged"), "{damaged:?}");
}

/// A copy has the permissions of the container user. Paths that are forbidden, missing or obstructed are reported.
#[test]
fn copy_has_permissions_of_container_user() {
    let (daemon, rootfs, home) = (Daemon::start(), Rootfs::busybox(), tempfile::tempdir().unwrap());
    let closed = rootfs.path().join("closed");
    fs::write(&closed, CANARY).unwrap();
    fs::set_permissions(&closed, PermissionsExt::from_mode(0o600)).unwrap();
    let _ = fs::create_dir(rootfs.path().join("tmp"));
    fs::set_permissions(rootfs.path().join("tmp"), PermissionsExt::from_mode(0o1777)).unwrap();
    daemon.api.started(RunRequest { rootfs: rootfs.reference(), ..sleeper("c").user("1000:1000") });
    let file = home.path().join("file");
    fs::write(&file, "x").unwrap();
    let (file, out) = (file.display().to_string(), home.path().join("out").display().to_string());
    assert_eq!(cp(&daemon, &[&file, "c:/tmp/mine"]).status, 0);
    assert_eq!(shell_output(&daemon, "busybox stat -c %u:%g /tmp/mine"), "1000:1000\n");
    shell_output(&daemon, "mkdir /tmp/d; ln -s /tmp/d /tmp/l");
    for (source, destination, words) in [
        ("c:/closed", &*out, "Permission denied"),
        ("c:/nope", &out, "/nope: No such file or directory"),
        ("c:/proc/version", &out, "pseudo file system of the kernel"),
        (&file, "c:/etc", "Permission denied"),
        (&file, "c:/nope/x", "/nope: No such file or directory"),
        (&file, "c:/nope/", "is not an existing directory"),
        (&home.path().display().to_string(), "c:/tmp/mine", "is not a directory"),
        ("nope", "c:/tmp", "cannot read nope"),
    ] {
        let reported = cp(&daemon, &[source, destination]);
        assert!(reported.status == 125 && reported.stderr.contains(words), "{source} {destination}: {reported:?}");
    }
    assert!(!Path::new(&out).exists());
    // A destination that is a link to a directory counts as a directory. An entry of an archive is not extracted
    // through a link.
    assert_eq!(cp(&daemon, &[&file, "c:/tmp/l"]).status, 0);
    assert_eq!(shell_output(&daemon, "cat /tmp/d/file"), "x");
    let tree = home.path().join("tree/l");
    fs::create_dir_all(&tree).unwrap();
    fs::write(tree.join("f"), "").unwrap();
    let through = cp(&daemon, &[&home.path().join("tree/.").display().to_string(), "c:/tmp"]);
    assert!(through.stderr.contains("/tmp/l: exists and is not a directory"), "{through:?}");
    let asked = GetArchiveRequest { id: "c".into(), path: "relative\0".into(), ..GetArchiveRequest::default() };
    let reported = daemon.api.block_on(daemon.api.rpc().get_archive(asked)).unwrap_err();
    assert_eq!(reported.code(), Code::InvalidArgument);
    assert!(reported.message().contains("not absolute") && reported.message().contains("NUL"), "{reported}");
    daemon.api.stop("c", Some(0)).unwrap();
    daemon.api.wait("c").unwrap();
    assert!(cp(&daemon, &["c:/tmp/mine", &out]).stderr.contains("declared no outputs"));
    assert!(cp(&daemon, &[&file, "c:/tmp"]).stderr.contains("only while it runs"));
    let closed = Setup::default().config("[policy]\nallow_exec = false\n").start();
    closed.api.started(sleeper("c"));
    assert!(cp(&closed, &["c:/etc/passwd", &out]).stderr.contains("allow_exec"));
}

/// Links of a container lead to no host file, even if they change during a copy (CVE-2018-15664). As a control, the
/// same name, resolved on the host, leads to the host file.
#[test]
fn container_links_do_not_lead_to_host() {
    let (daemon, rootfs, home) = (Daemon::start(), Rootfs::busybox(), tempfile::tempdir().unwrap());
    let precious = home.path().join("precious");
    fs::write(&precious, CANARY).unwrap();
    let (name, above) = (precious.display().to_string(), home.path().display().to_string());
    let swaps = format!(
        "cd /; busybox mkdir dir; busybox ln -s {name} file; busybox ln -s / link; echo up
         while :; do busybox mv dir was; busybox mv link dir; busybox mv dir link; busybox mv was dir; done"
    );
    let container = daemon.api.started(RunRequest { rootfs: rootfs.reference(), ..sh(&swaps).id("c") });
    wait::until("the container exchanges links", || daemon.api.logs_so_far("c").contains("up").then_some(()));
    let naive = format!("/proc/{}/root/file", integration::api::pid(&container));
    assert_eq!(fs::read_to_string(naive).unwrap(), CANARY, "control failed");
    let out = home.path().join("out").display().to_string();
    let followed = cp(&daemon, &["-L", "c:/file", &out]);
    assert!(followed.status == 125 && followed.stderr.contains("No such file"), "{followed:?}");
    fs::write(home.path().join("new"), "overwritten").unwrap();
    let new = home.path().join("new").display().to_string();
    for _ in 0..30 {
        let source = format!("c:/dir{name}");
        let read = cp(&daemon, &[&source, &out]);
        assert!(read.status == 125 && !Path::new(&out).exists(), "{read:?}");
        // The container changes the path at the same time, so the write may succeed at either path, or fail.
        let _ = cp(&daemon, &[&new, &source]);
        let _ = cp(&daemon, &[&new, &format!("c:/dir{above}/made")]);
    }
    assert_eq!(fs::read_to_string(&precious).unwrap(), CANARY);
    assert!(!home.path().join("made").exists());
}

/// Secret files are never copied to an archive, for any requested path. As a control, a file next to them is copied.
#[test]
fn secret_files_are_not_copied() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let request = sleeper("c").file("/secrets/a", CANARY.as_bytes()).file("/srv/b", CANARY.as_bytes());
    daemon.api.started(RunRequest { rootfs: rootfs.reference(), ..request });
    shell_output(&daemon, "echo plain-content >/srv/plain");
    for path in ["c:/", "c:/secrets", "c:/srv", "c:/secrets/a", "c:/srv/b", "c:/dev"] {
        let copied = command(Some(&daemon.socket()), &["cp", "-L", path, "-"]).output().unwrap();
        let text = String::from_utf8_lossy(&copied.stdout);
        assert!(!text.contains(CANARY), "{path}");
        assert!(
            !matches!(path, "c:/" | "c:/srv") || text.contains("plain-content"),
            "control failed: {path}: the ordinary file was not copied: {}",
            String::from_utf8_lossy(&copied.stderr)
        );
    }
    let reported = cp(&daemon, &["c:/srv/b", "/nowhere/x"]);
    assert!(reported.stderr.contains("volume of secret files"), "{reported:?}");
}

/// If a client does not read, the copy stops and no data accumulates. If a client disconnects, the copy ends.
#[test]
fn slow_reader_holds_the_copy_up() {
    let daemon = sleeping("c");
    shell_output(&daemon, "truncate -s 1T /tmp/large");
    let mut copying = command(Some(&daemon.socket()), &["cp", "c:/tmp/large", "-"]);
    let mut copying = copying.stdout(Stdio::piped()).spawn().unwrap();
    let mut some = vec![0; 1 << 20];
    copying.stdout.as_mut().unwrap().read_exact(&mut some).unwrap();
    let memory = || -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    let ours = || {
        shell_output(&daemon, "cat /proc/[0-9]*/comm 2>/dev/null; true")
            .lines()
            .filter(|name| name.starts_with("executor-"))
            .count()
    };
    wait::until("the copy is blocked", || (ours() == 1).then_some(()));
    let before = memory();
    copying.stdout.as_mut().unwrap().read_exact(&mut some).unwrap();
    assert!(memory() < before + (16 << 10), "{before} {}", memory());
    copying.kill().unwrap();
    copying.wait().unwrap();
    wait::until("the copy's process exits", || (ours() == 0).then_some(()));
}

/// If an entry cannot be copied, it is reported by name, and the other entries are copied, in both directions.
#[test]
fn uncopyable_entry_does_not_stop_copy() {
    let (daemon, home) = (Daemon::start(), tempfile::tempdir().unwrap());
    daemon.api.started(sleeper("c").user("1000:1000"));
    shell_output(
        &daemon,
        "mkdir -p /tmp/t/closed /tmp/t/z; echo 1 >/tmp/t/a; echo 2 >/tmp/t/z/b; chmod 0 /tmp/t/closed",
    );
    shell_output(&daemon, "echo 3 >/tmp/t/secret; chmod 0 /tmp/t/secret; touch -t 202001020304.05 /tmp/t/z/b");
    let out = home.path().join("out");
    let copied = cp(&daemon, &["c:/tmp/t", &out.display().to_string()]);
    assert_eq!(copied.status, 125);
    for name in ["/tmp/t/closed: Permission denied", "/tmp/t/secret: Permission denied"] {
        assert!(copied.stderr.contains(name), "{name}: {copied:?}");
    }
    assert_eq!(
        (fs::read(out.join("a")).unwrap(), fs::read(out.join("z/b")).unwrap()),
        (b"1\n".to_vec(), b"2\n".to_vec())
    );
    let times = |path: &Path| fs::metadata(path).unwrap().mtime().to_string();
    assert_eq!(shell_output(&daemon, "stat -c %Y /tmp/t/z/b").trim(), times(&out.join("z/b")));
    // To the container: a file with the name of an existing directory, and a file below an inaccessible directory.
    let tree = home.path().join("tree");
    fs::create_dir_all(tree.join("closed")).unwrap();
    for name in ["closed/x", "before", "z", "zz"] {
        fs::write(tree.join(name), "new").unwrap();
    }
    shell_output(&daemon, "chmod 0500 /tmp/t/closed");
    let copied = cp(&daemon, &[&tree.join(".").display().to_string(), "c:/tmp/t"]);
    assert_eq!(copied.status, 125);
    for name in ["/tmp/t/closed/x: Permission denied", "/tmp/t/z: exists and is a directory"] {
        assert!(copied.stderr.contains(name), "{name}: {copied:?}");
    }
    assert_eq!(shell_output(&daemon, "cat /tmp/t/before /tmp/t/zz /tmp/t/z/b"), "newnew2\n");
    // Copy out of the container: on the host, a directory exists at the path of one file.
    fs::remove_file(out.join("a")).unwrap();
    fs::create_dir(out.join("a")).unwrap();
    let copied = cp(&daemon, &["c:/tmp/t/.", &out.display().to_string()]);
    assert!(copied.status == 125 && copied.stderr.contains("not copied: a: Is a directory"), "{copied:?}");
    assert_eq!(fs::read(out.join("zz")).unwrap(), b"new");
}

/// The cause of a refusal is reported, even if most of the archive was not sent.
#[test]
fn refused_large_upload_reports_cause() {
    let (daemon, home) = (Daemon::start(), tempfile::tempdir().unwrap());
    let small = Tmpfs { path: "/small".into(), size_bytes: 1 << 20, ..Tmpfs::default() };
    daemon.api.started(RunRequest { tmpfs: vec![small], ..sleeper("c") });
    let large = home.path().join("large");
    fs::write(&large, vec![b'x'; 8 << 20]).unwrap();
    let large = large.display().to_string();
    for (destination, words) in [
        ("c:/nodir/x", "/nodir: No such file or directory"),
        ("c:/etc/passwd/x", "Not a directory"),
        ("c:/small/", "No space left on device"),
        ("c:/proc/x", "/proc"),
    ] {
        let reported = cp(&daemon, &[&large, destination]);
        assert!(reported.status == 125 && reported.stderr.contains(words), "{destination}: {reported:?}");
        assert!(!reported.stderr.contains("broken pipe"), "{reported:?}");
    }
}

/// Returns the number of names with the prefix of partial copies in a directory of a container.
fn partial(pid: i32) -> usize {
    let names = fs::read_dir(format!("/proc/{pid}/root/tmp")).expect("the path exists");
    names.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(".executor-archive-")).count()
}

/// If any process is killed or interrupted during a copy, the partial copy is removed.
#[test]
fn partial_copy_is_removed_after_interrupt() {
    let (mut daemon, home) = (Daemon::start(), tempfile::tempdir().unwrap());
    let pid = integration::api::pid(&daemon.api.started(sleeper("c")));
    let mut header = tar::Header::new_gnu();
    header.set_size(1 << 30);
    header.set_path("file").unwrap();
    header.set_mode(0o644);
    header.set_cksum();
    let start = |daemon: &Daemon| {
        let mut copying =
            command(Some(&daemon.socket()), &["cp", "-", "c:/tmp"]).stdin(Stdio::piped()).spawn().unwrap();
        let input = copying.stdin.as_mut().unwrap();
        input.write_all(header.as_bytes()).unwrap();
        input.write_all(&vec![b'x'; 1 << 20]).unwrap();
        wait::until("the partial copy exists", || (partial(pid) == 1).then_some(()));
        copying
    };
    let mut copying = start(&daemon);
    copying.kill().unwrap();
    copying.wait().unwrap();
    wait::until("the client was killed", || (partial(pid) == 0).then_some(()));
    // A copy from the container is interrupted.
    shell_output(&daemon, "truncate -s 64G /tmp/large");
    let out = home.path().join("out");
    fs::create_dir(&out).unwrap();
    let copying = command(Some(&daemon.socket()), &["cp", "c:/tmp/large", &out.display().to_string()]);
    let copying = { copying }.spawn().unwrap();
    wait::until("the copy has started", || (fs::read_dir(&out).unwrap().count() == 1).then_some(()));
    integration::daemon::kill(copying.id() as i32, 2);
    assert_eq!(finish(copying).status, 130);
    assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
    let mut copying = start(&daemon);
    daemon.kill();
    wait::until("executord was killed", || (partial(pid) == 0).then_some(()));
    copying.kill().unwrap();
    copying.wait().unwrap();
}
