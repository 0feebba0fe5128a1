//! Devices of the Container Device Interface (CDI). The test has its own directories of CDI files.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;

use executor_core::lifecycle::State;
use executor_core::plan::{Device, HostOptions};
use executor_core::validate::{Draft, Policy, validate};
use executor_proto::v1::{DeviceMount, RunRequest, Tmpfs};
use integration::cli;
use integration::daemon::{Daemon, Setup};
use integration::launcher::{Launcher, Payload};
use integration::request::{RequestBuilder as _, sh, sleeper};
use integration::rootfs::Rootfs;
use integration::streams::{executed, script};
use tempfile::TempDir;
use tonic::Code;

use super::{printed, refused, step};

const NAME: &str = "vendor.com/class=one";

/// Directories of CDI files, and the source of a mount.
struct Vendor {
    dir: TempDir,
    rootfs: Rootfs,
}

impl Vendor {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["etc", "run", "lib"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join("lib/driver"), "driver\n").unwrap();
        Self { dir, rootfs: Rootfs::busybox() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file that describes a device with a node, a mount and a variable. `more` adds edits to the device.
    fn write(&self, name: &str, more: &str) {
        let lib = self.path("lib");
        let text = format!(
            r#"{{"cdiVersion": "0.6.0", "kind": "vendor.com/class", "containerEdits": {{"env": ["VENDOR_ALL=yes"]}},
                "devices": [{{"name": "one", "containerEdits": {{
                    "env": ["VENDOR=one", "HOME=/vendor", "B=2"],
                    "deviceNodes": [{{"path": "/dev/vendor/zero", "hostPath": "/dev/zero", "permissions": "rw"}}],
                    "mounts": [
                        {{"hostPath": "{0}", "containerPath": "/opt/vendor/lib", "options": ["ro", "bind"]}},
                        {{"hostPath": "{0}/driver", "containerPath": "/opt/driver", "options": ["ro", "noexec"]}}
                    ]{more}}}}}]}}"#,
            lib.display()
        );
        fs::write(self.path(name), text).unwrap();
    }

    fn config(&self, devices: &str) -> String {
        let (etc, run) = (self.path("etc"), self.path("run"));
        format!("[policy]\ncdi_devices = [{devices}]\ncdi_spec_dirs = ['{}', '{}']\n", etc.display(), run.display())
    }

    fn daemon(&self) -> Daemon {
        Setup::default().config(&self.config("\"vendor.com/class=*\"")).start()
    }

    fn with(&self, request: RunRequest) -> RunRequest {
        let device = DeviceMount { name: NAME.into(), ..DeviceMount::default() };
        RunRequest { devices: vec![device], ..request }.rootfs(&self.rootfs.reference())
    }

    fn expect_refused(&self, daemon: &Daemon, words: &str) {
        let (code, violations) = refused(daemon, self.with(sh("true").id("refused")));
        assert_eq!((code, &*violations[0].0), (Code::FailedPrecondition, "devices[0].name"), "{violations:?}");
        assert!(violations[0].1.contains(words), "{words}: {violations:?}");
    }
}

/// Every process of the container gets the node, mounts and variables of a device; a variable in the request takes
/// precedence. As a control, a container without the device has none of them. After the exit nothing is left.
#[test]
fn device_brings_nodes_mounts_and_variables() {
    let vendor = Vendor::new();
    vendor.write("etc/vendor.json", r#", "additionalGids": [4242]"#);
    let daemon = vendor.daemon();
    let before = daemon.footprint();
    let shows = "head -c 2 /dev/vendor/zero | od -An -tx1; stat -c %F /dev/vendor/zero; cat /opt/vendor/lib/driver /opt/driver; \
                 echo x 2>/dev/null >/opt/vendor/lib/new || echo read-only; echo $VENDOR_ALL $VENDOR $B; id -G | grep -o 4242";
    let expected = " 00 00\ncharacter special file\ndriver\ndriver\nread-only\nyes one 1\n4242\n";
    for user in ["root", "1000"] {
        let id = format!("run-{user}");
        let request = vendor.with(sh(shows).id(&id).user(user)).env("B", "1");
        assert_eq!(printed(&daemon, request), expected, "{user}");
        daemon.api.delete(&id, true).unwrap();
    }
    let text = printed(&daemon, vendor.with(step("step", &format!("B=1; {shows}"))));
    assert_eq!(text, expected);
    let in_tmpfs = Tmpfs { path: "/opt".into(), size_bytes: 1 << 20, ..Tmpfs::default() };
    let request = RunRequest { tmpfs: vec![in_tmpfs], ..vendor.with(sh("cat /opt/driver; echo $HOME").id("tmpfs")) };
    assert_eq!(printed(&daemon, request), "driver\n/vendor\n", "the mount lies in the tmpfs");
    daemon.api.started(vendor.with(sleeper("exec")));
    let text = executed(&daemon.api, script("exec", &format!("B=1; {shows}"))).unwrap().text();
    assert_eq!(text, expected);
    let control = sh("ls /dev/vendor /opt/driver 2>&1 | wc -l; echo $VENDOR").id("none");
    assert_eq!(printed(&daemon, control.rootfs(&vendor.rootfs.reference())), "2\n\n", "control failed");
    for id in ["step", "tmpfs", "exec", "none"] {
        daemon.api.delete(id, true).unwrap();
    }
    daemon.wait_until_back_at(&before);
}

/// A CDI device is granted only if the configurations of executord and of the launcher both list it.
#[test]
fn devices_need_the_operators_list() {
    let vendor = Vendor::new();
    vendor.write("etc/vendor.json", "");
    for devices in ["", "\"vendor.com/class=two\", \"vendor.com/other=*\""] {
        let daemon = Setup::default().config(&vendor.config(devices)).start();
        let (code, violations) = refused(&daemon, vendor.with(sh("true").id("a")));
        assert_eq!((code, &*violations[0].0), (Code::InvalidArgument, "devices[0].name"), "{violations:?}");
        assert!(violations[0].1.contains("policy.cdi_devices"), "{violations:?}");
    }
    // A compromised executord ignores its own policy.
    let policy = Policy { cdi_devices: vec!["vendor.com/class=*".into()], ..Policy::default() };
    let device = Device { name: NAME.into(), ..Device::default() };
    let host_options = HostOptions { devices: vec![device], ..HostOptions::default() };
    let reference = vendor.rootfs.reference();
    let draft = |id| {
        let draft = Draft { id, path: "/bin/true", rootfs: &reference, memory_bytes: 64 << 20, ..Draft::default() };
        validate(&Draft { host_options: host_options.clone(), ..draft }, &policy).unwrap()
    };
    for (id, devices, allowed) in [("no", "", false), ("yes", "\"vendor.com/class=one\"", true)] {
        let config = tempfile::NamedTempFile::new().unwrap();
        fs::write(config.path(), vendor.config(devices)).unwrap();
        let launcher = Launcher::start(&["--config", config.path().to_str().unwrap()]);
        let shim = launcher.launch(&draft(id), &Payload::default()).unwrap();
        if allowed {
            shim.reach(State::Completed).unwrap();
        } else {
            let refused = shim.reach(State::Running).unwrap_err();
            assert_eq!(&*refused.violations[0].field, "devices[0].name", "{refused:?}");
        }
    }
}

/// Files that users other than root can change are ignored, and so are links. As a control, the same file is used if
/// its mode is 644.
#[test]
fn files_that_others_change_are_ignored() {
    let vendor = Vendor::new();
    vendor.write("etc/vendor.json", "");
    let daemon = vendor.daemon();
    let file = vendor.path("etc/vendor.json");
    let before = daemon.footprint();
    for mode in [0o664, 0o646] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        vendor.expect_refused(&daemon, &format!("has mode {mode:o}"));
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    fs::rename(&file, vendor.path("vendor.json")).unwrap();
    symlink(vendor.path("vendor.json"), &file).unwrap();
    vendor.expect_refused(&daemon, "is a symbolic link");
    fs::remove_file(&file).unwrap();
    vendor.expect_refused(&daemon, "no CDI file describes `");
    fs::rename(vendor.path("vendor.json"), &file).unwrap();
    fs::set_permissions(vendor.path("etc"), fs::Permissions::from_mode(0o775)).unwrap();
    vendor.expect_refused(&daemon, "has mode 775");
    fs::set_permissions(vendor.path("etc"), fs::Permissions::from_mode(0o755)).unwrap();
    daemon.wait_until_back_at(&before);
    assert_eq!(printed(&daemon, vendor.with(sh("cat /opt/driver").id("control"))), "driver\n");
}

/// A device is refused if two files of a directory describe it, if it needs hooks, or if its host paths do not exist.
/// If files in two directories describe the device, the file in the later directory takes precedence. YAML files are
/// read as well.
#[test]
fn conflicts_and_hooks_are_refused() {
    let vendor = Vendor::new();
    vendor.write("etc/a.json", "");
    vendor.write("etc/b.json", "");
    let daemon = vendor.daemon();
    let before = daemon.footprint();
    vendor.expect_refused(&daemon, "two CDI files in the same directory describe `");
    vendor.write("run/c.json", r#", "hooks": [{"hookName": "createContainer", "path": "/bin/true"}]"#);
    vendor.expect_refused(&daemon, "c.json: devices[one].containerEdits.hooks is not supported");
    vendor.write("run/c.json", r#", "intelRdt": {}"#);
    vendor.expect_refused(&daemon, "intelRdt is not supported");
    vendor.write("run/c.json", "");
    fs::rename(vendor.path("lib"), vendor.path("moved")).unwrap();
    vendor.expect_refused(&daemon, "lib: No such file or directory");
    symlink(vendor.path("moved"), vendor.path("lib")).unwrap();
    vendor.expect_refused(&daemon, "the path contains a symbolic link");
    let yaml = "cdiVersion: 0.5.0\nkind: vendor.com/class\ndevices:\n- name: one\n  containerEdits:\n    deviceNodes:\n    \
                - {path: /dev/zero0, type: c, major: 1, minor: 5, fileMode: 0640, uid: 0, gid: 7}\n";
    fs::remove_file(vendor.path("run/c.json")).unwrap();
    fs::write(vendor.path("run/c.yaml"), yaml).unwrap();
    let stat = vendor
        .with(sh("stat -c '%a %u %g %t %T' /dev/zero0; chmod 666 /dev/zero0 2>/dev/null || echo fixed").id("yaml"));
    assert_eq!(printed(&daemon, stat), "640 0 7 1 5\nfixed\n");
    fs::write(vendor.path("run/c.yaml"), yaml.replace("minor: 5", "minor: 5, hostPath: [")).unwrap();
    vendor.expect_refused(&daemon, "two CDI files");
    daemon.api.delete("yaml", true).unwrap();
    daemon.wait_until_back_at(&before);
}

#[test]
fn command_line_has_qualified_names() {
    let vendor = Vendor::new();
    vendor.write("etc/vendor.json", "");
    let daemon = vendor.daemon();
    let (socket, rootfs) = (daemon.socket(), vendor.rootfs.reference());
    let run = cli::run(
        &socket,
        &["run", "--keep", "--id", "a", "--device", NAME, "--rootfs", &rootfs, "--", "cat", "/opt/driver"],
    );
    assert_eq!((run.status, &*run.stdout), (0, "driver\n"), "{}", run.stderr);
    let devices = cli::run(&socket, &["inspect", "--json", "a"]).json()["spec"]["devices"].clone();
    assert_eq!(devices[0]["name"], NAME, "{devices}");
    assert!(cli::run(&socket, &["inspect", "a"]).stdout.contains(NAME));
    assert!(cli::run(&socket, &["info"]).stdout.contains("vendor.com/class=*"));
    assert_eq!(cli::run(&socket, &["info", "--json"]).json()["cdi_devices"][0], "vendor.com/class=*");
    for (flags, words) in [
        ("--gpus all", "nvidia.com/gpu=all"),
        ("--device vendor.com/class=", "the device name must be"),
        ("--gpus 0", "a number from 1"),
    ] {
        let line = format!("run {flags} -- true");
        let run = cli::run(&socket, &line.split_whitespace().collect::<Vec<_>>());
        assert!(run.status != 0 && run.stderr.contains(words), "{flags}: {}", run.stderr);
    }
}
