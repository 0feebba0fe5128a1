//! Paths of the host (`policy.host_paths`): propagation, mounts below them, sockets and devices, links, and files that
//! replace the executor's files (CRI rules G2, C24 and C25 of docs/guides/cri-rules.md).

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use executor_core::lifecycle::State;
use executor_core::plan::{HostPath as PlannedPath, HostPathRule, Plan, Propagation, Volume, VolumeSource};
use executor_core::protocol::Reason;
use executor_core::validate::{Draft, Policy, VOLUMES_MAX, validate};
use executor_proto::v1::volume_mount::Source;
use executor_proto::v1::{Capabilities, HostPath, RunRequest, UserNamespace, VolumeMount};
use integration::cli;
use integration::daemon::{Daemon, Setup};
use integration::launcher::{Launcher, Payload};
use integration::mount::Tmpfs;
use integration::race::Exchange;
use integration::request::{RequestBuilder as _, sh};
use integration::rootfs::Rootfs;
use integration::streams::{executed, script};
use integration::wait;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tonic::Code;

use super::{Lent, at, names, of_path, read_only, refused, said, with};

const SLEEP: &str = "exec sleep 100000";

/// Returns the volume of a path of the host, changed by `change`.
fn bound(host: &Path, path: &str, change: impl FnOnce(&mut HostPath)) -> VolumeMount {
    let mut asked = HostPath { path: host.display().to_string(), ..HostPath::default() };
    change(&mut asked);
    at(path, Source::HostPath(asked))
}

/// Starts a daemon whose configuration has these entries of `host_paths`.
fn daemon(entries: &str) -> Daemon {
    let more = "allow_privileged = true\nallow_host_userns = true\ncapabilities_allowed = ['ALL']";
    Setup::default().config(&format!("[policy]\nhost_paths = [{entries}]\n{more}\n")).start()
}

fn entry(path: &Path, more: &str) -> String {
    format!("{{ path = '{}'{more} }}", path.display())
}

/// Gives the container of a request the host's ids and the privilege to mount file systems.
fn of_host(request: RunRequest) -> RunRequest {
    let capabilities = Some(Capabilities { add: vec!["CAP_SYS_ADMIN".into()], ..Capabilities::default() });
    RunRequest { capabilities, user_namespace: UserNamespace::Host.into(), ..request }
}

fn set(path: &Path, flags: MsFlags) {
    mount(None::<&str>, path, None::<&str>, flags, None::<&str>).unwrap();
}

fn is_mounted(path: &Path) -> bool {
    let table = executor_sys::mountinfo::parse(&fs::read("/proc/self/mountinfo").unwrap());
    table.iter().any(|mount| mount.point == path)
}

/// CRI rule C25: mounts of the host appear in a container with `rslave`; mounts of a container appear on the host only
/// with bidirectional propagation. As controls, a private volume shows no mount of the host, and a mount in the
/// `rslave` container does not appear on the host.
#[test]
fn propagation_is_seen_from_both_sides() {
    let (lent, rootfs) = (Lent::new(), Rootfs::busybox());
    let shared = lent.path("shared");
    let _tmpfs = Tmpfs::mount(&shared, 1 << 20);
    set(&shared, MsFlags::MS_PRIVATE);
    let daemon = daemon(&entry(&shared, ", propagation = 'bidirectional'"));
    let before = daemon.footprint();
    let run = |id: &str| sh(SLEEP).id(id).rootfs(&rootfs.reference());
    let volume = |propagation| bound(&shared, "/data", |path| (path.recursive, path.propagation) = (true, propagation));
    let field = "volumes[0].host_path.propagation";
    for (propagation, words) in [(1, "neither shared nor a slave"), (2, "not shared")] {
        let (code, violations) = refused(&daemon, with(&[volume(propagation)], of_host(run("x"))));
        assert_eq!((code, &*violations[0].0), (Code::FailedPrecondition, field), "{violations:?}");
        assert!(violations[0].1.contains(words), "{violations:?}");
    }
    set(&shared, MsFlags::MS_SHARED);
    for isolated in [run("x"), RunRequest { privileged: true, ..run("x") }] {
        let (code, violations) = refused(&daemon, with(&[volume(2)], isolated));
        assert_eq!((code, &*violations[0].0), (Code::InvalidArgument, field), "{violations:?}");
    }
    daemon.api.started(with(&[volume(0)], run("private")));
    let rslave = format!("{}:/data:rslave", shared.display());
    let (socket, reference) = (daemon.socket(), rootfs.reference());
    let arguments = ["run", "-d", "--id", "slave", "-v", &rslave, "--rootfs", &reference, "--", "/bin/sleep", "100000"];
    assert_eq!(cli::run(&socket, &arguments).status, 0);
    daemon.api.started(with(&[volume(1)], of_host(run("slave-of-host"))));
    daemon.api.started(with(&[volume(2)], of_host(run("both"))));
    let list = |id: &str, path: &str| executed(&daemon.api, script(id, &format!("ls {path}"))).unwrap().text();
    // The host mounts a file system.
    let new = shared.join("new");
    let tmpfs = Tmpfs::mount(&new, 1 << 20);
    fs::write(new.join("mark"), "").unwrap();
    for id in ["slave", "slave-of-host", "both"] {
        assert_eq!(list(id, "/data/new"), "mark\n", "{id}");
    }
    assert_eq!(list("private", "/data/new"), "", "control failed");
    // The containers mount file systems.
    let mounts = |name: &str| format!("mkdir /data/{name} && mount -t tmpfs t /data/{name} && echo >/data/{name}/x");
    for (id, name, on_host) in [("slave-of-host", "one", false), ("both", "two", true)] {
        executed(&daemon.api, script(id, &mounts(name))).unwrap();
        assert_eq!(list(id, &format!("/data/{name}")), "x\n", "{id}");
        assert_eq!(is_mounted(&shared.join(name)), on_host, "{id}");
    }
    assert_eq!((list("slave", "/data/two"), list("private", "/data/two")), ("x\n".into(), String::new()));
    let shown = cli::run(&socket, &["inspect", "slave"]).stdout;
    assert!(shown.contains("with the mounts below it, host to container"), "{shown}");
    for id in ["both", "slave-of-host", "slave", "private"] {
        daemon.api.delete(id, true).unwrap();
    }
    // A mount that a container has made on the host belongs to the host.
    assert!(is_mounted(&shared.join("two")) && is_mounted(&new));
    umount2(&shared.join("two"), MntFlags::empty()).unwrap();
    drop(tmpfs);
    daemon.wait_until_back_at(&before);
}

/// CRI rule C25: `read_only` makes the mount at the path read-only, and `recursive_read_only` also makes the mounts
/// below it read-only, even for a privileged container that mounts them again. As a control, the mounts below the path
/// are absent without `recursive`.
#[test]
fn mounts_below_are_read_only_if_requested() {
    let (lent, rootfs) = (Lent::new(), Rootfs::busybox());
    let (shared, deps) = (lent.path("shared"), lent.path("deps"));
    let _below = [shared.join("sub"), deps.join("sub")].map(|sub| Tmpfs::mount(&sub, 1 << 20));
    fs::write(shared.join("sub/mark"), "").unwrap();
    let daemon = daemon(&format!("'{}', {}", shared.display(), entry(&deps, ", read_only = true")));
    let before = daemon.footprint();
    let script = "for dir in /data /data/sub; do mount -o remount,bind,rw $dir 2>/dev/null; \
        echo x 2>/dev/null >$dir/new && rm $dir/new && echo $dir; done; ls /data/sub; true";
    let request = |privileged| RunRequest { privileged, ..sh(script).rootfs(&rootfs.reference()) };
    let all = |path: &mut HostPath| path.recursive = true;
    let fixed = |path: &mut HostPath| (path.recursive, path.recursive_read_only) = (true, true);
    for (volume, expected) in [
        (of_path(&shared, "/data"), "/data\n/data/sub\n"),
        (bound(&shared, "/data", all), "/data\n/data/sub\nmark\n"),
        (read_only(bound(&shared, "/data", all)), "/data/sub\nmark\n"),
        (read_only(bound(&shared, "/data", fixed)), "mark\n"),
        (read_only(of_path(&shared, "/data")), ""),
    ] {
        for privileged in [false, true] {
            assert_eq!(said(&daemon, with(std::slice::from_ref(&volume), request(privileged))), expected, "{volume:?}");
        }
    }
    let bind = format!("type=bind,source={},target=/data,readonly,bind-recursive=readonly", shared.display());
    let reference = rootfs.reference();
    let ran = cli::run(
        &daemon.socket(),
        &["run", "--mount", &bind, "--rootfs", &reference, "--", "/bin/sh", "-c", "echo >/data/sub/x || ls /data/sub"],
    );
    assert_eq!(ran.stdout, "mark\n", "{ran:?}");
    for (volume, field) in [
        (of_path(&deps, "/data"), "volumes[0].read_only"),
        (read_only(bound(&deps, "/data", all)), "volumes[0].host_path.recursive_read_only"),
    ] {
        let (code, violations) = refused(&daemon, with(&[volume], request(false)));
        assert_eq!((code, &*violations[0].0), (Code::InvalidArgument, field));
        assert!(violations[0].1.contains("policy.host_paths"), "{violations:?}");
    }
    for volume in [read_only(of_path(&deps, "/data")), read_only(bound(&deps, "/data", fixed))] {
        assert_eq!(said(&daemon, with(&[volume], request(false))), "");
    }
    daemon.wait_until_back_at(&before);
}

/// CRI rule C24: sockets and FIFOs of the host are mounted; a device node can be opened only with `dev`. Set-user-id
/// bits have an effect only with `suid`.
#[test]
fn sockets_fifos_and_devices_are_mounted() {
    let (lent, rootfs) = (Lent::new(), Rootfs::busybox());
    let shared = lent.path("shared");
    let _socket = std::os::unix::net::UnixListener::bind(shared.join("socket")).unwrap();
    nix::unistd::mkfifo(&shared.join("fifo"), nix::sys::stat::Mode::from_bits_truncate(0o666)).unwrap();
    fs::set_permissions(shared.join("fifo"), fs::Permissions::from_mode(0o666)).unwrap();
    let (mode, zero) = (rustix::fs::Mode::from_raw_mode(0o666), rustix::fs::makedev(1, 5));
    rustix::fs::mknodat(rustix::fs::CWD, shared.join("zero"), rustix::fs::FileType::CharacterDevice, mode, zero)
        .unwrap();
    let daemon = daemon(&entry(&shared, ", dev = true, suid = true"));
    let run = |script: &str| sh(script).rootfs(&rootfs.reference());
    let volumes = [of_path(&shared.join("socket"), "/run/socket"), of_path(&shared.join("fifo"), "/dev/inbox")];
    let fifo = shared.join("fifo");
    let writer =
        std::thread::spawn(move || fs::OpenOptions::new().write(true).open(fifo).unwrap().write_all(b"word\n"));
    let text = said(&daemon, with(&volumes, run("test -S /run/socket && test -p /dev/inbox && cat /dev/inbox")));
    assert_eq!(text, "word\n");
    writer.join().unwrap().unwrap();
    let zero = shared.join("zero");
    let (_, violations) = refused(&daemon, with(&[of_path(&zero, "/zero")], run("true")));
    assert_eq!(&*violations[0].0, "volumes[0].host_path.dev", "{violations:?}");
    let reads =
        "head -c 1 /data/zero 2>/dev/null | wc -c; grep ' /data ' /proc/self/mountinfo | grep -o 'nosuid\\|nodev'";
    let options = |request| said(&daemon, with(&[request], of_host(run(&format!("{reads} | tr '\\n' ' '")))));
    assert_eq!(options(of_path(&shared, "/data")), "0\nnosuid nodev ");
    assert_eq!(options(bound(&shared, "/data", |path| path.dev = true)), "1\nnosuid ");
    assert_eq!(options(bound(&shared, "/data", |path| (path.dev, path.suid) = (true, true))), "1\n");
    let device = with(&[bound(&zero, "/zero", |path| path.dev = true)], of_host(run("head -c 3 /zero | wc -c")));
    assert_eq!(said(&daemon, device), "3\n");
}

/// CRI rule C24: an entry may be a file. Only this file can be mounted: as controls, its neighbor and an entry that is
/// a link are refused.
#[test]
fn entry_may_be_a_file() {
    let (lent, rootfs) = (Lent::new(), Rootfs::busybox());
    let dir = lent.path("shared");
    let (file, other, link) = (dir.join("hosts"), dir.join("other"), dir.join("link"));
    fs::write(&file, "lent\n").unwrap();
    fs::write(&other, "secret\n").unwrap();
    symlink("other", &link).unwrap();
    let daemon = daemon(&[&file, &link].map(|path| entry(path, "")).join(", "));
    let run = |script: &str| sh(script).rootfs(&rootfs.reference());
    let volumes = [of_path(&file, "/etc/hosts"), of_path(&file, "/data/a")];
    assert_eq!(said(&daemon, with(&volumes, run("cat /etc/hosts /data/a; echo new >/data/a"))), "lent\nlent\n");
    assert_eq!(fs::read_to_string(&file).unwrap(), "new\n");
    let within = VolumeMount { sub_path: "a".into(), ..of_path(&file, "/data") };
    for (volume, field, words) in [
        (of_path(&other, "/data"), "host_path.path", "policy.host_paths"),
        (of_path(&dir, "/data"), "host_path.path", "policy.host_paths"),
        (of_path(&link, "/data"), "host_path.path", "symbolic link"),
        (of_path(&file.join("a"), "/data"), "host_path.path", "Not a directory"),
        (within, "sub_path", "Not a directory"),
    ] {
        let (_, violations) = refused(&daemon, with(std::slice::from_ref(&volume), run("true")));
        assert_eq!(violations[0].0, format!("volumes[0].{field}"), "{volume:?}: {violations:?}");
        assert!(violations[0].1.contains(words), "{violations:?}");
    }
}

/// CRI rule G2: a container can have as many volumes as a request may have, even with ids of its own. As a control, one
/// more volume is refused.
#[test]
fn as_many_volumes_as_allowed_are_mounted() {
    let (lent, rootfs) = (Lent::new(), Rootfs::busybox());
    let shared = lent.path("shared");
    fs::write(shared.join("mark"), "").unwrap();
    let daemon = daemon(&entry(&shared, ""));
    let volumes: Vec<_> = (0..=VOLUMES_MAX).map(|index| of_path(&shared, &format!("/data/{index}"))).collect();
    let run = || sh("ls /data/*/mark | wc -l").rootfs(&rootfs.reference());
    assert_eq!(said(&daemon, with(&volumes[1..], run())), format!("{VOLUMES_MAX}\n"));
    assert_eq!(said(&daemon, with(&volumes[1..], of_host(run()))), format!("{VOLUMES_MAX}\n"));
    let (code, violations) = refused(&daemon, with(&volumes, run()));
    assert_eq!((code, &*violations[0].0), (Code::InvalidArgument, "volumes"), "{violations:?}");
}

/// CRI rule C24: a link is followed only with `follow_links`. The entry for the path of its destination then applies.
/// Links in a sub-path are never followed.
#[test]
fn link_requires_entry_for_destination() {
    let (lent, rootfs) = (Lent::new(), Rootfs::busybox());
    let (shared, deps) = (lent.path("shared"), lent.path("deps"));
    fs::create_dir(shared.join("dir")).unwrap();
    fs::create_dir(lent.path("outside")).unwrap();
    for (dir, mark) in [(shared.join("dir"), "inner"), (deps.clone(), "library"), (lent.path("outside"), "secret")] {
        fs::write(dir.join("mark"), format!("{mark}\n")).unwrap();
    }
    for (name, target) in
        [("in", "dir"), ("deps", "../deps"), ("out", "../outside"), ("again", "out/mark"), ("magic", "/proc/self/root")]
    {
        symlink(target, shared.join(name)).unwrap();
    }
    let daemon = daemon(&format!("'{}', {}", shared.display(), entry(&deps, ", read_only = true")));
    let run = || sh("cat /data/mark || cat /data").rootfs(&rootfs.reference());
    let follow = |name: &str| bound(&shared.join(name), "/data", |path| path.follow_links = true);
    assert_eq!(said(&daemon, with(&[follow("in")], run())), "inner\n");
    assert_eq!(said(&daemon, with(&[read_only(follow("deps"))], run())), "library\n");
    assert_eq!(said(&daemon, with(&[follow("in/mark")], run())), "inner\n");
    let within = VolumeMount { sub_path: "in".into(), ..bound(&shared, "/data", |path| path.follow_links = true) };
    for (volume, field, words) in [
        (of_path(&shared.join("in"), "/data"), "host_path.path", "symbolic link"),
        (follow("deps"), "read_only", "policy.host_paths"),
        (follow("out"), "host_path.path", "policy.host_paths"),
        (follow("again"), "host_path.path", "policy.host_paths"),
        (follow("magic/etc"), "host_path.path", "symbolic link"),
        (follow("missing"), "host_path.path", "No such file"),
        (within, "sub_path", "symbolic link"),
    ] {
        let (code, violations) = refused(&daemon, with(std::slice::from_ref(&volume), run()));
        let expected = (Code::FailedPrecondition, format!("volumes[0].{field}"));
        assert_eq!((code, violations[0].0.clone()), expected, "{volume:?}: {violations:?}");
        assert!(violations[0].1.contains(words), "{violations:?}");
    }
}

/// CRI rule C24: while a directory is swapped with a link to another, a container sees the directory or is refused. As
/// a control, containers see the other directory if the policy lists it.
#[test]
fn swapped_link_never_gives_another_file() {
    let (lent, rootfs) = (Lent::new(), Rootfs::busybox());
    let (shared, secret) = (lent.path("shared"), lent.path("secret"));
    let (dir, link) = (shared.join("dir"), shared.join("link"));
    for (dir, mark) in [(&dir, "mine"), (&secret, "secret")] {
        fs::create_dir(dir).unwrap();
        fs::write(dir.join("mark"), format!("{mark}\n")).unwrap();
    }
    symlink(&secret, &link).unwrap();
    let mut seen: Vec<(bool, usize, usize, usize)> = Vec::new();
    for (is_listed, count) in [(false, 200), (true, 40)] {
        let more = if is_listed { format!(", '{}'", secret.display()) } else { String::new() };
        let daemon = daemon(&format!("'{}'{more}", shared.display()));
        let race = Exchange::start(vec![(dir.clone(), link.clone())]);
        let (mut mine, mut refusals, mut others) = (0, 0, 0);
        for number in 0..count {
            let volume = bound(&dir, "/data", |path| path.follow_links = number % 4 != 0);
            let request = with(&[volume], sh("cat /data/mark").rootfs(&rootfs.reference()));
            match daemon.api.run(request) {
                Ok(response) => {
                    let id = response.container.unwrap().id;
                    daemon.api.wait(&id).unwrap();
                    match &*daemon.api.output(&id).text() {
                        "mine\n" => mine += 1,
                        _ => others += 1,
                    }
                    daemon.api.delete(&id, true).unwrap();
                }
                Err(status) => {
                    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
                    refusals += 1;
                }
            }
        }
        assert!(race.stop() > count);
        seen.push((is_listed, mine, refusals, others));
    }
    assert!(matches!(seen[..], [(_, 1.., 1.., 0), (_, _, _, 1..)]), "{seen:?}");
}

/// CRI rule C24: a volume replaces a file or directory that the executor makes in each container, even if the image has
/// a link there. Inner volumes are mounted after outer volumes. As a control, the files are the executor's without
/// volumes.
#[test]
fn files_of_the_executor_are_replaced() {
    let (lent, rootfs) = (Lent::new(), Rootfs::busybox());
    let shared = lent.path("shared");
    for name in ["hosts", "resolv.conf", "hostname", "log", "inner"] {
        fs::write(shared.join(name), format!("mine {name}\n")).unwrap();
    }
    fs::create_dir_all(shared.join("shm/sub")).unwrap();
    symlink("/outside", rootfs.path().join("etc/resolv.conf")).unwrap();
    let daemon = daemon(&format!("'{}'", shared.display()));
    let before = daemon.footprint();
    let run = |script: &str| sh(script).rootfs(&rootfs.reference());
    let reads = "cat /etc/hosts /etc/resolv.conf /etc/hostname /dev/termination-log 2>/dev/null; ls /dev/shm; true";
    let volumes = [
        of_path(&shared.join("inner"), "/data/sub/inner"),
        of_path(&shared.join("shm"), "/data"),
        of_path(&shared.join("hosts"), "/etc/hosts"),
        of_path(&shared.join("resolv.conf"), "/etc/resolv.conf"),
        read_only(of_path(&shared.join("hostname"), "/etc/hostname")),
        of_path(&shared.join("log"), "/dev/termination-log"),
        of_path(&shared.join("shm"), "/dev/shm"),
        of_path(&shared.join("shm"), "/dev/own/shm"),
    ];
    fs::write(shared.join("shm/sub/inner"), "hidden\n").unwrap();
    let script = format!("{reads}; cat /data/sub/inner; ls /dev/own/shm; echo end >/dev/termination-log");
    let mine = "mine hosts\nmine resolv.conf\nmine hostname\nmine log\nsub\nmine inner\nsub\n";
    assert_eq!(said(&daemon, with(&volumes, run(&script))), mine);
    assert_eq!(fs::read_to_string(shared.join("log")).unwrap(), "end\n");
    assert_eq!(fs::read_to_string(shared.join("hosts")).unwrap(), "mine hosts\n", "the host's file");
    let control = said(&daemon, run(reads));
    assert!(
        control.contains("127.0.0.1") && !control.contains("mine"),
        "control failed: the files are not the default ones: {control}"
    );
    for path in ["/etc", "/dev", "/dev/null", "/dev/pts", "/dev/shm/x", "/dev/a/b/c/d/e"] {
        let (code, violations) = refused(&daemon, with(&[of_path(&shared, path)], run("true")));
        assert_eq!((code, &*violations[0].0), (Code::InvalidArgument, "volumes[0].path"), "{path}");
    }
    // Below /dev the attributes of a mount cannot be locked.
    let fixed = with(&[read_only(of_path(&shared, "/dev/own"))], RunRequest { privileged: true, ..run("true") });
    let (code, violations) = refused(&daemon, fixed);
    assert_eq!((code, &*violations[0].0), (Code::InvalidArgument, "volumes[0].read_only"), "{violations:?}");
    let fixed =
        with(&[read_only(of_path(&shared, "/dev/own"))], run("echo >/dev/own/x 2>/dev/null || ls /dev/own | wc -l"));
    assert_eq!(said(&daemon, fixed), "6\n");
    assert_eq!(names(&shared.join("shm")), ["sub"]);
    daemon.wait_until_back_at(&before);
}

/// CRI rules C24 and C25: an entry that is only a path permits neither propagation nor suid nor dev. The error names
/// the key and the value. The launcher has its own entries. As a control, an entry that lists `suid` permits it.
#[test]
fn entry_permits_only_what_it_names() {
    let (lent, rootfs) = (Lent::new(), Rootfs::busybox());
    let shared = lent.path("shared");
    let reference = rootfs.reference();
    let closed = daemon(&format!("'{}'", shared.display()));
    let change = |name: &'static str| {
        move |path: &mut HostPath| match name {
            "suid" => path.suid = true,
            "dev" => path.dev = true,
            _ => (path.recursive, path.propagation) = (true, 1),
        }
    };
    let values =
        [("suid", "`suid = true`"), ("dev", "`dev = true`"), ("propagation", "propagation = \"host-to-container\"")];
    for (name, value) in values {
        let request = with(&[bound(&shared, "/data", change(name))], sh("true").rootfs(&reference));
        let (code, violations) = refused(&closed, request);
        assert_eq!((code, violations[0].0.clone()), (Code::InvalidArgument, format!("volumes[0].host_path.{name}")));
        assert!(violations[0].1.contains("policy.host_paths") && violations[0].1.contains(value), "{violations:?}");
    }
    drop(closed);
    let config = lent.path("executor.toml");
    let narrow = [entry(&shared, ", suid = true"), entry(&lent.path("deps"), ", read_only = true")].join(", ");
    fs::write(&config, format!("[policy]\nhost_paths = [{narrow}]\n")).unwrap();
    let launcher = Launcher::start(&["--config", config.to_str().unwrap()]);
    let rule = |name: &str| HostPathRule {
        path: lent.path(name),
        propagation: Propagation::Bidirectional,
        suid: true,
        dev: true,
        ..HostPathRule::default()
    };
    // The policy of a daemon that falsely allows more.
    let wide = Policy { host_paths: vec![rule("shared"), rule("deps")], ..Policy::default() };
    let plan = |id: &str, asked: PlannedPath| -> Plan {
        let source = VolumeSource::HostPath(asked);
        let volumes = vec![Volume { path: "/data".into(), source, sub_path: PathBuf::new(), read_only: false }];
        let draft =
            Draft { id, path: "/bin/true", rootfs: &reference, memory_bytes: 64 << 20, volumes, ..Draft::default() };
        validate(&draft, &wide).unwrap()
    };
    let asked = |name: &str| PlannedPath { path: lent.path(name), ..PlannedPath::default() };
    for (id, asked, field) in
        [("dev", PlannedPath { dev: true, ..asked("shared") }, "host_path.dev"), ("write", asked("deps"), "read_only")]
    {
        let shim = launcher.launch(&plan(id, asked), &Payload::default()).unwrap();
        let refused = shim.reach(State::Running).unwrap_err();
        let expected = (Reason::Invalid as i32, format!("volumes[0].{field}"));
        assert_eq!((refused.reason, refused.violations[0].field.clone()), expected, "{refused:?}");
    }
    let permitted = plan("control", PlannedPath { suid: true, ..asked("shared") });
    launcher.launch(&permitted, &Payload::default()).unwrap().reach(State::Completed).unwrap();
}

/// Set-user-id programs that a container leaves, including in mounts below the path, must be out of reach for users of
/// the host, unless the entry permits them. As a control, the mount is accepted in a directory that only root can
/// access.
#[test]
fn submounts_with_set_user_id_are_refused() {
    let (lent, rootfs) = (Lent::new(), Rootfs::busybox());
    let shared = lent.path("shared");
    let home = shared.parent().unwrap();
    let _outer = Tmpfs::mount(&shared, 1 << 20);
    set(&shared, MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_NOSUID);
    let inner = shared.join("sub");
    let _inner = Tmpfs::mount(&inner, 1 << 20);
    let request = || {
        let volume = bound(&shared, "/data", |path| path.recursive = true);
        with(&[volume], sh("echo >/data/sub/x").rootfs(&rootfs.reference()))
    };
    fs::set_permissions(home, fs::Permissions::from_mode(0o755)).unwrap();
    let daemon = daemon(&format!("'{}'", shared.display()));
    let (code, violations) = refused(&daemon, request());
    assert_eq!((code, &*violations[0].0), (Code::FailedPrecondition, "volumes[0].host_path.path"), "{violations:?}");
    assert!(violations[0].1.contains("`suid = true`"), "{violations:?}");
    fs::set_permissions(home, fs::Permissions::from_mode(0o700)).unwrap();
    said(&daemon, request());
    fs::set_permissions(home, fs::Permissions::from_mode(0o755)).unwrap();
    set(&inner, MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_NOSUID);
    said(&daemon, request());
    set(&inner, MsFlags::MS_REMOUNT | MsFlags::MS_BIND);
    drop(daemon);
    said(&self::daemon(&entry(&shared, ", suid = true")), request());
    wait::until("the file of the containers", || inner.join("x").exists().then_some(()));
}
