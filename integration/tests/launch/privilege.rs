//! Privileges of each process, callers that executord serves, and locations where no secret may be readable. Each claim
//! has a control: the same check in a place where the result must differ.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use executor_residue::{Canary, Needles, Place, Search};
use integration::api::{exit, pid};
use integration::cli::{command, finish};
use integration::daemon::{Daemon, Setup};
use integration::host::status;
use integration::request::{RequestBuilder, program, sh, sleeper};
use integration::{dist, wait};
use rustix::fs::{SealFlags, fcntl_get_seals};

/// Returns the four uids or gids of a process.
fn ids(pid: i32, which: &str) -> Vec<u32> {
    status(pid, which).unwrap().split_whitespace().map(|id| id.parse().unwrap()).collect()
}

fn capabilities(pid: i32) -> Vec<u64> {
    let sets = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
    sets.iter().map(|set| u64::from_str_radix(&status(pid, set).unwrap(), 16).unwrap()).collect()
}

/// Returns true if a process is dumpable: /proc/PID/environ of a process that is not dumpable belongs to root. The
/// result is meaningless for a process that runs as root.
fn is_dumpable(pid: i32) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(format!("/proc/{pid}/environ")).unwrap().uid() == ids(pid, "Uid")[1]
}

#[test]
fn executord_serves_without_privilege() {
    let daemon = Daemon::start();
    let own = ids(daemon.pid(), "Uid");
    assert!(own.iter().all(|uid| *uid != 0 && *uid == own[0]), "{own:?}");
    assert!(ids(daemon.pid(), "Gid").iter().all(|gid| *gid != 0));
    assert!(!status(daemon.pid(), "Groups").unwrap().split(' ').any(|group| group == "0"));
    assert_eq!(capabilities(daemon.pid()), [0; 5]);
    assert_eq!(status(daemon.pid(), "NoNewPrivs").as_deref(), Some("1"));
    assert!(!is_dumpable(daemon.pid()));
    assert_eq!(daemon.api.info().uid, own[0]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", daemon.pid())).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().rev().nth(1), Some("0"), "{core}");
    // Every thread is checked: privileges belong to threads.
    for task in std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().flatten() {
        // A thread of the runtime may exit during the check.
        let Ok(status) = std::fs::read_to_string(task.path().join("status")) else { continue };
        assert!(status.contains("CapEff:\t0000000000000000") && status.contains(&format!("Uid:\t{}\t", own[0])));
    }
}

#[test]
fn keep_root_keeps_root() {
    let daemon = Setup::default().arguments(&["--keep-root"]).start();
    assert_eq!(ids(daemon.pid(), "Uid"), [0; 4]);
    assert_ne!(capabilities(daemon.pid())[2], 0);
    assert_eq!(daemon.api.info().uid, 0);
    assert_eq!(exit(&daemon.api.run_to_end(sh("exit 3").file("a", b"x"))), Ok(3));
}

#[test]
fn user_can_be_named() {
    let daemon = Setup::default().arguments(&["--user", "daemon"]).start();
    assert_eq!(ids(daemon.pid(), "Uid"), [1; 4]);
    assert_eq!(exit(&daemon.api.run_to_end(sh("exit 3"))), Ok(3));
}

/// The socket's mode refuses agent-cli as another user. Without that mode, the daemon itself refuses agent-cli.
#[test]
fn callers_are_judged_by_their_credentials() {
    let daemon = Setup::default().arguments(&["--allow-group", "games"]).start();
    let own = ids(daemon.pid(), "Uid")[0];
    let socket = daemon.socket();
    let info = |uid: u32, gid: u32| {
        let mut command = command(Some(&socket), &["info", "--json"]);
        finish(command.uid(uid).gid(gid).spawn().unwrap())
    };
    const GAMES: u32 = 60;
    assert_eq!(info(0, 0).status, 0, "root is served");
    assert_eq!(info(own, own).status, 0, "the daemon's own user is served");
    assert_eq!(info(4242, GAMES).status, 0, "a member of the group is served");
    let stranger = info(4242, 4242);
    assert_eq!(stranger.status, 125);
    assert!(stranger.stderr.contains("no permission to connect"), "{stranger:?}");

    std::fs::set_permissions(&socket, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    for arguments in [&["info"][..], &["ps"], &["inspect", "x"], &["run", "--", "true"], &["events"]] {
        let mut command = command(Some(&socket), arguments);
        let refused = finish(command.uid(4242).gid(4242).spawn().unwrap());
        assert_eq!(refused.status, 125, "{arguments:?}");
        assert!(refused.stderr.contains("does not serve uid 4242"), "{refused:?}");
    }
    assert_eq!(daemon.api.ids(), [""; 0]);
    assert_eq!(info(4242, GAMES).status, 0, "control: the user is refused, not the call");
}

/// Programs without their own user run as `nobody`: a daemon without a configured user must not serve them.
#[test]
fn shared_user_is_no_caller() {
    const NOBODY: u32 = 65_534;
    let mut daemon = Setup::default().without_user().start();
    let own = ids(daemon.pid(), "Uid")[0];
    assert!((61_184..=65_519).contains(&own), "an id of its own: {own}");
    let info = |daemon: &Daemon, uid: u32| {
        finish(command(Some(&daemon.socket()), &["info"]).uid(uid).gid(uid).spawn().unwrap())
    };
    let open = |daemon: &Daemon| {
        std::fs::set_permissions(daemon.socket(), std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    };
    open(&daemon);
    assert_eq!((info(&daemon, 0).status, info(&daemon, own).status), (0, 0), "control failed");
    let refused = info(&daemon, NOBODY);
    assert!(refused.status == 125 && refused.stderr.contains("does not serve uid 65534"), "{refused:?}");
    daemon.kill();
    daemon.start_again();
    assert_eq!(ids(daemon.pid(), "Uid")[0], own, "executord keeps its user id");

    let daemon = Setup::default().arguments(&["--user", "nobody"]).start();
    assert_eq!(ids(daemon.pid(), "Uid"), [NOBODY; 4]);
    open(&daemon);
    let refused = info(&daemon, NOBODY);
    assert!(refused.status == 125 && refused.stderr.contains("does not serve uid 65534"), "{refused:?}");
    assert_eq!(info(&daemon, 0).status, 0, "control failed");
    assert!(daemon.setup().logged().contains("which other programs may also use"));
}

/// /proc/PID/exe of the executor's processes cannot be written from inside a container (CVE-2019-5736).
#[test]
fn launcher_and_shims_run_from_sealed_memfd() {
    let daemon = Daemon::start();
    daemon.api.started(sleeper("one"));
    for pid in [daemon.launcher().unwrap(), daemon.record("one").shim.pid] {
        let exe = format!("/proc/{pid}/exe");
        assert_eq!(std::fs::read_link(&exe).unwrap(), Path::new("/memfd:executor-launcher (deleted)"));
        let refused = File::options().write(true).open(&exe).err().and_then(|error| error.raw_os_error());
        assert_eq!(refused, Some(26), "ETXTBSY while it runs");
        let file = File::open(&exe).unwrap();
        let sealed = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        assert!(fcntl_get_seals(&file).unwrap().contains(sealed));
        assert_eq!(status(pid, "Threads").as_deref(), Some("1"));
    }
    let own = std::fs::read_link(format!("/proc/{}/exe", daemon.pid())).unwrap();
    assert_eq!(own, dist::binary("executord").canonicalize().unwrap(), "control: an ordinary file");
}

/// The shipped launcher is linked statically.
#[test]
fn released_launcher_is_static() {
    assert!(segments(Path::new("/bin/sh")).contains(&PT_INTERP), "control failed");
    let launcher = dist::binary("executor-launcher").canonicalize().unwrap();
    assert!(!segments(&launcher).contains(&PT_INTERP), "{}: `cargo xtask build` makes it static", launcher.display());
}

/// Type of the program header that names a dynamic linker.
const PT_INTERP: u32 = 3;

/// Returns the types of the program headers of a 64-bit little-endian ELF file.
fn segments(program: &Path) -> Vec<u32> {
    let elf = std::fs::read(program).unwrap();
    let number = |at: usize, length: usize| {
        elf[at..at + length].iter().rev().fold(0, |number: usize, byte| number << 8 | usize::from(*byte))
    };
    let (table, size, count) = (number(32, 8), number(54, 2), number(56, 2));
    (0..count).map(|index| number(table + index * size, 4) as u32).collect()
}

/// Returns the regular files below a directory that contain a part of the given bytes.
fn files_containing(dir: &Path, bytes: &[u8]) -> Vec<PathBuf> {
    let mut needles = Needles::new().unwrap();
    needles.add("it", bytes);
    let mut search = Search::new(&needles);
    search.files(dir);
    let hits = search.report().hits.into_iter();
    hits.map(|hit| if let Place::File(path) = hit.place { path } else { unreachable!("{hit}") }).collect()
}

/// Arguments, environment and files are in no file of the executor (the bundle's config.json, records, ledger, logs),
/// while the container runs and after its exit. As controls, each value is found in the container, and the same search
/// finds public values in the executor's files.
#[test]
fn nothing_secret_is_on_disk() {
    let canaries = [(); 3].map(|()| Canary::random(64).unwrap());
    let [argument, variable, content] = [0, 1, 2].map(|index: usize| canaries[index].as_str());
    // A public value of the minimum length for the search.
    const PLAIN: &str = "plain-word-of-more-than-thirty-two-bytes";
    let daemon = Setup::default().config("log_level = \"trace\"\n").start();
    let home = daemon.setup().home();
    let request = program("/bin/sh", &["-c", &format!("echo {PLAIN}; exec sleep 100000"), argument]);
    let request = request.id(PLAIN).env("TOKEN", variable).file("db/password", content.as_bytes());
    let init = pid(&daemon.api.started(request.label("label", PLAIN)));
    daemon.api.follow(PLAIN).until(|entry| entry.data == format!("{PLAIN}\n").as_bytes());
    wait::until("the script has continued", || (status(init, "Name")? == "sleep").then_some(()));

    let in_container = |path: &str| std::fs::read(format!("/proc/{init}/{path}")).unwrap();
    let contains = |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(contains(&in_container("environ"), variable));
    assert!(contains(&in_container("root/etc/cf-service-bindings/db/password"), content));
    let names = || -> BTreeSet<String> {
        let names =
            files_containing(home, PLAIN.as_bytes()).into_iter().map(|path| path.file_name().unwrap().to_os_string());
        names.map(|name| name.into_string().unwrap()).collect()
    };
    wait::until_ok("the public value is found in every file", || {
        let (names, all) = (names(), ["config.json", "container.json", "daemon.log", "executord.redb", "log"]);
        if all.iter().all(|name| names.contains(*name)) { Ok(()) } else { Err(format!("{names:?}")) }
    });

    let nowhere = |when: &str| {
        for (canary, what) in [(argument, "argument"), (variable, "variable"), (content, "content")] {
            let found = files_containing(home, canary.as_bytes());
            assert!(found.is_empty(), "{when}: {what} is in {found:?}");
        }
    };
    nowhere("while it runs");
    // These refusals are logged: an error in another field, and the same id with another secret.
    let other = program("/bin/sh", &[argument]).env("TOKEN", variable).file("a", content.as_bytes());
    daemon.api.run(other.clone().id(PLAIN)).unwrap_err();
    daemon.api.run(other.clone().user("nobodyx")).unwrap_err();
    daemon.api.run(other.user("a b").file("../x", content.as_bytes())).unwrap_err();
    daemon.api.stop(PLAIN, None).unwrap();
    daemon.api.wait(PLAIN).unwrap();
    nowhere("after its end");
    daemon.api.delete(PLAIN, false).unwrap();
    nowhere("after it was deleted");
}
