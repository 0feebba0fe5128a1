//! A container from the warm pool has the same attributes as a cold-started container, compared from inside and
//! outside.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use executor_proto::v1::{Capabilities, Limits, RunRequest};
use integration::api::{exit, pid};
use integration::daemon::Daemon;
use integration::request::{RequestBuilder as _, sh, sleeper};
use integration::rootfs::Rootfs;
use integration::{host, wait};

use super::daemon;

/// Prints all properties of the container that a program can see, without numbers that differ between any two
/// containers.
const LOOK: &str = "
    id; hostname; pwd; umask; env | sort; ulimit -a
    grep -E '^(Cap|NoNewPrivs|Seccomp|Sig|Groups|Uid|Gid|NSpid|Umask)' /proc/self/status
    cut -d' ' -f4- /proc/self/mountinfo | sed -E 's/ - /|/; s,/executor/[0-9a-f]+/,/executor/,; s/(upperdir|workdir|lowerdir)=[^,|]*//g'
    ls -la /dev /dev/pts /dev/shm | sed -E 's/ [A-Z][a-z]{2} +[0-9]+ [0-9:]+ / /'
    ls -la / | sed -E 's/ [A-Z][a-z]{2} +[0-9]+ [0-9:]+ / /' | grep -v ' \\.\\.$'
    cat /etc/hosts /etc/hostname /etc/resolv.conf
    cat /proc/self/cgroup | cut -d: -f2-
    cat /proc/sys/kernel/hostname /proc/sys/net/ipv4/ip_unprivileged_port_start
    ls -l /proc/self/fd | grep -c .
    cat /proc/net/dev | cut -d: -f1; cat /proc/self/oom_score_adj /proc/self/personality
    echo x >/proc/sys/kernel/panic; ls /proc/1/root >/dev/null; mount -t tmpfs none /tmp; unshare -U true
    kill -9 1; cat /proc/self/loginuid; tty; stat -c '%a %u %g %n' / /proc /sys /dev
    touch /made && ls -ln /made | cut -c1-30
    ls -lanR /etc/cf-service-bindings /dev/executor-files 2>&1 | sed -E 's/ [A-Z][a-z]{2} +[0-9]+ [0-9:]+ / /'
    cat /etc/cf-service-bindings/db/password /etc/single; rm /etc/single; echo x >>/etc/single; echo end
";

/// Cgroup files that contain limits.
const LIMITS: [(&str, &str); 14] = [
    ("memory", "memory.limit_in_bytes"),
    ("memory", "memory.memsw.limit_in_bytes"),
    ("memory", "memory.swappiness"),
    ("memory", "memory.soft_limit_in_bytes"),
    ("memory", "memory.kmem.tcp.limit_in_bytes"),
    ("memory", "memory.oom_control"),
    ("pids", "pids.max"),
    ("cpu", "cpu.cfs_period_us"),
    ("cpu", "cpu.cfs_quota_us"),
    ("cpu", "cpu.shares"),
    ("devices", "devices.list"),
    ("", "memory.max"),
    ("", "pids.max"),
    ("", "cpu.max"),
];

/// Returns the limits of a container's cgroup by file name. Files that the host does not have are left out.
fn limits(daemon: &Daemon, id: &str) -> BTreeMap<String, String> {
    let cgroup = daemon.record(id).cgroup;
    let read = |(controller, file): &(&str, &str)| {
        let path: PathBuf = Path::new("/sys/fs/cgroup").join(controller).join(&cgroup).join(file);
        Some(((*file).to_owned(), std::fs::read_to_string(path).ok()?))
    };
    LIMITS.iter().filter_map(read).collect()
}

/// Returns limits of every kind except swap.
fn limited() -> Limits {
    Limits {
        memory_bytes: 48 << 20,
        pids: 77,
        cpu_millis: 700,
        cpu_weight: 300,
        memory_reservation_bytes: 16 << 20,
        ..Limits::default()
    }
}

/// Returns the kinds of containers that the test compares, each with a name and a request.
fn kinds(rootfs: &str) -> Vec<(&'static str, RunRequest)> {
    let look = || sh(LOOK).rootfs(rootfs);
    let dropped = Capabilities { add: Vec::new(), drop: vec!["CHOWN".into(), "KILL".into()] };
    vec![
        ("a user", look().user("app")),
        ("root", look().user("root")),
        ("root with few capabilities", RunRequest { capabilities: Some(dropped), ..look().user("root") }),
        ("a user by number", look().user("4711:4712")),
        (
            "open files",
            look().action(|run| {
                run.resource_limits.get_or_insert_default().nofile = Some(777);
            }),
        ),
        ("limits", RunRequest { limits: Some(limited()), ..look() }),
        ("a root that cannot be written to", RunRequest { read_only_rootfs: true, ..look() }),
        ("a host name", RunRequest { hostname: "other.example".into(), ..look() }),
        ("secret files", look().user("app").file("db/password", b"S")),
        (
            "secret files of root",
            look().user("root").file("db/password", b"S").file("db/a/b", b"").file("/etc/single", b"S"),
        ),
        ("secret files in many places", (0..6).fold(look(), |all, at| all.file(&format!("/opt/{at}/file"), b"S"))),
        ("a terminal", RunRequest { terminal: true, ..look() }),
        ("an init", RunRequest { init: true, ..look() }),
    ]
}

/// Removes values that differ between any two containers from a line: the id, host ids, descriptors, the number of
/// processes.
fn reported(line: &str, id: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in line.replace(id, "ID").split(' ') {
        let options = word.split(',').map(|option| match option.split_once('=') {
            Some((name @ ("uid" | "gid" | "lowerdir+"), _)) => name,
            _ => option,
        });
        words.push(options.collect::<Vec<_>>().join(","));
    }
    if words.last().is_some_and(|name| name == "proc") && words[0].starts_with("dr") {
        words.remove(1); // number of links
        words.retain(|word| {
            !word.is_empty() && word.parse::<u32>().is_ok_and(|number| number >= 65_534) | word.parse::<u32>().is_err()
        });
    }
    words.join(" ")
}

#[test]
fn containers_are_equal_warm_and_cold() {
    let (with, without, rootfs) = (daemon(1), daemon(0), Rootfs::busybox());
    for (number, (what, request)) in kinds(&rootfs.reference()).into_iter().enumerate() {
        let id = format!("c{number}");
        let printed = |daemon: &Daemon| {
            let container = daemon.api.run_to_end(request.clone().id(&id));
            // The lines are sorted, because the order of the mounts differs.
            let mut lines: Vec<String> =
                daemon.api.output(&id).text().lines().map(|line| reported(line, &id)).collect();
            lines.sort_unstable();
            (lines, exit(&container))
        };
        let before = with.api.info().warm_pool.unwrap().used;
        let (found, expected) = (printed(&with), printed(&without));
        let differing = |these: &[String], others: &[String]| -> Vec<String> {
            these.iter().filter(|line| !others.contains(line)).cloned().collect()
        };
        assert_eq!(differing(&found.0, &expected.0), differing(&expected.0, &found.0), "{what}");
        assert_eq!(found, expected, "{what}");
        assert_eq!(with.api.info().warm_pool.unwrap().used, before + 1, "{what}: control: a warm container was used");
        with.api.wait_until_warm_pool_is_ready();
    }
    let counts = without.api.info().warm_pool.unwrap();
    assert_eq!((counts.configured, counts.used), (0, 0));
}

#[test]
fn limits_are_equal_warm_and_cold() {
    let (with, without, rootfs) = (daemon(1), daemon(0), Rootfs::busybox());
    let no_swap = Limits { swap_bytes: Some(0), ..limited() };
    for (number, limits_asked) in [Limits::default(), limited(), no_swap].into_iter().enumerate() {
        let id = format!("c{number}");
        let request = RunRequest { limits: Some(limits_asked), ..sleeper(&id).rootfs(&rootfs.reference()) };
        let set = [&with, &without].map(|daemon| {
            let process = pid(&daemon.api.started(request.clone()));
            let in_force = limits(daemon, &id);
            assert!(in_force.len() >= 3, "{in_force:?}");
            let own = std::fs::read_to_string(format!("/proc/{process}/limits")).unwrap();
            let status = ["CapBnd", "CapPrm", "Seccomp", "NoNewPrivs"].map(|name| host::status(process, name));
            (in_force, own, status)
        });
        assert_eq!(set[0], set[1]);
        with.api.wait_until_warm_pool_is_ready();
    }
    assert_eq!(with.api.info().warm_pool.unwrap().used, 3, "control: each used a warm container");
}

/// If a request does not fit a warm container, the container starts cold, and the pool is unchanged.
#[test]
fn unfit_request_starts_cold() {
    let (daemon, rootfs) = (daemon(1), Rootfs::busybox());
    let add = Capabilities { add: vec!["NET_RAW".into()], drop: Vec::new() };
    let unfit = RunRequest { capabilities: Some(add), ..sh("echo served").rootfs(&rootfs.reference()) };
    daemon.api.run_to_end(unfit.id("unfit"));
    assert!(daemon.api.output("unfit").text().contains("served"));
    let counts = daemon.api.info().warm_pool.unwrap();
    assert_eq!((counts.ready, counts.used, counts.missed), (1, 0, 0));
}

/// Returns the bytes of in-memory files that are charged to a container's cgroup.
fn in_memory(daemon: &Daemon, id: &str) -> u64 {
    let cgroup = daemon.record(id).cgroup;
    let all = ["memory", ""].map(|controller| Path::new("/sys/fs/cgroup").join(controller).join(&cgroup));
    let text = all.iter().find_map(|dir| std::fs::read_to_string(dir.join("memory.stat")).ok()).unwrap();
    text.lines().find_map(|line| line.strip_prefix("shmem ")).unwrap().parse().unwrap()
}

#[test]
fn secret_files_count_against_their_warm_container() {
    const SIZE: usize = 200_000;
    let rootfs = Rootfs::busybox();
    for ready in [1, 0] {
        let daemon = daemon(ready);
        let files = ["a", "b", "c", "d"].into_iter().fold(sleeper("files"), |all, name| all.file(name, &[b'S'; SIZE]));
        daemon.api.started(files.rootfs(&rootfs.reference()));
        daemon.api.wait_until_warm_pool_is_ready();
        daemon.api.started(sleeper("control").rootfs(&rootfs.reference()));
        // The kernel updates the totals only every two seconds.
        wait::until_ok("the files are counted", || match in_memory(&daemon, "files") {
            counted if counted >= 4 * SIZE as u64 => Ok(()),
            counted => Err(counted),
        });
        let control = in_memory(&daemon, "control");
        assert!(control < SIZE as u64, "{ready} warm containers: {control}");
        assert_eq!(
            daemon.api.info().warm_pool.unwrap().used,
            u64::from(2 * ready),
            "control: both used a warm container"
        );
    }
}
