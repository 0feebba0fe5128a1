//! Tests captured outputs. Secrets are never captured, even if a container attempts a capture. The control of each
//! claim shows that the test would detect a capture.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use executor_proto::v1::{
    Container, EnvironmentVariable, Outputs, OutputsSummary, Redaction, RunRequest, SecretArgument,
};
use integration::api::exit;
use integration::daemon::{Daemon, Setup};
use integration::outputs::{Fetched, directory, fetch, files};
use integration::request::{RequestBuilder, program, sh};
use integration::rootfs::Rootfs;
use tonic::Code;

const CANARY: &str = "canary-of-the-outputs-9d01";

/// Adds outputs to a request and turns redaction off, because the containers print their secrets as controls.
fn with_outputs(outputs: Option<Outputs>, request: RunRequest) -> RunRequest {
    RunRequest { outputs, redaction: Redaction::None.into(), ..request }
}

/// Runs a container to its exit and fetches all of its outputs.
fn captured(daemon: &Daemon, request: RunRequest) -> (Container, Fetched) {
    let container = daemon.api.run_to_end(request);
    let fetched = fetch(&daemon.api, &container.id, "").unwrap_or_else(|status| {
        panic!("{status:?}\n{}", String::from_utf8_lossy(&daemon.api.output(&container.id).stderr))
    });
    let summary = summary(&container);
    let bytes: usize = fetched.files.values().map(|(content, _)| content.len()).sum();
    assert_eq!((summary.files as usize, summary.bytes as usize), (fetched.files.len(), bytes));
    assert_eq!(summary.failure, "");
    (container, fetched)
}

fn summary(container: &Container) -> OutputsSummary {
    container.result.clone().unwrap().outputs.unwrap()
}

/// Returns the files below a directory that contain these bytes.
fn files_containing(dir: &Path, bytes: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files_containing(&entry.path(), bytes));
        } else if fs::read(entry.path()).unwrap().windows(bytes.len()).any(|window| window == bytes) {
            found.push(entry.path().display().to_string());
        }
    }
    found
}

/// A plain file in the output directory is captured.
#[test]
fn plain_text_file_is_captured() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let script = "echo result >/srv/result.txt; mkdir -p /srv/a/b; echo deep >/srv/a/b/c; echo no >/tmp/elsewhere";
    let (_, fetched) = captured(&daemon, with_outputs(directory("/srv"), sh(script).rootfs(&rootfs.reference())));
    assert_eq!(fetched.paths(), ["/srv/a/b/c", "/srv/result.txt"]);
    assert_eq!((fetched.text("/srv/result.txt"), fetched.text("/srv/a/b/c")), ("result\n".into(), "deep\n".into()));
    assert_eq!(fetched.skipped, []);
}

/// A secret file in the output directory is readable in the container and is not captured. This holds whether the file
/// is mounted individually or with its directory.
#[test]
fn secret_in_output_directory_is_not_captured() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let script = "echo plain >/srv/plain; cat /srv/key /srv/db/password";
    let request = sh(script).rootfs(&rootfs.reference()).user("app");
    let request = request.file("/srv/key", CANARY.as_bytes()).file("/srv/db/password", CANARY.as_bytes());
    fs::set_permissions(rootfs.path().join("srv"), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let (container, fetched) = captured(&daemon, with_outputs(directory("/srv"), request));
    assert_eq!(
        daemon.api.output(&container.id).text(),
        format!("{CANARY}{CANARY}"),
        "control: the secrets are readable in the container"
    );
    assert_eq!(fetched.paths(), ["/srv/plain"]);
    assert_eq!(fetched.reason("/srv/key"), "a secret file");
    assert_eq!(fetched.reason("/srv/db"), "a directory of secret files");
    let wipe = container.result.unwrap().wipe.unwrap();
    assert!(wipe.verified && wipe.files == 2 && wipe.bytes == 2 * CANARY.len() as u64, "{wipe:?}");
    // A directory of secret files is not captured at all.
    let request = with_outputs(directory("/etc/cf-service-bindings"), sh("true").file("a", CANARY.as_bytes()));
    let (_, fetched) = captured(&daemon, request);
    assert_eq!(fetched.reason("/etc/cf-service-bindings"), "a directory of secret files");
}

/// A link to a secret file is not captured, and neither is a link to a plain file or a declared path that leads through
/// a link.
#[test]
fn symlink_to_a_secret_is_skipped() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let script = "cd /srv; for link in link:/etc/app/key up:../etc/app/key dir:/etc/app plain:/srv/real host:/etc/passwd; do \
        busybox ln -s ${link#*:} ${link%%:*}; done; echo real >real; cat link up dir/key; cat plain";
    let request = || sh(script).rootfs(&rootfs.reference()).file("/etc/app/key", CANARY.as_bytes());
    let (container, fetched) = captured(&daemon, with_outputs(directory("/srv"), request()));
    let seen = daemon.api.output(&container.id).text();
    assert_eq!(seen, format!("{CANARY}{CANARY}{CANARY}real\n"), "control: the links are readable in the container");
    assert_eq!(fetched.paths(), ["/srv/real"]);
    for link in ["/srv/link", "/srv/up", "/srv/dir", "/srv/plain", "/srv/host"] {
        assert_eq!(fetched.reason(link), "a symbolic link");
    }
    let declared = files(&["/srv/link", "/srv/dir/key", "/srv/dir/none", "/srv/real"]);
    let (_, fetched) = captured(&daemon, with_outputs(declared, request()));
    assert_eq!(fetched.paths(), ["/srv/real"]);
    let reasons = ["/srv/link", "/srv/dir/key", "/srv/dir/none"].map(|path| fetched.reason(path));
    assert_eq!(reasons, ["a symbolic link", "the path contains a symbolic link", "the path contains a symbolic link"]);
    let (_, fetched) = captured(&daemon, with_outputs(directory("/srv/dir"), request()));
    assert_eq!((fetched.paths().len(), fetched.reason("/srv/dir")), (0, "a symbolic link"));
}

/// A secret file cannot get another name: the kernel refuses hard links out of its file system and within it, and a
/// container cannot mount. A copy that the container makes itself is captured.
#[test]
fn hard_links_and_mounts_reach_no_secret() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let script = "cd /srv; busybox ln key hard; busybox ln db/password db/hard; mkdir bound; touch file; \
        mount -o bind /srv/db bound; mount -o bind key file; busybox mknod dev c 1 3; cat key >copy";
    let request = sh(script).rootfs(&rootfs.reference());
    let request = request.file("/srv/key", CANARY.as_bytes()).file("/srv/db/password", CANARY.as_bytes());
    let (container, fetched) = captured(&daemon, with_outputs(directory("/srv"), request));
    let refused = String::from_utf8(daemon.api.output(&container.id).stderr).unwrap();
    for words in
        ["hard: Invalid cross-device link", "db/hard: Read-only file system", "mknod: dev: Operation not permitted"]
    {
        assert!(refused.contains(words), "{words:?} is not in:\n{refused}");
    }
    assert_eq!(refused.matches("mount: ").count(), 2, "{refused}");
    assert_eq!(fetched.paths(), ["/srv/copy", "/srv/file"]);
    assert_eq!((fetched.text("/srv/copy"), fetched.text("/srv/file")), (CANARY.into(), String::new()));
}

/// The output directory contains bytes of a secret input only if the program itself has written them there.
#[test]
fn output_directory_contains_only_copied_secrets() {
    let daemon = Daemon::start();
    let kept = |id: &str| daemon.setup().state_dir().join("containers").join(id);
    let mut places = Vec::new();
    for (id, copies) in [("keeps", ""), ("copies", "cat /run/app/key >copy; echo $S $1 >both;")] {
        let script = format!("mkdir -p /tmp/o; cd /tmp/o; {copies} ln -s /run/app/key link; echo x >plain");
        let request = program("/bin/sh", &["-c", &script, "sh", ""]).id(id);
        let request = request.file("/run/app/key", CANARY.as_bytes()).action(|run| {
            run.secret_environment.push(EnvironmentVariable {
                name: "S".into(),
                value: CANARY.into(),
                ..EnvironmentVariable::default()
            });
            run.secret_arguments.push(SecretArgument { index: 3, value: CANARY.into(), ..SecretArgument::default() });
        });
        captured(&daemon, with_outputs(directory("/tmp/o"), request));
        places.push(files_containing(&kept(id), CANARY.as_bytes()).len());
    }
    assert_eq!(places, [0, 2], "control: the second container has copied the secrets into two files");
    let outputs = fs::metadata(kept("keeps").join("outputs")).unwrap();
    let parent = fs::metadata(kept("keeps")).unwrap();
    assert_eq!((outputs.mode() & 0o7777, outputs.uid(), outputs.gid()), (0o750, 0, parent.gid()));
    for entry in fs::read_dir(kept("keeps").join("outputs")).unwrap().flatten() {
        let meta = entry.metadata().unwrap();
        assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid()), (0o640, 0, parent.gid()), "{entry:?}");
    }
}

/// A container's /tmp and /run are its own tmpfs mounts. Outputs there are read while the container's mount namespace
/// still exists.
#[test]
fn outputs_of_every_kind_of_file_system() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let script = "mkdir -p /tmp/o /run/o; echo t >/tmp/o/f; echo r >/run/o/f; exit 3";
    let paths = ["/tmp/o/f", "/run/o/f", "/tmp/o", "/tmp/none", "/none/f", "/etc/passwd"];
    let (container, fetched) = captured(&daemon, with_outputs(files(&paths), sh(script)));
    assert_eq!(exit(&container), Ok(3));
    assert_eq!((fetched.text("/tmp/o/f"), fetched.text("/run/o/f")), ("t\n".into(), "r\n".into()));
    assert!(fetched.text("/etc/passwd").starts_with("root:x:0:0:root:/root:/bin/sh\nvcap"), "the container's own");
    let reasons = ["/tmp/o", "/tmp/none", "/none/f"].map(|path| fetched.reason(path));
    assert_eq!(reasons, ["a directory", "no such file", "no such file"]);

    let before = rootfs.listing();
    let (_, fetched) = captured(
        &daemon,
        with_outputs(directory("/etc"), sh("echo new >/etc/new; rm /etc/group").rootfs(&rootfs.reference())),
    );
    assert!(fetched.paths().contains(&"/etc/new") && fetched.paths().contains(&"/etc/passwd"));
    assert!(!fetched.paths().contains(&"/etc/group"), "{fetched:?}");
    assert_eq!(rootfs.listing(), before);

    for (path, reason) in [("/tmp/none", "no such file"), ("/etc/passwd", "not a directory")] {
        let (_, fetched) = captured(&daemon, with_outputs(directory(path), sh("true")));
        assert_eq!((fetched.paths().len(), fetched.reason(path)), (0, reason));
    }
    let (_, fetched) = captured(&daemon, with_outputs(directory("/tmp/o"), sh("mkdir /tmp/o")));
    assert_eq!(fetched, Fetched::default(), "an empty directory");
}

#[test]
fn names_modes_and_what_is_no_file() {
    let daemon = Daemon::start();
    let script = "import os, socket\n\
        os.mkdir('/tmp/o'); os.chdir('/tmp/o'); os.umask(0)\n\
        for name, mode in [(b'a b', 0o644), ('ä\\n\\x1b'.encode(), 0o4755), (b'\\xff\\xfe', 0o644), (b'x' * 255, 0o400), (b'..data', 0o1666)]:\n\
        \x20 open(name, 'w').close(); os.chmod(name, mode)\n\
        os.mkfifo('fifo'); socket.socket(socket.AF_UNIX).bind('socket'); os.mknod('whiteout', 0o20666, 0)\n\
        os.mkdir('empty'); os.mkdir(b'\\xe4'); open(b'\\xe4/f', 'w').close()\n";
    let (_, fetched) =
        captured(&daemon, with_outputs(directory("/tmp/o"), program("/usr/bin/python3", &["-c", script])));
    let long = format!("/tmp/o/{}", "x".repeat(255));
    let expected = [("/tmp/o/..data", 0o1666), ("/tmp/o/a b", 0o644), (&long, 0o400), ("/tmp/o/ä\n\u{1b}", 0o4755)];
    let found: Vec<(&str, u32)> = fetched.files.iter().map(|(path, (_, mode))| (path.as_str(), *mode)).collect();
    assert_eq!(found, expected);
    let skipped = [
        ("/tmp/o/fifo", "a named pipe"),
        ("/tmp/o/socket", "a socket"),
        ("/tmp/o/whiteout", "a device"),
        ("/tmp/o/\\xff\\xfe", "the name is not UTF-8"),
        ("/tmp/o/\\xe4/f", "the name is not UTF-8"),
    ];
    for (path, reason) in skipped {
        assert_eq!(fetched.reason(path), reason);
    }
    assert_eq!(fetched.skipped.len(), skipped.len(), "{:?}", fetched.skipped);
}

/// A capture reads files as the process's user: declared outputs contain only data that the process itself could read.
#[test]
fn files_unreadable_by_user_are_not_captured() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let path = |name: &str| rootfs.path().join("srv").join(name);
    fs::set_permissions(path(""), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    for (name, mode, owner) in [("roots", 0o600, 0), ("groups", 0o040, 80), ("others", 0o600, 4711)] {
        fs::write(path(name), name).unwrap();
        fs::set_permissions(path(name), std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        std::os::unix::fs::chown(path(name), Some(if owner == 80 { 0 } else { owner }), Some(owner)).unwrap();
    }
    let script =
        "cd /srv; echo own >own; chmod 600 own; echo shut >shut; chmod 0 shut; mkdir dir; echo x >dir/x; chmod 0 dir";
    let request = || sh(script).rootfs(&rootfs.reference());
    let (_, fetched) = captured(&daemon, with_outputs(directory("/srv"), request().user("app")));
    assert_eq!(fetched.paths(), ["/srv/groups", "/srv/own"]);
    for path in ["/srv/roots", "/srv/others", "/srv/shut", "/srv/dir"] {
        assert_eq!(fetched.reason(path), "the process's user may not read the path");
    }
    let (_, fetched) = captured(&daemon, with_outputs(directory("/srv"), request()));
    let all = ["/srv/dir/x", "/srv/groups", "/srv/others", "/srv/own", "/srv/roots", "/srv/shut"];
    assert_eq!(fetched.paths(), all, "root of the container may read all files");
}

#[test]
fn sizes_are_bounded() {
    let daemon = Setup::default().config("[policy]\noutputs_bytes_max = 3000000\n").start();
    let script = "mkdir /tmp/o; cd /tmp/o; truncate -s 1T a-sparse; truncate -s 1M b-sparse; head -c 1500000 /dev/urandom >c; \
        head -c 1500000 /dev/urandom >d; echo small >e; sha256sum c";
    let (container, fetched) = captured(&daemon, with_outputs(directory("/tmp/o"), sh(script)));
    assert_eq!(fetched.paths(), ["/tmp/o/b-sparse", "/tmp/o/c", "/tmp/o/e"]);
    assert_eq!(fetched.reason("/tmp/o/a-sparse"), "the file is 1099511627776 bytes; 3000000 of 3000000 bytes are left");
    assert_eq!(fetched.reason("/tmp/o/d"), "the file is 1500000 bytes; 451424 of 3000000 bytes are left");
    let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(&fetched.files["/tmp/o/c"].0));
    assert!(daemon.api.output(&container.id).text().starts_with(&digest), "byte for byte");
    let less = Some(Outputs { bytes_max: 6, ..directory("/tmp/o").unwrap() });
    let (_, fetched) = captured(&daemon, with_outputs(less, sh(script)));
    assert_eq!(fetched.paths(), ["/tmp/o/e"]);
    let more = Some(Outputs { bytes_max: 3_000_001, ..directory("/tmp/o").unwrap() });
    let refused = daemon.api.run(with_outputs(more, sh(script))).unwrap_err();
    assert!(refused.code() == Code::InvalidArgument && refused.message().contains("outputs_bytes_max"), "{refused:?}");
}

#[test]
fn entries_are_bounded() {
    let daemon = Daemon::start();
    let many = "import os\nos.mkdir('/tmp/o')\nfor i in range(10050): open(f'/tmp/o/{i}', 'w').close()\n";
    let (_, fetched) = captured(&daemon, with_outputs(directory("/tmp/o"), program("/usr/bin/python3", &["-c", many])));
    assert_eq!(fetched.files.len(), 10_000);
    assert_eq!(fetched.skipped, [("/tmp/o".into(), "more than 10000 entries: further entries were skipped".into())]);
    let links = "import os\nos.mkdir('/tmp/o')\nfor i in range(1005): os.symlink('x', f'/tmp/o/{i}')\n";
    let (container, fetched) =
        captured(&daemon, with_outputs(directory("/tmp/o"), program("/usr/bin/python3", &["-c", links])));
    assert_eq!((fetched.skipped.len(), summary(&container).skipped), (1001, 1005));
    assert_eq!(fetched.skipped[1000], (String::new(), "5 more files were skipped and are not listed".into()));
    let deep = "import os\nos.mkdir('/tmp/o'); os.chdir('/tmp/o')\nfor i in range(3000):\n os.mkdir('dd'); os.chdir('dd')\n\
        open('f', 'w').close()\n";
    let (_, fetched) = captured(&daemon, with_outputs(directory("/tmp/o"), program("/usr/bin/python3", &["-c", deep])));
    assert_eq!(fetched.files.len(), 0);
    assert_eq!(fetched.skipped[0].1, "more than 128 nested directories");
    let wide = "import os\nos.mkdir('/tmp/o'); os.chdir('/tmp/o')\nfor i in range(20):\n os.mkdir('d' * 250); os.chdir('d' * 250)\n\
        \x20open('f', 'w').close()\n";
    let (_, fetched) = captured(&daemon, with_outputs(directory("/tmp/o"), program("/usr/bin/python3", &["-c", wide])));
    assert_eq!((fetched.files.len(), &*fetched.skipped[0].1), (16, "the path has more than 4095 bytes"));
}

/// Outputs are captured after every kind of exit. If the process never ran, there are no outputs.
#[test]
fn outputs_of_every_end() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    let request = |id: &str, then: &str| {
        let script = format!("echo $$ >/srv/pid; {then}");
        with_outputs(files(&["/srv/pid"]), sh(&script).id(id).rootfs(&rootfs.reference()).memory(24 << 20))
    };
    for (id, then, ending) in [
        ("code", "exit 7", Ok(7)),
        ("signal", "kill -9 $$; sleep 100000", Err(9)),
        ("oom", "exec dd if=/dev/zero of=/dev/null bs=60M count=1", Err(9)),
        ("orphans", "sleep 100000 & exit 0", Ok(0)),
    ] {
        let daemon_api = &daemon.api;
        if id == "signal" {
            // Init cannot be killed from inside the container, so the host kills it.
            let started = daemon_api.up(request(id, "echo up; exec sleep 100000"));
            daemon_api.signal(&started.id, 9).unwrap();
        } else {
            daemon_api.started(request(id, then));
        }
        let container = daemon_api.wait(id).unwrap();
        assert_eq!(exit(&container), ending, "{id}");
        assert_eq!(fetch(daemon_api, id, "/srv/pid").unwrap().text("/srv/pid"), "1\n", "{id}");
    }
    let stopped = daemon
        .api
        .up(request("stopped", "trap 'echo bye >/srv/pid; exit 4' TERM; echo up; while :; do sleep 0.05; done"));
    let early = fetch(&daemon.api, &stopped.id, "").unwrap_err();
    assert_eq!(early.code(), Code::FailedPrecondition);
    assert!(early.message().contains("is running: its outputs can be read when it is completed"), "{early:?}");
    daemon.api.stop("stopped", Some(60_000)).unwrap();
    assert_eq!(exit(&daemon.api.wait("stopped").unwrap()), Ok(4));
    assert_eq!(fetch(&daemon.api, "stopped", "").unwrap().text("/srv/pid"), "bye\n");

    let none = daemon.api.run_to_end(with_outputs(files(&["/etc/passwd"]), program("/nope", &[]).id("none")));
    assert_eq!(none.result.unwrap().outputs, None);
    daemon.api.run_to_end(sh("true").id("undeclared"));
    for (id, path, code, words) in [
        ("none", "", Code::FailedPrecondition, "its process never ran"),
        ("undeclared", "", Code::FailedPrecondition, "declared no outputs"),
        ("code", "/srv/pi", Code::NotFound, "no output \"/srv/pi\""),
        ("code", "/srv/pid/x", Code::NotFound, "no output"),
        ("code", "srv", Code::InvalidArgument, "path: must be an absolute path"),
        ("no-such", "", Code::NotFound, "no container"),
    ] {
        let status = fetch(&daemon.api, id, path).unwrap_err();
        assert!(status.code() == code && status.message().contains(words), "{id} {path}: {status:?}");
    }
    assert_eq!(fetch(&daemon.api, "code", "/srv/").unwrap().paths(), ["/srv/pid"]);
}
