//! A network namespace that another program has created is joined by its path, and is left unchanged.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use executor_proto::v1::{CreatePodRequest, Network, RunRequest, UserNamespace};
use integration::daemon::{Daemon, Setup};
use integration::request::{sh, sleeper};

use super::{asked, create, delete, in_pod, namespace, script_output};

/// A network namespace that `ip netns` created, with its own interface.
struct Made(String);

static COUNT: AtomicU32 = AtomicU32::new(0);

fn ip(arguments: &[&str]) {
    let done = Command::new("ip").args(arguments).output().unwrap();
    assert!(done.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

impl Made {
    fn new() -> Self {
        let name = format!("exp{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        ip(&["netns", "add", &name]);
        let made = Self(name);
        ip(&["-n", &made.0, "link", "add", "mark0", "type", "veth", "peer", "name", "mark1"]);
        made
    }

    fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.0)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

fn joining(path: &Path, request: RunRequest) -> RunRequest {
    RunRequest { network: Network::Path.into(), network_namespace: path.display().to_string(), ..request }
}

fn daemon(list: &str) -> Daemon {
    Setup::default().config(&format!("[policy]\nallow_host_userns = true\nnetwork_namespaces = [{list}]\n")).start()
}

const INTERFACES: &str = "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ' | sort | xargs";

#[test]
fn joined_network_namespace_cannot_be_changed() {
    let (made, other) = (Made::new(), Made::new());
    let daemon = daemon("\"/run/netns/*\"");
    let before = daemon.footprint();
    let run = |request: RunRequest| script_output(&daemon, joining(&made.path(), request));
    assert_eq!(run(sh(INTERFACES)), "lo mark0 mark1\n");
    assert_eq!(script_output(&daemon, sh(INTERFACES)), "lo\n", "control failed");
    assert_eq!(run(RunRequest { user_namespace: UserNamespace::Host.into(), ..sh(INTERFACES) }), "lo mark0 mark1\n");
    let changed = run(sh("ip link set mark0 up 2>&1 && echo changed"));
    assert!(!changed.contains("changed"), "{changed}");

    // The same holds for the members of a pod, in their common user namespace.
    let pod = |id: &str, path: &Path| CreatePodRequest {
        network: Network::Path.into(),
        network_namespace: path.display().to_string(),
        ..asked(id)
    };
    create(&daemon, &pod("p", &made.path()));
    create(&daemon, &pod("q", &other.path()));
    let one = daemon.api.started(in_pod("p", sleeper("one")));
    let alone = daemon.api.started(joining(&made.path(), sleeper("alone")));
    let elsewhere = daemon.api.started(in_pod("q", sleeper("elsewhere")));
    assert_eq!(namespace(&one, "net"), namespace(&alone, "net"));
    assert_ne!(namespace(&one, "net"), namespace(&elsewhere, "net"), "control failed");
    assert_eq!(script_output(&daemon, in_pod("p", sh(INTERFACES))), "lo mark0 mark1\n");
    daemon.api.delete("alone", true).unwrap();
    for pod in ["p", "q"] {
        delete(&daemon, pod, true).unwrap();
    }
    assert!(made.path().exists(), "a namespace of another program stays");
    daemon.wait_until_back_at(&before);
}

#[test]
fn other_network_namespaces_are_refused() {
    let made = Made::new();
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    std::os::unix::fs::symlink(made.path(), place("link")).unwrap();
    std::fs::write(place("file"), "").unwrap();
    std::os::unix::fs::symlink("/run/netns", place("dir")).unwrap();
    let bind = |from: &str, name: &str| {
        std::fs::write(place(name), "").unwrap();
        let done = Command::new("mount").args(["--bind", from]).arg(place(name)).status().unwrap();
        assert!(done.success());
    };
    let daemon = daemon(&format!("\"{0}/*\", \"{0}/dir/*\"", dir.path().display()));
    let before = daemon.footprint();
    bind("/proc/self/ns/net", "host");
    bind("/proc/self/ns/uts", "uts");
    let reported = |path: &Path| {
        let refused = daemon.api.run(joining(path, sh("true"))).unwrap_err();
        format!("{:?} {}", refused.code(), refused.message())
    };
    for (path, why) in [
        (made.path(), "is not allowed"),
        (place("link"), "symbolic link"),
        (place("dir").join(&made.0), "symbolic link"),
        (place("file"), "not a network namespace"),
        (place("uts"), "not a network namespace"),
        (place("host"), "the host's network namespace"),
        (place("none"), "does not exist"),
        (PathBuf::new(), "is empty"),
        (place("../x"), "network_namespace"),
    ] {
        let reported = reported(&path);
        assert!(reported.contains(why) && reported.contains("network_namespace"), "{}: {reported}", path.display());
    }
    let without = RunRequest { network: 0, ..joining(&place("link"), sh("true")) };
    assert!(daemon.api.run(without).unwrap_err().message().contains("NETWORK_PATH"));
    for name in ["host", "uts"] {
        assert!(Command::new("umount").arg(place(name)).status().unwrap().success());
    }
    assert_eq!(daemon.api.ids(), Vec::<String>::new());
    daemon.wait_until_back_at(&before);
}
