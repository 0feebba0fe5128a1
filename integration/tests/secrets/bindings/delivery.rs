//! agent-cli delivers bindings: every profile and layout, from VCAP_SERVICES and from directories, at the start and by
//! rotation. Invalid bindings are refused.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use integration::api::pid;
use integration::cli::run;
use integration::daemon::{Daemon, Setup};
use integration::rootfs::Rootfs;
use serde_json::{Value, json};

use crate::bindings::{ROOT, Vcap, run_agent_cli};

/// A command that runs until it is stopped.
const WAIT: [&str; 3] = ["--", "sleep", "100000"];

fn example() -> Vcap {
    Vcap::new(&json!({
        "mysql": [{
            "label": "mysql-type", "plan": "p1", "name": "db", "tags": [], "binding_guid": "g",
            "credentials": {"password": "secret one", "port": 3306, "tls": {"ca": "x"}, "none": null},
        }],
    }))
}

/// Returns the files below a directory of a running container by path. Links are followed.
fn files_in_container(daemon: &Daemon, id: &str, directory: &str) -> BTreeMap<String, Vec<u8>> {
    let root = format!("/proc/{}/root{directory}", pid(&daemon.api.get(id).unwrap()));
    let mut found = BTreeMap::new();
    collect(Path::new(&root), "", &mut found);
    found
}

fn collect(dir: &Path, below: &str, found: &mut BTreeMap<String, Vec<u8>>) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        let name = format!("{below}{}", path.file_name().unwrap().to_str().unwrap());
        match path.is_dir() {
            true => collect(&path, &format!("{name}/"), found),
            false => drop(found.insert(name, fs::read(path).unwrap())),
        }
    }
}

/// Returns the contents of files as text.
fn text(files: &BTreeMap<String, Vec<u8>>) -> BTreeMap<&str, &str> {
    files.iter().map(|(path, content)| (path.as_str(), std::str::from_utf8(content).unwrap())).collect()
}

/// A container has exactly the files that `bindings show` prints, in every profile.
#[test]
fn shown_files_equal_delivered_files() {
    let (daemon, vcap, rootfs) = (Daemon::start(), example(), Rootfs::busybox());
    let socket = daemon.socket();
    for profile in ["cc", "rfc", "libcnb"] {
        for rootfs in ["host", &rootfs.reference()] {
            let from = ["--vcap-services", &vcap.source(), "--binding-profile", profile];
            let shown =
                run_agent_cli(&socket, &[&["bindings", "show", "--json", "--reveal"], &from[..]].concat()).json();
            let expected: BTreeMap<String, Vec<u8>> = shown["files"].as_array().unwrap().iter().map(file).collect();
            run_agent_cli(&socket, &[&["run", "--id", "x", "-d", "--rootfs", rootfs], &from[..], &WAIT].concat());
            assert_eq!(files_in_container(&daemon, "x", ROOT), expected, "{profile}");
            let environment = fs::read(format!("/proc/{}/environ", pid(&daemon.api.get("x").unwrap()))).unwrap();
            let environment = String::from_utf8(environment).unwrap();
            assert!(environment.contains("SERVICE_BINDING_ROOT=/etc/cf-service-bindings\0"), "{environment}");
            assert!(!environment.contains("VCAP_SERVICES"), "{environment}");
            run_agent_cli(&socket, &["rm", "-f", "x"]);
        }
    }
}

fn file(file: &Value) -> (String, Vec<u8>) {
    (file["path"].as_str().unwrap().to_owned(), file["content"].as_str().unwrap().as_bytes().to_vec())
}

#[test]
fn one_file_has_the_whole_document() {
    let (daemon, vcap) = (Daemon::start(), example());
    let script = "env | grep -c ^SERVICE_BINDING_ROOT; env | grep ^VCAP_; cat $VCAP_SERVICES_FILE_PATH";
    let arguments =
        ["run", "--redact", "none", "--vcap-services", &vcap.source(), "--vcap-file", "--", "sh", "-c", script];
    let ran = run_agent_cli(&daemon.socket(), &arguments);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines[..2], ["0", "VCAP_SERVICES_FILE_PATH=/etc/cf-service-bindings/vcap_services"]);
    let document = fs::read_to_string(vcap.source().strip_prefix('@').unwrap()).unwrap();
    assert_eq!(lines[2..], [document.as_str()]);
}

/// A directory in Kubernetes' layout of projected volumes, with arbitrary bytes, is delivered unchanged in addition to
/// bindings of VCAP_SERVICES.
#[test]
fn directory_is_delivered_as_it_is() {
    let daemon = Daemon::start();
    let dir = tempfile::tempdir().unwrap();
    let binding = dir.path().join("keystore");
    fs::create_dir_all(binding.join("..2026_1")).unwrap();
    let bytes: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    fs::write(binding.join("..2026_1/type"), "java-keystore\n").unwrap();
    fs::write(binding.join("..2026_1/store.P12"), &bytes).unwrap();
    symlink("..2026_1", binding.join("..data")).unwrap();
    for name in ["type", "store.P12"] {
        symlink(format!("..data/{name}"), binding.join(name)).unwrap();
    }
    let (vcap, bind) = (example(), dir.path().to_str().unwrap());
    let run = ["run", "--id", "x", "-d", "--vcap-services", &vcap.source(), "--bind", bind];
    run_agent_cli(&daemon.socket(), &[&run[..], &WAIT].concat());
    let files = files_in_container(&daemon, "x", ROOT);
    assert_eq!((&files["keystore/type"][..], &files["keystore/store.P12"]), (&b"java-keystore\n"[..], &bytes));
    assert_eq!(files["db/password"], b"secret one");
}

/// `--bind` delivers files that `bindings write` wrote, unchanged. Credentials are masked, descriptions are not.
#[test]
fn binding_credentials_are_masked_descriptions_are_not() {
    let daemon = Daemon::start();
    let vcap = Vcap::new(&json!({
        "mysql-type": [{"label": "mysql-type", "name": "database", "plan": "the-large-plan", "credentials": {"password": "correct horse"}}],
    }));
    let dir = tempfile::tempdir().unwrap();
    let written = dir.path().join("written");
    let (socket, written) = (daemon.socket(), written.to_str().unwrap());
    run_agent_cli(&socket, &["bindings", "write", written, "--vcap-services", &vcap.source()]);
    let script =
        "cd $SERVICE_BINDING_ROOT/database && for entry in label name plan password; do cat $entry; echo; done";
    for from in [["--vcap-services", &*vcap.source()], ["--bind", written]] {
        let ran = run_agent_cli(&socket, &[&["run"], &from[..], &["--", "sh", "-c", script]].concat());
        assert_eq!(ran.stdout, "mysql-type\ndatabase\nthe-large-plan\n[REDACTED:database/password]\n", "{from:?}");
    }
}

/// A rotation adds, changes and removes bindings in one generation. Other files are not changed, regardless of their
/// path.
#[test]
fn rotation_replaces_only_bindings() {
    let daemon = Daemon::start();
    let socket = daemon.socket();
    let binding = |name: &str, credentials: Value| json!({"label": "t", "name": name, "credentials": credentials});
    let old =
        Vcap::new(&json!({"l": [binding("stays", json!({"a": "1", "b": "1"})), binding("goes", json!({"a": "1"}))]}));
    let new =
        Vcap::new(&json!({"l": [binding("stays", json!({"b": "2", "c": "2"})), binding("comes", json!({"a": "2"}))]}));
    let from = |vcap: &Vcap| ["--vcap-services".to_owned(), vcap.source(), "--binding-profile=libcnb".to_owned()];
    let others = ["--file", "token=@env:HOME", "--file", "plain/file=@env:HOME", "--file", "/run/o/type=@env:HOME"];
    let none = Vcap::new(&json!({}));
    let (from_old, from_new, from_none) = (from(&old), from(&new), from(&none));
    let rotate = |from: &[String; 3], more: &[&str]| {
        let from: Vec<&str> = from.iter().map(String::as_str).collect();
        run(&socket, &[&["rotate", "x"], &from[..], more].concat())
    };
    let words: Vec<&str> = from_old.iter().map(String::as_str).collect();
    let token = ["--runtime-token", "stays/token"];
    run_agent_cli(&socket, &[&["run", "--id", "x", "-d"], &words[..], &others, &token, &WAIT].concat());
    let before = files_in_container(&daemon, "x", ROOT);
    assert_eq!(rotate(&from_new, &[]).stdout, "2\n", "one step");
    let after = files_in_container(&daemon, "x", ROOT);
    let mut expected = BTreeMap::from([
        ("stays/type", "t"),
        ("stays/provider", "l"),
        ("stays/b", "2"),
        ("stays/c", "2"),
        ("comes/type", "t"),
        ("comes/provider", "l"),
        ("comes/a", "2"),
    ]);
    for kept in ["token", "plain/file", "stays/token"] {
        assert_eq!(after[kept], before[kept]);
        expected.insert(kept, std::str::from_utf8(&before[kept]).unwrap());
    }
    assert_eq!(text(&after), expected);
    assert!(files_in_container(&daemon, "x", "/run/o").contains_key("type"));

    // Removes all bindings and adds one again.
    assert_eq!(rotate(&from_none, &["--remove", "token"]).stdout, "3\n");
    let paths: Vec<String> = files_in_container(&daemon, "x", ROOT).into_keys().collect();
    assert_eq!(paths, ["plain/file", "stays/token"]);
    assert_eq!(rotate(&from_old, &["--expect-generation", "3"]).stdout, "4\n");
    assert_eq!(files_in_container(&daemon, "x", ROOT)["goes/a"], b"1");
    let stale = rotate(&from_new, &["--expect-generation", "3"]);
    assert_eq!((stale.status, &*stale.stdout), (125, ""), "{stale:?}");
    assert_eq!(files_in_container(&daemon, "x", ROOT)["goes/a"], b"1", "nothing changed");
}

/// Concurrent rotations are atomic: no generation mixes entries of two rotations.
#[test]
fn rotations_at_once_do_not_mix() {
    let daemon = Daemon::start();
    let socket = daemon.socket();
    let vcaps: Vec<Vcap> = (0..6)
        .map(|number| {
            let entries: BTreeMap<String, String> =
                (0..4).map(|entry| (format!("k{number}-{entry}"), number.to_string())).collect();
            Vcap::new(&json!({"l": [{"name": format!("b{number}"), "credentials": entries}]}))
        })
        .collect();
    run_agent_cli(&socket, &[&["run", "--id", "x", "-d", "--vcap-services", &vcaps[0].source()], &WAIT[..]].concat());
    let rotations = vcaps.iter().map(|vcap| {
        let arguments = ["rotate", "x", "--vcap-services", &vcap.source()].map(str::to_owned);
        integration::cli::command(Some(&socket), &arguments).spawn().unwrap()
    });
    let rotations: Vec<_> = rotations.collect();
    let ended: Vec<_> = rotations.into_iter().map(integration::cli::finish).collect();
    assert!(ended.iter().any(|ran| ran.status == 0), "{ended:?}");
    for ran in ended.iter().filter(|ran| ran.status != 0) {
        assert!(ran.stderr.contains("another client or executord has replaced the files"), "{ran:?}");
    }
    let files = files_in_container(&daemon, "x", ROOT);
    let bindings: std::collections::BTreeSet<&str> = files.keys().map(|path| path.split_once('/').unwrap().0).collect();
    assert_eq!((bindings.len(), files.len()), (1, 7), "{:?}", files.keys());
}

/// Bindings with 1,000,000 bytes of paths and contents are delivered. One more byte is refused.
#[test]
fn bindings_are_limited_to_million_bytes() {
    let daemon = Daemon::start();
    let sized = |length: usize| Vcap::new(&json!({"l": [{"name": "b", "credentials": {"pad": "x".repeat(length)}}]}));
    let arguments = |vcap: &Vcap| ["--vcap-services".to_owned(), vcap.source(), "--binding-profile=libcnb".to_owned()];
    // The paths and contents of the other files: b/pad, b/type = l, b/provider = l.
    let most = 1_000_000 - (5 + 7 + 11);
    for (length, fits) in [(most, true), (most + 1, false)] {
        let vcap = sized(length);
        let from = arguments(&vcap);
        let from: Vec<&str> = from.iter().map(String::as_str).collect();
        let script = ["--", "sh", "-c", "wc -c < $SERVICE_BINDING_ROOT/b/pad"];
        let ran = run(&daemon.socket(), &[&["run"], &from[..], &script].concat());
        if fits {
            assert_eq!((ran.status, &*ran.stdout), (0, &*format!("{length}\n")), "{}", ran.stderr);
        } else {
            let expected = "agent-cli: Cannot build service binding files for app - Bindings exceed the maximum allowed \
                            bytesize of 1000000: 1000001\n";
            assert_eq!((ran.status, &*ran.stdout, &*ran.stderr), (125, "", expected));
        }
    }
    assert_eq!(daemon.api.ids(), [""; 0]);
}

/// SERVICE_BINDING_ROOT names an existing directory even without any binding. Bindings can be added to it.
#[test]
fn without_a_binding_the_root_is_there() {
    let (daemon, none, some) = (Daemon::start(), Vcap::new(&json!({})), example());
    let socket = daemon.socket();
    let (none, some) = (none.source(), some.source());
    let ran =
        run_agent_cli(&socket, &["run", "--vcap-services", &none, "--", "sh", "-c", "ls \"$SERVICE_BINDING_ROOT\""]);
    assert_eq!(ran.stdout, "", "the directory exists and has no binding");
    run_agent_cli(&socket, &[&["run", "--detach", "--id", "none", "--vcap-services", &none][..], &WAIT].concat());
    run_agent_cli(&socket, &["rotate", "none", "--vcap-services", &some]);
    assert!(files_in_container(&daemon, "none", ROOT).contains_key("db/password"));
}

#[test]
fn invalid_bindings_start_no_container() {
    let (daemon, vcap) = (Daemon::start(), example());
    let socket = daemon.socket();
    let source = vcap.source();
    let bad = Vcap::new(&json!({"l": [{"name": "B_D"}, {"name": "x"}, {"name": "x"}]}));
    let table: [(&[&str], &str); 5] = [
        (&["--vcap-services", &bad.source()], "Invalid binding name: 'B_D'"),
        (
            &["--vcap-services", &bad.source()],
            "\nCannot build service binding files for app - Duplicate binding name: x",
        ),
        (&["--vcap-services", &source, "--env", "VCAP_SERVICES={}"], "omit --env"),
        (&["--vcap-services", "{}"], "the value itself cannot be given"),
        (&["--bind", "/no/such"], "cannot read /no/such"),
    ];
    for (options, expected) in table {
        let ran = run(&socket, &[&["run", "--detach"], options, &WAIT].concat());
        assert!(ran.status == 125 && ran.stdout.is_empty() && ran.stderr.contains(expected), "{ran:?}");
        assert_eq!(daemon.api.ids(), [""; 0], "{options:?}");
    }
    for (options, expected) in [
        (&["--id", "plain"][..], "has no bindings below"),
        (&["--id", "file", "--vcap-services", &source, "--vcap-file"], "add --vcap-file"),
    ] {
        run_agent_cli(&socket, &[&["run", "--detach"], options, &WAIT].concat());
        let ran = run(&socket, &["rotate", options[1], "--vcap-services", &source]);
        assert!(ran.status == 125 && ran.stderr.contains(expected), "{ran:?}");
    }
}

/// Bindings are in the root directory that the operator configured, and the variable names this directory.
#[test]
fn operator_chooses_the_root() {
    let daemon = Setup::default().config("[policy]\nfiles_root = \"/run/bound\"\n").start();
    let vcap = example();
    let arguments =
        ["run", "--vcap-services", &vcap.source(), "--", "sh", "-c", "echo $SERVICE_BINDING_ROOT; ls /run/bound"];
    assert_eq!(run_agent_cli(&daemon.socket(), &arguments).stdout, "/run/bound\ndb\n");
}

/// The variable names a directory that contains only bindings, both if the image has the directory and if the image
/// lacks its parents.
#[test]
fn binding_root_may_exist_or_lack_parents() {
    let (daemon, vcap, rootfs) = (Daemon::start(), example(), Rootfs::busybox());
    fs::create_dir(rootfs.path().join("etc/cf-service-bindings")).unwrap();
    let (reference, source) = (rootfs.reference(), vcap.source());
    for root in [ROOT, "/srv/deep/bindings"] {
        let script = "echo $SERVICE_BINDING_ROOT; ls -A $SERVICE_BINDING_ROOT; cat $SERVICE_BINDING_ROOT/db/type";
        let run = ["run", "--rootfs", &reference, "--vcap-services", &source, "--binding-root", root];
        let ran = run_agent_cli(&daemon.socket(), &[&run[..], &["--", "sh", "-c", script]].concat());
        assert_eq!(ran.stdout, format!("{root}\ndb\nmysql-type"));
    }
}
