//! Known pitfalls of libcontainer, cgroups and seccomp filters. The tests provoke each of them.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};

use executor_core::lifecycle::State;
use executor_core::plan::Plan;
use executor_core::record::FailureKind;
use executor_core::validate::{Draft, Policy, validate};
use executor_residue::process::Process;
use executor_residue::{Canary, Needles, Place, Search};
use integration::launcher::{Launcher, Payload};
use integration::rootfs::Rootfs;
use integration::{footprint, host, wait};

fn plan(id: &str, rootfs: &str, path: &str) -> Plan {
    validate(&Draft { id, rootfs, path, memory_bytes: 64 << 20, ..Draft::default() }, &Policy::default()).unwrap()
}

fn script(script: &str) -> Payload<'_> {
    Payload { args: vec![b"-c", script.as_bytes()], ..Payload::default() }
}

/// A failed create leaves no zombies, although libcontainer does not reap its child processes. In this test the cgroup
/// above the containers allows no process, so the create fails half-way.
#[test]
fn failed_creates_leave_no_zombie() {
    // The warm pool is off, because a warm container already has its init.
    let config = tempfile::NamedTempFile::new().unwrap();
    fs::write(config.path(), "[warm_pool]\nsize = 0\n").unwrap();
    let (launcher, rootfs) = (Launcher::start(&["--config", config.path().to_str().unwrap()]), Rootfs::busybox());
    let pid = launcher.child.id() as i32;
    let (reference, none) = (rootfs.reference(), Payload::default());
    launcher.launch(&plan("before", &reference, "/bin/true"), &none).unwrap().reach(State::Completed).unwrap();
    let limits: Vec<_> = footprint::cgroup_roots(&launcher.run_dir())
        .into_iter()
        .map(|root| root.join("pids.max"))
        .filter(|path| path.exists())
        .collect();
    let limit = |value: &str| limits.iter().for_each(|path| fs::write(path, value).unwrap());
    assert!(!limits.is_empty(), "there is a limit to set");
    limit("0");
    for number in 0..5 {
        let plan = plan(&format!("failed{number}"), &reference, "/bin/true");
        let refused = launcher.launch(&plan, &none).unwrap().reach(State::Running).unwrap_err();
        assert!(refused.message.starts_with("libcontainer cannot create the container: "), "{refused:?}");
    }
    wait::until("no process of the failed containers is left, including zombies", || {
        host::descendants(pid).is_empty().then_some(())
    });
    assert_eq!(fs::read_dir(launcher.run_dir().join("containers")).unwrap().count(), 0);
    limit("max");
    let running = launcher.launch(&plan("after", &reference, "/bin/sleep"), &Payload { args: vec![b"1000"], ..none });
    running.unwrap().reach(State::Running).unwrap();
    let record = launcher.record("after").unwrap();
    let (shim, init) = (record.shim.pid, record.prepared.unwrap().init.pid);
    assert!(host::descendants(pid).contains(&init), "control: existing processes are found");
    assert_eq!(host::parent(init), Some(shim), "init is the child of the shim, which waits for it");
}

/// The memory of the launcher and of another container's shim never contains a container's secrets. The test is
/// necessary because shims and inits are copies of the launcher: libcontainer clones without exec. As a control, each
/// secret is found in its own container.
#[test]
fn processes_do_not_inherit_secrets_of_containers() {
    let (launcher, rootfs) = (Launcher::start(&[]), Rootfs::busybox());
    let reference = rootfs.reference();
    let canaries = ["argument", "variable", "file"].map(|kind| (kind, Canary::random(256).unwrap()));
    let mut needles = Needles::new().unwrap();
    for (kind, canary) in &canaries {
        needles.add(kind, canary.as_bytes());
    }
    let [argument, variable, file] = canaries.each_ref().map(|(_, canary)| canary.as_str());
    let files = vec![("f".to_owned(), "a", 256).into()];
    let draft =
        Draft { id: "secret", rootfs: &reference, path: "/bin/sh", memory_bytes: 64 << 20, files, ..Draft::default() };
    let plan_of_secrets = validate(&draft, &Policy::default()).unwrap();
    let variable = format!("TOKEN={variable}");
    let payload = Payload {
        args: vec![
            b"-c",
            b"f=$(cat /etc/cf-service-bindings/a); echo up; read forever </dev/zero",
            argument.as_bytes(),
        ],
        env: vec![variable.as_bytes()],
        files: vec![file.as_bytes()],
    };
    let found = |pid: i32, place: fn(&Place) -> bool| {
        let mut search = Search::new(&needles);
        search.process(&Process::from_pid(pid.cast_unsigned()).unwrap());
        let hits = search.report().hits.into_iter().filter(|hit| place(&hit.place));
        hits.map(|hit| hit.label).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    };
    let anywhere = |pid| found(pid, |_| true);
    launcher.launch(&plan_of_secrets, &payload).unwrap().reach(State::Running).unwrap();
    wait::until("the process has read its secrets", || launcher.log("secret").contains("up").then_some(()));
    let sleeper = Payload { args: vec![b"1000"], ..Payload::default() };
    launcher.launch(&plan("later", &reference, "/bin/sleep"), &sleeper).unwrap().reach(State::Running).unwrap();
    let later = launcher.record("later").unwrap();
    for pid in [later.shim.pid, later.prepared.unwrap().init.pid] {
        assert_eq!(anywhere(pid), [""; 0], "{:?}", host::status(pid, "Name"));
    }
    // The launcher has a handle of the files, to wipe them if the shim cannot. The launcher never reads the files.
    assert_eq!(found(launcher.child.id() as i32, |place| !matches!(place, Place::Descriptor { .. })), [""; 0]);
    let init = launcher.record("secret").unwrap().prepared.unwrap().init.pid;
    assert_eq!(anywhere(init), ["argument", "file", "variable"], "control failed");
}

/// The exit of a container kills no process outside of the container, although libcontainer's `delete` kills every
/// process in the cgroup's path. Containers with the same name under two launchers have different paths, and so do host
/// processes.
#[test]
fn container_exit_ends_no_other_container() {
    let (one, other, rootfs) = (Launcher::start(&[]), Launcher::start(&[]), Rootfs::busybox());
    let (reference, sleeper) = (rootfs.reference(), Payload { args: vec![b"1000"], ..Payload::default() });
    let mut bystander = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
    one.launch(&plan("same", &reference, "/bin/sleep"), &sleeper).unwrap().reach(State::Running).unwrap();
    one.launch(&plan("same.2", &reference, "/bin/sleep"), &sleeper).unwrap().reach(State::Running).unwrap();
    let others = other.launch(&plan("same", &reference, "/bin/sleep"), &sleeper).unwrap();
    others.reach(State::Running).unwrap();
    let records = [one.record("same"), one.record("same.2"), other.record("same")].map(Option::unwrap);
    let paths: BTreeSet<_> = records.iter().map(|record| record.cgroup.clone()).collect();
    assert_eq!(paths.len(), 3, "{paths:?}");
    assert!(!paths.iter().any(|path| paths.iter().any(|other| other != path && other.starts_with(path))), "{paths:?}");
    let alive = |record: &executor_core::record::ContainerRecord| {
        executor_sys::identity::alive(&record.prepared.as_ref().unwrap().init)
    };
    assert!(records.iter().all(alive), "control failed");
    others.ask(executor_core::protocol::ShimCall::Stop(executor_core::protocol::Stop { signal: 0, grace_ms: 0 }));
    others.reach(State::Completed).unwrap();
    assert_eq!(records.each_ref().map(alive), [true, true, false]);
    assert!(bystander.try_wait().unwrap().is_none());
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}

/// No container runs without a seccomp filter: not if the kernel refuses the filter, and not if another filter fakes
/// its installation.
#[test]
fn without_the_filter_nothing_runs() {
    let rootfs = Rootfs::busybox();
    let reference = rootfs.reference();
    for (errno, reported) in [(13, "Permission denied"), (0, "the kernel does not enforce the filter")] {
        let preparation = format!("set -- /usr/bin/python3 -c \"{REFUSE_FILTERS}\" {errno} \"$@\";");
        let launcher = Launcher::start_by(&preparation);
        let shim = launcher.launch(&plan("bare", &reference, "/bin/sh"), &script("echo it ran")).unwrap();
        shim.reach(State::Completed).unwrap();
        let (exit, log) = (launcher.exit("bare"), launcher.log("bare"));
        let failure = exit.failure.unwrap_or_else(|| panic!("the container ran: {log}"));
        assert_eq!((exit.exit, failure.kind), (None, FailureKind::Exec));
        assert!(
            failure.message.contains("install the seccomp filter") && failure.message.contains(reported),
            "{failure:?}"
        );
        assert!(!log.contains("it ran"), "{log}");
    }
    let launcher = Launcher::start(&[]);
    launcher
        .launch(&plan("control", &reference, "/bin/sh"), &script("echo it ran"))
        .unwrap()
        .reach(State::Completed)
        .unwrap();
    assert!(launcher.log("control").contains("it ran"), "control failed");
}

/// Executes a program under a seccomp filter that blocks the installation of filters: each attempt returns an error.
/// Error 0 fakes success.
const REFUSE_FILTERS: &str = "import ctypes, os, struct, sys
call = {'x86_64': 317, 'aarch64': 277}[os.uname().machine]
code = [(0x20, 0, 0, 0), (0x15, 0, 1, call), (6, 0, 0, 0x50000 | int(sys.argv[1])), (6, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *step) for step in code))
program = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', 4, ctypes.addressof(code)))
assert ctypes.CDLL(None).prctl(22, 2, program, 0, 0) == 0
os.execv(sys.argv[2], sys.argv[2:])
";
