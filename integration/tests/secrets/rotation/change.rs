//! Effects of an update: added, changed and removed files, the signal, the generation, the records.

use std::fs;

use executor_proto::v1::event::Kind;
use executor_proto::v1::{Container, Redaction, RunRequest, UpdateFilesRequest};
use integration::api::ending;
use integration::cli;
use integration::daemon::{Daemon, Setup, kill};
use integration::request::{RequestBuilder, sh, sleeper, update};
use integration::rootfs::Rootfs;
use integration::wait;
use tonic::Code;

use crate::rotation::refused::MANY;
use crate::rotation::{ROOT, content, inside, names, wait_for_single_generation};

fn read(container: &Container, path: &str) -> Option<String> {
    content(container, &format!("{ROOT}/{path}"))
}

#[test]
fn files_come_change_and_go() {
    let daemon = Daemon::start();
    let request =
        sleeper("c").user("vcap").file("db/user", b"user1").file("db/password", b"password1").file("t", b"t1");
    let container = daemon.api.started(request);
    assert_eq!((container.files_generation, container.files_updated_at), (1, None));
    let change = UpdateFilesRequest {
        removed_paths: vec!["t".into(), format!("{ROOT}/db/user")],
        ..update("c", &[("db/password", b"password2"), ("new/deep/x", b"x2")])
    };
    let updated = daemon.api.update(change).unwrap();
    assert_eq!(updated.files_generation, 2);
    assert!(updated.files_updated_at.is_some());
    assert_eq!(daemon.api.get("c").unwrap(), updated, "the response of the update equals the response of Get");
    let files: Vec<(&str, u64, &str)> =
        updated.files.iter().map(|file| (&*file.path, file.size, &*file.mount_point)).collect();
    let [password, x] = ["db/password", "new/deep/x"].map(|path| format!("{ROOT}/{path}"));
    assert_eq!(files, [(&*password, 9, ROOT), (&*x, 2, ROOT)]);
    assert_eq!(read(&container, "db/password").as_deref(), Some("password2"));
    assert_eq!(read(&container, "new/deep/x").as_deref(), Some("x2"));
    assert_eq!((read(&container, "t"), read(&container, "db/user")), (None, None));
    assert_eq!(wait_for_single_generation(&container), "..gen2");
    assert_eq!(names(&container, ROOT), ["db", "new"], "a removed file's name is gone");

    // A file is replaced by a directory, and a directory is removed with its last file.
    let change = UpdateFilesRequest { removed_paths: vec!["db/password".into()], ..update("c", &[("t/t", b"t3")]) };
    assert_eq!(daemon.api.update(change).unwrap().files_generation, 3);
    wait_for_single_generation(&container);
    assert_eq!(names(&container, ROOT), ["new", "t"]);
    let all = vec!["t/t".into(), "new/deep/x".into()];
    let none = UpdateFilesRequest { removed_paths: all, ..update("c", &[]) };
    assert!(daemon.api.update(none).unwrap().files.is_empty());
    daemon.api.update(update("c", &[("again", b"5")])).unwrap();
    assert_eq!(
        (wait_for_single_generation(&container), read(&container, "again").as_deref()),
        ("..gen5".into(), Some("5"))
    );
    let reported = fs::read_to_string(format!("/proc/{}/mountinfo", integration::api::pid(&container))).unwrap();
    let mounts: Vec<&str> = reported.lines().filter(|line| line.contains("executor-secrets")).collect();
    assert_eq!(mounts.len(), 2, "the directory, and the generations that its links lead to: {mounts:?}");
    for mount in mounts {
        let swaps_not = mount.contains("noswap") || mount.contains(" ramfs ");
        assert!(mount.contains(" ro,nosuid,nodev,noexec,") && swaps_not, "{mount}");
    }

    let kinds: Vec<(Kind, u64)> = daemon
        .api
        .events_after(0)
        .until(|response| response.event.as_ref().is_some_and(|event| event.files_generation == 5))
        .iter()
        .filter_map(|response| response.event.as_ref())
        .map(|event| (event.kind(), event.files_generation))
        .collect();
    assert_eq!(
        kinds[3..],
        [
            (Kind::Running, 0),
            (Kind::FilesUpdated, 2),
            (Kind::FilesUpdated, 3),
            (Kind::FilesUpdated, 4),
            (Kind::FilesUpdated, 5)
        ]
    );
}

/// The signal is sent after the new files are in place: the signal handler reads the new files.
#[test]
fn signal_comes_after_the_swap() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let script = format!("trap 'cat {ROOT}/a /etc/key' USR1; echo up; while :; do sleep 0.02; done");
    let request = sh(&script).id("s").rootfs(&rootfs.reference()).file("a", b"old\n").file("/etc/key", b"old\n");
    daemon.api.started(RunRequest { redaction: Redaction::None.into(), ..request });
    let mut log = daemon.api.follow("s");
    log.until(|entry| entry.data == b"up\n");
    for generation in 2..12 {
        let new = format!("new {generation}\n");
        let files: [(&str, &[u8]); 2] = [("a", new.as_bytes()), ("/etc/key", new.as_bytes())];
        daemon.api.update(UpdateFilesRequest { signal: 10, ..update("s", &files) }).unwrap();
        for _ in files {
            let printed = log.message().unwrap().unwrap();
            assert_eq!(String::from_utf8_lossy(&printed.data), new);
        }
    }
}

/// Current values are masked in the output, even if updates were refused or delayed before.
#[test]
fn current_values_are_masked() {
    let (daemon, rootfs) = (Setup::default().config(MANY).start(), Rootfs::busybox());
    let script = format!("trap 'cat {ROOT}/a; echo done' USR1; echo up; while :; do sleep 0.02; done");
    let first = sh(&script).id("m").memory(16 << 20).rootfs(&rootfs.reference()).file("a", b"canary-generation-0000\n");
    daemon.api.started(first);
    let mut log = daemon.api.follow("m");
    log.until(|entry| entry.data == b"up\n");
    for generation in 1..70 {
        let content = format!("canary-generation-{generation:04}\n");
        daemon.api.update(update("m", &[("a", content.as_bytes())])).unwrap();
    }
    for _ in 0..20 {
        let refused = daemon.api.update(update("m", &[("a", &vec![b'x'; 20 << 20])])).unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    }
    daemon.api.signal("m", 10).unwrap();
    let printed = log.until(|entry| entry.data.ends_with(b"done\n"));
    let printed: Vec<u8> = printed.into_iter().flat_map(|entry| entry.data).collect();
    let printed = String::from_utf8_lossy(&printed);
    assert!(printed.contains("[REDACTED:a]") && !printed.contains("canary"), "{printed}");
}

/// An individually mounted file is replaced atomically, and leaves no mount behind.
#[test]
fn single_file_is_replaced_in_place() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    fs::write(rootfs.path().join("etc/key"), "of the image").unwrap();
    let script = "while read line </etc/key; do case $line in key*) ;; *) echo bad $line; exit 1;; esac; done; echo gone; exit 2";
    let container = daemon.api.started(sh(script).id("k").rootfs(&rootfs.reference()).file("/etc/key", b"key 1\n"));
    for generation in 2..=60 {
        let new = format!("key {generation}\n");
        daemon.api.update(update("k", &[("/etc/key", new.as_bytes())])).unwrap();
        assert_eq!(content(&container, "/etc/key"), Some(new));
    }
    let table = fs::read_to_string(format!("/proc/{}/mountinfo", integration::api::pid(&container))).unwrap();
    let mounts: Vec<&str> = table.lines().filter(|line| line.contains(" /etc/key ")).collect();
    assert_eq!(mounts.len(), 1, "{mounts:?}");
    assert!(mounts[0].contains(" ro,nosuid,nodev,noexec,"), "{mounts:?}");
    let now = daemon.api.get("k").unwrap();
    assert!(now.processes[0].pid > 0, "the reader found nothing wrong: {}", daemon.api.logs_so_far("k"));
    daemon.api.stop("k", Some(0)).unwrap();
    let wipe = ending(&daemon.api.wait("k").unwrap()).wipe.clone().unwrap();
    let bytes: u64 = (1..=60).map(|generation| format!("key {generation}\n").len() as u64).sum();
    assert_eq!((wipe.files, wipe.bytes), (60, bytes));
    assert_eq!(fs::read_to_string(rootfs.path().join("etc/key")).unwrap(), "of the image");
}

#[test]
fn stale_generation_is_refused_updates_are_serialized() {
    let daemon = Daemon::start();
    let container = daemon.api.started(sleeper("c").file("a", b"1").file("b", b"1"));
    let eight = |expected_generation| {
        let calls: Vec<_> = (0..8)
            .map(|number| {
                let content = format!("by {number}");
                let files: [(&str, &[u8]); 2] = [("a", content.as_bytes()), ("b", content.as_bytes())];
                let request = UpdateFilesRequest { expected_generation, ..update("c", &files) };
                let mut rpc = daemon.api.rpc();
                daemon.api.spawn(async move { rpc.update_files(request).await })
            })
            .collect();
        let answers = calls.into_iter().map(|call| daemon.api.block_on(call).unwrap());
        answers.map(|answer| answer.map(|updated| updated.into_inner().container.unwrap().files_generation)).collect()
    };
    let landed: Vec<Result<u64, tonic::Status>> = eight(None);
    let mut generations: Vec<u64> = landed.into_iter().map(Result::unwrap).collect();
    generations.sort_unstable();
    // Each update increments the generation. A response may already report the generation of a later update.
    assert_eq!(daemon.api.get("c").unwrap().files_generation, 9);
    assert!(generations.iter().all(|generation| (2..=9).contains(generation)), "{generations:?}");
    let (a, b) = (read(&container, "a"), read(&container, "b"));
    assert!(a == b && a.is_some_and(|content| content.starts_with("by ")));

    let expecting = eight(Some(9));
    assert_eq!(expecting.iter().filter(|answer| answer.as_ref().is_ok_and(|generation| *generation == 10)).count(), 1);
    for refused in expecting.into_iter().filter_map(Result::err) {
        assert_eq!(refused.code(), Code::Aborted);
        assert!(refused.message().contains("have generation 10; the request expects 9"), "{refused}");
    }
    assert_eq!(daemon.api.get("c").unwrap().files_generation, 10);
}

/// After a kill of the daemon, updates continue with the next daemon. A second launcher can wipe everything that the
/// first launcher could wipe.
#[test]
fn updates_outlive_the_daemon() {
    let mut daemon = Daemon::start();
    let container = daemon.api.started(sleeper("c").file("a", b"1").file("b", b"keep"));
    daemon.api.update(update("c", &[("a", b"2"), ("later", b"2")])).unwrap();
    daemon.kill();
    daemon.start_again();
    let found = daemon.api.get("c").unwrap();
    assert_eq!((found.files_generation, found.files.len()), (2, 3));
    assert!(found.files_updated_at.is_some());
    let running = wait::until("the shim is found again", || daemon.api.update(update("c", &[("a", b"3")])).ok());
    assert_eq!(running.files_generation, 3);
    assert_eq!((read(&container, "a").as_deref(), read(&container, "b").as_deref()), (Some("3"), Some("keep")));
    daemon.api.stop("c", Some(0)).unwrap();
    let ended = daemon.api.wait("c").unwrap();
    assert_eq!((ended.files_generation, ended.files.len()), (3, 3), "the result has the last generation");
    let wipe = ending(&ended).wipe.clone().unwrap();
    assert_eq!((wipe.files, wipe.bytes), (5, 1 + 1 + 1 + 1 + 4));
}

/// If a shim is killed at any moment of a rotation, nothing is left: the launcher wipes all generations.
#[test]
fn killed_shim_during_rotation_leaves_nothing() {
    let daemon = Daemon::start();
    let before = daemon.footprint();
    for round in 0..8 {
        let id = format!("k{round}");
        let big = vec![b'x'; 200_000];
        let container =
            daemon.api.started(sleeper(&id).file("a", &big).file("b", b"stays").file("/etc/executor-k", b"k"));
        let kept: Vec<fs::File> = ["a", "b"]
            .iter()
            .map(|name| fs::File::open(inside(&container, &format!("{ROOT}/{name}"))).unwrap())
            .collect();
        let rotating = {
            let (mut rpc, id) = (daemon.api.rpc(), id.clone());
            daemon.api.spawn(async move {
                let mut landed = 0u32;
                let files: [(&str, &[u8]); 2] = [("a", &big), ("/etc/executor-k", b"new")];
                while rpc.update_files(update(&id, &files)).await.is_ok() {
                    landed += 1;
                }
                landed
            })
        };
        // The kill comes after a few rotations, at a different moment in each round.
        wait::until("rotations continue", || (daemon.api.get(&id).unwrap().files_generation > 2 + round).then_some(()));
        kill(daemon.record(&id).shim.pid, 9);
        assert!(daemon.api.block_on(rotating).unwrap() > 0);
        let ended = daemon.api.wait(&id).unwrap();
        let wipe = ending(&ended).wipe.clone().unwrap();
        assert!(wipe.verified && wipe.wiped_by == "launcher" && wipe.files >= 3, "{wipe:?}");
        for file in &kept {
            let mut bytes = vec![1; 5];
            std::os::unix::fs::FileExt::read_exact_at(file, &mut bytes, 0).unwrap();
            assert_eq!(bytes, [0; 5]);
        }
        daemon.api.delete(&id, false).unwrap();
    }
    daemon.wait_until_back_at(&before);
}

#[test]
fn agent_cli_rotates() {
    let daemon = Daemon::start();
    let socket = daemon.socket();
    let container = daemon.api.started(sleeper("c").file("db/password", b"old"));
    let source = tempfile::NamedTempFile::new().unwrap();
    fs::write(source.path(), "canary-of-rotate").unwrap();
    let file = format!("db/password=@{}", source.path().display());
    let ran = cli::run(&socket, &["rotate", "c", "--file", &file]);
    assert_eq!((ran.status, &*ran.stdout, &*ran.stderr), (0, "2\n", ""));
    assert_eq!(read(&container, "db/password").as_deref(), Some("canary-of-rotate"));
    let json = cli::run(&socket, &["rotate", "c", "--file", &file, "--expect-generation", "2", "--json"]).json();
    assert_eq!(json["files_generation"], 3);
    let stale = cli::run(&socket, &["rotate", "c", "--file", &file, "--expect-generation", "2"]);
    assert_eq!((stale.status, &*stale.stdout), (125, ""));
    assert!(
        stale.stderr.contains("have generation 3; the request expects 2") && stale.stderr.contains("agent-cli inspect"),
        "{ran:?}"
    );
    let nowhere = cli::run(&socket, &["rotate", "c", "--file", &file.replace("db/password", "/srv/x")]);
    assert!(nowhere.stderr.contains("--file (number 1)") && nowhere.stderr.contains(ROOT), "{nowhere:?}");
    let shown = cli::run(&socket, &["inspect", "c"]).stdout;
    assert!(shown.contains("generation 3, replaced 20") && !shown.contains("canary"), "{shown}");
    assert_eq!(cli::run(&socket, &["inspect", "c", "--json"]).json()["files_generation"], 3);
}
