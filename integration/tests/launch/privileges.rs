//! Capabilities, seccomp filters, privileges and weights of a request in real containers.

use executor_proto::v1::{Capabilities, ExtraHost, Limits, RunRequest, Tmpfs, UserNamespace};
use integration::api::exit;
use integration::daemon::{Daemon, Setup};
use integration::request::{RequestBuilder, sh};
use integration::rootfs::Rootfs;
use tonic::Status;
use tonic_types::StatusExt as _;

const OPEN: &str = "[policy]\nallow_privileged = true\nallow_host_userns = true\nallow_seccomp_profile = true\n\
                    capabilities_allowed = [\"ALL\"]\n";

fn violations(status: &Status) -> Vec<String> {
    let details = status.get_details_bad_request().unwrap_or_else(|| panic!("no BadRequest: {status:?}"));
    details.field_violations.into_iter().map(|violation| violation.field).collect()
}

fn printed(daemon: &Daemon, request: RunRequest) -> String {
    let container = daemon.api.run_to_end(request);
    assert_eq!(exit(&container), Ok(0), "{container:#?}");
    daemon.api.output(&container.id).text()
}

fn capabilities(add: &[&str], drop: &[&str]) -> Option<Capabilities> {
    let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    Some(Capabilities { add: list(add), drop: list(drop) })
}

/// Dropped capabilities are absent and added capabilities are present, including for users other than root.
#[test]
fn requested_capabilities_are_applied() {
    let daemon = Daemon::start();
    let held = |request: RunRequest| printed(&daemon, request);
    let status = || sh("grep -E 'Cap(Eff|Bnd|Amb)' /proc/self/status");
    let none = RunRequest { capabilities: capabilities(&[], &["ALL"]), ..status().id("none") };
    assert_eq!(held(none).matches("0000000000000000").count(), 3);
    let raw = RunRequest { capabilities: capabilities(&["net_raw"], &["ALL"]), ..status().id("raw") };
    assert!(held(raw).contains("CapEff:\t0000000000002000"));
    let user = RunRequest { capabilities: capabilities(&["NET_RAW"], &[]), ..status().id("user").user("vcap") };
    assert_eq!(held(user).matches("0000000000002000").count(), 3, "ambient: execve keeps it");
    assert!(held(status().id("default").user("vcap")).matches("0000000000000000").count() == 3, "control failed");
    let admin = || RunRequest { capabilities: capabilities(&["SYS_ADMIN"], &[]), ..status().id("admin") };
    assert_eq!(violations(&daemon.api.run(admin()).unwrap_err()), ["capabilities.add"]);
    let open = Setup::default().config(OPEN).start();
    assert!(
        printed(&open, admin()).contains("CapEff:\t00000000002004fb"),
        "control: the operator may allow the capability"
    );
}

/// Users other than root may bind ports below 1024 in the container's own network namespace, but not in the host's.
#[test]
fn low_ports_are_for_any_user() {
    let daemon = Setup::default().config("[policy]\nallow_host_network = true\nallow_host_userns = true\n").start();
    let script = "perl -e 'use Socket; socket(S, PF_INET, SOCK_STREAM, 0); print bind(S, sockaddr_in(80, INADDR_LOOPBACK)) ? \"bound\" : $!'";
    let bound = |id: &str, network: i32, users: UserNamespace| {
        let request = sh(script).id(id).user("vcap");
        printed(&daemon, RunRequest { network, user_namespace: users.into(), ..request })
    };
    assert_eq!(bound("own", 0, UserNamespace::Own), "bound");
    assert_eq!(bound("hosts-users", 0, UserNamespace::Host), "bound");
    assert_eq!(
        bound("host", 1, UserNamespace::Own),
        "Permission denied",
        "control: low ports of the host's network need a privilege"
    );
    let asked = sh("cat /proc/sys/net/ipv4/ip_unprivileged_port_start").id("asked");
    let sysctls = [("net.ipv4.ip_unprivileged_port_start".to_owned(), "81".to_owned())].into();
    assert_eq!(printed(&daemon, RunRequest { sysctls, ..asked }), "81\n");
}

/// Kernel settings apply only to the container. Each tmpfs has the requested size and counts against the container's
/// memory.
#[test]
fn sysctls_and_tmpfs_apply_to_container() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let hosts_own = std::fs::read_to_string("/proc/sys/kernel/shmmni").unwrap();
    let script = "cat /proc/sys/net/ipv4/ip_forward /proc/sys/kernel/shmmni /proc/sys/fs/mqueue/msg_max
        (echo 1 >/proc/sys/net/ipv4/ip_forward) 2>/dev/null && echo written
        stat -c '%a %u' /scratch/deep; cat /scratch/deep/secret; df -k /dev/shm /scratch/deep | awk '{print $2}' | tail -2
        dd if=/dev/zero of=/scratch/deep/x bs=1M count=2 2>/dev/null || echo full
        cp /bin/busybox /run/true; /run/true && echo executed; grep extra /etc/hosts";
    let sysctls = [("net.ipv4.ip_forward", "1"), ("kernel.shmmni", "7"), ("fs.mqueue.msg_max", "9")];
    let tmpfs = |path: &str, size_bytes, exec| Tmpfs {
        path: path.into(),
        size_bytes,
        mode: Some(0o711),
        exec,
        ..Tmpfs::default()
    };
    let request = sh(script).id("all").rootfs(&rootfs.reference()).file("/scratch/deep/secret", b"12345678\n");
    let request = RunRequest {
        sysctls: sysctls.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        tmpfs: vec![tmpfs("/scratch/deep", 1 << 20, false), tmpfs("/run", 8 << 20, true)],
        shm_bytes: 4 << 20,
        extra_hosts: vec![ExtraHost { name: "extra".into(), address: "fd00::1".into() }],
        redaction: 2,
        ..request
    };
    let reported = printed(&daemon, request.clone());
    let expected = ["1", "7", "9", "711 0", "12345678", "4096", "1024", "full", "executed", "fd00::1 extra"];
    assert_eq!(reported.lines().collect::<Vec<_>>(), expected);
    assert_eq!(std::fs::read_to_string("/proc/sys/kernel/shmmni").unwrap(), hosts_own);
    // As a control, a tmpfs with a larger size uses up the container's memory.
    let limits = Some(Limits { memory_bytes: 24 << 20, ..Limits::default() });
    let large = sh("dd if=/dev/zero of=/scratch/x bs=1M count=40 2>/dev/null; echo $?").id("large");
    let large = RunRequest { tmpfs: vec![tmpfs("/scratch", 64 << 20, false)], limits, ..large };
    assert!(daemon.api.run_to_end(large).result.unwrap().oom_killed);
    let status = daemon.api.run(RunRequest {
        tmpfs: vec![tmpfs("/bin/busybox/x", 0, false)],
        id: "link".into(),
        ..request.clone()
    });
    assert_eq!(status.unwrap_err().code(), tonic::Code::FailedPrecondition);
    let missing = [("net.no.such".to_owned(), "1".to_owned())].into();
    let status =
        daemon.api.run(RunRequest { sysctls: missing, tmpfs: vec![], id: "missing".into(), ..request }).unwrap_err();
    assert!(status.code() == tonic::Code::FailedPrecondition && status.message().contains("net.no.such"), "{status:?}");
}

/// A read-only root cannot be written to; secret files and the container's own file systems work as usual.
#[test]
fn root_can_be_read_only() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let script =
        "exec 2>&1; cat /etc/cf-service-bindings/a; touch /srv/x && echo written; touch /dev/shm/x && echo shm; true";
    let request = |id: &str, read_only_rootfs| {
        let request = sh(script).id(id).rootfs(&rootfs.reference()).file("a", b"12345678\n");
        RunRequest { read_only_rootfs, redaction: 2, ..request }
    };
    let closed = printed(&daemon, request("closed", true));
    assert!(closed.contains("12345678\n") && closed.contains("shm") && !closed.contains("written"), "{closed}");
    assert!(closed.contains("Read-only file system"), "{closed}");
    assert!(printed(&daemon, request("open", false)).contains("written"), "control failed");
}

/// A profile denies the system calls that it names. A profile is accepted only if the operator allows profiles.
#[test]
fn requested_seccomp_profile_is_enforced() {
    let profile = r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
        {"names": ["chmod", "fchmod", "fchmodat", "fchmodat2"], "action": "SCMP_ACT_ERRNO", "errnoRet": 28},
        {"names": ["no_such_call"], "action": "SCMP_ACT_ERRNO"}]}"#;
    let request = |id: &str, seccomp_profile: &str| {
        let request = sh("touch /tmp/x; chmod 700 /tmp/x 2>&1 && echo changed; grep Seccomp: /proc/self/status").id(id);
        RunRequest { seccomp_profile: seccomp_profile.into(), ..request }
    };
    let daemon = Setup::default().config(OPEN).start();
    let ran = daemon.api.run_to_end(request("own", profile));
    let output = daemon.api.output("own").text();
    assert!(output.contains("No space left on device") && output.contains("Seccomp:\t2"), "{output}");
    let spec = ran.spec.unwrap();
    assert!(spec.custom_seccomp_profile && spec.warnings[0].contains("no_such_call"), "{:?}", spec.warnings);
    assert!(printed(&daemon, request("default", "")).contains("changed"), "control failed");
    let wrong = daemon.api.run(request("wrong", r#"{"defaultAction": "SCMP_ACT_NOTIFY"}"#)).unwrap_err();
    assert_eq!(violations(&wrong), ["seccomp_profile"]);
    assert!(wrong.message().contains("SCMP_ACT_NOTIFY"), "{wrong:?}");
    let closed = Daemon::start();
    assert_eq!(violations(&closed.api.run(request("own", profile)).unwrap_err()), ["seccomp_profile"]);
}

/// Privileges are granted only if the request contains them and the operator allows them.
#[test]
fn privileges_are_the_operators_to_give() {
    let script = "grep -E 'CapEff|Seccomp:' /proc/self/status";
    let request = |id: &str, users: UserNamespace| {
        let request = sh(script).id(id);
        RunRequest { privileged: true, user_namespace: users.into(), ..request }
    };
    let open = Setup::default().config(OPEN).start();
    let output = printed(&open, request("own", UserNamespace::Own));
    assert!(output.contains("Seccomp:\t0") && output.contains("CapEff:\t000001ffffffffff"), "{output}");
    // With host ids, a container has all capabilities that the launcher has. A capability that the launcher does not
    // have cannot be added by its name.
    let ours = std::fs::read_to_string("/proc/self/status").unwrap();
    let bounding = ours.lines().find_map(|line| line.strip_prefix("CapBnd:")).unwrap();
    let output = printed(&open, request("host", UserNamespace::Host));
    assert!(output.contains("Seccomp:\t0") && output.contains(&format!("CapEff:{bounding}")), "{output} {bounding}");
    let named = Capabilities { add: vec!["CAP_SYS_RESOURCE".into()], drop: vec![] };
    let named = RunRequest { capabilities: Some(named), ..request("named", UserNamespace::Host) };
    match bounding.contains("1ffffffffff") {
        true => assert!(open.api.run(named).is_ok()),
        false => assert_eq!(violations(&open.api.run(named).unwrap_err()), ["capabilities.add"]),
    }
    let closed = Daemon::start();
    assert_eq!(
        violations(&closed.api.run(request("closed", UserNamespace::Host)).unwrap_err()),
        ["privileged", "user_namespace"]
    );
}

/// A CPU weight is set. If no controller can enforce a disk weight, the request is refused or there is a warning.
#[test]
fn weights_arrive_or_are_refused() {
    let daemon = Daemon::start();
    let weighed = |id: &str, cpu_weight, io_weight| {
        let request = sh("cat /proc/self/cgroup; exec sleep 100000").id(id);
        RunRequest { limits: Some(Limits { cpu_weight, io_weight, ..Limits::default() }), ..request }
    };
    let started = daemon.api.started(weighed("cpu", 200, 0));
    let record = daemon.record(&started.id);
    let in_cpu = std::path::Path::new("/sys/fs/cgroup/cpu").join(&record.cgroup).join("cpu.shares");
    let unified = std::path::Path::new("/sys/fs/cgroup").join(&record.cgroup);
    if in_cpu.exists() {
        assert_eq!(std::fs::read_to_string(in_cpu).unwrap().trim(), "2451");
        let status = daemon.api.run(weighed("io", 0, 300)).unwrap_err();
        assert_eq!(violations(&status), ["limits.io_weight"]);
        let lenient = Setup::default().config("[policy]\nunenforceable_limits = \"report\"\n").start();
        let reported = lenient.api.started(weighed("io", 0, 300)).spec.unwrap().warnings;
        assert!(reported[0].contains("limits.io_weight"), "{reported:?}");
    } else {
        let reported = |file: &str, directory: &std::path::Path| std::fs::read_to_string(directory.join(file)).unwrap();
        assert_eq!(reported("cpu.weight", &unified), "200\n");
        if unified.join("io.weight").exists() {
            daemon.api.started(weighed("io", 0, 300));
            let of_io = std::path::Path::new("/sys/fs/cgroup").join(&daemon.record("io").cgroup);
            assert_eq!(reported("io.weight", &of_io), "default 300\n");
        } else {
            assert_eq!(violations(&daemon.api.run(weighed("io", 0, 300)).unwrap_err()), ["limits.io_weight"]);
        }
    }
}
