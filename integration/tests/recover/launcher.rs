//! Tests the launcher and its shims without a daemon, over the daemon's protocol: a container's lifecycle and kinds of
//! exit.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use executor_core::lifecycle::State;
use executor_core::plan::Plan;
use executor_core::protocol::{Attach, Reason, Share, ShimCall, Signal, Stop, ToShim};
use executor_core::record::{Exit, FailureKind};
use executor_core::validate::{Draft, Policy, validate};
use executor_sys::peer;
use executor_sys::seqpacket::{Seqpacket, SeqpacketListener};
use integration::footprint;
use integration::host;
use integration::launcher::{Launcher, Parts, Payload, Shim};
use integration::rootfs::Rootfs;
use integration::wait;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

fn plan(id: &str, draft: Draft<'_>) -> Plan {
    let policy = Policy { allow_host_network: true, ..Policy::default() };
    validate(
        &Draft { id, memory_bytes: if draft.memory_bytes == 0 { 64 << 20 } else { draft.memory_bytes }, ..draft },
        &policy,
    )
    .unwrap()
}

fn sh<'a>(script: &'a str) -> (Draft<'a>, Payload<'a>) {
    let draft = Draft { path: "/bin/sh", args: vec!["-c", script], ..Draft::default() };
    (draft, Payload { args: vec![b"-c", script.as_bytes()], ..Payload::default() })
}

const SEE: &str = "id; stat -L -c '%a %u %g %s %n' /etc/cf-service-bindings/db /etc/cf-service-bindings/db/password /run/one; \
    cat /etc/cf-service-bindings/db/password /run/one; echo; grep executor-secrets /proc/self/mountinfo; \
    grep -E 'Seccomp:|NoNewPrivs|CapEff|CapBnd' /proc/self/status; echo $SECRET $HOME; pwd; cat /proc/net/dev | grep -c :; \
    touch /etc/cf-service-bindings/x; echo err >&2; exit 7";

/// The whole lifecycle of a container: secret files are on their own read-only tmpfs, have mode 0600 in directories
/// with mode 0700, and are owned by the user. The process is confined. At exit, the files are wiped and the container
/// is removed.
#[test]
fn container_runs_with_secrets_and_is_wiped() {
    let launcher = Launcher::start(&[]);
    let run_dir = launcher.run_dir();
    let files = vec![("f0".to_owned(), "db/password", 6).into(), ("f1".to_owned(), "/run/one", 3).into()];
    let (draft, payload) = sh(SEE);
    let plan = plan("one", Draft { user: "vcap", dir: "/tmp", files, ..draft });
    let payload = Payload { env: vec![b"SECRET=in-the-environment"], files: vec![b"s3cr3t", b"one"], ..payload };
    launcher.launch(&plan, &payload).unwrap().reach(State::Completed).unwrap();
    let (exit, log) = (launcher.exit("one"), launcher.log("one"));
    assert_eq!(exit.exit, Some(Exit::Code(7)), "{log}");
    let kind = integration::mount::secrets_fs_type();
    let on_tmpfs = kind == "tmpfs";
    for line in [
        "uid=1000(vcap) gid=1000(vcap) groups=1000(vcap)",
        &format!("700 1000 1000 {} /etc/cf-service-bindings/db", if on_tmpfs { 60 } else { 0 }),
        "600 1000 1000 6 /etc/cf-service-bindings/db/password",
        "600 1000 1000 3 /run/one",
        &format!(" /0 /etc/cf-service-bindings ro,nosuid,nodev,noexec,relatime - {kind} executor-secrets"),
        &format!(" /1 /run/one ro,nosuid,nodev,noexec,relatime - {kind} executor-secrets"),
        if on_tmpfs { ",noswap" } else { "ramfs" },
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
        "in-the-environment /home/vcap",
        "stdout F /tmp",
        "stdout F 1\n", // number of interfaces: only lo
        "stderr F err",
        "Read-only file system",
    ] {
        assert!(log.contains(line), "{line:?} is not in:\n{log}");
    }
    let wipe = exit.wipe.unwrap();
    assert_eq!((wipe.files, wipe.bytes, wipe.verified, &*wipe.by), (2, 9, true, "shim"));
    launcher.remove("one"); // waits until the container's resources are released
    assert!(!launcher.run_dir().join("containers/one").exists());
    assert!(!launcher.state_dir().join("containers/one").exists());
    assert!(
        !footprint::inventory_of(&run_dir).cgroups.is_empty(),
        "control: there is a cgroup while the launcher runs"
    );
    drop(launcher);
    let after = footprint::inventory_of(&run_dir);
    assert!(after.cgroups.is_empty() && !after.mounts.iter().any(|mount| mount.contains("executor")), "{after:?}");
}

/// If a process writes a line to standard output and then a line to standard error, the log has both lines in this
/// order.
#[test]
fn output_precedes_later_error_in_log() {
    const LINES: usize = 500;
    let launcher = Launcher::start(&[]);
    let (draft, payload) = sh("for i in $(seq 500); do echo out$i; echo err$i >&2; done");
    launcher.launch(&plan("order", draft), &payload).unwrap().reach(State::Completed).unwrap();
    let log = launcher.log("order");
    // The shim may read a line in parts, which the log has as entries with the tag `P`.
    let (mut words, mut parts) = (Vec::new(), BTreeMap::<&str, String>::new());
    for entry in log.lines() {
        let [_, stream, tag, text] = entry.splitn(4, ' ').collect::<Vec<_>>().try_into().unwrap();
        parts.entry(stream).or_default().push_str(text);
        if tag == "F" {
            words.extend(parts.remove(stream));
        }
    }
    let place = |word: String| words.iter().position(|other| *other == word);
    let places: Vec<_> = (1..=LINES).map(|i| (place(format!("out{i}")), place(format!("err{i}")))).collect();
    assert!(places.iter().all(|(out, err)| out.is_some() && err.is_some()), "every line is in the log: {log}");
    assert!(places.iter().all(|(out, err)| out < err), "{log}");
}

#[test]
fn missing_program_is_reported_with_errno() {
    let launcher = Launcher::start(&[]);
    for (path, dir, errno, words) in [
        ("/nope", "/", 2, "exec /nope: No such file or directory"),
        ("nope", "/", 2, "exec nope: No such file or directory"),
        ("/etc/passwd", "/", 13, "exec /etc/passwd: Permission denied"),
        ("/bin/true", "/etc/passwd", 20, "chdir /etc/passwd: Not a directory"),
    ] {
        let id = format!("x{}", path.replace('/', "-"));
        let shim = launcher.launch(&plan(&id, Draft { path, dir, ..Draft::default() }), &Payload::default()).unwrap();
        shim.reach(State::Completed).unwrap();
        let failure = launcher.exit(&id).failure.unwrap();
        assert_eq!((failure.kind, failure.errno, &*failure.message), (FailureKind::Exec, errno, words));
        assert!(launcher.log(&id).contains(&format!("executor F {words}")), "{}", launcher.log(&id));
    }
}

/// A `dir:` root file system is never written to: a container's changes go to an upper layer that is removed with the
/// container.
#[test]
fn prepared_rootfs_is_never_written_to() {
    let (launcher, rootfs) = (Launcher::start(&[]), Rootfs::busybox());
    let before = rootfs.listing();
    let (draft, payload) = sh(
        "id; echo x >/srv/file; cat /srv/file /etc/cf-service-bindings/a; rm /etc/passwd 2>/dev/null; touch /x; exit 3",
    );
    let reference = rootfs.reference();
    let plan = plan(
        "dir",
        Draft { rootfs: &reference, user: "app:web", files: vec![("f".to_owned(), "a", 1).into()], ..draft },
    );
    launcher.launch(&plan, &Payload { files: vec![b"S"], ..payload }).unwrap().reach(State::Completed).unwrap();
    let log = launcher.log("dir");
    assert!(log.contains("uid=1234(app) gid=80(web)") && log.contains("stdout P S"), "{log}");
    assert_eq!(launcher.exit("dir").exit, Some(Exit::Code(3)), "{log}");
    launcher.wait_until_removed("dir");
    assert_eq!(rootfs.listing(), before);
    assert!(!launcher.state_dir().join("containers/dir/upper").exists());
}

#[test]
fn reaching_the_memory_limit_is_distinguished() {
    let (launcher, rootfs) = (Launcher::start(&[]), Rootfs::busybox());
    let reference = rootfs.reference();
    let (draft, payload) = sh("dd if=/dev/zero of=/dev/null bs=60M count=1");
    let plan = plan("oom", Draft { rootfs: &reference, memory_bytes: 16 << 20, ..draft });
    launcher.launch(&plan, &payload).unwrap().reach(State::Completed).unwrap();
    assert!(launcher.exit("oom").oom_killed, "{:#?}\n{}", launcher.exit("oom"), launcher.log("oom"));
}

#[test]
fn limit_on_processes_holds() {
    let (launcher, rootfs) = (Launcher::start(&[]), Rootfs::busybox());
    let reference = rootfs.reference();
    let (draft, payload) = sh("for i in 1 2 3 4 5 6 7 8; do sleep 100 & done; echo all");
    let plan = plan("pids", Draft { rootfs: &reference, pids: 5, ..draft });
    launcher.launch(&plan, &payload).unwrap().reach(State::Completed).unwrap();
    let log = launcher.log("pids");
    assert!(log.contains("can't fork") && !log.contains("stdout F all"), "{log}");
}

#[test]
fn stop_sends_term_then_kill_signal_arrives() {
    let (launcher, rootfs) = (Launcher::start(&[]), Rootfs::busybox());
    let reference = rootfs.reference();
    let cases = [
        // The process handles SIGTERM and exits normally.
        ("trap 'echo got it; exit 5' TERM; echo up; while :; do sleep 0.05; done", 60_000, Some(Exit::Code(5))),
        // A process that ignores SIGTERM is killed after the grace period.
        ("trap '' TERM; echo up; while :; do sleep 0.05; done", 200, Some(Exit::Signal(9))),
        // Stop does not wait for a single process without a signal handler. The test would notice a grace period of an
        // hour.
        ("echo up; exec sleep 1000", 3_600_000, Some(Exit::Signal(9))),
    ];
    for (number, (script, grace_ms, exit)) in cases.into_iter().enumerate() {
        let id = format!("stop{number}");
        let (draft, payload) = sh(script);
        let shim = launcher.launch(&plan(&id, Draft { rootfs: &reference, ..draft }), &payload).unwrap();
        wait::until("the process is up", || launcher.log(&id).contains("up").then_some(()));
        if number == 2 {
            let init = launcher.record(&id).unwrap().prepared.unwrap().init.pid;
            wait::until("sleep is executed", || (host::status(init, "Name")? == "sleep").then_some(()));
        }
        shim.ask(ShimCall::Stop(Stop { grace_ms, signal: 0 }));
        shim.reach(State::Completed).unwrap();
        let record = launcher.exit(&id);
        assert_eq!((record.exit, record.container.stopped), (exit, true), "{script}");
    }
    let (draft, payload) = sh("trap 'exit 9' USR1; echo up; while :; do sleep 0.05; done");
    let shim = launcher.launch(&plan("sig", Draft { rootfs: &reference, ..draft }), &payload).unwrap();
    wait::until("the process is up", || launcher.log("sig").contains("up").then_some(()));
    shim.ask(ShimCall::Signal(Signal { process_id: "main".into(), signal: 10 }));
    shim.reach(State::Completed).unwrap();
    assert_eq!(launcher.exit("sig").exit, Some(Exit::Code(9)));
}

/// If a launch is forged (the plan of one container under the id of another), it is refused before anything is created,
/// and the launcher serves other requests at the same time. As a control, the same launch without the forgery succeeds.
#[test]
fn plan_of_another_container_is_refused() {
    let launcher = Launcher::start(&[]);
    let before = footprint::inventory_of(&launcher.run_dir());
    let (draft, payload) = sh("sleep 1000");
    let plan = plan("real", draft);
    for _ in 0..3 {
        let (ours, theirs) = Seqpacket::pair().unwrap();
        launcher.launch_forged("forged", theirs.as_fd(), &Parts::new(&plan, &payload).fds()).unwrap();
        let refused = Shim(ours).reach(State::Running).unwrap_err();
        assert_eq!(refused.reason(), Reason::Invalid, "{refused:?}");
        assert_eq!(refused.message, "the plan is for container real, but the launch is for container forged");
        assert!(!launcher.state_dir().join("containers/real").exists());
    }
    wait::until("no resource of the container is left", || {
        (footprint::inventory_of(&launcher.run_dir()) == before).then_some(())
    });
    let shim = launcher.launch(&plan, &payload).unwrap();
    shim.reach(State::Running).unwrap();
    let begun = Instant::now();
    for _ in 0..5 {
        let refused = launcher.launch(&plan, &payload).err().map(|refused| refused.reason());
        assert_eq!(refused, Some(Reason::Exists));
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

/// Memory files that the shim could not wipe are refused. Other files, and descriptors that are not sockets, are
/// refused as well.
#[test]
fn forged_descriptors_are_refused() {
    let launcher = Launcher::start(&[]);
    let (draft, payload) = sh("true");
    let plan = plan("forged", draft);
    let parts = Parts::new(&plan, &payload);
    let [plan_fd, process, files] = parts.fds();
    let (_ours, theirs) = Seqpacket::pair().unwrap();
    let sealed = memfd_create("sealed", MemfdFlags::ALLOW_SEALING).unwrap();
    fcntl_add_seals(&sealed, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL).unwrap();
    let read_only = std::fs::File::open(format!("/proc/self/fd/{}", process.as_raw_fd())).unwrap();
    let (stream, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let (pipe, _end) = std::io::pipe().unwrap();
    let table = [
        (theirs.as_fd(), [plan_fd, sealed.as_fd(), files], "sealed for writing"),
        (theirs.as_fd(), [plan_fd, process, sealed.as_fd()], "sealed for writing"),
        (theirs.as_fd(), [plan_fd, read_only.as_fd(), files], "not open for reading and writing"),
        (theirs.as_fd(), [pipe.as_fd(), process, files], "not a memfd"),
        (stream.as_fd(), [plan_fd, process, files], "not a unix socket"),
        (pipe.as_fd(), [plan_fd, process, files], "not a unix socket"),
    ];
    for (connection, parts, why) in table {
        let refused = launcher.launch_forged("forged", connection, &parts).unwrap_err();
        assert_eq!(refused.reason(), Reason::Invalid);
        assert!(refused.message.contains(why), "{refused:?}");
    }
    launcher.launch(&plan, &payload).unwrap().reach(State::Completed).unwrap();
}

/// The shim gives the handle on the secret files only to a peer that connected as root. A connection to a socket that
/// root listens on has root as its peer (SO_PEERCRED); a passed connection of this kind grants no access.
#[test]
fn passed_root_connection_grants_no_access() {
    let launcher = Launcher::start(&[]);
    let path = launcher.run_dir().join("bound-by-root");
    let listener = SeqpacketListener::bind(&path).unwrap();
    let passed = Seqpacket::connect(&path).unwrap();
    assert_eq!(peer::credentials(&passed).unwrap().uid, 0);
    let ours = Shim(listener.accept().unwrap());
    std::fs::remove_file(&path).unwrap();
    let files = vec![("f".to_owned(), "a", 3).into()];
    let draft = Draft { path: "/bin/sleep", files, ..Draft::default() };
    let payload = Payload { args: vec![b"1000"], files: vec![b"one"], ..Payload::default() };
    launcher.launch_forged("shared", passed.as_fd(), &Parts::new(&plan("shared", draft), &payload).fds()).unwrap();
    ours.reach(State::Running).unwrap();
    ours.ask(ShimCall::Share(Share {}));
    assert_eq!(ours.answer().unwrap_err().reason(), Reason::Precondition);
    let connected = Shim(Seqpacket::connect(&launcher.run_dir().join("containers/shared/shim.sock")).unwrap());
    connected.ask(ShimCall::Share(Share {}));
    connected.answer().unwrap();
}

/// A compromised daemon keeps its end of every passed socket and makes the socket block. The shim is not blocked.
#[test]
fn sockets_of_daemon_do_not_block_shim() {
    let launcher = Launcher::start(&[]);
    let (draft, payload) = sh("sleep 1000");
    let plan = plan("awake", draft);
    let (ours, theirs) = Seqpacket::pair().unwrap();
    launcher.launch_forged("awake", theirs.as_fd(), &Parts::new(&plan, &payload).fds()).unwrap();
    let shim = Shim(ours);
    shim.reach(State::Running).unwrap();
    let (pipe, _end) = std::io::pipe().unwrap();
    let (stream, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let attach = || ShimCall::Attach(Attach::default());
    for wrong in [pipe.as_fd(), stream.as_fd()] {
        shim.ask_with(attach(), &[wrong]);
        assert_eq!(shim.answer().unwrap_err().reason(), Reason::Invalid);
    }
    let clients: Vec<_> = (0..3).map(|_| Seqpacket::pair().unwrap()).collect();
    for (_, passed) in &clients {
        shim.ask_with(attach(), &[passed.as_fd()]);
        shim.answer().unwrap();
    }
    for passed in clients.iter().map(|(_, passed)| passed).chain([&theirs]) {
        rustix::io::ioctl_fionbio(passed, false).unwrap();
    }
    for (client, _) in &clients {
        client.send(&[ToShim::Window as u8], &[]).unwrap(); // makes the shim use every socket
    }
    shim.ask(ShimCall::Stop(Stop { grace_ms: 0, signal: 0 }));
    shim.reach(State::Completed).unwrap();
    assert_eq!(launcher.exit("awake").exit, Some(Exit::Signal(9)));
}
