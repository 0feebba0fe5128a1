use super::*;
use crate::plan::HostOptions;
use crate::validate::{Draft, Policy, validate};

const FILE: &str = r#"{"cdiVersion": "0.7.0", "kind": "vendor.com/class",
    "containerEdits": {"env": ["ALL=1"], "deviceNodes": [{"path": "/dev/control"}]},
    "devices": [
        {"name": "one", "containerEdits": {"env": ["A=1"], "deviceNodes": [{"path": "/dev/one", "permissions": "r"}]}},
        {"name": "two", "containerEdits": {"env": ["A=2"], "additionalGids": [7, 7],
            "mounts": [{"hostPath": "/srv/lib", "containerPath": "/opt/lib", "options": ["ro", "nosuid", "rbind"]}]}}]}"#;

fn plan(devices: &[&str], draft: Draft<'_>) -> Plan {
    let device = |name: &&str| Device { name: (*name).to_owned(), ..Device::default() };
    let host_options = HostOptions { devices: devices.iter().map(device).collect(), ..HostOptions::default() };
    let policy = Policy { cdi_devices: vec!["vendor.com/class=*".into()], ..Policy::default() };
    validate(&Draft { id: "c1", path: "/bin/true", host_options, ..draft }, &policy).unwrap()
}

fn source(path: &str, directory: usize, text: &str) -> LocatedCdiFile {
    let file: CdiFile = serde_json::from_str(text).unwrap();
    file.check().unwrap();
    LocatedCdiFile { path: path.into(), directory, file }
}

fn refused(devices: &[&str], sources: &[LocatedCdiFile]) -> Vec<(String, String)> {
    let violations = resolve(&plan(devices, Draft::default()), sources, 65_535).unwrap_err();
    violations.into_iter().map(|one| (one.field, one.description)).collect()
}

#[test]
fn edits_of_devices_are_merged() {
    let plan = plan(&["vendor.com/class=one", "vendor.com/class=two"], Draft::default());
    let Edits { environment, nodes, mounts, groups } = resolve(&plan, &[source("/a", 0, FILE)], 65_535).unwrap();
    assert_eq!(environment, ["ALL=1", "A=2"]);
    let nodes: Vec<_> = nodes
        .iter()
        .map(|Edit { content: Node { node, permissions }, .. }| (node.path.to_str().unwrap(), permissions.to_string()))
        .collect();
    assert_eq!(nodes, [("/dev/control", "rw".to_owned()), ("/dev/one", "r".to_owned())]);
    let mount = HostMount { host_path: "/srv/lib".into(), path: "/opt/lib".into(), read_only: true, no_exec: false };
    assert_eq!(mounts, [Edit { device: 1, content: mount }]);
    assert_eq!(groups, [7]);
}

#[test]
fn later_directories_take_precedence() {
    let names = ["vendor.com/class=one"];
    let later = FILE.replace("A=1", "A=later");
    let sources = [source("/a", 0, FILE), source("/b", 1, &later)];
    assert_eq!(resolve(&plan(&names, Draft::default()), &sources, 1).unwrap().environment, ["ALL=1", "A=later"]);
    // Within one directory no file takes precedence.
    let why = refused(&names, &[source("/a", 1, FILE), source("/b", 1, &later)]).remove(0);
    assert!(why.0 == "devices[0].name" && why.1.contains("/a and /b"), "{why:?}");
    let twice = FILE.replace("\"two\"", "\"one\"");
    assert!(refused(&names, &[source("/a", 0, &twice)])[0].1.contains("two CDI files"));
    assert!(refused(&["vendor.com/class=none"], &sources)[0].1.contains("no CDI file"));
}

#[test]
fn unsupported_edits_are_refused() {
    let with = |edits: &str| FILE.replace("\"env\": [\"A=1\"]", edits);
    for (edits, words) in [
        (
            r#""hooks": [{"hookName": "createContainer", "path": "/bin/x"}]"#,
            "/a: devices[one].containerEdits.hooks is not",
        ),
        (r#""netDevices": [{"hostInterfaceName": "a", "name": "b"}]"#, "netDevices is not"),
        (r#""intelRdt": {"closID": "a"}"#, "intelRdt is not"),
        (r#""env": ["A"]"#, "env: has an entry"),
        (r#""env": ["=A"]"#, "env: has an entry"),
        (r#""mounts": [{"hostPath": "/a", "containerPath": "/proc/a"}]"#, "is under /proc"),
        (r#""mounts": [{"hostPath": "/a", "containerPath": "/etc"}]"#, "is reserved for the executor"),
        (r#""mounts": [{"hostPath": "a", "containerPath": "/a"}]"#, "hostPath: `a` is not valid"),
        (r#""mounts": [{"hostPath": "/a/../b", "containerPath": "/a"}]"#, "hostPath"),
        (r#""mounts": [{"hostPath": "/a", "containerPath": "/a", "type": "tmpfs"}]"#, "\"tmpfs\" is not supported"),
        (r#""mounts": [{"hostPath": "/a", "containerPath": "/a", "options": ["rshared"]}]"#, "\"rshared\" is not"),
        (
            r#""mounts": [{"hostPath": "/a", "containerPath": "/a"}, {"hostPath": "/b", "containerPath": "/a"}]"#,
            "conflicts",
        ),
        (r#""additionalGids": [65536]"#, "additionalGids: is 65536; the container's highest id is 65535"),
    ] {
        let why = refused(&["vendor.com/class=one"], &[source("/a", 0, &with(edits))]).remove(0);
        assert!(why.0 == "devices[0].name" && why.1.contains(words), "{edits}: {why:?}");
    }
    for (from, to, words) in [
        ("/dev/one", "/etc/one", "is not below /dev"),
        ("/dev/one", "/dev/null", "is already in the /dev"),
        ("/dev/one", "/dev/control", "conflicts with a node"),
        ("/dev/one", "/dev/control/x", "conflicts with a node"),
        ("\"r\"", "\"x\"", "permissions \"x\""),
        ("\"permissions\": \"r\"", "\"uid\": 70000", "has the uid or gid 70000"),
    ] {
        let why = refused(&["vendor.com/class=one"], &[source("/a", 0, &FILE.replace(from, to))]).remove(0);
        assert!(why.1.contains(words), "{to}: {why:?}");
    }
}

#[test]
fn every_fault_is_reported_with_its_device() {
    let file = FILE.replace("\"env\": [\"A=1\"]", "\"hooks\": [{}], \"env\": [\"A\"]");
    let faults = refused(&["vendor.com/class=none", "vendor.com/class=one"], &[source("/a", 0, &file)]);
    let fields: Vec<&str> = faults.iter().map(|(field, _)| &**field).collect();
    assert_eq!(fields, ["devices[0].name", "devices[1].name", "devices[1].name"], "{faults:?}");
}

#[test]
fn mounts_hide_no_secret_file() {
    let files = || vec![("f".to_owned(), "/opt/lib/key", 10).into()];
    let sources = [source("/a", 0, FILE)];
    let names = ["vendor.com/class=two"];
    let why = resolve(&plan(&names, Draft { files: files(), ..Draft::default() }), &sources, 1).unwrap_err();
    assert!(why.iter().any(|one| one.description.contains("secret files cannot be mounted")), "{why:?}");
    resolve(&plan(&["vendor.com/class=one"], Draft { files: files(), ..Draft::default() }), &sources, 1).unwrap();
}

#[test]
fn device_edits_above_limit_fail() {
    let many = |list: Vec<String>| list.join(",");
    let nodes = many((0..97).map(|n| format!("{{\"path\": \"/dev/n{n}\"}}")).collect());
    let mounts = many((0..257).map(|n| format!("{{\"hostPath\": \"/a\", \"containerPath\": \"/m{n}\"}}")).collect());
    let gids = many((0..65).map(|n| n.to_string()).collect());
    let long = "x".repeat(32 << 10);
    for (edits, words) in [
        (format!("\"deviceNodes\": [{nodes}]"), "have 97 device nodes"),
        (format!("\"mounts\": [{mounts}]"), "have 257 mounts"),
        (format!("\"additionalGids\": [{gids}]"), "have 65 groups"),
        (format!("\"env\": [\"A={long}\"]"), "bytes of environment variables"),
    ] {
        let text = format!(
            "{{\"cdiVersion\": \"1.0.0\", \"kind\": \"vendor.com/class\", \"devices\": [{{\"name\": \"a\", \"containerEdits\": {{{edits}}}}}]}}"
        );
        let why = refused(&["vendor.com/class=a"], &[source("/a", 0, &text)]).remove(0);
        assert!(why.0 == "devices" && why.1.contains(words), "{why:?}");
    }
}
