use super::*;
use crate::plan::{DEV, Plan};
use crate::validate::{Draft, Violation, recheck, validate};

fn policy() -> Policy {
    let device = |name: &str, path: &str, permissions: &str| HostDevice {
        name: name.into(),
        path: path.into(),
        permissions: permissions.into(),
    };
    Policy {
        devices: vec![device("fuse", "/dev/fuse", "rw"), device("disk", "/dev/loop7", "r")],
        apparmor_profiles: vec!["executor-default".into()],
        ulimits_max: [("memlock".to_owned(), 1 << 20), ("nproc".to_owned(), -1)].into(),
        ..Policy::default()
    }
}

fn plan(host_options: HostOptions) -> Result<Plan, Vec<Violation>> {
    validate(&Draft { id: "a", path: "/a", host_options, ..Draft::default() }, &policy())
}

fn reported(host_options: HostOptions) -> Vec<(String, String)> {
    let violations = plan(host_options).err().unwrap_or_default();
    violations.into_iter().map(|violation| (violation.field, violation.description)).collect()
}

fn fields(host_options: HostOptions) -> Vec<String> {
    reported(host_options).into_iter().map(|(field, _)| field).collect()
}

fn device(name: &str, path: &str, permissions: &str) -> Device {
    Device { name: name.into(), path: path.into(), permissions: permissions.into(), ..Device::default() }
}

fn devices(devices: &[Device]) -> HostOptions {
    HostOptions { devices: devices.to_vec(), ..HostOptions::default() }
}

fn ulimit(name: &str, soft: i64, hard: i64) -> Ulimit {
    Ulimit { name: name.into(), soft, hard }
}

fn ulimits(ulimits: &[Ulimit]) -> HostOptions {
    HostOptions { ulimits: ulimits.to_vec(), ..HostOptions::default() }
}

#[test]
fn host_options_defaults_are_canonical() {
    let asked = HostOptions {
        cpus: "1,0".into(),
        memory_nodes: "0".into(),
        oom_score_adj: Some(1000),
        ulimits: vec![ulimit("nproc", 5, -1), ulimit("core", 0, 0)],
        apparmor_profile: "executor-default".into(),
        devices: vec![device("fuse", "", ""), device("disk", "/dev/data/disk", "r"), device("fuse", "/dev/f", "wr")],
        ..HostOptions::default()
    };
    let plan = plan(asked.clone()).unwrap();
    let expected = HostOptions {
        cpus: "0-1".into(),
        devices: vec![
            device("fuse", "/dev/fuse", "rw"),
            device("disk", "/dev/data/disk", "r"),
            device("fuse", "/dev/f", "rw"),
        ],
        ..asked
    };
    assert_eq!(plan.host_options, expected);
    recheck(&plan, &policy()).unwrap();
    // A launcher with another list refuses the plan. Every launcher refuses a plan with a value that is not in
    // canonical form.
    let fields: Vec<String> = recheck(&plan, &Policy::default()).unwrap_err().into_iter().map(|v| v.field).collect();
    assert_eq!(fields, ["apparmor_profile", "devices[0].name", "devices[1].name", "devices[2].name"]);
    let mut otherwise = plan;
    otherwise.host_options.cpus = "0,1".into();
    assert_eq!(recheck(&otherwise, &policy()).unwrap_err()[0].field, "action");
}

#[test]
fn devices_require_listed_name_and_permissions() {
    let unknown = reported(devices(&[device("mem", "/dev/mem", "r")]));
    assert_eq!(unknown[0].0, "devices[0].name");
    assert!(unknown[0].1.contains("fuse, disk"), "{unknown:?}");
    for (permissions, refused) in [("r", false), ("w", true), ("rw", true), ("rm", true), ("rr", true), ("x", true)] {
        let field = vec!["devices[0].permissions".to_owned(); usize::from(refused)];
        assert_eq!(fields(devices(&[device("disk", "", permissions)])), field, "{permissions}");
    }
    assert_eq!(fields(devices(&[device("fuse", "", "m")])), ["devices[0].permissions"], "m alone opens nothing");
    let bad = [
        "relative",
        "/",
        "/dev",
        "/dev/",
        "/etc/passwd",
        "/dev/../etc/x",
        "/dev/./x",
        "/dev/x/",
        "/dev//x",
        "/devx",
        "/dev/null",
        "/dev/pts/0",
        "/dev/shm/x",
        "/dev/executor-files/x",
        "/dev/executor-steps",
        "/dev/a/b/c/d/e",
        "/dev/a\n",
    ];
    for path in bad {
        assert_eq!(fields(devices(&[device("fuse", path, "")])), ["devices[0].path"], "{path}");
    }
    for path in ["/dev/a", "/dev/a/b", "/dev"] {
        let both = devices(&[device("fuse", "/dev/a", ""), device("disk", path, "")]);
        assert_eq!(fields(both), ["devices[1].path"], "{path}");
    }
    let many = vec![device("fuse", "", ""); DEVICES_MAX + 1];
    assert_eq!(fields(devices(&many)), ["devices"]);
}

#[test]
fn limits_of_processes_are_known_and_bounded() {
    for (asked, field) in [
        (ulimit("memlock", 0, 1 << 20), None),
        (ulimit("memlock", 0, (1 << 20) + 1), Some("hard")),
        (ulimit("memlock", -1, -1), Some("hard")),
        (ulimit("nproc", -1, -1), None),
        (ulimit("nproc", 6, 5), Some("soft")),
        (ulimit("nproc", -1, 5), Some("soft")),
        (ulimit("nproc", -2, 5), Some("soft")),
        (ulimit("stack", -1, -1), None),
        (ulimit("core", 0, 0), None),
        (ulimit("core", 0, 1), Some("hard")),
        (ulimit("core", 1, 1), Some("hard")),
        (ulimit("nofile", 1, 1), Some("name")),
        (ulimit("MEMLOCK", 1, 1), Some("name")),
        (ulimit("", 1, 1), Some("name")),
    ] {
        let expected: Vec<String> = field.iter().map(|field| format!("ulimits[0].{field}")).collect();
        assert_eq!(fields(ulimits(std::slice::from_ref(&asked))), expected, "{asked:?}");
    }
    assert_eq!(fields(ulimits(&[ulimit("cpu", 1, 1), ulimit("cpu", 2, 2)])), ["ulimits[1].name"]);
    assert_eq!(fields(ulimits(&vec![ulimit("cpu", 1, 1); ULIMITS.len() + 1])), ["ulimits"]);
}

#[test]
fn every_fault_is_reported_at_once() {
    let asked = HostOptions {
        cpus: "x".into(),
        memory_nodes: "1-0".into(),
        oom_score_adj: Some(1001),
        apparmor_profile: "unconfined".into(),
        devices: vec![device("mem", "", "")],
        ulimits: vec![ulimit("x", 0, 0)],
        ..HostOptions::default()
    };
    let expected = [
        "limits.cpuset_cpus",
        "limits.cpuset_mems",
        "oom_score_adj",
        "ulimits[0].name",
        "apparmor_profile",
        "devices[0].name",
    ];
    assert_eq!(fields(asked), expected);
    for (score, refused) in [(-1, true), (0, false), (-1001, true), (i32::MIN, true), (1000, false)] {
        let asked = HostOptions { oom_score_adj: Some(score), ..HostOptions::default() };
        assert_eq!(fields(asked).len(), usize::from(refused), "{score}");
    }
    let none = validate(
        &Draft {
            id: "a",
            path: "/a",
            host_options: HostOptions { apparmor_profile: "unconfined".into(), ..HostOptions::default() },
            ..Draft::default()
        },
        &Policy::default(),
    );
    assert!(none.unwrap_err()[0].description.contains("apparmor.profiles"));
}

#[test]
fn swap_and_reservation_are_bounded() {
    let reported = |swap_bytes: Option<i64>, memory_reservation_bytes: u64, most: i64| -> Vec<String> {
        let policy = Policy { swap_bytes_max: most, ..Policy::default() };
        let draft = Draft {
            id: "a",
            path: "/a",
            memory_bytes: 64 << 20,
            swap_bytes,
            memory_reservation_bytes,
            ..Draft::default()
        };
        let planned = validate(&draft, &policy);
        if let Ok(plan) = &planned {
            recheck(plan, &policy).unwrap();
        }
        planned.err().unwrap_or_default().into_iter().map(|violation| violation.field).collect()
    };
    let none: [&str; 0] = [];
    for (swap, most, allowed) in [
        (0, 0, true),
        (1, 0, false),
        (-1, 0, false),
        (10, 10, true),
        (11, 10, false),
        (-1, 10, false),
        (-1, -1, true),
        (1 << 50, -1, true),
        ((1 << 50) + 1, -1, false),
        (-2, -1, false),
    ] {
        let expected = if allowed { &none[..] } else { &["limits.swap_bytes"] };
        assert_eq!(reported(Some(swap), 0, most), expected, "{swap} of {most}");
    }
    assert_eq!(reported(None, 64 << 20, 0), none);
    assert_eq!(reported(None, (64 << 20) + 1, 0), ["limits.memory_reservation_bytes"]);
}

#[test]
fn the_lists_of_the_operator() {
    let host = |name: &str, path: &str, permissions: &str| HostDevice {
        name: name.into(),
        path: path.into(),
        permissions: permissions.into(),
    };
    check_host_devices(&[host("fuse", "/dev/fuse", "rwm"), host("b", "/dev/bus/usb/001/002", "r")]).unwrap();
    for (name, path, permissions, why) in [
        ("", "/dev/a", "r", "the name"),
        ("a b", "/dev/a", "r", "the name"),
        ("a", "/etc/a", "r", "below /dev"),
        ("a", "/dev", "r", "below /dev"),
        ("a", "/dev/../mem", "r", "`..`"),
        ("a", "/dev/a/", "r", "end with `/`"),
        ("a", "/dev/a", "", "must have"),
        ("a", "/dev/a", "x", "use r"),
        ("a", "/dev/a", "wr", "as \"rw\""),
    ] {
        let reported = check_host_devices(&[host(name, path, permissions)]).unwrap_err();
        assert!(reported.contains(why), "{name} {path} {permissions}: {reported}");
    }
    assert!(check_host_devices(&[host("a", "/dev/a", "r"), host("a", "/dev/b", "r")]).unwrap_err().contains("twice"));
    check_apparmor_profiles(&["docker-default".into(), "a//b".into(), "unconfined".into()]).unwrap();
    for bad in ["", " a", "a\n", "a\0b", &"a".repeat(APPARMOR_PROFILE_MAX + 1)] {
        assert!(check_apparmor_profiles(&[bad.to_owned()]).is_err(), "{bad:?}");
    }
    let check = |name: &str, most: i64| check_ulimit_max(name, most);
    assert_eq!([check("memlock", -1), check("nproc", 0)], [Ok(()), Ok(())]);
    for (name, most) in [("core", 1), ("nofile", 1), ("x", 1), ("memlock", -2)] {
        assert!(check(name, most).is_err(), "{name}");
    }
}

#[test]
fn cdi_devices_need_an_entry_each() {
    let listed = |patterns: &[&str]| Policy {
        cdi_devices: patterns.iter().map(|pattern| (*pattern).to_owned()).collect(),
        ..Policy::default()
    };
    let refused = |policy: &Policy, asked: &[Device]| -> Vec<String> {
        let mut report = Report::default();
        check_devices(asked, &Isolation::default(), policy, &mut report);
        report.0.into_iter().map(|one| one.field).collect()
    };
    let name = "vendor.com/class=a";
    for (patterns, allowed) in [
        (&[][..], false),
        (&[name], true),
        (&["vendor.com/class=*"], true),
        (&["vendor.com/class=b", "vendor.com/class2=*"], false),
    ] {
        let expected = vec!["devices[0].name".to_owned(); usize::from(!allowed)];
        assert_eq!(refused(&listed(patterns), &[device(name, "", "")]), expected, "{patterns:?}");
    }
    let policy = listed(&["vendor.com/class=*"]);
    let bad = [device(name, "/dev/a", "r"), device(name, "", ""), device("x=*", "", "")];
    let expected = ["devices[0].path", "devices[0].permissions", "devices[1].name", "devices[2].name"];
    assert_eq!(refused(&policy, &bad), expected);
    check_cdi_devices(&policy.cdi_devices).unwrap();
    for bad in ["vendor.com/*=a", "*", "vendor.com/class=a*"] {
        let refusal = check_cdi_devices(&[name.to_owned(), bad.to_owned()]).unwrap_err();
        assert!(refusal.contains(bad), "{bad}: {refusal}");
    }
    check_cdi_spec_dirs(&["/etc/cdi".into()]).unwrap();
    for bad in [&["etc/cdi"][..], &["/a"; 17]] {
        let dirs: Vec<PathBuf> = bad.iter().map(Into::into).collect();
        assert!(check_cdi_spec_dirs(&dirs).is_err(), "{bad:?}");
    }
}

/// CRI rule C28: all host devices require a privileged container with host ids.
#[test]
fn all_devices_require_privileged_host_ids() {
    let policy = Policy {
        allow_privileged: true,
        allow_host_userns: true,
        device_paths: vec![DEV.into()],
        devices: policy().devices,
        ..Policy::default()
    };
    let all = Device { host_path: Some(DEV.into()), ..Device::default() };
    let refused = |privileged, user_namespace, devices: &[Device], policy: &Policy| -> Vec<String> {
        let isolation = Isolation { privileged, user_namespace, ..Isolation::default() };
        let mut report = Report::default();
        check_devices(devices, &isolation, policy, &mut report);
        report.0.into_iter().map(|one| one.field).collect()
    };
    let both = [device("fuse", "/dev/a/b", ""), all.clone(), device("disk", "/dev/c", "r")];
    assert_eq!(refused(true, UserNamespace::Host, &both, &policy), Vec::<String>::new());
    for (privileged, user_namespace) in [(false, UserNamespace::Host), (true, UserNamespace::Own)] {
        assert_eq!(refused(privileged, user_namespace, &both, &policy), ["devices[1].host_path"]);
    }
    let twice = [all.clone(), Device { path: DEV.into(), ..all.clone() }];
    assert_eq!(refused(true, UserNamespace::Host, &twice, &policy), ["devices[1].path"]);
    let narrow = Policy { device_paths: vec!["/dev/fuse".into()], ..policy };
    assert_eq!(refused(true, UserNamespace::Host, &[all], &narrow), ["devices[0].host_path"]);
}
