use super::*;
use crate::image::{ImagePolicy, ImageRules};
use crate::limits::{DISK_MIN, TMPFS_MAX};
use crate::plan::{
    Action, Actions, Device, HostPath, HostPathRule, HostVolume, Plan, Propagation, Surroundings, VolumeImage,
};
use crate::validate::{Draft, DraftFile, DraftStep, Violation, recheck, validate};

fn policy() -> Policy {
    let volume = |name: &str, read_only| HostVolume { name: name.into(), path: "/srv/x".into(), read_only };
    Policy { volumes: vec![volume("shared", false), volume("deps", true)], ..Policy::default() }
}

fn host(name: &str, path: &str) -> Volume {
    let source = VolumeSource::Host(name.into());
    Volume { path: path.into(), source, sub_path: "".into(), read_only: false }
}

fn empty(medium: Medium, path: &str, bytes: u64) -> Volume {
    let source = VolumeSource::Empty(EmptyVolume { medium, bytes, mode: 0o1777, gid: None });
    Volume { path: path.into(), source, sub_path: "".into(), read_only: false }
}

fn image(reference: &str) -> Volume {
    let digest = format!("sha256:{}", "1".repeat(64));
    let image = VolumeImage { reference: reference.into(), layers: vec![digest.clone()], digest };
    Volume { path: "/i".into(), source: VolumeSource::Image(image), sub_path: "a/b".into(), read_only: true }
}

fn draft(volumes: &[Volume]) -> Draft<'static> {
    let volumes = volumes.to_vec();
    Draft { id: "a", path: "/a", rootfs: "dir:/r", memory_bytes: 64 << 20, volumes, ..Draft::default() }
}

fn plan(volumes: &[Volume]) -> Result<Plan, Vec<Violation>> {
    validate(&draft(volumes), &policy())
}

fn fields(planned: Result<Plan, Vec<Violation>>) -> Vec<String> {
    planned.err().unwrap_or_default().into_iter().map(|violation| violation.field).collect()
}

#[test]
fn volume_sizes_have_defaults_and_keep_order() {
    let asked = [
        empty(Medium::Memory, "/m", 0),
        empty(Medium::Disk, "/d", 0),
        empty(Medium::Disk, "/a", DISK_MIN),
        Volume { sub_path: "a/b".into(), read_only: true, ..host("deps", "/deps") },
        image("docker://docker.io/library/debian:12"),
    ];
    let plan = plan(&asked).unwrap();
    let sizes: Vec<_> = plan.volumes.iter().filter_map(Volume::empty).map(|empty| empty.bytes).collect();
    assert_eq!(sizes, [64 << 20, 0, DISK_MIN]);
    assert_eq!(plan.volumes[3..], asked[3..]);
    recheck(&plan, &policy()).unwrap();
    let amount = crate::capacity::Amount::new(&plan.limits, &plan.volumes);
    assert_eq!(amount.disk_bytes, DISK_MIN);
    // A launcher with another list refuses the plan.
    let reported = recheck(&plan, &Policy::default()).unwrap_err();
    assert_eq!(reported[0].field, "volumes[3].host.name");
    let mut wider = plan;
    wider.volumes[3].read_only = false;
    assert_eq!(recheck(&wider, &policy()).unwrap_err()[0].field, "volumes[3].read_only");
}

#[test]
fn every_fault_is_reported_by_its_field() {
    for path in ["", "a", "/", "/a/", "/a//b", "/a/../b", "/a/.", "/proc", "/sys/x", "/dev", "/etc", "/etc/hosts"] {
        assert_eq!(fields(plan(&[host("shared", path)])), ["volumes[0].path"], "{path}");
    }
    for sub_path in ["/a", "..", "a/..", "a/", "a//b", "./a", "a\0"] {
        let volume = Volume { sub_path: sub_path.into(), ..host("shared", "/v") };
        assert_eq!(fields(plan(&[volume])), ["volumes[0].sub_path"], "{sub_path}");
    }
    let mode = VolumeSource::Empty(EmptyVolume { medium: Medium::Disk, bytes: 0, mode: 0o10000, gid: Some(u32::MAX) });
    let asked = [
        host("none", "/a"),
        host("deps", "/b"),
        host("shared", "/b"),
        empty(Medium::Disk, "/c", DISK_MIN - 1),
        empty(Medium::Memory, "/d", TMPFS_MAX + 1),
        Volume { source: mode, sub_path: "x".into(), read_only: true, ..host("", "/e") },
        Volume { read_only: false, ..image("docker://x/y:1") },
        Volume { path: "/j".into(), ..image("host") },
    ];
    let expected = [
        "volumes[0].host.name",
        "volumes[1].read_only",
        "volumes[2].path",
        "volumes[3].empty.size_bytes",
        "volumes[4].empty.size_bytes",
        "volumes[5].sub_path",
        "volumes[5].read_only",
        "volumes[5].empty.mode",
        "volumes[5].empty.gid",
        "volumes[6].read_only",
        "volumes[7].image.reference",
    ];
    assert_eq!(fields(plan(&asked)), expected);
    let many: Vec<Volume> = (0..=VOLUMES_MAX).map(|index| host("shared", &format!("/v{index}"))).collect();
    assert_eq!(fields(plan(&many)), ["volumes"]);
    assert_eq!(fields(plan(&many[1..])), [""; 0]);
    let rules = ImageRules { allow: Some(vec!["docker.io/library/*".into()]), ..ImageRules::default() };
    let images = ImagePolicy::new(&rules, false).unwrap();
    let reported = validate(&draft(&[image("docker://example.org/a:1")]), &Policy { images, ..policy() });
    assert_eq!(fields(reported), ["volumes[0].image.reference"]);
}

#[test]
fn volumes_cannot_hide_files_or_mounts() {
    let file = |path: &'static str| vec![DraftFile::from(("volume_mounted_files[0]".into(), path, 1))];
    let tmpfs = |path: &str| Surroundings {
        tmpfs: vec![Tmpfs { path: path.into(), bytes: 4096, mode: 0, uid: 0, gid: 0, exec: false }],
        ..Surroundings::default()
    };
    let (shared, own) = (|path: &str| host("shared", path), |path: &str| empty(Medium::Disk, path, 0));
    for (volume, path, refused) in [
        (shared("/a"), "/a/b/key", true),
        (own("/a"), "/a/b/key", false),
        (own("/a/b/key"), "/a/b/key", true),
        (own("/a/b/key/c"), "/a/b/key", true),
        (shared("/a/b/other"), "/a/b/key", false),
    ] {
        let reported =
            fields(validate(&Draft { files: file(path), ..draft(std::slice::from_ref(&volume)) }, &policy()));
        assert_eq!(reported, vec!["volumes[0].path"; usize::from(refused)], "{volume:?}");
    }
    // In an empty file system the directory of the files is mounted after the volumes.
    for (path, refused) in [("/t/b/key", true), ("/t/key", false), ("/t/d/key", false)] {
        let asked = Draft { surroundings: tmpfs("/t"), files: file(path), ..draft(&[shared("/t/b/c")]) };
        assert_eq!(fields(validate(&asked, &policy())), vec!["volumes[0].path"; usize::from(refused)], "{path}");
    }
    let of_host = Draft { rootfs: "host", files: file("/run/b/key"), ..draft(&[shared("/run/b/c")]) };
    assert_eq!(fields(validate(&of_host, &policy())), ["volumes[0].path"]);
    let of_volumes = Draft { files: file("/e/b/key"), ..draft(&[own("/e"), shared("/e/b/c")]) };
    assert_eq!(fields(validate(&of_volumes, &policy())), ["volumes[1].path"]);
    for (path, volume, refused) in [("/v", own("/v"), true), ("/v/t", shared("/v"), true), ("/v/t", own("/v"), false)] {
        let asked = Draft { surroundings: tmpfs(path), ..draft(&[volume]) };
        assert_eq!(fields(validate(&asked, &policy())).len(), usize::from(refused), "{path}");
    }
    let declared = Draft { file_directories: vec!["/s/d"], ..draft(&[shared("/s"), own("/s/d")]) };
    assert_eq!(fields(validate(&declared, &policy())), ["volumes[0].path", "volumes[1].path"]);
    for path in ["/run", "/run/executor", "/run/executor/x"] {
        let asked = Draft { token_path: "/t", ..draft(&[shared(path)]) };
        assert_eq!(fields(validate(&asked, &policy())), ["volumes[0].path"], "{path}");
    }
    let policy = Policy { docker_socket: "/d.sock".into(), allow_host_userns: true, ..policy() };
    let mut asked = draft(&[shared("/var/run"), own("/var/other")]);
    (asked.isolation.docker_socket, asked.isolation.user_namespace) = (true, crate::plan::UserNamespace::Host);
    assert_eq!(fields(validate(&asked, &policy)), ["volumes[0].path"]);
}

#[test]
fn volume_of_pod_takes_secret_files() {
    let member = |volumes: &[Volume]| {
        let role = PodRole::Member { pod: "p".parse().unwrap(), share_processes: false };
        Draft { pod: Some(role), file_directories: vec!["/data/conf"], ..draft(volumes) }
    };
    let of_pod = |path: &str| Volume { source: VolumeSource::Pod("v".into()), ..host("", path) };
    let planned = validate(&member(&[of_pod("/data")]), &policy()).unwrap();
    recheck(&planned, &policy()).unwrap();
    let file = vec![DraftFile::from(("volume_mounted_files[0]".into(), "/data/x/key", 1))];
    let with_file = Draft { files: file, ..member(&[of_pod("/data")]) };
    assert_eq!(fields(validate(&with_file, &policy())), [""; 0]);
    let read_only = Volume { read_only: true, ..of_pod("/data") };
    assert_eq!(fields(validate(&member(&[read_only]), &policy())), ["volumes[0].path"]);
    let writable = Draft { writable_files: Some(0), ..member(&[of_pod("/data")]) };
    assert_eq!(fields(validate(&writable, &policy())), ["volumes[0].path"]);
    let step = |path: &'static str| DraftStep {
        field: "action.serial.actions[0].run".into(),
        path: "/bin/true",
        files: vec![DraftFile::from(("action.serial.actions[0].run.volume_mounted_files[0]".into(), path, 1))],
        ..DraftStep::default()
    };
    let action = Action::Serial(vec![Action::Run(0)]);
    let actions =
        Actions { setup: None, action, sidecars: Vec::new(), restart: None, sidecar_limits: Default::default() };
    let with_step = |volume: &Volume, path| Draft {
        path: "",
        actions: Some(actions.clone()),
        steps: vec![step(path)],
        ..member(std::slice::from_ref(volume))
    };
    let own = empty(Medium::Disk, "/data", 0);
    for (volume, refused) in [(of_pod("/data"), true), (host("shared", "/data/x"), true), (own, false)] {
        let violations = fields(validate(&with_step(&volume, "/data/x/key"), &policy()));
        let field = "action.serial.actions[0].run.volume_mounted_files[0].path";
        assert_eq!(violations, vec![field; usize::from(refused)], "{volume:?}");
    }
    // Mounts above a volume of the pod, and below its secret files, are refused.
    let around = [host("shared", "/data"), of_pod("/data/conf")];
    assert_eq!(fields(validate(&member(&around), &policy())), ["volumes[0].path", "volumes[1].path"]);
    let below = [of_pod("/data"), host("shared", "/data/conf/x")];
    assert_eq!(fields(validate(&member(&below), &policy())), ["volumes[1].path"]);
}

fn of_path(change: impl FnOnce(&mut HostPath)) -> Volume {
    let mut asked = HostPath::from(PathBuf::from("/srv/a/b"));
    change(&mut asked);
    Volume { source: VolumeSource::HostPath(asked), ..host("", "/v") }
}

/// CRI rules C24 and C25: everything beyond a plain mount needs the operator's entry, and impossible combinations are
/// refused.
#[test]
fn host_path_needs_what_its_entry_permits() {
    let rule = |change: fn(&mut HostPathRule)| {
        let mut rule = HostPathRule::from(PathBuf::from("/srv/a"));
        change(&mut rule);
        Policy { host_paths: vec![rule], allow_host_userns: true, allow_privileged: true, ..Policy::default() }
    };
    let plain = || rule(|_| {});
    let all = |rule: &mut HostPathRule| {
        (rule.suid, rule.dev, rule.propagation) = (true, true, Propagation::Bidirectional);
    };
    let slave = |path: &mut HostPath| (path.recursive, path.propagation) = (true, Propagation::HostToContainer);
    let both = |path: &mut HostPath| (path.recursive, path.propagation) = (true, Propagation::Bidirectional);
    let fixed = |path: &mut HostPath| (path.recursive, path.recursive_read_only) = (true, true);
    let read_only = |volume: Volume| Volume { read_only: true, ..volume };
    let fixed_rule = || rule(|rule| rule.read_only = true);
    for (volume, policy, expected) in [
        (of_path(|_| {}), plain(), ""),
        (of_path(|path| path.recursive = true), plain(), ""),
        (of_path(|path| path.follow_links = true), plain(), ""),
        (of_path(|path| path.path = "/srv/ab".into()), plain(), "host_path.path"),
        (of_path(|path| path.suid = true), plain(), "host_path.suid"),
        (of_path(|path| path.dev = true), plain(), "host_path.dev"),
        (of_path(slave), plain(), "host_path.propagation"),
        (of_path(slave), rule(|rule| rule.propagation = Propagation::HostToContainer), ""),
        (of_path(|path| path.propagation = Propagation::HostToContainer), rule(all), "host_path.propagation"),
        (of_path(both), rule(all), "host_path.propagation"),
        (of_path(fixed), plain(), "host_path.recursive_read_only"),
        (read_only(of_path(fixed)), plain(), ""),
        (read_only(of_path(|path| path.recursive_read_only = true)), plain(), "host_path.recursive_read_only"),
        (of_path(|_| {}), fixed_rule(), "read_only"),
        (read_only(of_path(|_| {})), fixed_rule(), ""),
        (read_only(of_path(|path| path.recursive = true)), fixed_rule(), "host_path.recursive_read_only"),
        (read_only(of_path(fixed)), fixed_rule(), ""),
    ] {
        let expected: Vec<String> = Some(expected)
            .filter(|field| !field.is_empty())
            .map(|field| format!("volumes[0].{field}"))
            .into_iter()
            .collect();
        let shown = format!("{volume:?}");
        assert_eq!(fields(validate(&draft(&[volume]), &policy)), expected, "{shown}");
    }
    let with = |volumes: &[Volume], change: fn(&mut Isolation)| {
        let mut asked = draft(volumes);
        change(&mut asked.isolation);
        fields(validate(&asked, &rule(all)))
    };
    let of_host = |isolation: &mut Isolation| {
        (isolation.privileged, isolation.user_namespace) = (true, crate::plan::UserNamespace::Host);
    };
    assert_eq!(with(&[of_path(both)], of_host), [""; 0]);
    assert_eq!(with(&[of_path(both)], |isolation| isolation.privileged = true), ["volumes[0].host_path.propagation"]);
    // A mount in a bidirectional volume would also be on the host.
    let inner = |path: &str| empty(Medium::Memory, path, 0);
    assert_eq!(with(&[of_path(both), inner("/v/x")], of_host), ["volumes[1].path"]);
    assert_eq!(with(&[of_path(both), inner("/vx")], of_host), [""; 0]);
    let in_dev = Volume { path: "/dev/x".into(), read_only: true, ..of_path(|_| {}) };
    assert_eq!(with(std::slice::from_ref(&in_dev), |isolation| isolation.privileged = true), ["volumes[0].read_only"]);
    assert_eq!(with(std::slice::from_ref(&in_dev), of_host), [""; 0]);
    let mut with_device = draft(std::slice::from_ref(&in_dev));
    let policy = Policy { device_paths: vec!["/dev/fuse".into()], ..rule(all) };
    let device = Device { host_path: Some("/dev/fuse".into()), path: "/dev/x/fuse".into(), ..Device::default() };
    with_device.host_options.devices = vec![device];
    assert_eq!(fields(validate(&with_device, &policy)), ["volumes[0].path"]);
}

/// CRI rule C24: paths of the host replace files of the executor; other volumes do not.
#[test]
fn host_path_replaces_files_of_the_executor() {
    let policy = Policy { host_paths: vec![PathBuf::from("/srv/a").into()], ..policy() };
    for (path, allowed) in [
        ("/etc/hosts", true),
        ("/etc/hostname", true),
        ("/etc/resolv.conf", true),
        ("/dev/shm", true),
        ("/dev/termination-log", true),
        ("/dev/a/b", true),
        ("/etc", false),
        ("/dev", false),
        ("/dev/shm/a", false),
        ("/dev/null", false),
        ("/dev/a/../null", false),
        ("/proc/x", false),
    ] {
        let volume = Volume { path: path.into(), ..of_path(|_| {}) };
        let expected = vec!["volumes[0].path"; usize::from(!allowed)];
        assert_eq!(fields(validate(&draft(&[volume]), &policy)), expected, "{path}");
        let named = fields(validate(&draft(&[host("shared", path)]), &policy));
        assert_eq!(named, ["volumes[0].path"], "{path}: the control");
    }
}

/// An entry of `policy.host_paths` is a path or a table. Unknown keys are refused.
#[test]
fn host_path_entry_is_path_or_table() {
    let read = |text: &str| serde_json::from_str::<HostPathRule>(text);
    let path = HostPathRule::from(PathBuf::from("/srv/a"));
    assert_eq!(read("\"/srv/a\"").unwrap(), path);
    assert_eq!(read("{\"path\": \"/srv/a\"}").unwrap(), path);
    let table =
        r#"{"path": "/srv/a", "read_only": true, "propagation": "host-to-container", "suid": true, "dev": true}"#;
    let propagation = Propagation::HostToContainer;
    assert_eq!(read(table).unwrap(), HostPathRule { read_only: true, propagation, suid: true, dev: true, ..path });
    for text in ["1", "{}", "{\"path\": \"/a\", \"exec\": true}", "{\"path\": \"/a\", \"propagation\": \"shared\"}"] {
        assert!(read(text).is_err(), "{text}");
    }
}
