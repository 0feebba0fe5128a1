//! User namespaces: host ids of container users, owners of files, and access to files. Most tests use a container with
//! host ids as their control.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use executor_core::idmap::RANGE_IDS;
use executor_proto::v1::{Container, RunRequest, State, UserNamespace};
use integration::api::{exit, pid};
use integration::daemon::{Daemon, Setup};
use integration::host::status;
use integration::id_pool::IdPool;
use integration::request::{RequestBuilder, sh, sleeper};
use integration::rootfs::Rootfs;
use integration::{dist, wait};
use tonic::Code;
use tonic_types::StatusExt;

/// Policy that also allows host ids.
const BOTH: &str = "[policy]\nallow_host_userns = true\n";

fn with_hosts_ids(request: RunRequest) -> RunRequest {
    RunRequest { user_namespace: UserNamespace::Host.into(), ..request }
}

/// Returns the real, effective, saved and file system ids, as seen by the host.
fn host_ids(container: &Container, name: &str) -> Vec<u32> {
    let line = status(pid(container), name).unwrap();
    line.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

fn namespace(pid: &str) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/ns/user")).unwrap()
}

/// Runs a script as a host user without capabilities.
fn as_host_user(id: u32, script: &str) -> String {
    let mut command = Command::new("setpriv");
    let id = id.to_string();
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "sh", "-c", script]);
    let output = command.output().unwrap();
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Root, users and groups of a container have host ids that no other container has. With host ids, root of the
/// container is host root.
#[test]
fn container_root_is_unprivileged_on_host() {
    let daemon = Setup::default().config(BOTH).start();
    let (root, app) = (sleeper("root"), sleeper("app").user("vcap"));
    let (root, app) = (daemon.api.started(root), daemon.api.started(app));
    let (first, second) = (root.id_range_start, app.id_range_start);
    assert!(first >= 0x7000_0000 && first.abs_diff(second) >= RANGE_IDS, "{first} {second}");
    assert_eq!(host_ids(&root, "Uid"), [first; 4]);
    assert_eq!(host_ids(&root, "Gid"), [first; 4]);
    assert_eq!(host_ids(&app, "Uid"), [second + 1000; 4]);
    assert_eq!(status(pid(&root), "Groups").unwrap(), "", "the process is in no group of the host");
    let spaces = [&root, &app].map(|container| namespace(&pid(container).to_string()));
    assert!(spaces[0] != spaces[1] && !spaces.contains(&namespace("self")), "{spaces:?}");
    let reported = app.spec.unwrap();
    assert_eq!((reported.uid, reported.gid), (Some(1000), Some(1000)), "reported with the container's ids");

    let map = daemon.api.run_to_end(sh("cat /proc/self/uid_map /proc/self/gid_map").id("map"));
    let expected = format!("0 {} {RANGE_IDS}", map.id_range_start);
    let text = daemon.api.output("map").text();
    let lines: Vec<String> = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(lines, [expected.clone(), expected]);

    let control = daemon.api.started(with_hosts_ids(sleeper("control")));
    assert_eq!((host_ids(&control, "Uid"), control.id_range_start), (vec![0; 4], 0), "control failed");
    assert_eq!(namespace(&pid(&control).to_string()), namespace("self"));
}

/// The user namespace of a container belongs to the host id of its root user, not to host root. If a host root process
/// without capabilities enters the namespace, for example a service or a container with host ids, the process gains no
/// capabilities. Resources that the kernel counts per user, such as inotify instances, are not charged to host root. As
/// a control, a process enters a user namespace that host root created.
#[test]
fn user_namespace_is_not_owned_by_root() {
    let entered = |pid: i32| {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]);
        command.args(["nsenter", "--preserve-credentials", &format!("--user=/proc/{pid}/ns/user"), "true"]);
        command.output().unwrap()
    };
    let daemon = Daemon::start();
    let container = daemon.api.started(sleeper("c"));
    let refused = entered(pid(&container));
    let reported = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{reported}");
    assert!(reported.contains("Permission denied") || reported.contains("Operation not permitted"), "{reported}");

    let mut roots = Command::new("unshare").args(["--user", "sleep", "100000"]).spawn().unwrap();
    let its_pid = roots.id() as i32;
    wait::until("the process has its user namespace", || {
        (namespace(&its_pid.to_string()) != namespace("self")).then_some(())
    });
    let control = entered(its_pid);
    roots.kill().unwrap();
    roots.wait().unwrap();
    assert!(
        control.status.success(),
        "control failed: root cannot enter the user namespace: {}",
        String::from_utf8_lossy(&control.stderr)
    );
}

/// Files of an image have their original owners in the container, and root of the container has full rights to them.
/// The files on the disk are not changed: changes go to the upper layer, with ids of the container's range.
#[test]
fn files_show_owners_without_being_changed() {
    let (daemon, rootfs) = (Daemon::start(), Rootfs::busybox());
    for (name, uid, gid) in [("roots", 0, 0), ("apps", 1234, 80), ("far", 70_000, 5)] {
        fs::write(rootfs.path().join("srv").join(name), name).unwrap();
        chown(rootfs.path().join("srv").join(name), Some(uid), Some(gid)).unwrap();
    }
    fs::set_permissions(rootfs.path().join("srv/apps"), fs::Permissions::from_mode(0o600)).unwrap();
    let before = rootfs.listing();
    let script = "stat -c '%u:%g %n' / /srv /srv/*; echo more >>/srv/apps && echo more >>/srv/roots && \
        touch /srv/new && mkdir /new && mv /bin/busybox /bin/busybox.moved && \
        >/ready; exec /bin/busybox.moved sleep 100000";
    let container = daemon.api.started(sh(script).id("owners").rootfs(&rootfs.reference()));
    let upper = daemon.setup().state_dir().join("containers/owners/upper");
    wait::until("the container has changed its files", || upper.join("ready").exists().then_some(()));
    let shown = wait::until("the log has the last file", || {
        let shown = daemon.api.logs_so_far("owners");
        shown.contains(" /srv/roots\n").then_some(shown)
    });
    for line in ["0:0 /\n", "0:0 /srv\n", "0:0 /srv/roots\n", "1234:80 /srv/apps\n", "65534:5 /srv/far\n"] {
        assert!(shown.contains(line), "{line} is not in {shown}");
    }
    let owner = |path: &Path| {
        let meta = fs::symlink_metadata(path).unwrap();
        (meta.uid(), meta.gid())
    };
    let start = container.id_range_start;
    assert_eq!(owner(&upper.join("srv/new")), (start, start));
    assert_eq!(owner(&upper.join("srv/apps")), (start + 1234, start + 80), "copied up with its owner");
    assert_eq!(owner(&upper), (start, start));
    daemon.api.stop("owners", Some(0)).unwrap();
    daemon.api.wait("owners").unwrap();
    daemon.wait_until_removed("owners");
    assert_eq!(rootfs.listing(), before);
    assert_eq!(owner(&rootfs.path().join("srv/apps")), (1234, 80));
    assert!(!upper.exists(), "the container's files are removed with it");
}

/// Secret files with mode 0600 and their process are inaccessible to all other users, such as a host user with the same
/// number and root of another container. As a control, the user with the same number can access both if the container
/// has host ids.
#[test]
fn secret_is_readable_only_by_mapped_user() {
    let (daemon, rootfs) = (Setup::default().config(BOTH).start(), Rootfs::busybox());
    let script = "cat /etc/app/key; echo; exec sleep 100000";
    let request = |id: &str| sh(script).id(id).rootfs(&rootfs.reference()).user("app").file("/etc/app/key", b"for-me");
    let mapped = daemon.api.started(request("mapped").unmasked());
    let other = daemon.api.started(sleeper("other").rootfs(&rootfs.reference()));
    let control = daemon.api.started(with_hosts_ids(request("control").unmasked()));
    for id in ["mapped", "control"] {
        let read = || daemon.api.logs_so_far(id).contains("for-me").then_some(());
        wait::until("the container has read its own file", read);
    }
    let ways = |container: &Container| {
        let pid = pid(container);
        format!("cat /proc/{pid}/root/etc/app/key; echo; tr '\\0' '\\n' </proc/{pid}/environ")
    };
    let reached = |reported: &str| reported.contains("for-me") || reported.contains("HOME=");
    let same_number = as_host_user(1234, &ways(&mapped));
    let other_root = as_host_user(other.id_range_start, &ways(&mapped));
    let own_root = as_host_user(mapped.id_range_start, &ways(&mapped));
    for reported in [&same_number, &other_root, &own_root] {
        assert!(!reached(reported) && reported.matches("Permission denied").count() >= 2, "{reported}");
    }
    assert!(reached(&as_host_user(1234, &ways(&control))), "control: there is no other obstacle");
    let on_host = mapped.id_range_start + 1234;
    assert_eq!(host_ids(&mapped, "Uid"), [on_host; 4]);
    let meta = fs::metadata(format!("/proc/{}/root/etc/app/key", pid(&mapped))).unwrap();
    assert_eq!((meta.uid(), meta.mode() & 0o777), (on_host, 0o600));
}

/// If a pool has one range, one container can run: the next container is refused with the pool's name, and runs after
/// the first has exited. Containers with host ids need no range.
#[test]
fn exhausted_id_pool_is_reported() {
    let pool = IdPool::reserve(1);
    let daemon = Setup::default().config(&format!("{BOTH}{}", pool.policy())).start();
    let first = daemon.api.started(sleeper("first"));
    let before = daemon.footprint();
    let refused = daemon.api.run(sleeper("second")).unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    let reported = refused.get_details_bad_request().unwrap().field_violations;
    assert!(reported[0].field == "user_namespace" && reported[0].description.contains("all 1 ranges"), "{reported:?}");
    daemon.wait_until_back_at(&before);
    daemon.api.run_to_end(with_hosts_ids(sh("true").id("hosts")));
    daemon.api.stop("first", Some(0)).unwrap();
    daemon.api.wait("first").unwrap();
    let third = daemon.api.run_to_end(sh("true").id("third"));
    assert_eq!((exit(&third), third.id_range_start), (Ok(0), first.id_range_start));
}

/// Ids of containers that outlived a launcher are not assigned to other containers. Ids of a container that exited
/// while no launcher was running are free.
#[test]
fn ranges_outlive_the_launcher() {
    let pool = IdPool::reserve(2);
    let mut daemon = Setup::default().config(&format!("[policy]\n{}", pool.policy())).start();
    let stays = daemon.api.started(sleeper("stays"));
    daemon.api.started(sleeper("goes"));
    let launcher = daemon.launcher().unwrap();
    integration::daemon::kill(launcher, 9);
    wait::until("the launcher has exited", || integration::daemon::has_ended(launcher).then_some(()));
    daemon.terminate();
    daemon.start_again();
    assert_ne!(daemon.launcher().unwrap(), launcher);
    assert_eq!(daemon.api.get("stays").unwrap().state(), State::Running);
    let refused = daemon.api.run(sleeper("more")).unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    daemon.api.stop("goes", Some(0)).unwrap();
    daemon.api.wait("goes").unwrap();
    let next = daemon.api.started(sleeper("next"));
    assert!(next.id_range_start.abs_diff(stays.id_range_start) >= RANGE_IDS, "{next:?}");
}

/// Two launchers with the same pool never assign the same ids, and an exhausted pool is reported. Containers of a
/// killed launcher keep their ids. When these containers have exited, the other launcher can assign the ids.
#[test]
fn launchers_on_one_host_never_share_ids() {
    let pool = IdPool::reserve(2);
    // A warm container would have one of the two ranges.
    let config = format!("[policy]\n{}[warm_pool]\nsize = 0\n", pool.policy());
    let (mut one, other) = (Setup::default().config(&config).start(), Setup::default().config(&config).start());
    let (first, second) = (one.api.started(sleeper("first")), other.api.started(sleeper("second")));
    assert!(first.id_range_start.abs_diff(second.id_range_start) >= RANGE_IDS, "{first:?} {second:?}");
    for daemon in [&one, &other] {
        let refused = daemon.api.run(sleeper("third")).unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
        assert!(refused.message().contains("by other launchers of this host"), "{refused:?}");
    }
    assert!(
        other.setup().logged().contains(&one.setup().run_dir().display().to_string()),
        "the error names the other launcher"
    );
    // Launcher and shim are both killed, so no process of the executor holds the claim of the ids. The container
    // continues to run.
    let (launcher, shim) = (one.launcher().unwrap(), one.record("first").shim.pid);
    one.kill();
    for pid in [launcher, shim] {
        integration::daemon::kill(pid, 9);
        wait::until("the killed process has exited", || integration::daemon::has_ended(pid).then_some(()));
    }
    assert_eq!(other.api.run(sleeper("fourth")).unwrap_err().code(), Code::ResourceExhausted);
    one.start_again();
    one.api.wait("first").unwrap();
    let again = one.api.started(sleeper("again"));
    assert_eq!(again.id_range_start, first.id_range_start, "the container gets the same ids again");
    drop(one);
    let last = other.api.started(sleeper("last"));
    assert_eq!(last.id_range_start, first.id_range_start, "control: the ids are free");
}

/// If a file system does not support id-mapped mounts, it is refused by name, with a remedy. As a control, the file
/// system can be used as a root if the container has host ids.
#[test]
fn file_system_without_idmapping_is_refused() {
    let (rootfs, at) = (Rootfs::busybox(), tempfile::tempdir().unwrap());
    // overlayfs cannot be id-mapped.
    let empty = tempfile::tempdir().unwrap();
    let options = format!("lowerdir={}:{}", empty.path().display(), rootfs.path().display());
    let mounted =
        nix::mount::mount(Some("overlay"), at.path(), Some("overlay"), nix::mount::MsFlags::empty(), Some(&*options));
    mounted.unwrap();
    let _mounted = Mounted(at.path());
    let daemon = Setup::default().config(BOTH).start();
    let reference = format!("dir:{}", at.path().display());
    let before = daemon.footprint();
    let refused = daemon.api.run(sh("true").rootfs(&reference)).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    let reported = refused.get_details_bad_request().unwrap().field_violations;
    assert!(reported[0].field == "rootfs" && reported[0].description.contains("id-mapped mounts"), "{reported:?}");
    daemon.wait_until_back_at(&before);
    let control = daemon.api.run_to_end(with_hosts_ids(sh("true").id("control").rootfs(&reference)));
    assert_eq!(exit(&control), Ok(0), "control failed");
}

struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}

/// An id beyond the 65,536 ids of a user namespace is a violation, whether given as a number or by name.
#[test]
fn id_beyond_the_range_is_refused() {
    let (daemon, rootfs) = (Setup::default().config(BOTH).start(), Rootfs::busybox());
    fs::write(rootfs.path().join("etc/passwd"), "far:x:65536:0::/:/bin/sh\nlast:x:65535:0::/:/bin/sh\n").unwrap();
    for (user, code) in
        [("65536", Code::InvalidArgument), ("1:70000", Code::InvalidArgument), ("far", Code::FailedPrecondition)]
    {
        let refused = daemon.api.run(sh("true").rootfs(&rootfs.reference()).user(user)).unwrap_err();
        assert_eq!(refused.code(), code, "{refused:?}");
        let reported = refused.get_details_bad_request().unwrap().field_violations;
        assert!(reported[0].field == "action.run.user" && reported[0].description.contains("65535"), "{reported:?}");
    }
    let last = daemon.api.started(sleeper("last").rootfs(&rootfs.reference()).user("last"));
    assert_eq!(host_ids(&last, "Uid"), [last.id_range_start + 65_535; 4]);
    let far = daemon.api.started(with_hosts_ids(sleeper("far").rootfs(&rootfs.reference()).user("far")));
    assert_eq!(host_ids(&far, "Uid"), [65_536; 4], "control failed");
}

/// Runs `prepare` and starts a launcher, in a new mount namespace. Returns the exit status and output of the launcher.
fn launcher_says(prepare: &str, run_dir: &Path, config: &str) -> (Option<i32>, String) {
    let file = run_dir.parent().unwrap().join("executor.toml");
    fs::write(&file, config).unwrap();
    let script = format!("{prepare} exec \"$0\" \"$@\"");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", &script]).arg(dist::binary("executor-launcher"));
    command.arg("--run-dir").arg(run_dir).arg("--state-dir").arg(run_dir.with_extension("state"));
    command.arg("--config").arg(file).args(["--daemon-user", "0", "--exit-when-idle", "--ephemeral"]);
    let output = command.env("NOTIFY_SOCKET", "").output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The launcher refuses to start if a pool overlaps with ids of host users or is too small, and reports the numbers. It
/// also refuses to start if container users cannot traverse the run directory.
#[test]
fn id_pool_overlapping_host_users_is_refused() {
    let home = tempfile::tempdir_in("/run").unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (run, subuid) = (home.path().join("run"), home.path().join("subuid"));
    fs::write(&subuid, "someone:300000:65536\n").unwrap();
    let bind = format!("mount --bind {} /etc/passwd;", subuid.display());
    let passwd = "someone:x:300000:300000::/:/bin/sh\nroot:x:0:0:root:/root:/bin/sh\n";
    fs::write(&subuid, passwd).unwrap();
    let pool = "[policy]\nuserns_pool_start = 262144\nuserns_pool_ranges = 2\n";
    let (code, said) = launcher_says(&bind, &run, pool);
    assert!(code == Some(1) && said.contains("262144 to 393215"), "{code:?} {said}");
    assert!(said.contains("/etc/passwd: `someone` has the ids 300000 to 300000"), "{said}");
    let (code, said) = launcher_says("", &run, "[policy]\nuserns_pool_start = 1000\n");
    assert!(code == Some(1) && said.contains("userns_pool_start 1000"), "{code:?} {said}");
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let (code, said) = launcher_says("", &run, pool);
    assert!(code == Some(1) && said.contains("pass through") && said.contains("mode 700"), "{code:?} {said}");
}
