//! Effects of a request as seen by the container's process and by the host: namespaces, capabilities, the seccomp
//! filter, limits, the root file system and secret files. Each claim has a control on the host or in a container with
//! another request.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use executor_proto::v1::{Limits, Network, RunRequest, Tmpfs, UserNamespace};
use integration::api::{exit, pid};
use integration::daemon::{Daemon, Setup};
use integration::host::{self, status};
use integration::request::{RequestBuilder, sh, sleeper};
use integration::rootfs::Rootfs;

/// Runs a script to its exit and returns its output.
fn script_output(daemon: &Daemon, request: RunRequest) -> String {
    let container = daemon.api.run_to_end(request);
    let output = daemon.api.output(&container.id);
    format!("{}{}", output.text(), String::from_utf8_lossy(&output.stderr))
}

fn namespace(pid: i32, kind: &str) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap()
}

#[test]
fn container_has_own_namespaces() {
    let daemon = Setup::default().config("[policy]\nallow_host_network = true\n").start();
    let host = std::process::id() as i32;
    let one = pid(&daemon.api.started(sleeper("one")));
    let two = pid(&daemon.api.started(sleeper("two")));
    let hosts = pid(&daemon.api.started(RunRequest { network: Network::Host.into(), ..sleeper("hosts") }));
    for kind in ["pid", "mnt", "ipc", "uts", "cgroup", "net"] {
        assert_ne!(namespace(one, kind), namespace(host, kind), "{kind}");
        assert_ne!(namespace(one, kind), namespace(two, kind), "{kind}");
    }
    assert_eq!(namespace(hosts, "net"), namespace(host, "net"), "control: the host's network, if requested");
    assert_ne!(namespace(hosts, "pid"), namespace(host, "pid"));

    let own = "echo $$; hostname; tail -n +3 /proc/net/dev | cut -d: -f1; cut -d: -f3 /proc/1/cgroup | sort -u";
    let reported = script_output(&daemon, sh(own).id("own"));
    assert_eq!(reported.split_whitespace().collect::<Vec<_>>(), ["1", "own", "lo", "/"], "{reported}");
}

/// Root has few capabilities in its container, other users have none, and no process gains any.
#[test]
fn container_capabilities_are_limited() {
    const SHORT_LIST: u64 = 0x4fb; // chown, dac_override, fowner, fsetid, kill, setgid, setuid, net_bind_service
    let daemon = Daemon::start();
    for (id, user, held) in [("root", "root", SHORT_LIST), ("vcap", "vcap", 0), ("other", "4711:4711", 0)] {
        let pid = pid(&daemon.api.started(sleeper(id).user(user)));
        let set = |name: &str| u64::from_str_radix(&status(pid, name).unwrap(), 16).unwrap();
        assert_eq!(["CapPrm", "CapEff", "CapBnd"].map(set), [held; 3], "{user}");
        assert_eq!(["CapInh", "CapAmb"].map(set), [0; 2], "{user}");
        assert_eq!(status(pid, "NoNewPrivs").as_deref(), Some("1"));
        assert_eq!(status(pid, "Seccomp").as_deref(), Some("2"), "a filter is in force");
    }
    assert_eq!(status(std::process::id() as i32, "Seccomp").as_deref(), Some("0"), "control failed");
}

/// System calls that the host permits for the same user are denied in the container, by the filter and not because of a
/// missing capability.
#[test]
fn filter_on_system_calls_denies() {
    let daemon = Daemon::start();
    let calls = "import ctypes, errno, sys\n\
        libc = ctypes.CDLL(None, use_errno=True)\n\
        for name, number, args in [('unshare', 272, (0x10000000,)), ('keyctl', 250, (0, -3, 0)), ('add_key', 248, (b'user', b'n', b'p', 1, -2)),\n\
        \x20 ('bpf', 321, (99, 0, 0)), ('io_uring_setup', 425, (1, 0)), ('getppid', 110, ())]:\n\
        \x20 ctypes.set_errno(0)\n\
        \x20 result = libc.syscall(number, *args)\n\
        \x20 print(name, 'EPERM' if result == -1 and ctypes.get_errno() == errno.EPERM else 'else')\n";
    let inside = script_output(&daemon, integration::request::program("/usr/bin/python3", &["-c", calls]).user("vcap"));
    let expected = "unshare EPERM\nkeyctl EPERM\nadd_key EPERM\nbpf EPERM\nio_uring_setup EPERM\ngetppid else\n";
    assert_eq!(inside, expected);
    let mut on_host = Command::new("/usr/bin/setpriv");
    on_host.args(["--reuid", "1000", "--regid", "1000", "--clear-groups", "/usr/bin/python3", "-c", calls]);
    let on_host = String::from_utf8(on_host.output().unwrap().stdout).unwrap();
    for granted in ["unshare else", "keyctl else"] {
        assert!(on_host.contains(granted), "control failed: the host does not permit the call: {on_host}");
    }
}

/// Prints the limits in /sys/fs/cgroup as programs read them, and lists the writable files.
const CGROUP_READER: &str = r#"
import ctypes, errno, os
ROOT = "/sys/fs/cgroup"
own = {line.split(":", 2)[1]: line.split(":", 2)[2].strip() for line in open("/proc/self/cgroup")}
def read(controller, v1, v2):
    if os.path.exists(ROOT + "/cgroup.controllers"):
        path = ROOT + own[""] + "/" + v2
        # The cgroup of an executed process has no controllers.
        return open(path if os.path.exists(path) else ROOT + "/" + v2).read().split()[0]
    return open(f"{ROOT}/{controller}{own[controller]}/{v1}").read().strip()
print(read("memory", "memory.limit_in_bytes", "memory.max"), read("pids", "pids.max", "pids.max"),
      read("cpu", "cpu.cfs_quota_us", "cpu.max"))
mounts = [line.split() for line in open("/proc/self/mountinfo") if line.split()[4].startswith(ROOT)]
print("mounts", all({"ro", "nosuid", "nodev", "noexec"} <= set(mount[5].split(",")) for mount in mounts) and bool(mounts))
libc, written = ctypes.CDLL(None, use_errno=True), []
def attempt(what, act):
    try: act()
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM): return
    written.append(what)
def remount(path):
    if libc.mount(b"none", path.encode(), None, 32 | 4096, None): raise OSError(ctypes.get_errno(), "mount")
for mount in mounts: attempt("remount " + mount[4], lambda: remount(mount[4]))
below = 0
for directory, names, files in os.walk(ROOT):
    below += len(names) if directory != ROOT else 0
    attempt("mkdir " + directory, lambda: os.mkdir(directory + "/x"))
    for file in files: attempt(directory + "/" + file, lambda: os.close(os.open(directory + "/" + file, os.O_WRONLY)))
print("written", written, "below", below)
"#;

/// Programs can read the limits of their container and cannot change them. This holds after a warm and a cold start,
/// with and without a user namespace or a network namespace, and in an executed process.
#[test]
fn cgroup_view_shows_own_limits() {
    for ready in [0, 2] {
        let config =
            format!("[policy]\nallow_host_userns = true\nallow_host_network = true\n[warm_pool]\nsize = {ready}\n");
        let daemon = Setup::default().config(&config).start();
        daemon.api.started(sleeper("other"));
        let limits = Limits { memory_bytes: 96 << 20, pids: 17, cpu_millis: 250, ..Limits::default() };
        let reader = || {
            let request = integration::request::program("/usr/bin/python3", &["-c", CGROUP_READER]);
            RunRequest { limits: Some(limits.clone()), ..request }
        };
        let host = UserNamespace::Host.into();
        let cases = [
            ("root", reader()),
            ("user", reader().user("vcap")),
            ("host's ids", RunRequest { user_namespace: host, ..reader() }),
            ("host's network", RunRequest { network: Network::Host.into(), ..reader() }),
            ("neither", RunRequest { network: Network::Host.into(), user_namespace: host, ..reader() }),
            ("read-only", RunRequest { read_only_rootfs: true, ..reader() }),
            (
                "processors",
                RunRequest { limits: Some(Limits { cpuset_cpus: "0".into(), ..limits.clone() }), ..reader() },
            ),
        ];
        let seen = |below: u32| format!("{} 17 25000\nmounts True\nwritten [] below {below}\n", 96 << 20);
        let expected = seen(0);
        for (case, request) in cases {
            if ready > 0 {
                daemon.api.wait_until_warm_pool_is_ready();
            }
            assert_eq!(script_output(&daemon, request), expected, "{case}, {ready} shells");
        }
        daemon.api.started(RunRequest { limits: Some(limits.clone()), ..sleeper("c") });
        let start = integration::streams::start("c", "/usr/bin/python3", &["-c", CGROUP_READER]);
        let executed = integration::streams::executed(&daemon.api, start).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&executed.stdout),
            seen(u32::from(daemon.api.info().cgroups != "v2")), // the cgroup of the executed process
            "{:?}",
            String::from_utf8_lossy(&executed.stderr)
        );
        let cgroup = daemon.record("c").cgroup;
        let on_host = |file: &str| {
            let v1 = PathBuf::from("/sys/fs/cgroup/memory").join(&cgroup).join(file);
            if v1.exists() { v1 } else { PathBuf::from("/sys/fs/cgroup").join(&cgroup).join("memory.max") }
        };
        for file in ["memory.limit_in_bytes", "cgroup.event_control"] {
            let opened = fs::OpenOptions::new().write(true).open(on_host(file));
            assert!(opened.is_ok(), "control: the view alone is read-only: {opened:?}");
        }
    }
}

#[test]
fn limits_are_in_force() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let limits = Limits { memory_bytes: 48 << 20, pids: 5, cpu_millis: 250, ..Limits::default() };
    let request = RunRequest { limits: Some(limits), ..sleeper("limited").rootfs(&rootfs.reference()) };
    let request = request.action(|run| run.resource_limits.get_or_insert_default().nofile = Some(77));
    let init = pid(&daemon.api.started(request));
    let value = |v1: &str, v2: &str| {
        let cgroup = daemon.record("limited").cgroup;
        let (controller, file) = v1.split_once('/').unwrap();
        let old = PathBuf::from("/sys/fs/cgroup").join(controller).join(&cgroup).join(file);
        let path = if old.exists() { old } else { PathBuf::from("/sys/fs/cgroup").join(&cgroup).join(v2) };
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).trim().to_owned()
    };
    assert_eq!(value("memory/memory.limit_in_bytes", "memory.max"), (48 << 20).to_string());
    assert_eq!(value("pids/pids.max", "pids.max"), "5");
    assert!(["25000", "25000 100000"].contains(&&*value("cpu/cpu.cfs_quota_us", "cpu.max")));
    let open_files = fs::read_to_string(format!("/proc/{init}/limits")).unwrap();
    let open_files = open_files.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(open_files.split_whitespace().skip(3).take(2).collect::<Vec<_>>(), ["77", "77"]);

    // If a limit is above the host's limit, it is reduced to the host's limit, with a warning.
    let greedy = sh("ulimit -n").action(|run| run.resource_limits.get_or_insert_default().nofile = Some(1 << 30));
    let container = daemon.api.run_to_end(greedy);
    let spec = container.spec.unwrap();
    assert!(spec.nofile < 1 << 30 && spec.warnings.iter().any(|warning| warning.contains("nofile")), "{spec:?}");
    assert_eq!(daemon.api.output(&container.id).text().trim(), spec.nofile.to_string());
}

/// A `dir:` root file system is never written to: changes go to a layer that is removed with the container.
#[test]
fn prepared_rootfs_stays_as_it_is() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let before = (rootfs.listing(), daemon.footprint());
    let script = "echo x >/srv/file && mkdir /new && mv /etc/group /etc/moved && cat /srv/file; exit 3";
    for id in ["one", "two"] {
        let ended = daemon.api.run_to_end(sh(script).id(id).rootfs(&rootfs.reference()).file("/etc/app/key", b"x"));
        assert_eq!(
            (exit(&ended), daemon.api.output(id).text()),
            (Ok(3), "x\n".into()),
            "the second container sees nothing of the first container"
        );
        daemon.api.delete(id, false).unwrap();
    }
    assert_eq!(rootfs.listing(), before.0);
    daemon.wait_until_back_at(&before.1);
}

/// Secret files are on a separate tmpfs (`ro,nosuid,nodev,noexec`, and `noswap` if the kernel supports it). They have
/// mode 0600, are in directories with mode 0700, and are owned by the process's user (docs/security-claims.md).
#[test]
fn secret_files_are_on_separate_tmpfs() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let script = "cd /etc/cf-service-bindings; stat -L -c '%a %u:%g %s %n' . db db/password /etc/app.key; \
        grep executor-secrets /proc/self/mountinfo; \
        (echo x >db/password) 2>&1; (echo x >new) 2>&1; rm db/password 2>&1; true";
    let request = sh(script).rootfs(&rootfs.reference()).user("app:web");
    let reported = script_output(&daemon, request.file("db/password", b"secret").file("/etc/app.key", b"key"));
    let kind = integration::mount::secrets_fs_type();
    for line in [
        "600 1234:80 6 db/password",
        "600 1234:80 3 /etc/app.key",
        &format!("/etc/cf-service-bindings ro,nosuid,nodev,noexec,relatime - {kind} executor-secrets"),
        &format!("/etc/app.key ro,nosuid,nodev,noexec,relatime - {kind} executor-secrets"),
        if kind == "tmpfs" { "noswap" } else { "ramfs" },
    ] {
        assert!(reported.contains(line), "{line:?} is not in:\n{reported}");
    }
    let modes: Vec<&str> = reported.lines().take(2).map(|line| &line[..12]).collect();
    assert_eq!(modes, ["700 1234:80 "; 2], "directories: {reported}");
    assert_eq!(reported.matches("Read-only file system").count(), 3, "{reported}");
    let mounted = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounted.contains("executor-secrets"), "secrets have no path on the host");
    let other = sh("ls -l /etc/cf-service-bindings /etc/app.key 2>&1").rootfs(&rootfs.reference());
    assert_eq!(script_output(&daemon, other).matches("No such file").count(), 2, "the files are in no other container");
}

/// If the working directory is missing, it is created with its parents, as in runc: owned by root, mode 0755, for every
/// user. This holds after a warm and a cold start, below a read-only root file system and on a tmpfs.
#[test]
fn workdir_missing_is_created() {
    let rootfs = Rootfs::busybox();
    let before = rootfs.listing();
    let script = "pwd; stat -c '%u:%g %a' . ..; test -w . && echo writable || echo not writable";
    for ready in [0, 2] {
        let config = format!("[policy]\nallow_host_userns = true\n[warm_pool]\nsize = {ready}\n");
        let daemon = Setup::default().config(&config).start();
        let tmpfs = Tmpfs { path: "/scratch".into(), size_bytes: 1 << 20, mode: Some(0o755), ..Tmpfs::default() };
        let within = |dir: &str| sh(script).rootfs(&rootfs.reference()).action(|run| run.dir = dir.into());
        let host = UserNamespace::Host.into();
        let cases = [
            (within("/work/dir"), "/work/dir", "writable"),
            (within("/work/dir").user("app"), "/work/dir", "not writable"),
            (within("/work/dir").file("a", b"x").user("app"), "/work/dir", "not writable"),
            (RunRequest { read_only_rootfs: true, ..within("/work/dir").user("app") }, "/work/dir", "not writable"),
            (RunRequest { init: true, ..within("/work/dir") }, "/work/dir", "writable"),
            (RunRequest { tmpfs: vec![tmpfs], ..within("/scratch/dir") }, "/scratch/dir", "writable"),
            (RunRequest { user_namespace: host, ..within("/work/dir").user("app") }, "/work/dir", "not writable"),
        ];
        for (request, dir, writable) in cases {
            if ready > 0 {
                daemon.api.wait_until_warm_pool_is_ready();
            }
            let output = script_output(&daemon, request);
            assert_eq!(output, format!("{dir}\n0:0 755\n0:0 755\n{writable}\n"));
        }
    }
    assert_eq!(rootfs.listing(), before, "the image stays as it is");
}

#[test]
fn invalid_workdir_is_reported() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    std::os::unix::fs::symlink("/nowhere", rootfs.path().join("dangling")).unwrap();
    std::os::unix::fs::symlink("/proc/1/root", rootfs.path().join("magic")).unwrap();
    for (dir, words) in [
        ("/etc/passwd", "chdir /etc/passwd: Not a directory"),
        ("/etc/passwd/x", "chdir /etc/passwd/x: Not a directory"),
        ("/dangling", "create the working directory /dangling: No such file or directory"),
        ("/proc/x", "create the working directory /proc/x: No such file or directory"),
        ("/sys/x", "create the working directory /sys/x: Read-only file system"),
        ("/magic/x", "create the working directory /magic/x: "),
    ] {
        let request = sh("pwd").rootfs(&rootfs.reference()).action(|run| run.dir = dir.into());
        let ended = daemon.api.run_to_end(request);
        let failure = integration::api::ending(&ended).failure.clone().unwrap();
        assert!(failure.message.starts_with(words), "{failure:?}");
    }
}

/// `ps` distinguishes the launcher, warm pool entries and shims. After a warm pool entry becomes a shim, `ps` shows its
/// container.
#[test]
fn command_lines_name_role_and_container() {
    let rootfs = Rootfs::busybox();
    for ready in [0, 1] {
        let daemon = Setup::default().config(&format!("[warm_pool]\nsize = {ready}\n")).start();
        let run_dir = daemon.setup().run_dir();
        let ps = |pid: i32| {
            let output = Command::new("ps").args(["-ww", "-o", "args=", "-p", &pid.to_string()]).output().unwrap();
            String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
        };
        daemon.api.wait_until_warm_pool_is_ready();
        let launcher = daemon.launcher().unwrap();
        assert!(!ps(launcher).contains("  ") && ps(launcher).contains(" --state-dir "), "{:?}", ps(launcher));
        let children = host::processes().into_iter().filter(|pid| host::parent(*pid) == Some(launcher));
        let entries: Vec<String> = children.map(ps).collect();
        let warm = format!("executor-launcher warm --run-dir {}", run_dir.display());
        assert_eq!(entries, vec![warm; ready]);
        let container = daemon.api.started(sleeper("titled").rootfs(&rootfs.reference()));
        let shim = daemon.record("titled").shim.pid;
        assert_eq!(ps(shim), format!("executor-launcher shim titled --run-dir {}", run_dir.display()));
        assert_eq!(container.shim_pid, shim.cast_unsigned());
        let info = daemon.api.info();
        assert_eq!((info.pid, info.launcher_pid), (daemon.pid().cast_unsigned(), launcher.cast_unsigned()));
        assert_eq!(daemon.api.info().warm_pool.unwrap().used, ready as u64, "the container was a warm container");
        daemon.api.stop("titled", Some(0)).unwrap();
        assert_eq!(daemon.api.wait("titled").unwrap().shim_pid, 0);
    }
}

/// The executor's init has its own process name and shows no host path. As a control, the launcher's command line has
/// host paths.
#[test]
fn init_command_line_names_no_path() {
    let rootfs = Rootfs::busybox();
    for ready in [0, 1] {
        let daemon = Setup::default().config(&format!("[warm_pool]\nsize = {ready}\n")).start();
        daemon.api.wait_until_warm_pool_is_ready();
        let request = sh("cat /proc/1/cmdline /proc/1/comm").rootfs(&rootfs.reference());
        let output = script_output(&daemon, RunRequest { init: true, ..request.clone() });
        assert_eq!(output, "executor-init\0init\n");
        daemon.api.wait_until_warm_pool_is_ready();
        let step = request.action.clone().unwrap();
        let tree = executor_proto::v1::SerialAction { actions: vec![step], ..Default::default() };
        let tree = executor_proto::v1::Action { serial: Some(tree), ..Default::default() };
        let output = script_output(&daemon, RunRequest { action: Some(tree), ..request });
        assert_eq!(output, "executor-init\0init\n", "init of a tree of actions");
        let launcher = fs::read_to_string(format!("/proc/{}/cmdline", daemon.launcher().unwrap())).unwrap();
        assert!(launcher.contains(&daemon.setup().run_dir().display().to_string()), "{launcher}");
    }
}
