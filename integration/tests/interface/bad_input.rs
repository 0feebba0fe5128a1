//! Impossible requests are refused with an error that names the field or object. Nothing is left after the refusal.

use std::os::unix::fs::symlink;
use std::path::Path;

use executor_proto::v1::{File, RunRequest, State};
use integration::api::{exit, pid};
use integration::daemon::{Daemon, Setup, has_ended, kill};
use integration::request::{RequestBuilder, program, sh, sleeper};
use integration::rootfs::Rootfs;
use integration::{host, wait, warm_pool};
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// A request with the expected code, field and message of its refusal.
struct Case {
    request: RunRequest,
    code: Code,
    field: &'static str,
    words: Vec<String>,
}

fn case(request: RunRequest, code: Code, field: &'static str, words: &[&str]) -> Case {
    Case { request, code, field, words: words.iter().map(|words| (*words).to_owned()).collect() }
}

/// Runs every case. After each case, nothing is left and the id is free; at the end the daemon still works.
fn refused(daemon: &Daemon, cases: Vec<Case>) {
    let before = daemon.footprint();
    for Case { request, code, field, words } in cases {
        let status = daemon
            .api
            .run(request.id("bad"))
            .err()
            .unwrap_or_else(|| panic!("{field} {words:?}: the request was accepted"));
        assert_eq!(status.code(), code, "{status:?}");
        let details = status.get_details_bad_request().unwrap_or_else(|| panic!("no details: {status:?}"));
        let [violation] = &details.field_violations[..] else { panic!("{details:?}") };
        assert_eq!(violation.field, field, "{status:?}");
        for words in words {
            assert!(violation.description.contains(&words), "{words:?} is not in {:?}", violation.description);
            assert!(status.message().contains(&words), "{words:?} is not in {:?}", status.message());
        }
        assert_eq!(daemon.api.get("bad").unwrap_err().code(), Code::NotFound);
        daemon.wait_until_back_at(&before);
    }
    assert_eq!(exit(&daemon.api.run_to_end(sh("exit 3").id("bad").file("a", b"x"))), Ok(3), "control failed");
}

fn with_files(files: &[(&str, usize)]) -> RunRequest {
    let request = program("/bin/true", &[]);
    files.iter().fold(request, |request, (path, size)| request.file(path, &vec![b's'; *size]))
}

#[test]
fn invalid_files_are_refused() {
    use Code::InvalidArgument;
    let daemon = Daemon::start();
    let first = "action.run.volume_mounted_files[0].path";
    let second = "action.run.volume_mounted_files[1].path";
    let of_container = |path: &str| RunRequest {
        volume_mounted_files: vec![File { path: path.into(), content: b"x".into(), ..File::default() }],
        ..with_files(&[("a/b", 1)])
    };
    let absolute = "/etc/cf-service-bindings/a/b";
    refused(
        &daemon,
        vec![
            case(
                with_files(&[("a", 1), ("a", 2)]),
                InvalidArgument,
                second,
                &["also the path of", first.trim_end_matches(".path")],
            ),
            case(with_files(&[("a/b", 1), (absolute, 1)]), InvalidArgument, second, &[absolute, "also the path of"]),
            case(of_container("a/b"), InvalidArgument, "volume_mounted_files[0].path", &["also the path of"]),
            case(
                of_container("a"),
                InvalidArgument,
                first,
                &["requires volume_mounted_files[0] to be a directory, but it is a file"],
            ),
            case(with_files(&[("../x", 1)]), InvalidArgument, first, &["`../x`", "`..`"]),
            case(with_files(&[("a/../../x", 1)]), InvalidArgument, first, &["`a/../../x`", "`..`"]),
            case(with_files(&[("/proc/self/environ", 1)]), InvalidArgument, first, &["/proc"]),
            case(with_files(&[("/dev/shm/x", 1)]), InvalidArgument, first, &["/dev"]),
            case(with_files(&[("", 1)]), InvalidArgument, first, &["is empty"]),
        ],
    );
}

/// Files of 1 MiB in total, the maximum of Diego's BBS, are accepted. One more byte is refused.
#[test]
fn one_byte_beyond_mebibyte_is_refused() {
    let daemon = Daemon::start();
    let words = ["1048577 bytes", "the maximum is 1048576", "large", "1048481"];
    let one_too_many = with_files(&[("large", 1_048_481), ("small", 96)]);
    refused(&daemon, vec![case(one_too_many, Code::InvalidArgument, "volume_mounted_files", &words)]);
    let count = "cat /etc/cf-service-bindings/* | wc -c";
    let exactly = sh(count).file("large", &vec![b's'; 1_048_481]).file("small", &[b's'; 95]).id("exact");
    daemon.api.run_to_end(exactly);
    assert_eq!(daemon.api.output("exact").text().trim(), "1048576", "control failed");
}

/// An environment string of the kernel's maximum length is passed on. One more byte is refused before the start.
#[test]
fn environment_string_of_131072_bytes() {
    let daemon = Daemon::start();
    let with_string = |length: usize| sh("echo ${#A}").env("A", &"v".repeat(length - 2));
    let words = ["131072 bytes", "the maximum is 131071", "use a file"];
    refused(&daemon, vec![case(with_string(131_072), Code::InvalidArgument, "action.run.env[0].value", &words)]);
    daemon.api.run_to_end(with_string(131_071).id("longest"));
    assert_eq!(daemon.api.output("longest").text().trim(), "131069", "control failed");
}

#[test]
fn missing_users_and_rootfs_are_refused() {
    use Code::{FailedPrecondition, InvalidArgument};
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let busybox = || sh("true").rootfs(&rootfs.reference());
    let on = |reference: &str| sh("true").rootfs(reference);
    refused(
        &daemon,
        vec![
            case(busybox().user("nobodyx"), FailedPrecondition, "action.run.user", &["user `nobodyx` not found"]),
            case(
                busybox().user("app:nogroupx"),
                FailedPrecondition,
                "action.run.user",
                &["group `nogroupx` not found"],
            ),
            case(sh("true").user("nobodyx"), FailedPrecondition, "action.run.user", &["nobodyx"]),
            case(
                on("dir:/no/such/rootfs"),
                FailedPrecondition,
                "rootfs",
                &["dir:/no/such/rootfs", "No such file or directory"],
            ),
            case(on("dir:/etc/passwd"), FailedPrecondition, "rootfs", &["dir:/etc/passwd", "Not a directory"]),
            case(on("dir:relative"), InvalidArgument, "rootfs", &["dir:relative", "not absolute"]),
            case(on("dir:/proc/self/root"), InvalidArgument, "rootfs", &["/proc"]),
            case(on("docker.io/busybox"), InvalidArgument, "rootfs", &["docker.io/busybox"]),
        ],
    );
}

/// If a reference is malformed, the other errors in the request are also reported, even in a dry run.
#[test]
fn malformed_reference_hides_no_other_fault() {
    use executor_proto::v1::{Limits, RegistryCredentials, ValidateRequest};
    let daemon = Daemon::start();
    let request = RunRequest {
        rootfs: "docker://UPPER/case".into(),
        pull_policy: 9,
        limits: Some(Limits { memory_bytes: 1, ..Limits::default() }),
        registry_credentials: Some(RegistryCredentials { username: "a:b".into(), ..RegistryCredentials::default() }),
        ..program("/bin/true", &[])
    };
    let fields = |status: Status| {
        let violations = status.get_details_bad_request().unwrap().field_violations;
        let mut fields: Vec<String> = violations.into_iter().map(|violation| violation.field).collect();
        fields.sort();
        fields
    };
    let expected = ["limits.memory_bytes", "pull_policy", "registry_credentials.username", "rootfs"];
    assert_eq!(fields(daemon.api.run(request.clone()).unwrap_err()), expected);
    let dry = ValidateRequest { run: Some(request), ..ValidateRequest::default() };
    let dry = fields(daemon.api.block_on(daemon.api.rpc().validate(dry)).unwrap_err());
    assert_eq!(dry, expected.map(|field| format!("run.{field}")));
}

/// A request for more CPUs than the host has is allowed, as in Kubernetes, and causes a warning.
#[test]
fn processors_beyond_the_host_are_reported() {
    let daemon = Daemon::start();
    let warnings = |millis: u64| {
        let mut request = sh("true");
        request.limits.get_or_insert_default().cpu_millis = millis;
        daemon.api.run_to_end(request).spec.unwrap().warnings
    };
    let processors = u64::from(rustix::thread::sched_getaffinity(None).unwrap().count());
    let most = processors * 1000;
    let expected = format!("limits.cpu_millis: allows {processors}.001 processors; the launcher may use {processors}");
    assert!(warnings(most + 1).contains(&expected));
    assert!(!warnings(most).iter().any(|warning| warning.contains("processors")), "control failed");
}

/// A root file system whose `/dev` is a link is refused: libcontainer 0.7.0 would create and delete files on the host
/// before it pivots.
#[test]
fn rootfs_whose_dev_is_a_link() {
    let daemon = Daemon::start();
    let victim = tempfile::tempdir().unwrap();
    std::fs::write(victim.path().join("null"), "precious").unwrap();
    for name in ["dev", "proc", "sys"] {
        let rootfs = Rootfs::busybox();
        rootfs.replace_by_link(name, victim.path().to_str().unwrap());
        let request = sh("true").rootfs(&rootfs.reference());
        let words = [&*format!("/{name} is a symbolic link"), &rootfs.reference()];
        refused(&daemon, vec![case(request, Code::FailedPrecondition, "rootfs", &words)]);
        daemon.api.delete("bad", false).unwrap();
    }
    assert_eq!(std::fs::read_dir(victim.path()).unwrap().count(), 1);
    assert_eq!(std::fs::read_to_string(victim.path().join("null")).unwrap(), "precious");
}

#[test]
fn files_behind_rootfs_links_are_refused() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let outside = tempfile::tempdir().unwrap();
    symlink(outside.path(), rootfs.path().join("link")).unwrap();
    symlink("srv", rootfs.path().join("inside")).unwrap();
    let field = "action.run.volume_mounted_files[0].path";
    let at = |path: &str| with_files(&[(path, 6)]).rootfs(&rootfs.reference());
    refused(
        &daemon,
        vec![
            case(at("/link/secret"), Code::FailedPrecondition, field, &["/link is a symbolic link"]),
            case(at("/inside/secret"), Code::FailedPrecondition, field, &["/inside is a symbolic link"]),
            case(at("/bin/sh"), Code::FailedPrecondition, field, &["/bin/sh"]),
            case(at("/bin/busybox/x"), Code::FailedPrecondition, field, &["/bin/busybox"]),
            case(at("/srv"), Code::FailedPrecondition, field, &["/srv"]),
        ],
    );
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
}

/// A request that exceeds the free capacity is refused with the numbers, and succeeds when capacity is free again.
#[test]
fn capacity_that_is_used_up() {
    let daemon =
        Setup::default().config("[capacity]\ncontainers = 2\npids = 100000\nmemory_bytes = 268435456\n").start();
    let before = daemon.footprint();
    daemon.api.started(sleeper("one").memory(200 << 20));
    let refused = |request: RunRequest, words: &[&str]| {
        let remaining = daemon.api.info().remaining;
        let status = daemon.api.run(request).unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        for words in words {
            assert!(status.message().contains(words), "{words:?} is not in {status:?}");
        }
        assert_eq!(daemon.api.info().remaining, remaining);
    };
    refused(sleeper("large").memory(100 << 20), &["memory", "104857600", "58720256"]);
    daemon.api.started(sleeper("two").memory(16 << 20));
    refused(sleeper("three").memory(16 << 20), &["containers", "available 0 of 2"]);
    assert_eq!(daemon.api.ids(), ["one", "two"]);
    daemon.api.delete("one", true).unwrap();
    daemon.api.started(sleeper("large").memory(100 << 20));
    for id in ["two", "large"] {
        daemon.api.delete(id, true).unwrap();
    }
    daemon.wait_until_back_at(&before);
}

fn unavailable(status: &Status, socket: &Path) {
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(status.message().contains("launcher"), "{status:?}");
    assert!(status.message().contains(socket.to_str().unwrap()), "{status:?}");
}

/// Containers continue to run without a launcher, and every call that needs no launcher works.
#[test]
fn daemon_without_a_launcher() {
    let mut daemon = Daemon::start();
    let script = "trap 'echo here' USR1; trap 'exit 4' TERM; echo up; while :; do sleep 0.05; done";
    let running = daemon.api.started(sh(script).id("runs").file("a", b"secret"));
    let mut log = daemon.api.follow("runs");
    log.until(|entry| entry.data == b"up\n");
    let launcher = daemon.launcher().unwrap();
    kill(launcher, 9);
    wait::until("the launcher has exited", || has_ended(launcher).then_some(()));
    wait::until("executord knows", || (!daemon.api.info().launcher_connected).then_some(()));
    let (run_dir, state_dir) = (daemon.setup().run_dir(), daemon.setup().state_dir());
    let files = || integration::footprint::files(&run_dir, &state_dir);
    let (before, remaining) = (files(), daemon.api.info().remaining);

    unavailable(&daemon.api.run(sleeper("more").file("a", b"secret")).unwrap_err(), &run_dir.join("launcher.sock"));
    unavailable(&daemon.api.delete("runs", true).unwrap_err(), &run_dir.join("launcher.sock"));
    assert_eq!((files(), daemon.api.info().remaining), (before, remaining), "nothing is left");
    assert_eq!(daemon.api.ids(), ["runs"]);

    assert_eq!(daemon.api.get("runs").unwrap(), running, "the refused Delete does not affect the container");
    assert_eq!(host::status(pid(&running), "Name").as_deref(), Some("sh"));
    daemon.api.signal("runs", 10).unwrap();
    log.until(|entry| entry.data == b"here\n");
    daemon.api.stop("runs", None).unwrap();
    let completed = daemon.api.wait("runs").unwrap();
    assert_eq!(exit(&completed), Ok(4));
    assert_eq!(completed.result.unwrap().wipe.unwrap().wiped_by, "shim");

    // The next executord, started as root, starts a launcher, and everything works again.
    assert!(daemon.terminate().success());
    daemon.start_again();
    daemon.api.delete("runs", false).unwrap();
    assert_eq!(exit(&daemon.api.run_to_end(sh("exit 5").id("more"))), Ok(5));
}

/// If the state directory is full, no new container is accepted. A running container exits normally and its exit is
/// recorded. Everything works when space is free again.
#[test]
fn full_disk_under_the_state_directory() {
    let daemon = Setup::default().disk(24 << 20).start();
    let disk = daemon.setup().state_disk();
    let rootfs = Rootfs::busybox();
    let before = daemon.footprint();
    daemon
        .api
        .up(sh("trap 'exit 6' TERM; echo up; while :; do sleep 0.05; done").id("runs").rootfs(&rootfs.reference()));
    disk.fill();
    let files = || integration::footprint::files(&daemon.setup().run_dir(), &daemon.setup().state_dir());
    let (full, remaining) = (files(), daemon.api.info().remaining);
    let status = daemon.api.run(sleeper("more").rootfs(&rootfs.reference())).unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    for words in [daemon.setup().state_dir().to_str().unwrap(), "No space left on device"] {
        assert!(status.message().contains(words), "{status:?}");
    }
    assert_eq!((files(), daemon.api.info().remaining), (full, remaining), "nothing is left");
    assert_eq!(daemon.api.get("more").unwrap_err().code(), Code::NotFound);
    assert_eq!(daemon.api.get("runs").unwrap().state(), State::Running);
    daemon.api.stop("runs", None).unwrap();
    assert_eq!(exit(&daemon.api.wait("runs").unwrap()), Ok(6), "the exit record was written on the full disk");

    disk.free();
    // executord retries within seconds to use the ledger, which may also have failed because of the full disk.
    let more = wait::until_ok("a container runs again", || daemon.api.run(sleeper("more").rootfs(&rootfs.reference())));
    assert_eq!(more.container.unwrap().state(), State::Running);
    for id in ["more", "runs"] {
        daemon.api.delete(id, true).unwrap();
    }
    daemon.wait_until_back_at(&before);
}

/// executord and its launcher start on a disk that is full to the last byte, and on a disk without free inodes. They
/// report existing containers and refuse a new container until a deletion frees enough space.
#[test]
fn full_disk_at_the_start() {
    for files in [false, true] {
        let mut daemon = Setup::default().disk(24 << 20).start();
        let rootfs = Rootfs::busybox();
        // The log of this container uses the space that the next container needs. The log is deleted with its
        // container.
        let talks = "i=0; while [ $i -lt 60000 ]; do echo a line of some length that fills up the disk a little; i=$((i + 1)); done";
        daemon.api.run_to_end(sh(talks).id("talks").rootfs(&rootfs.reference()));
        let launcher = daemon.launcher().unwrap();
        kill(launcher, 9);
        daemon.kill();
        wait::until("the launcher has exited", || has_ended(launcher).then_some(()));
        // The warm containers exit, and their files are removed.
        let state_dir = daemon.setup().state_dir();
        wait::until("the warm containers have exited", || warm_pool::waiting(&state_dir).is_empty().then_some(()));
        if files {
            daemon.setup().state_disk().fill_with_files();
        } else {
            daemon.setup().state_disk().fill();
        }
        daemon.start_again();
        let status = wait::until("executord refuses the run", || {
            match daemon.api.run(sleeper("more").rootfs(&rootfs.reference())) {
                // The launcher starts together with executord and may not be connected yet.
                Err(status) if status.code() == Code::Unavailable => None,
                Err(status) => Some(status),
                Ok(_) => panic!("files {files}: the container was accepted"),
            }
        });
        assert_eq!(status.code(), Code::ResourceExhausted, "files {files}: {status:?}");
        assert!(status.message().contains("No space left on device"), "files {files}: {status:?}");
        assert_eq!(daemon.api.get("talks").unwrap().state(), State::Completed);
        if files {
            daemon.setup().state_disk().free_files();
        }
        daemon.api.delete("talks", false).unwrap();
        let more =
            wait::until_ok("the next container runs", || daemon.api.run(sleeper("more").rootfs(&rootfs.reference())));
        assert_eq!(more.container.unwrap().state(), State::Running, "files {files}");
        daemon.api.delete("more", true).unwrap();
    }
}

/// If a process of the executor runs out of descriptors at any point, a run is refused with RESOURCE_EXHAUSTED and the
/// reason, or succeeds. When descriptors are free again, runs succeed. Both hold for calls over an open connection and
/// over a new connection.
#[test]
fn out_of_descriptors() {
    // Reads a process's limit and sets a lower limit. This runs as the process's user, because root may lack the
    // capability.
    let limit = |pid: i32, to: Option<u64>| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let user = |line: &str| {
            let ids = status.lines().find_map(|status| status.strip_prefix(line)).unwrap();
            ids.split_whitespace().next().unwrap().to_owned()
        };
        let mut prlimit = std::process::Command::new("setpriv");
        prlimit.args(["--reuid", &user("Uid:"), "--regid", &user("Gid:"), "--clear-groups", "prlimit"]);
        prlimit.args(["--pid", &pid.to_string(), "--noheadings", "--raw", "--output", "SOFT"]);
        prlimit.arg(to.map_or_else(|| "--nofile".to_owned(), |to| format!("--nofile={to}:")));
        let output = prlimit.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().parse::<u64>().unwrap_or_default()
    };
    let daemon = Daemon::start();
    let descriptors = |pid: i32| std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64;
    for (who, pid) in [("executord", daemon.pid()), ("launcher", daemon.launcher().unwrap())] {
        let (before, mut refused) = (limit(pid, None), 0);
        for room in 0..20 {
            daemon.api.info(); // opens the descriptors that remain open after a call
            limit(pid, Some(descriptors(pid) + room));
            let outcomes = [daemon.api.run(sh("exit 3").id("c")), {
                let api = integration::api::Api::connect(&daemon.socket());
                api.map_or_else(|error| panic!("{who} {room}: {error}"), |api| api.run(sh("exit 3").id("d")))
            }];
            limit(pid, Some(before));
            for outcome in outcomes {
                let Err(status) = outcome else { continue };
                assert_eq!(status.code(), Code::ResourceExhausted, "{who} {room}: {status:?}");
                assert!(status.message().to_lowercase().contains("descriptor"), "{who} {room}: {status:?}");
                refused += 1;
            }
            for id in ["c", "d"] {
                if daemon.api.get(id).is_ok() {
                    daemon.api.wait(id).unwrap();
                    daemon.api.delete(id, false).unwrap();
                }
            }
        }
        assert!(refused > 0, "{who}: control failed: no run was refused");
    }
    assert_eq!(exit(&daemon.api.run_to_end(sh("exit 3").id("c"))), Ok(3));
}
