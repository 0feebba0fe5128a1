//! Root of the container attacks the executor's processes when they enter the container.

use executor_proto::v1::{ExecStart, RunRequest};
use integration::daemon::Daemon;
use integration::request::{RequestBuilder as _, program, sleeper};
use integration::rootfs::Rootfs;
use integration::streams::{executed, script};
use integration::wait;

/// Python program that inspects all processes of its pid namespace except PID 1 and itself (program, open files, root
/// directory, memory) in a loop, and tries to trace the executor's processes. Counts the outcomes by kind.
const POLLER: &str = r#"
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
SEIZE, INTERRUPT, DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000
me, seen, counts = os.getpid(), set(), {"programs": 0, "helpers": 0, "denied": 0, "reached": 0, "traced": 0}
def look():
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in (1, me): continue
        pid = int(name)
        try: comm = open(f"/proc/{pid}/comm").read().strip()
        except OSError: continue
        helper = comm in ("executor-exec", "executor-launch")
        if helper: counts["helpers"] += 1
        for what in ("exe", "root", "cwd", "fd/0", "fd/3", "fd/4"):
            try:
                target = os.readlink(f"/proc/{pid}/{what}")
                if "executor-launcher" in target or (what.startswith("fd/") and "socket" in target and helper):
                    counts["reached"] += 1
                elif what == "exe": counts["programs"] += 1
            except PermissionError: counts["denied"] += 1
            except OSError: pass
        try:
            memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
            if open(f"/proc/{pid}/comm").read().strip() in ("executor-exec", "executor-launch"): counts["reached"] += 1
            os.close(memory)
        except OSError: pass
        if helper and libc.ptrace(SEIZE, pid, 0, 0) == 0:
            libc.ptrace(INTERRUPT, pid, 0, 0)
            os.waitpid(pid, WALL)
            try: counts["traced"] += "executor-launcher" in os.readlink(f"/proc/{pid}/exe")
            except OSError: pass
            libc.ptrace(DETACH, pid, 0, 0)
print("ready", flush=True)
stop = []
signal.signal(signal.SIGUSR1, lambda *_: stop.append(1))
while not stop: look()
print("counts", *(f"{k}={v}" for k, v in counts.items()), flush=True)
"#;

/// Root of the container sees the executor's processes while they enter, but cannot access anything in them
/// (CVE-2016-9962, CVE-2019-5736). As a control in the same run, the container can access the programs that these
/// processes execute, so the poller inspects at the right time and place.
#[test]
fn entering_processes_are_inaccessible_to_container() {
    let daemon = Daemon::start();
    daemon.api.started(program("/usr/bin/python3", &["-c", POLLER]).id("c").memory(256 << 20));
    wait::until("the poller runs", || daemon.api.logs_so_far("c").contains("ready").then_some(()));
    for _ in 0..200 {
        assert_eq!(executed(&daemon.api, script("c", "exit 0")).unwrap().exit, Some(Ok(0)));
    }
    daemon.api.signal("c", 10).unwrap();
    daemon.api.wait("c").unwrap();
    let log = daemon.api.logs_so_far("c");
    let count = |name: &str| -> u64 {
        let value = log.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        value.unwrap_or_else(|| panic!("{log}")).parse().unwrap()
    };
    assert_eq!((count("reached"), count("traced")), (0, 0), "{log}");
    assert!(count("helpers") > 0 && count("denied") > 0, "the poller has seen the processes: {log}");
    assert!(count("programs") > 0, "control: the executed programs are reached: {log}");
}

/// If a container puts links into the path of a working directory, missing directories are created only below the
/// container's root.
#[test]
fn exec_workdir_links_stay_inside() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let before = rootfs.listing();
    let outside = tempfile::tempdir().unwrap();
    std::fs::set_permissions(outside.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let links = format!(
        "mkdir -p /srv/own; ln -s /srv/own /absolute; ln -s ../../../../.. /up; ln -s {} /out; \
         ln -s /proc/1/root /magic; ln -s /proc/self/cwd /self",
        outside.path().display()
    );
    let request = sleeper("c").rootfs(&rootfs.reference());
    daemon.api.started(RunRequest { read_only_rootfs: false, ..request.clone() });
    daemon.api.started(RunRequest { id: "fixed".into(), read_only_rootfs: true, ..request });
    assert_eq!(executed(&daemon.api, script("c", &links)).unwrap().exit, Some(Ok(0)));
    let within = |id: &str, dir: &str| {
        let start = ExecStart { dir: dir.into(), user: "app".into(), ..script(id, "pwd; stat -c '%u:%g %a' .") };
        executed(&daemon.api, start).unwrap()
    };
    for (dir, real) in [("/work/a/b", "/work/a/b"), ("/absolute/c", "/srv/own/c"), ("/up/d", "/d")] {
        let output = String::from_utf8(within("c", dir).stdout).unwrap();
        assert_eq!(output, format!("{real}\n0:0 755\n"), "{dir}");
    }
    for dir in ["/out/f", "/magic/g", "/self/h", "/proc/1/cwd/i"] {
        let failure = within("c", dir).failure.expect(dir);
        // The executed process's user may lack search permission for some of the links.
        let is_closed = failure.errno == 13 && failure.message.starts_with("chdir");
        assert!(is_closed || failure.message.starts_with("create the working directory"), "{dir}: {failure:?}");
    }
    let failure = within("fixed", "/work").failure.unwrap();
    assert_eq!((failure.errno, &*failure.message), (30, "create the working directory /work: Read-only file system"));
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    assert_eq!(rootfs.listing(), before);
}
