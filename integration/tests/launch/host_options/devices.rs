//! Devices of the operator's list, and attempts to access other devices. Each test has its own device nodes in a
//! directory below /dev (CRI rules G10 and C26 of docs/guides/cri-rules.md).

use std::os::unix::fs::{FileTypeExt as _, symlink};
use std::path::{Path, PathBuf};

use executor_core::lifecycle::State;
use executor_core::plan::{Device, HostDevice, HostOptions, Plan, Ulimit};
use executor_core::protocol::Reason;
use executor_core::validate::{Draft, Policy, validate};
use executor_proto::v1::{Capabilities, DeviceMount, RunRequest, UserNamespace};
use integration::daemon::{Daemon, Setup};
use integration::launcher::{Launcher, Payload};
use integration::race::Exchange;
use integration::request::{RequestBuilder as _, sh, sleeper};
use integration::streams::{executed, script};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use tempfile::TempDir;
use tonic::Code;

use super::{printed, refused, step};

/// Device numbers of /dev/fuse, which can be opened without side effects, and of the control device for loop devices.
const FUSE: (u32, u32) = (10, 229);
const LOOP_CONTROL: (u32, u32) = (10, 237);
/// Shell function that opens a file for reading, for writing and for both, and prints each mode that succeeds.
const OPENS: &str =
    "opens() { for how in '<' '>' '<>'; do (eval \"exec 3$how $1\") 2>/dev/null && echo \"$how\"; done; true; }; ";

/// Device nodes of a test on the host.
struct Nodes(TempDir);

impl Nodes {
    fn new() -> Self {
        let nodes = Self(tempfile::Builder::new().prefix("executor-test-").tempdir_in("/dev").unwrap());
        nodes.make("fuse", FUSE);
        nodes
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Creates a device node that only host root can open.
    fn make(&self, name: &str, (major, minor): (u32, u32)) {
        let mode = Mode::from_raw_mode(0o600);
        mknodat(CWD, self.path(name), FileType::CharacterDevice, mode, makedev(major, minor)).unwrap();
    }

    fn listed(&self, name: &str, permissions: &str) -> String {
        let path = self.path(name);
        format!("[[devices]]\nname = \"{name}\"\npath = \"{}\"\npermissions = \"{permissions}\"\n", path.display())
    }

    fn daemon(&self) -> Daemon {
        Setup::default().config(&self.listed("fuse", "rw")).start()
    }
}

fn device(name: &str, path: &str, permissions: &str) -> DeviceMount {
    DeviceMount { name: name.into(), path: path.into(), permissions: permissions.into(), ..DeviceMount::default() }
}

fn with(devices: &[DeviceMount], request: RunRequest) -> RunRequest {
    RunRequest { devices: devices.to_vec(), ..request }
}

/// Every process of the container, under any user, can open its device with exactly the permissions of the request. No
/// process can change the node. As a control, a container without devices has no node.
#[test]
fn device_is_opened_with_its_permissions() {
    let nodes = Nodes::new();
    let daemon = nodes.daemon();
    let before = daemon.footprint();
    for user in ["root", "vcap"] {
        for (permissions, expected) in [("", "<\n>\n<>\n"), ("rw", "<\n>\n<>\n"), ("r", "<\n"), ("w", ">\n")] {
            let id = format!("{user}-{permissions}-x");
            let request = sh(&format!("{OPENS} opens /dev/data/fuse")).id(&id).user(user);
            let request = with(&[device("fuse", "/dev/data/fuse", permissions)], request);
            assert_eq!(printed(&daemon, request), expected, "{user} {permissions}");
            daemon.api.delete(&id, true).unwrap();
        }
    }
    let change = "exec 2>/dev/null; chmod 666 /dev/f; chown 0 /dev/f; rm /dev/f; mv /dev/f /dev/g; umount /dev/f; \
                  stat -c '%a %F' /dev/f";
    let change = with(&[device("fuse", "/dev/f", "r")], sh(change).id("change"));
    assert_eq!(printed(&daemon, change), "444 character special file\n");
    let none = sh(&format!("{OPENS} mknod /dev/f c 10 229 2>/dev/null || echo refused; opens /dev/f; ls /dev/data"));
    let none = daemon.api.run_to_end(none.id("none"));
    assert!(daemon.api.output(&none.id).text().starts_with("refused\n"), "control failed");
    for id in ["change", "none"] {
        daemon.api.delete(id, true).unwrap();
    }
    daemon.wait_until_back_at(&before);
}

/// Executed processes and steps have the device, and the response contains the default values of unset fields.
#[test]
fn executed_processes_and_steps_have_it() {
    let nodes = Nodes::new();
    let daemon = nodes.daemon();
    let opens = format!("{OPENS} opens /dev/f");
    let container = daemon.api.started(with(&[device("fuse", "/dev/f", "")], sleeper("exec")));
    assert_eq!(container.spec.unwrap().devices, [device("fuse", "/dev/f", "rw")]);
    assert_eq!(executed(&daemon.api, script("exec", &opens)).unwrap().text(), "<\n>\n<>\n");
    let devices = [device("fuse", "/dev/f", "r")];
    assert_eq!(printed(&daemon, with(&devices, step("step", &opens))), "<\n");
    let listed: Vec<_> = daemon.api.info().devices.into_iter().map(|one| (one.name, one.permissions)).collect();
    assert_eq!(listed, [("fuse".to_owned(), "rw".to_owned())]);
}

/// The maximum number of devices with paths of maximum depth fits into the container's /dev.
#[test]
fn maximum_number_of_devices_fits() {
    let nodes = Nodes::new();
    let devices: Vec<_> = (0..24).map(|n| device("fuse", &format!("/dev/{n}/a/b/fuse"), "")).collect();
    let count = RunRequest { terminal: true, ..sh("ls /dev/*/a/b/fuse | wc -l").id("all") }.file("a", b"12345678");
    assert_eq!(printed(&nodes.daemon(), with(&devices, count)), "24\r\n");
}

/// Unlisted devices, permissions that the list does not grant, and paths outside of /dev are all reported in one
/// refusal.
#[test]
fn unlisted_devices_are_refused() {
    let nodes = Nodes::new();
    let daemon = nodes.daemon();
    let asked = [
        device("mem", "/dev/mem", "r"),
        device("fuse", "/dev/f", "rwm"),
        device("fuse", "/etc/shadow", ""),
        device("fuse", "/dev/../etc/x", ""),
        device("fuse", "/dev/null", ""),
        device("/dev/kmsg", "", ""),
    ];
    let (code, violations) = refused(&daemon, with(&asked, sh("true").id("all")));
    let fields: Vec<&str> = violations.iter().map(|(field, _)| &**field).collect();
    let expected = [
        "devices[0].name",
        "devices[1].permissions",
        "devices[2].path",
        "devices[3].path",
        "devices[4].path",
        "devices[5].name",
    ];
    assert_eq!((code, &fields[..]), (Code::InvalidArgument, &expected[..]));
    assert!(violations[0].1.contains("fuse") && violations[1].1.contains("\"rw\""), "{violations:?}");
    let bare = Daemon::start();
    let (_, violations) = refused(&bare, with(&asked[..1], sh("true").id("none")));
    assert!(violations[0].1.contains("[[devices]]"), "{violations:?}");
}

/// If a link replaces the device node or a directory above it, the device is refused; a running container keeps its
/// device. As a control, the node itself is accepted.
#[test]
fn exchanged_nodes_lead_nowhere() {
    let nodes = Nodes::new();
    let other = nodes.path("other");
    std::fs::create_dir(&other).unwrap();
    nodes.make("other/below", FUSE);
    let list = nodes.listed("fuse", "rw") + &nodes.listed("other/below", "rw").replacen("other/below", "below", 1);
    let daemon = Setup::default().config(&list).start();
    let request = |name: &str, id: &str| with(&[device(name, "/dev/f", "")], sleeper(id));
    for name in ["fuse", "below"] {
        daemon.api.started(request(name, name));
    }
    let before = daemon.footprint();
    let stat = "stat -c '%t %T' /dev/f";
    assert_eq!(executed(&daemon.api, script("fuse", stat)).unwrap().text(), "a e5\n", "control failed");
    std::fs::remove_file(nodes.path("fuse")).unwrap();
    let expect = |name: &str, words: &str| {
        let (code, violations) = refused(&daemon, request(name, "refused"));
        assert_eq!((code, &*violations[0].0), (Code::FailedPrecondition, "devices[0].name"), "{violations:?}");
        assert!(violations[0].1.contains(words), "{violations:?}");
    };
    expect("fuse", "No such file or directory");
    symlink("/dev/loop-control", nodes.path("fuse")).unwrap();
    expect("fuse", "the path contains a symbolic link");
    std::fs::remove_file(nodes.path("fuse")).unwrap();
    std::fs::write(nodes.path("fuse"), "x").unwrap();
    expect("fuse", "is not a device node");
    std::fs::rename(&other, nodes.path("moved")).unwrap();
    symlink(nodes.path("moved"), &other).unwrap();
    expect("below", "the path contains a symbolic link");
    daemon.wait_until_back_at(&before);
    std::fs::remove_file(nodes.path("fuse")).unwrap();
    nodes.make("fuse", LOOP_CONTROL);
    assert_eq!(executed(&daemon.api, script("fuse", stat)).unwrap().text(), "a e5\n", "pinned at the launch");
}

/// A container with the host's user namespace and CAP_MKNOD can create any device node, but its device cgroup lets it
/// open only its own device. As a control, its own device can be opened through such a node.
#[test]
fn other_devices_stay_closed() {
    if !Path::new("/sys/fs/cgroup/devices").exists() {
        return; // cgroup v2 has no device cgroup here: docs/security-limits.md
    }
    let nodes = Nodes::new();
    let config = "[policy]\nallow_host_userns = true\n".to_owned() + &nodes.listed("fuse", "rw");
    let daemon = Setup::default().config(&config).start();
    let script = format!(
        "{OPENS} mknod /dev/same c 10 229 && mknod /dev/other c 10 237 && mknod /dev/disk b 7 7 && echo made; \
         echo given; opens /dev/f; echo same; opens /dev/same; echo other; opens /dev/other; opens /dev/disk"
    );
    let request = |id: &str, permissions: &str| RunRequest {
        user_namespace: UserNamespace::Host.into(),
        capabilities: Some(Capabilities { add: vec!["MKNOD".into()], drop: vec![] }),
        ..with(&[device("fuse", "/dev/f", permissions)], sh(&script).id(id))
    };
    let all = "<\n>\n<>\n";
    assert_eq!(printed(&daemon, request("both", "rw")), format!("made\ngiven\n{all}same\n{all}other\n"));
    // In this container, root is host root, and its capabilities bypass the permissions of a node.
    assert_eq!(printed(&daemon, request("read", "r")), "made\ngiven\n<\nsame\n<\nother\n");
}

/// The container's nodes are on a file system that is not mounted in the mount namespaces of the host and the launcher.
#[test]
fn host_device_node_is_not_changed() {
    let nodes = Nodes::new();
    let daemon = nodes.daemon();
    let before = daemon.footprint();
    daemon.api.started(with(&[device("fuse", "/dev/f", "")], sleeper("a")));
    assert_eq!(daemon.footprint().mounts, before.mounts);
    let meta = std::fs::metadata(nodes.path("fuse")).unwrap();
    assert!(meta.file_type().is_char_device());
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&meta) & 0o777, 0o600);
    daemon.api.delete("a", true).unwrap();
    daemon.wait_until_back_at(&before);
}

/// The launcher's own configuration limits a compromised executord: devices that it does not list and other privileges
/// that it does not allow are refused. As a control, allowed requests succeed.
#[test]
fn launcher_has_its_own_list() {
    let nodes = Nodes::new();
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), nodes.listed("fuse", "r")).unwrap();
    let launcher = Launcher::start(&["--config", config.path().to_str().unwrap()]);
    let of_daemon = |name: &str| HostDevice { name: name.into(), path: "/dev/mem".into(), permissions: "rwm".into() };
    // The policy of a daemon that falsely allows everything.
    let policy = Policy {
        devices: vec![of_daemon("mem"), of_daemon("fuse")],
        apparmor_profiles: vec!["unconfined".into()],
        oom_score_adj_min: -1000,
        swap_bytes_max: -1,
        ulimits_max: [("rtprio".to_owned(), -1)].into(),
        ..Policy::default()
    };
    let plan = |id: &str, host_options: HostOptions, swap_bytes: Option<i64>| -> Plan {
        let draft =
            Draft { id, path: "/bin/true", memory_bytes: 64 << 20, host_options, swap_bytes, ..Draft::default() };
        validate(&draft, &policy).unwrap()
    };
    let with = |name: &str, permissions: &str| HostOptions {
        devices: vec![Device {
            name: name.into(),
            path: "/dev/f".into(),
            permissions: permissions.into(),
            ..Device::default()
        }],
        ..HostOptions::default()
    };
    let confined = HostOptions { apparmor_profile: "unconfined".into(), ..HostOptions::default() };
    let scored = HostOptions { oom_score_adj: Some(-1000), ..HostOptions::default() };
    let limited = Ulimit { name: "rtprio".into(), soft: 99, hard: 99 };
    let limited = HostOptions { ulimits: vec![limited], ..HostOptions::default() };
    for (id, options, swap, field) in [
        ("mem", with("mem", "r"), None, "devices[0].name"),
        ("more", with("fuse", "rw"), None, "devices[0].permissions"),
        ("confined", confined, None, "apparmor_profile"),
        ("scored", scored, None, "oom_score_adj"),
        ("swap", HostOptions::default(), Some(-1), "limits.swap_bytes"),
        ("limited", limited, None, "ulimits[0].hard"),
    ] {
        let shim = launcher.launch(&plan(id, options, swap), &Payload::default()).unwrap();
        let refused = shim.reach(State::Running).unwrap_err();
        let expected = if id == "limited" { Reason::Precondition } else { Reason::Invalid };
        assert_eq!((refused.reason, &*refused.violations[0].field), (expected as i32, field), "{refused:?}");
    }
    let mut forged = plan("forged", with("fuse", "r"), None);
    forged.host_options.devices[0].path = "/dev/../etc/passwd".into();
    let refused = launcher.launch(&forged, &Payload::default()).unwrap().reach(State::Running).unwrap_err();
    assert_eq!(&*refused.violations[0].field, "devices[0].path", "{refused:?}");
    let shim = launcher.launch(&plan("control", with("fuse", "r"), None), &Payload::default()).unwrap();
    shim.reach(State::Completed).unwrap();
}

/// CRI rule C26: a device of `policy.device_paths` is requested by its path, and a directory includes the nodes below
/// it. Other devices cannot be opened. The error for a path that is not listed names the key. As a control, a node that
/// is not requested is absent.
#[test]
fn devices_by_path_are_those_listed() {
    let nodes = Nodes::new();
    std::fs::create_dir_all(nodes.path("set/deep")).unwrap();
    nodes.make("set/fuse", FUSE);
    nodes.make("set/deep/fuse", FUSE);
    symlink("/dev/loop-control", nodes.path("set/link")).unwrap();
    std::fs::write(nodes.path("set/file"), "").unwrap();
    nodes.make("other", LOOP_CONTROL);
    let by_path = |name: &str, path: &str, permissions: &str| {
        let host_path = nodes.path(name).display().to_string();
        DeviceMount { host_path, ..device("", path, permissions) }
    };
    let bare = Daemon::start();
    let (code, violations) = refused(&bare, with(&[by_path("fuse", "/dev/f", "")], sh("true").id("bare")));
    assert_eq!((code, &*violations[0].0), (Code::InvalidArgument, "devices[0].host_path"));
    assert!(violations[0].1.contains("policy.device_paths"), "{violations:?}");
    drop(bare);
    let listed = format!("device_paths = ['{}', '{}']", nodes.path("fuse").display(), nodes.path("set").display());
    let daemon = Setup::default().config(&format!("[policy]\n{listed}\n")).start();
    let before = daemon.footprint();
    for (permissions, expected) in [("", "<\n>\n<>\n"), ("rw", "<\n>\n<>\n"), ("r", "<\n"), ("w", ">\n")] {
        let id = format!("node-{permissions}");
        let request = with(&[by_path("fuse", "/dev/f", permissions)], sh(&format!("{OPENS} opens /dev/f")).id(&id));
        assert_eq!(printed(&daemon, request), expected, "{permissions}");
        daemon.api.delete(&id, true).unwrap();
    }
    let list =
        "cd /dev/own && find . | sort && stat -c '%t %T' deep/fuse && ls /dev/f /dev/loop-control 2>/dev/null; true";
    let directory = with(&[by_path("set", "/dev/own", "")], sh(list).id("set"));
    assert_eq!(printed(&daemon, directory), ".\n./deep\n./deep/fuse\n./fuse\na e5\n");
    assert_eq!(daemon.api.get("set").unwrap().spec.unwrap().devices, [by_path("set", "/dev/own", "rw")]);
    daemon.api.delete("set", true).unwrap();
    let cases = [
        (by_path("other", "/dev/f", ""), Code::InvalidArgument, "devices[0].host_path"),
        (by_path("fuse-not", "/dev/f", ""), Code::InvalidArgument, "devices[0].host_path"),
        (by_path("set/../other", "/dev/f", ""), Code::InvalidArgument, "devices[0].host_path"),
        (by_path("fuse", "/etc/f", ""), Code::InvalidArgument, "devices[0].path"),
        (by_path("fuse", "/dev/f", "x"), Code::InvalidArgument, "devices[0].permissions"),
        (
            DeviceMount { name: "fuse".into(), ..by_path("fuse", "/dev/f", "") },
            Code::InvalidArgument,
            "devices[0].host_path",
        ),
        (by_path("set/link", "/dev/f", ""), Code::FailedPrecondition, "devices[0].host_path"),
        (by_path("set/file", "/dev/f", ""), Code::FailedPrecondition, "devices[0].host_path"),
        (by_path("set/none", "/dev/f", ""), Code::FailedPrecondition, "devices[0].host_path"),
    ];
    for (device, expected, field) in cases {
        let (code, violations) = refused(&daemon, with(std::slice::from_ref(&device), sh("true").id("refused")));
        assert_eq!((code, &*violations[0].0), (expected, field), "{device:?}: {violations:?}");
    }
    // Creates more nodes than a container's /dev can hold.
    for number in 0..100 {
        nodes.make(&format!("set/{number}"), FUSE);
    }
    let (code, violations) = refused(&daemon, with(&[by_path("set", "/dev/own", "")], sh("true").id("many")));
    assert_eq!(code, Code::FailedPrecondition);
    assert!(violations[0].1.contains("at most 96"), "{violations:?}");
    let cli = |device: &str| {
        let arguments = ["run", "--device", device, "--", "/bin/sh", "-c", "stat -c '%t %T' /dev/x"];
        integration::cli::run(&daemon.socket(), &arguments)
    };
    let ran = cli(&format!("{}:/dev/x:rw", nodes.path("fuse").display()));
    assert_eq!(ran.stdout, "a e5\n", "{ran:?}");
    let ran = cli(&format!("{}:/dev/x", nodes.path("other").display()));
    assert!(ran.stderr.contains("device_paths of [policy]"), "{ran:?}");
    daemon.wait_until_back_at(&before);
}

/// CRI rule C26: while a node is swapped with a link to another, a container gets the listed node or is refused. The
/// launcher has its own list. As a control, the container has the device without the race.
#[test]
fn swapped_device_path_gives_no_other() {
    let nodes = Nodes::new();
    symlink("/dev/loop-control", nodes.path("link")).unwrap();
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), format!("[policy]\ndevice_paths = ['{}']\n", nodes.path("fuse").display())).unwrap();
    let launcher = Launcher::start(&["--config", config.path().to_str().unwrap()]);
    let wide = Policy { device_paths: vec!["/dev".into()], ..Policy::default() };
    let plan = |id: &str, path: PathBuf| -> Plan {
        let device = Device { host_path: Some(path), path: "/dev/f".into(), ..Device::default() };
        let host_options = HostOptions { devices: vec![device], ..HostOptions::default() };
        let draft = Draft { id, path: "/bin/true", memory_bytes: 64 << 20, host_options, ..Draft::default() };
        validate(&draft, &wide).unwrap()
    };
    let forged = plan("forged", "/dev/mem".into());
    let refused = launcher.launch(&forged, &Payload::default()).unwrap().reach(State::Running).unwrap_err();
    let expected = (Reason::Invalid as i32, "devices[0].host_path");
    assert_eq!((refused.reason, &*refused.violations[0].field), expected, "{refused:?}");
    let control = plan("control", nodes.path("fuse"));
    launcher.launch(&control, &Payload::default()).unwrap().reach(State::Completed).unwrap();
    drop(launcher);
    let daemon = Setup::default().config(&std::fs::read_to_string(config.path()).unwrap()).start();
    let race = Exchange::start(vec![(nodes.path("fuse"), nodes.path("link"))]);
    let device = DeviceMount { host_path: nodes.path("fuse").display().to_string(), ..device("", "/dev/f", "") };
    let (mut given, mut refusals) = (0, 0);
    for _ in 0..60 {
        match daemon.api.run(with(std::slice::from_ref(&device), sh("stat -c '%t %T' /dev/f"))) {
            Ok(response) => {
                let id = response.container.unwrap().id;
                daemon.api.wait(&id).unwrap();
                assert_eq!(daemon.api.output(&id).text(), "a e5\n");
                given += 1;
            }
            Err(status) => {
                assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
                refusals += 1;
            }
        }
    }
    assert!(race.stop() > 60 && given > 0 && refusals > 0, "{given} {refusals}");
}
