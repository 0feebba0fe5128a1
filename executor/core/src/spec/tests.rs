use super::*;
use crate::plan::{Isolation, Network, PodRole, Surroundings};
use crate::validate::{Draft, Policy, validate};

fn spec_of(draft: Draft<'_>, uid: u32) -> serde_json::Value {
    spec_under(draft, uid, &Policy { allow_host_network: true, allow_host_userns: true, ..Policy::default() })
}

fn spec_under(draft: Draft<'_>, uid: u32, policy: &Policy) -> serde_json::Value {
    let plan = validate(&Draft { id: "c1", path: "/bin/app", ..draft }, policy).unwrap();
    let user = ResolvedUser { uid, gid: uid, groups: vec![4], home: "/".into() };
    let own = plan.isolation.user_namespace == UserNamespace::Own;
    let resolved = Resolved {
        rootfs: Path::new("/run/x/rootfs"),
        user: &user,
        capabilities: &held(&plan.isolation, user.uid),
        limits: &plan.limits,
        cgroup: Path::new("executor/0/c1"),
        user_namespace: own.then_some(Path::new("/proc/self/fd/9")),
        docker_socket: None,
        shared: None,
        cgroup_view: None,
    };
    serde_json::to_value(build(&plan, &resolved).unwrap()).unwrap()
}

/// The specification on disk contains no argument, variable, working directory or secret of the process.
#[test]
fn the_spec_holds_nothing_of_the_process() {
    let draft = Draft {
        args: vec!["canary-arg"],
        env: vec![("CANARY_NAME", b"canary-value")],
        dir: "/canary-dir",
        files: vec![("f".to_owned(), "/canary/file", 5).into()],
        ..Draft::default()
    };
    let text = spec_of(draft, 1000).to_string();
    for word in ["canary", "CANARY", "/bin/app"] {
        assert!(!text.contains(word), "{word} in {text}");
    }
}

#[test]
fn non_root_user_has_no_capabilities() {
    let caps = |uid| spec_of(Draft::default(), uid)["process"]["capabilities"].clone();
    for set in ["bounding", "effective", "permitted", "inheritable", "ambient"] {
        assert_eq!(caps(1000)[set].as_array().map_or(0, Vec::len), 0, "{set}");
    }
    assert_eq!(caps(0)["effective"].as_array().unwrap().len(), ROOT_CAPABILITIES.len());
    assert_eq!(caps(0)["ambient"].as_array().map_or(0, Vec::len), 0);
}

/// HOME is always set: otherwise libcontainer would call getpwuid inside the image.
#[test]
fn home_and_no_new_privileges_are_set() {
    let spec = spec_of(Draft::default(), 0);
    assert!(spec["process"]["env"].as_array().unwrap().contains(&"HOME=/".into()));
    assert_eq!(spec["process"]["noNewPrivileges"], true);
}

#[test]
fn namespaces_follow_the_request() {
    let kinds = |network, user_namespace| {
        let isolation = Isolation { user_namespace, ..Isolation::default() };
        let spec = spec_of(Draft { network: Some(network), isolation, ..Draft::default() }, 0);
        let list = spec["linux"]["namespaces"].as_array().unwrap().clone();
        let kinds = list.iter().map(|ns| ns["type"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
        let sys = spec["mounts"].as_array().unwrap().iter().any(|mount| mount["destination"] == "/sys");
        (kinds.join(" "), sys)
    };
    let (own, hosts) = (UserNamespace::Own, UserNamespace::Host);
    assert_eq!(kinds(Network::None, own), ("user pid mount ipc uts cgroup network".into(), true));
    assert_eq!(kinds(Network::Host, own), ("user pid mount ipc uts cgroup".into(), false));
    assert_eq!(kinds(Network::None, hosts), ("pid mount ipc uts cgroup network".into(), true));
    assert_eq!(kinds(Network::Host, hosts), ("pid mount ipc uts cgroup".into(), true));
}

#[test]
fn host_namespaces_are_left_out() {
    let isolation =
        Isolation { user_namespace: UserNamespace::Host, host_pid: true, host_ipc: true, ..Isolation::default() };
    let policy = Policy { allow_host_userns: true, allow_host_pid: true, allow_host_ipc: true, ..Policy::default() };
    let spec = spec_under(Draft { isolation, ..Draft::default() }, 0, &policy);
    let list = spec["linux"]["namespaces"].as_array().unwrap();
    let kinds: Vec<&str> = list.iter().map(|ns| ns["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["mount", "uts", "cgroup", "network"]);
}

/// A member joins the namespaces that it shares with its pod, and does not set the host name.
#[test]
fn a_member_joins_what_its_pod_holds() {
    let pod = Some(PodRole::Member { pod: "p".parse().unwrap(), share_processes: true });
    let plan = validate(&Draft { id: "c1", path: "/bin/app", pod, ..Draft::default() }, &Policy::default()).unwrap();
    let path = |number: u32| PathBuf::from(format!("/proc/self/fd/{number}"));
    let mut shared = SharedNamespaces { uts: path(3), ipc: path(4), network: Some(path(5)), pid: Some(path(6)) };
    let spec = |shared: &SharedNamespaces| {
        let user = ResolvedUser { uid: 0, gid: 0, groups: vec![], home: "/".into() };
        let resolved = Resolved {
            rootfs: Path::new("/r"),
            user: &user,
            capabilities: &held(&plan.isolation, user.uid),
            limits: &plan.limits,
            cgroup: Path::new("c"),
            user_namespace: Some(Path::new("/proc/self/fd/9")),
            docker_socket: None,
            shared: Some(shared),
            cgroup_view: None,
        };
        let spec = serde_json::to_value(build(&plan, &resolved).unwrap()).unwrap();
        assert!(spec["hostname"].is_null());
        let list = spec["linux"]["namespaces"].as_array().unwrap().clone();
        let one = |ns: &serde_json::Value| {
            let path = ns["path"].as_str().unwrap_or_default();
            format!("{}{}", ns["type"].as_str().unwrap(), path.trim_start_matches("/proc/self/fd/"))
        };
        list.iter().map(one).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(spec(&shared), "user9 pid6 mount ipc4 uts3 cgroup network5");
    (shared.network, shared.pid) = (None, None);
    assert_eq!(spec(&shared), "user9 pid mount ipc4 uts3 cgroup");
}

/// The specification contains the cgroup's path and no limits: the launcher creates the cgroup and sets its limits.
#[test]
fn the_cgroup_is_named_and_not_limited() {
    let spec = spec_of(Draft { memory_bytes: 64 << 20, pids: 7, cpu_millis: 1500, ..Draft::default() }, 0);
    assert_eq!(spec["linux"].get("resources"), None);
    assert_eq!(spec["linux"]["cgroupsPath"], "/executor/0/c1");
    assert_eq!(spec["root"]["readonly"], true);
    assert_eq!(spec_of(Draft { rootfs: "dir:/srv/x", ..Draft::default() }, 0)["root"]["readonly"], false);
}

/// A requested mount replaces a default mount at the same path, and a nested mount comes after its parent.
#[test]
fn requested_tmpfs_replaces_default_mount() {
    let tmpfs = |path: &str, bytes| Tmpfs { path: path.into(), bytes, mode: 0o700, uid: 5, gid: 6, exec: false };
    let surroundings = Surroundings {
        tmpfs: vec![tmpfs("/run/lock", 0), tmpfs("/run", 8192)],
        shm_bytes: 1 << 20,
        ..Surroundings::default()
    };
    let spec = spec_of(Draft { memory_bytes: 64 << 20, surroundings, ..Draft::default() }, 0);
    let mounts = spec["mounts"].as_array().unwrap();
    let at = |path: &str| mounts.iter().filter(|mount| mount["destination"] == path).collect::<Vec<_>>();
    assert_eq!(at("/run").len(), 1);
    let options = serde_json::json!(["nosuid", "nodev", "noexec", "mode=700", "size=8192", "uid=5", "gid=6"]);
    assert_eq!(at("/run")[0]["options"], options);
    assert!(at("/run/lock")[0]["options"].as_array().unwrap().contains(&"size=67108864".into()));
    assert_eq!(mounts.last().unwrap()["destination"], "/run/lock");
    assert!(at("/dev/shm")[0]["options"].as_array().unwrap().contains(&"size=1048576".into()));
}

/// No mount of the container has a source on the host, so a bind of `/proc/self/fd/N` cannot be requested.
#[test]
fn every_mount_is_a_fresh_file_system() {
    for mount in spec_of(Draft::default(), 0)["mounts"].as_array().unwrap() {
        assert!(!mount["source"].as_str().unwrap().starts_with('/'), "{mount}");
        assert_ne!(mount["type"], "bind");
    }
}

/// The only bind mount is the launcher's own view of the cgroup, and it is read-only.
#[test]
fn cgroup_view_is_bound_read_only() {
    for (view, kind, source) in
        [(None, "cgroup", "cgroup"), (Some(Path::new("/run/x/cgroup")), "bind", "/run/x/cgroup")]
    {
        let mount = serde_json::to_value(cgroup(view, false).unwrap()).unwrap();
        assert_eq!((&mount["destination"], &mount["type"]), (&"/sys/fs/cgroup".into(), &kind.into()));
        assert_eq!(mount["source"], source);
        for flag in ["ro", "nosuid", "nodev", "noexec"] {
            assert!(mount["options"].as_array().unwrap().contains(&flag.into()), "{flag}: {mount}");
        }
    }
}

/// A container cannot use up all terminals of the kernel.
#[test]
fn terminals_are_bounded() {
    let spec = spec_of(Draft::default(), 0);
    let mounts = spec["mounts"].as_array().unwrap();
    let terminals = mounts.iter().find(|mount| mount["type"] == "devpts").unwrap();
    assert!(terminals["options"].as_array().unwrap().contains(&"max=256".into()), "{terminals}");
}

#[test]
fn a_privileged_container_has_nothing_hidden() {
    let policy = Policy { allow_privileged: true, ..Policy::default() };
    let isolation = Isolation { privileged: true, ..Default::default() };
    let draft = Draft { id: "c1", path: "/a", rootfs: "dir:/x", isolation, ..Draft::default() };
    let plan = validate(&draft, &policy).unwrap();
    let user = ResolvedUser { uid: 0, gid: 0, groups: vec![], home: "/".into() };
    let (rootfs, cgroup) = (Path::new("/r"), Path::new("c"));
    let resolved = Resolved {
        rootfs,
        user: &user,
        capabilities: &held(&plan.isolation, user.uid),
        limits: &plan.limits,
        cgroup,
        user_namespace: None,
        docker_socket: None,
        shared: None,
        cgroup_view: None,
    };
    let spec = serde_json::to_value(build(&plan, &resolved).unwrap()).unwrap();
    assert_eq!(spec["process"]["capabilities"]["effective"].as_array().unwrap().len(), 41);
    assert_eq!(spec["linux"]["maskedPaths"].as_array().map_or(0, Vec::len), 0);
    assert_eq!(spec["root"]["readonly"], false);
}

#[test]
fn device_node_mode_follows_permissions() {
    let node = |permissions: &str| DeviceNode {
        is_in_place: false,
        path: "/dev/x".into(),
        block: false,
        major: 10,
        minor: 229,
        permissions: permissions.parse().unwrap(),
        access: None,
    };
    assert_eq!(["rw", "r", "wm"].map(|permissions| node(permissions).mode()), [0o666, 0o444, 0o222]);
    let access = Some(NodeAccess { mode: 0o4660, uid: 0, gid: 0 });
    assert_eq!(["rw", "r"].map(|permissions| DeviceNode { access, ..node(permissions) }.mode()), [0o660, 0o440]);
}
