use super::*;

mod host;
use crate::plan::{OutputSource, PlannedOutputs, TerminationMessage};

fn draft<'a>() -> Draft<'a> {
    Draft { id: "c1", path: "/bin/true", ..Draft::default() }
}

fn file(path: &str, size: u64) -> DraftFile<'_> {
    ("f".to_owned(), path, size).into()
}

fn fields(draft: &Draft<'_>) -> Vec<String> {
    validate(draft, &Policy::default()).err().unwrap_or_default().into_iter().map(|v| v.field).collect()
}

#[test]
fn a_minimal_request_gets_the_defaults() {
    let plan = validate(&draft(), &Policy::default()).unwrap();
    assert_eq!(plan.rootfs, Rootfs::Host);
    assert_eq!(plan.user.to_string(), "0");
    assert_eq!(plan.limits.memory_bytes, 256 << 20);
    assert_eq!(plan.grace, Duration::from_secs(10));
    assert_eq!(plan.main().unwrap().dir, "/");
    recheck(&plan, &Policy::default()).unwrap();
}

/// Each invalid path of a file is refused with one violation.
#[test]
fn invalid_file_paths_are_refused() {
    let refused = [
        "",
        ".",
        "..",
        "/",
        "a/../b",
        "../x",
        "a/./b",
        "a//b",
        "a/",
        "/a/",
        "a\0b",
        "a\nb",
        "..data/x",
        "a/..2026",
        "/proc/x",
        "/sys/x",
        "/dev/shm/x",
        "/proc",
    ];
    for path in refused {
        let violations = validate(&Draft { files: vec![file(path, 1)], ..draft() }, &Policy::default()).unwrap_err();
        assert_eq!(violations.len(), 1, "{path:?}: {violations:?}");
        assert_eq!(violations[0].field, "f.path", "{path:?}");
    }
    let long = format!("/{}", "x".repeat(256));
    assert_eq!(fields(&Draft { files: vec![file(&long, 1)], ..draft() }), ["f.path"]);
    for (path, absolute) in [
        ("db/password", "/etc/cf-service-bindings/db/password"),
        ("/a", "/a"),
        ("/procs/x", "/procs/x"),
        ("a..b", "/etc/cf-service-bindings/a..b"),
    ] {
        let plan = validate(&Draft { files: vec![file(path, 1)], ..draft() }, &Policy::default()).unwrap();
        assert_eq!(plan.files[0].path, Path::new(absolute));
    }
}

#[test]
fn conflicting_file_paths_are_refused() {
    let two = |a, b| validate(&Draft { files: vec![file(a, 1), file(b, 1)], ..draft() }, &Policy::default());
    assert!(two("a", "a").unwrap_err()[0].description.contains("also the path"));
    assert!(two("a", "/etc/cf-service-bindings/a").is_err(), "the same path, once relative");
    assert!(two("a/b", "a").unwrap_err()[0].description.contains("to be a directory"));
    assert!(two("/a", "/a/b").is_err());
    two("a/b", "a/c").unwrap();
    two("ab", "a/c").unwrap();
}

/// Contents of files are limited to 1 MiB, as in BBS. Paths do not count towards this limit; they have a separate
/// limit.
#[test]
fn exact_file_size_limit_names_largest_file() {
    let one = |size| validate(&Draft { files: vec![file("aaaa", size), file("b", 5)], ..draft() }, &Policy::default());
    one((1 << 20) - 5).unwrap();
    let violations = one((1 << 20) - 4).unwrap_err();
    assert_eq!(violations[0].field, "volume_mounted_files");
    for part in ["1048577", "1048576", "aaaa", "1048572"] {
        assert!(violations[0].description.contains(part), "{part}: {}", violations[0].description);
    }
    assert!(one(u64::MAX).is_err(), "the sum does not overflow");
    let paths: Vec<String> = (0..300).map(|n| format!("{n}/{}", "long/".repeat(750) + "x")).collect();
    let long = |count: usize| {
        let files = paths[..count].iter().map(|path| file(path, 0)).collect();
        validate(&Draft { files, ..draft() }, &Policy::default())
    };
    long(250).unwrap();
    assert!(long(300).unwrap_err()[0].description.contains("bytes of paths; the maximum is 1048576"));
}

/// The launcher accepts a request at the daemon's size limit: the launcher counts relative paths as requested.
#[test]
fn launcher_accepts_files_at_daemon_limit() {
    let policy = Policy::default();
    let plan = validate(&Draft { files: vec![file("large", 1 << 20)], ..draft() }, &policy).unwrap();
    recheck(&plan, &policy).unwrap();
}

/// An environment string of 131,072 bytes or more is refused, and the message advises to use a file.
#[test]
fn environment_string_limit_is_that_of_kernel() {
    let value = "v".repeat(131_072);
    let with = |n: usize| validate(&Draft { env: vec![("K", &value.as_bytes()[..n])], ..draft() }, &Policy::default());
    with(131_069).unwrap();
    let violations = with(131_070).unwrap_err();
    assert_eq!(violations[0].field, "action.run.env[0].value");
    assert!(violations[0].description.contains("131072 bytes") && violations[0].description.contains("use a file"));
}

/// Limits that are too low for the container's init are refused with their field. Otherwise the setup would fail with a
/// system error that names no field.
#[test]
fn too_low_limits_report_minimum() {
    let reported = |nofile, pids| validate(&Draft { nofile: Some(nofile), pids, ..draft() }, &Policy::default());
    reported(64, 2).unwrap();
    let reported = reported(63, 1).unwrap_err();
    let reported: Vec<String> = reported.iter().map(ToString::to_string).collect();
    assert_eq!(reported[0], "limits.pids: is 1; 2 to 4194304 is allowed");
    assert_eq!(reported[1], "action.run.resource_limits.nofile: is 63; 64 to 1073741824 is allowed");
}

#[test]
fn all_violations_are_reported_without_secrets() {
    const CANARY: &str = "canary-8c2e\0";
    let bad = Draft {
        id: "../x",
        path: "",
        args: vec![CANARY],
        dir: "relative",
        env: vec![("A=B", CANARY.as_bytes()), ("X", b"1"), ("X", b"2"), ("", b"")],
        user: "99999999999",
        rootfs: "dir:relative",
        nofile: Some(0),
        memory_bytes: 1,
        pids: u64::MAX,
        cpu_millis: 1,
        labels: [("bad name".to_owned(), "x".repeat(257))].into(),
        grace: Some(Duration::from_secs(604_801)),
        network: Some(Network::Host),
        log_source: "a b",
        files: vec![file("../x", 1), file("a", 1), file("a", 1)],
        ..Draft::default()
    };
    let violations = validate(&bad, &Policy::default()).unwrap_err();
    assert_eq!(violations.len(), 21, "{violations:#?}");
    let text = violations.iter().map(ToString::to_string).collect::<String>();
    assert!(!text.contains("canary"), "{text}");
}

#[test]
fn user_names_and_ids_are_parsed() {
    let parse = |text| parse_user(text).map(|user| user.to_string());
    for good in ["root", "0", "vcap", "1000:1000", "www-data:adm", "svc$", "0:0", "4294967294"] {
        assert_eq!(parse(good).unwrap(), good);
    }
    for bad in ["4294967295", ":", "a:", ":b", "a b", "-x", "a/b", "a:b:c", "a:b:c d", "99999999999999999999"] {
        assert!(parse(bad).is_err(), "{bad}");
    }
    let forms = "is empty: use `user`, `uid`, `user:group` or `uid:gid`";
    for (text, part) in [("bob:", "group"), (":bob", "user"), (":", "user")] {
        assert_eq!(parse(text).unwrap_err().description, format!("the {part} in `{text}` {forms}"));
    }
}

#[test]
fn rootfs_references_and_the_operators_policy() {
    for bad in
        ["docker", "dir:", "dir:x", "dir:/a/../b", "dir:/proc/self/fd/3", "dir:/sys", "dir:/dev/shm/x", "dir:/a\nb"]
    {
        assert!(parse_rootfs(&Draft { rootfs: bad, ..Draft::default() }).is_err(), "{bad}");
    }
    let policy = Policy { rootfs_dirs: vec!["/srv/rootfs".into()], allow_host_rootfs: false, ..Policy::default() };
    let with = |rootfs| validate(&Draft { rootfs, ..draft() }, &policy);
    with("dir:/srv/rootfs/a").unwrap();
    assert!(with("dir:/srv/rootfs2").is_err());
    assert!(with("host").is_err());
    let host_net = Draft { network: Some(Network::Host), ..draft() };
    assert_eq!(fields(&host_net), ["network"]);
    validate(&host_net, &Policy { allow_host_network: true, ..Policy::default() }).unwrap();
}

/// The launcher must not trust the daemon: a plan that validation would not have created is refused.
#[test]
fn a_forged_plan_is_refused() {
    let policy = Policy::default();
    let good = validate(&Draft { files: vec![file("a", 1)], ..draft() }, &policy).unwrap();
    recheck(&good, &policy).unwrap();
    let forge = |change: fn(&mut Plan)| {
        let mut plan = good.clone();
        change(&mut plan);
        recheck(&plan, &policy).unwrap_err()
    };
    forge(|p| p.files[0].path = "/etc/../proc/x".into());
    forge(|p| p.files[0].path = "relative/../../x".into());
    forge(|p| p.rootfs = Rootfs::Dir("/proc/1/root".into()));
    forge(|p| p.network = Network::Host);
    forge(|p| p.processes.clear());
    forge(|p| p.files[0].size = u64::MAX);
    // Validation would convert each of these plans to a different plan.
    forge(|p| p.files[0].path = "proc/self/attr/exec".into());
    forge(|p| p.files[0].path = "/etc/cf-service-bindings/./a".into());
    forge(|p| p.limits.memory_bytes = 0);
    forge(|p| p.limits.pids = 0);
    forge(|p| p.processes[0].dir.clear());
}

/// A name that is both public and secret is an error; a secret argument fills an empty argument.
#[test]
fn input_cannot_be_public_and_secret() {
    let good = Draft {
        args: vec!["-p", "", ""],
        secret_args: vec![(2, "canary"), (1, "")],
        env: vec![("A", b"1")],
        secret_env: vec![("B", b"canary\xff")],
        ..draft()
    };
    let plan = validate(&good, &Policy::default()).unwrap();
    let main = plan.main().unwrap();
    assert_eq!((&main.secret_arguments[..], &main.secret_environment_names[..]), (&[1, 2][..], &["B".to_owned()][..]));
    assert!(!serde_json::to_string(&plan).unwrap().contains("canary"));
    recheck(&plan, &Policy::default()).unwrap();

    let bad = Draft {
        args: vec!["-p", "", "x"],
        secret_args: vec![(0, "canary"), (2, "c\0"), (2, "c"), (3, "c")],
        env: vec![("A", b"1")],
        secret_env: vec![("A", b"canary"), ("", b"c"), ("C", b"c\xff\0")],
        ..draft()
    };
    let violations = validate(&bad, &Policy::default()).unwrap_err();
    let fields: Vec<&str> = violations.iter().map(|violation| &*violation.field).collect();
    assert_eq!(
        fields,
        [
            "action.run.secret_arguments[1].value",
            "action.run.secret_environment[0].name",
            "action.run.secret_environment[1].name",
            "action.run.secret_environment[2].value",
            "action.run.secret_arguments[0].index",
            "action.run.secret_arguments[1].index",
            "action.run.secret_arguments[2].index",
            "action.run.secret_arguments[3].index",
            "action.run.args[1]",
        ]
    );
    assert!(violations.iter().all(|violation| !violation.description.contains("canary")));
    // Without a secret argument an empty argument is allowed.
    validate(&Draft { args: vec![""], ..draft() }, &Policy::default()).unwrap();
}

/// No file may be in the directory of a container's runtime socket.
#[test]
fn files_cannot_replace_runtime_socket() {
    let with = |token_path| Draft { files: vec![file("/run/executor/a", 1), file("/run/x", 1)], token_path, ..draft() };
    validate(&with(""), &Policy::default()).unwrap();
    let field = |draft: &Draft<'_>| fields(draft).join(" ");
    assert_eq!(field(&with("token")), "f.path");
    assert_eq!(field(&with("/run/executor/token")), "f.path runtime_token_path");
    assert_eq!(field(&Draft { files: vec![file("/run", 1)], token_path: "t", ..draft() }), "f.path");
    assert_eq!(field(&Draft { files: vec![file("/a", 1)], token_path: "/a", ..draft() }), "runtime_token_path");
}

/// Impossible secret inputs in a plan from a compromised daemon are refused.
#[test]
fn forged_secret_inputs_are_refused() {
    let policy = Policy::default();
    let good = Draft { args: vec!["", ""], secret_args: vec![(0, "a"), (1, "b")], token_path: "token", ..draft() };
    let good = validate(&good, &policy).unwrap();
    recheck(&good, &policy).unwrap();
    let forge = |change: fn(&mut Plan)| {
        let mut plan = good.clone();
        change(&mut plan);
        recheck(&plan, &policy).unwrap_err()
    };
    forge(|plan| plan.processes[0].secret_arguments = vec![2]);
    forge(|plan| plan.processes[0].secret_arguments = vec![1, 0]);
    forge(|plan| plan.processes[0].secret_environment_names = vec!["A=B".into()]);
    forge(|plan| plan.files.push(plan.files[0].clone()));
    forge(|plan| {
        plan.outputs = Some(PlannedOutputs { source: OutputSource::Directory("/proc/1".into()), bytes_max: 1 });
    });
    forge(|plan| plan.outputs = Some(PlannedOutputs { source: OutputSource::Files(Vec::new()), bytes_max: 1 }));
}

/// An output is never a secret file, and its path is in canonical form.
#[test]
fn outputs_are_files_or_a_directory() {
    let policy = Policy { outputs_bytes_max: 100, ..Policy::default() };
    let of = |files: &[&'static str], directory: &'static str, bytes_max| {
        let outputs = Some(DraftOutputs { files: files.to_vec(), directory, bytes_max });
        validate(&Draft { outputs, files: vec![file("/out/secret", 3)], token_path: "/out/token", ..draft() }, &policy)
    };
    let plan = of(&[], "/out", 0).unwrap();
    let planned = plan.outputs.clone().unwrap();
    assert_eq!((planned.bytes_max, planned.source), (100, OutputSource::Directory("/out".into())));
    recheck(&plan, &policy).unwrap();
    recheck(&of(&["/out/a", "/b"], "", 7).unwrap(), &policy).unwrap();
    assert_eq!(of(&["/a"], "/out", 0).unwrap_err()[0].field, "outputs");
    assert_eq!(of(&[], "", 0).unwrap_err()[0].field, "outputs");
    let bad = ["a", "/", "/a/../b", "/proc/x", "/dev/x", "/a/", "/out/secret", "/out/token", "/ok", "/ok"];
    let fields: Vec<String> = of(&bad, "", 101).unwrap_err().into_iter().map(|violation| violation.field).collect();
    let expected = (0..8).chain([9]).map(|index| format!("outputs.files[{index}]"));
    assert_eq!(fields, std::iter::once("outputs.bytes_max".to_owned()).chain(expected).collect::<Vec<_>>());
}

#[test]
fn writable_files_size_is_validated() {
    const MIB: u64 = 1 << 20;
    let asked = |bytes: u64, memory_bytes: u64, files: Vec<DraftFile<'static>>| {
        let draft = Draft { writable_files: Some(bytes), memory_bytes, files, ..draft() };
        validate(&draft, &Policy::default())
    };
    for (bytes, memory, expected) in
        [(0, 0, 64 * MIB), (0, 64 * MIB, 16 * MIB), (0, 1 << 40, 64 * MIB), (4096, 0, 4096), (256 * MIB, 0, 256 * MIB)]
    {
        let plan = asked(bytes, memory, vec![file("a", 1)]).unwrap();
        assert_eq!(
            plan.writable_files,
            Some(crate::plan::WritableFiles { bytes_max: expected }),
            "{bytes} of {memory}"
        );
        recheck(&plan, &Policy::default()).unwrap();
        for forged in [0, 1, plan.limits.memory_bytes + 1] {
            let writable_files = Some(crate::plan::WritableFiles { bytes_max: forged });
            recheck(&Plan { writable_files, ..plan.clone() }, &Policy::default()).unwrap_err();
        }
    }
    for bytes in [1, 4095, 256 * MIB + 1, u64::MAX] {
        let violations = asked(bytes, 0, vec![file("a", 1)]).unwrap_err();
        assert_eq!(violations[0].field, "writable_files.bytes_max");
        assert!(violations[0].description.contains("4096 to 268435456 (limits.memory_bytes)"), "{}", violations[0]);
    }
    assert_eq!(asked(0, 0, Vec::new()).unwrap_err()[0].field, "writable_files");
    let declared = Draft { writable_files: Some(0), file_directories: vec!["/run/scratch"], ..draft() };
    validate(&declared, &Policy::default()).unwrap();
}

/// Invalid groups and termination message files, as a compromised daemon could send them, are refused.
#[test]
fn scheduler_fields_are_revalidated() {
    let message = TerminationMessage { path: "".into(), bytes_max: 0, fallback_to_logs: true };
    let asked =
        Draft { extra_groups: vec!["4", "adm"], keep_environment: true, termination_message: Some(message), ..draft() };
    let plan = validate(&asked, &Policy::default()).unwrap();
    let planned = plan.termination_message.as_ref().unwrap();
    assert_eq!((planned.path.to_str(), planned.bytes_max), (Some("/dev/termination-log"), 4096));
    assert!(plan.keep_environment && plan.extra_groups.len() == 2);
    recheck(&plan, &Policy::default()).unwrap();
    fn message_of(plan: &mut Plan) -> &mut TerminationMessage {
        plan.termination_message.as_mut().unwrap()
    }
    let forged: [fn(&mut Plan); 7] = [
        |plan| plan.extra_groups = vec![Principal::Name("a/b".into())],
        |plan| plan.extra_groups = vec![Principal::Id(RANGE_IDS)],
        |plan| plan.extra_groups = (0..33).map(Principal::Id).collect(),
        |plan| message_of(plan).path = "/dev/null".into(),
        |plan| message_of(plan).path = "".into(),
        |plan| message_of(plan).bytes_max = 0,
        |plan| message_of(plan).bytes_max = 1 << 20,
    ];
    for (index, forge) in forged.iter().enumerate() {
        let mut plan = plan.clone();
        forge(&mut plan);
        assert!(recheck(&plan, &Policy::default()).is_err(), "{index}");
    }
}
