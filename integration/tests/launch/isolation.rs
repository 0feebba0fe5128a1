//! Actions that a container's process cannot perform. The control of each test shows that the guard prevents the
//! action.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;

use executor_core::lifecycle::State;
use executor_core::plan::MASKED;
use executor_core::plan::{Network, Plan};
use executor_core::validate::{Draft, Policy, validate};
use integration::launcher::{Launcher, Payload, Shim};
use integration::rootfs::Rootfs;
use integration::wait;

fn plan(id: &str, draft: Draft<'_>) -> Plan {
    let policy = Policy { allow_host_network: true, ..Policy::default() };
    let memory_bytes = if draft.memory_bytes == 0 { 64 << 20 } else { draft.memory_bytes };
    let path = if draft.path.is_empty() { "/bin/sh" } else { draft.path };
    validate(&Draft { id, path, memory_bytes, ..draft }, &policy).unwrap()
}

fn launch(launcher: &Launcher, plan: &Plan, script: &str) -> Shim {
    launcher.launch(plan, &Payload { args: vec![b"-c", script.as_bytes()], ..Payload::default() }).unwrap()
}

/// Runs a script to its exit and returns its output.
fn printed(launcher: &Launcher, plan: &Plan, script: &str) -> String {
    launch(launcher, plan, script).reach(State::Completed).unwrap();
    launcher.log(plan.id.as_str())
}

/// If a system call needs no capability, only the seccomp filter denies it. As a control, the same call is made outside
/// of the container.
#[test]
fn call_that_the_filter_denies_fails() {
    let launcher = Launcher::start(&[]);
    let log = printed(
        &launcher,
        &plan("filter", Draft { user: "vcap", ..Draft::default() }),
        "/usr/bin/unshare -U true || echo denied",
    );
    assert!(log.contains("Operation not permitted") && log.contains("denied"), "{log}");
    let outside = Command::new("/usr/bin/unshare").args(["-U", "true"]).status().unwrap();
    assert!(outside.success(), "control: without the filter the kernel allows it");
}

/// Signals that the daemon's parent ignores (for example nohup) are not ignored in the container. A shell cannot set a
/// trap for a signal that is ignored at its start.
#[test]
fn no_signal_is_ignored_from_the_start() {
    let (launcher, rootfs) = (Launcher::start_by("trap '' HUP USR1 PIPE;"), Rootfs::busybox());
    let reference = rootfs.reference();
    let plan = plan("signals", Draft { rootfs: &reference, ..Draft::default() });
    let log =
        printed(&launcher, &plan, "grep -E 'Sig(Ign|Blk)' /proc/self/status; trap 'echo trapped' HUP; kill -HUP $$");
    assert!(log.contains("SigIgn:\t0000000000000000") && log.contains("SigBlk:\t0000000000000000"), "{log}");
    assert!(log.contains("trapped"), "{log}");
    let outside = Command::new("sh").args(["-c", "trap '' HUP; grep SigIgn /proc/self/status"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&outside.stdout).contains("SigIgn:\t0000000000000000"), "control failed");
}

/// Every masked path that this kernel has is empty in the container. Read-only paths cannot be written, and init cannot
/// be killed. Further attacks are in `tests/secrets/attacks/`.
#[test]
fn kernel_paths_are_masked_or_read_only() {
    let (launcher, rootfs) = (Launcher::start(&[]), Rootfs::busybox());
    let reference = rootfs.reference();
    let there: Vec<&str> = MASKED.into_iter().filter(|path| Path::new(path).exists()).collect();
    assert!(!there.is_empty(), "control: the kernel has something to mask");
    let look = "if [ -d $path ]; then ls $path | wc -l; else wc -c <$path; fi";
    let masked = format!("for path in {}; do {look}; done", there.join(" "));
    let script = format!("{masked}; echo 1 >/proc/sys/kernel/panic; ls /dev; kill -9 1; echo alive");
    let log = printed(&launcher, &plan("masks", Draft { rootfs: &reference, ..Draft::default() }), &script);
    assert!(log.contains("alive"), "{log}");
    assert_eq!(log.matches("stdout F 0").count(), there.len(), "{there:?}: {log}");
    assert!(log.contains("/proc/sys/kernel/panic: Read-only file system"), "{log}");
    assert!(!log.contains("stdout F kmsg") && !log.contains("stdout F mem\n"), "{log}");
    assert!(log.contains("stdout F null"), "control: /dev is listed");
}

/// The launcher first clears LISTEN_FDS from its environment and closes inherited descriptors, here a descriptor of the
/// host's root directory. Otherwise libcontainer would pass such descriptors to the container.
#[test]
fn no_host_descriptor_reaches_container() {
    let (launcher, rootfs) = (Launcher::start_by("exec 3</; export LISTEN_FDS=1 LISTEN_PID=$$;"), Rootfs::busybox());
    let reference = rootfs.reference();
    let script = "ls /proc/self/fd; echo LISTEN_FDS=$LISTEN_FDS; ls -d /proc/self/fd/3/root";
    let log = printed(&launcher, &plan("fds", Draft { rootfs: &reference, ..Draft::default() }), script);
    // 0, 1, 2, and the directory that `ls` reads.
    assert_eq!(log.lines().filter(|line| line.ends_with(['0', '1', '2', '3'])).count(), 4, "{log}");
    assert!(log.lines().any(|line| line.ends_with(" LISTEN_FDS=")) && log.contains("/proc/self/fd/3/root: "), "{log}");
    let environment = std::fs::read_to_string(format!("/proc/{}/environ", launcher.child.id())).unwrap();
    assert!(!environment.contains("LISTEN_FDS"), "{environment}");
    let control = Command::new("sh").args(["-c", "exec 3</; sh -c 'ls -d /proc/self/fd/3/root'"]).status().unwrap();
    assert!(control.success(), "control: an inherited descriptor of / leads to /root");
}

/// No inherited descriptor of init leads to the host, as a working directory, as a program, or through a link in the
/// root file system (CVE-2024-21626). The test tries every number that a descriptor of the executor could have. As a
/// control, the same paths work for the container's own root directory.
#[test]
fn inherited_descriptors_do_not_lead_to_host() {
    let (launcher, rootfs) = (Launcher::start(&[]), Rootfs::busybox());
    let reference = rootfs.reference();
    let try_it = |id: String, path: &str, dir: &str| {
        let plan = plan(&id, Draft { rootfs: &reference, path, dir, ..Draft::default() });
        let payload = Payload { args: vec![b"-c", b"ls /proc/self/cwd/ | wc -l"], ..Payload::default() };
        launcher.launch(&plan, &payload).unwrap().reach(State::Completed).unwrap();
        launcher
            .exit(&id)
            .failure
            .map(|failure| failure.message)
            .ok_or_else(|| format!("{:?} {}", launcher.exit(&id).exit, launcher.log(&id)))
    };
    for number in 3..40 {
        std::os::unix::fs::symlink(format!("/proc/self/fd/{number}"), rootfs.path().join(format!("srv/{number}")))
            .unwrap();
        for (way, path, dir) in [
            ("dir", "/bin/sh".to_owned(), format!("/proc/self/fd/{number}")),
            ("link", "/bin/sh".to_owned(), format!("/srv/{number}")),
            ("path", format!("/proc/self/fd/{number}/1/root/bin/sh"), "/".to_owned()),
        ] {
            let refused = try_it(format!("{way}{number}"), &path, &dir);
            assert!(refused.is_ok(), "{way} by descriptor {number} went through: {refused:?}");
        }
    }
    for (way, path, dir) in [("dir", "/bin/sh", "/proc/self/root/srv"), ("path", "/proc/self/root/bin/sh", "/")] {
        assert!(try_it(format!("control-{way}"), path, dir).is_err(), "control failed");
    }
}

#[test]
fn limits_are_in_force() {
    let (launcher, rootfs) = (Launcher::start(&[]), Rootfs::busybox());
    let reference = rootfs.reference();
    let plan = plan(
        "limits",
        Draft {
            rootfs: &reference,
            memory_bytes: 32 << 20,
            pids: 9,
            cpu_millis: 250,
            nofile: Some(77),
            ..Draft::default()
        },
    );
    let shim = launch(&launcher, &plan, "ulimit -n; grep core /proc/self/limits; echo up; sleep 1000");
    shim.reach(State::Running).unwrap();
    let cgroup = launcher.record("limits").unwrap().cgroup;
    let value = |controller: &str, v1: &str, v2: &str| {
        let one = Path::new("/sys/fs/cgroup").join(controller).join(&cgroup).join(v1);
        let path = if one.exists() { one } else { Path::new("/sys/fs/cgroup").join(&cgroup).join(v2) };
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).trim().to_owned()
    };
    assert_eq!(value("memory", "memory.limit_in_bytes", "memory.max"), (32 << 20).to_string());
    assert_eq!(value("pids", "pids.max", "pids.max"), "9");
    assert!(["25000", "25000 100000"].contains(&&*value("cpu", "cpu.cfs_quota_us", "cpu.max")));
    wait::until("the process is up", || launcher.log("limits").contains("up").then_some(()));
    let log = launcher.log("limits");
    // The limit is 1: with 0 the kernel would still pipe the program's memory to the program in the host's
    // core_pattern.
    let core = log.lines().find(|line| line.contains("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().rev().nth(1), Some("1"), "{core}");
    assert!(log.contains("stdout F 77"), "{log}");
}

#[test]
fn network_is_private_unless_host_is_requested() {
    let (launcher, rootfs) = (Launcher::start(&["--allow-host-network"]), Rootfs::busybox());
    let reference = rootfs.reference();
    let script = "cat /proc/net/dev | grep -c :; ls -l /proc/self/ns/net; ping -c1 -W5 127.0.0.1 >/dev/null 2>&1; cat /proc/net/route | wc -l";
    let draft = || Draft { rootfs: &reference, ..Draft::default() };
    let own = printed(&launcher, &plan("own", draft()), script);
    let hosts = printed(&launcher, &plan("hosts", Draft { network: Some(Network::Host), ..draft() }), script);
    let host_ns = std::fs::read_link("/proc/self/ns/net").unwrap().display().to_string();
    assert!(hosts.contains(&host_ns) && !own.contains(&host_ns), "{own}\n{hosts}");
    assert!(own.contains("stdout F 1\n"), "one interface: {own}");
}

/// Loopback is up: a server and a client in the container can connect.
#[test]
fn loopback_is_up() {
    let launcher = Launcher::start(&[]);
    let script = "exec /usr/bin/python3 -c 'import socket; s=socket.create_server((\"127.0.0.1\",0)); \
        c=socket.create_connection(s.getsockname()); s.accept()[0].send(b\"hello\"); print(c.recv(9))'";
    let log = printed(&launcher, &plan("lo", Draft::default()), script);
    assert!(log.contains("b'hello'"), "{log}");
}

/// /proc/PID/exe of the launcher refers to a sealed memory file (CVE-2019-5736).
#[test]
fn launchers_program_cannot_be_written() {
    let launcher = Launcher::start(&[]);
    let exe = format!("/proc/{}/exe", launcher.child.id());
    assert!(std::fs::read_link(&exe).unwrap().starts_with("/memfd:executor-launcher (deleted)"));
    let program = std::fs::File::open(&exe).unwrap();
    let by_descriptor = format!("/proc/self/fd/{}", program.as_raw_fd());
    for path in [exe, by_descriptor] {
        assert!(std::fs::OpenOptions::new().write(true).open(&path).is_err(), "{path}");
    }
    let seals = rustix::fs::fcntl_get_seals(&program).unwrap();
    assert!(seals.contains(rustix::fs::SealFlags::WRITE | rustix::fs::SealFlags::SEAL));
}
