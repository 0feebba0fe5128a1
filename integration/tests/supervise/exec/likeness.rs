//! An executed process has the attributes of the container's own process. They are compared from outside, line by line.

use std::path::PathBuf;

use executor_proto::v1::{Capabilities, ExecStart, RunRequest};
use integration::api::pid;
use integration::daemon::Daemon;
use integration::host;
use integration::request::{RequestBuilder as _, sleeper};
use integration::rootfs::Rootfs;
use integration::streams::{Executed, script, start};

/// Lines of /proc/PID/status that must be equal.
const STATUS: [&str; 13] = [
    "Uid",
    "Gid",
    "Groups",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
    "Seccomp",
    "Seccomp_filters",
    "SigIgn",
    "SigBlk",
];
const NAMESPACES: [&str; 8] = ["user", "mnt", "pid", "pid_for_children", "net", "ipc", "uts", "cgroup"];

fn cgroups(pid: i32) -> Vec<String> {
    let all = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    // In a cgroup hierarchy in which the container has no cgroup, a process keeps the cgroup that it started in. Such
    // lines are left out.
    let ours = |line: &&str| line.contains("/c") || line.contains("executor");
    // An executed process has a cgroup of its own below the container's in one hierarchy.
    let of_container = |line: &str| line.split("/exec-").next().unwrap_or_default().to_owned();
    all.lines().filter(ours).map(of_container).collect()
}

fn proc_file(pid: i32, file: &str) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_else(|error| panic!("{pid} {file}: {error}"))
}

fn compare(what: &str, init: i32, executed: i32) {
    for line in STATUS {
        assert_eq!(host::status(executed, line), host::status(init, line), "{what}: {line}");
        assert!(host::status(init, line).is_some(), "{line}");
    }
    for namespace in NAMESPACES {
        let namespace_of = |pid: i32| std::fs::read_link(format!("/proc/{pid}/ns/{namespace}")).unwrap_or_default();
        assert_eq!(namespace_of(executed), namespace_of(init), "{what}: {namespace}");
    }
    assert!(!cgroups(init).is_empty());
    assert_eq!(cgroups(executed), cgroups(init), "{what}");
    let (limits, own) = (proc_file(executed, "limits"), proc_file(init, "limits"));
    for limit in ["Max open files", "Max core file size", "Max processes", "Max locked memory"] {
        let line = |all: &str| all.lines().find(|line| line.starts_with(limit)).map(str::to_owned);
        assert_eq!(line(&limits), line(&own), "{what}");
    }
    for file in ["oom_score_adj", "uid_map", "gid_map", "mountinfo", "personality"] {
        assert_eq!(proc_file(executed, file), proc_file(init, file), "{what}: {file}");
    }
    let root = |pid: i32| std::fs::read_link(format!("/proc/{pid}/root")).unwrap_or_default();
    assert_eq!(root(executed), root(init));
    assert_eq!(host::status(executed, "Umask"), host::status(init, "Umask"), "{what}");
    assert_ne!(
        std::fs::read_link(format!("/proc/{executed}/ns/mnt")).ok(),
        std::fs::read_link("/proc/self/ns/mnt").ok()
    );
}

/// Processes executed as the container's own user equal the first process, in containers of several kinds.
#[test]
fn exec_equals_first_process() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let add = |add: &[&str], drop: &[&str]| {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Some(Capabilities { add: list(add), drop: list(drop) })
    };
    let reference = rootfs.reference();
    let containers: Vec<(&str, RunRequest)> = vec![
        ("host", sleeper("host")),
        ("dir", sleeper("dir").rootfs(&reference)),
        ("user", sleeper("user").user("1234:4321")),
        ("named", sleeper("named").user("vcap")),
        ("dropped", RunRequest { capabilities: add(&[], &["ALL"]), ..sleeper("dropped") }),
        ("added", RunRequest { capabilities: add(&["NET_RAW"], &["CHOWN"]), ..sleeper("added") }),
        ("ambient", RunRequest { capabilities: add(&["NET_RAW"], &[]), ..sleeper("ambient").user("1234") }),
    ];
    for (id, request) in containers {
        let init = pid(&daemon.api.started(request));
        let executed = Executed::start(&daemon.api, start(id, "/bin/sleep", &["100000"])).unwrap();
        compare(id, init, executed.pid);
        // As a control, the compared values are not empty, and differ from the values of this test.
        assert_ne!(host::status(init, "CapBnd"), host::status(std::process::id() as i32, "CapBnd"));
    }
}

/// A process executed as another user has that user's groups from the container's files, and none of root's
/// capabilities.
#[test]
fn exec_as_user_has_users_groups() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    std::fs::write(rootfs.path().join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nann:x:77:78::/home/ann:/bin/sh\n")
        .unwrap();
    std::fs::write(rootfs.path().join("etc/group"), "root:x:0:\nstaff:x:79:ann\n").unwrap();
    daemon.api.started(sleeper("c").rootfs(&rootfs.reference()));
    let as_user = |user: &str| {
        let start = ExecStart {
            user: user.into(),
            ..script("c", "id -u; id -g; id -G; echo $HOME; grep CapEff /proc/self/status")
        };
        Executed::start(&daemon.api, start).unwrap().end().unwrap().text()
    };
    assert_eq!(as_user("ann"), "77\n78\n78 79\n/home/ann\nCapEff:\t0000000000000000\n");
    assert_eq!(as_user("5:6"), "5\n6\n6\n/\nCapEff:\t0000000000000000\n");
    assert!(as_user("root").starts_with("0\n0\n0\n/root\n"));
}

/// An executed process has three descriptors, which are pipes or a terminal, and no open host file.
#[test]
fn exec_has_only_three_descriptors() {
    let daemon = Daemon::start();
    daemon.api.started(sleeper("c"));
    for (stdin, terminal) in [(false, false), (true, false), (false, true)] {
        // The script prints after its dynamic loader is done, because the loader opens libraries. The shell does not
        // replace itself by `sleep`, because `sleep` is not its last command.
        let start = ExecStart { stdin, terminal, ..script("c", "echo loaded; sleep 1000; true") };
        let mut executed = Executed::start(&daemon.api, start).unwrap();
        executed.until("loaded");
        let open = std::fs::read_dir(format!("/proc/{}/fd", executed.pid)).unwrap();
        let mut open: Vec<(String, PathBuf)> = open
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.file_name().to_string_lossy().into_owned(), std::fs::read_link(entry.path()).unwrap()))
            .collect();
        open.sort();
        let names: Vec<&str> = open.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["0", "1", "2"], "{open:?}");
        for (name, target) in &open {
            let target = target.display().to_string();
            let expected = match (terminal, &**name) {
                (true, _) => target.starts_with("/dev/pts/") || target == "/0",
                (false, "0") if !stdin => target == "/dev/null",
                _ => target.starts_with("pipe:"),
            };
            assert!(expected, "{open:?}");
        }
    }
}
