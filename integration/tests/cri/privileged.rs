//! Tests privileged containers: rule C28.

use std::os::unix::fs::MetadataExt as _;

use executor_cri_api::v1::{
    ContainerConfig, Device, LinuxContainerConfig, LinuxContainerSecurityContext, Mount, NamespaceMode,
    PodSandboxConfig, UserNamespace,
};
use integration::cri::{KubernetesNode, POLICY, log_dir};
use integration::daemon::Setup;

/// Script that prints the kinds of devices that can be opened, the number of terminal device nodes, and whether /sys
/// and the cgroup are writable.
const LOOK: &str = "\
    [ -c /dev/loop-control ] && (exec 3<>/dev/loop-control) 2>/dev/null && echo control; \
    [ -c /dev/fuse ] && (exec 3<>/dev/fuse) 2>/dev/null && echo fuse; \
    [ -c /dev/a/other ] && (exec 3<>/dev/a/other) 2>/dev/null && echo other; \
    ls /dev | grep -c '^tty[0-9]'; \
    grep -q '^sysfs /sys sysfs rw' /proc/mounts && echo sys; \
    dir=/sys/fs/cgroup/pids; [ -d $dir ] || dir=/sys/fs/cgroup; \
    (mkdir $dir/own && rmdir $dir/own) 2>/dev/null && echo cgroup; \
    [ $(head -c 4 /dev/termination-log) = text ] && echo file";
/// Script that prints the mode, the owner and the device numbers of a device node.
const NODE: &str = "stat -c '%a %u %t %T' /dev/loop-control";

fn node(policy: &str) -> KubernetesNode {
    let setup = Setup::default();
    let config = format!("[policy]\n{POLICY}{policy}log_dirs = [{:?}]\n", log_dir(&setup));
    KubernetesNode::with(setup.config(&config))
}

fn privileged(mut sandbox: PodSandboxConfig) -> PodSandboxConfig {
    sandbox.linux.get_or_insert_default().security_context.get_or_insert_default().privileged = true;
    sandbox
}

fn with_security(config: ContainerConfig, is_privileged: bool) -> ContainerConfig {
    let security = LinuxContainerSecurityContext { privileged: is_privileged, ..Default::default() };
    let linux = LinuxContainerConfig { security_context: Some(security), ..LinuxContainerConfig::default() };
    ContainerConfig { linux: Some(linux), ..config }
}

/// Returns the number of terminal device nodes in the host's /dev.
fn terminals() -> usize {
    let terminals = std::fs::read_dir("/dev").unwrap().flatten().filter(|entry| {
        let name = entry.file_name().into_string().unwrap();
        name.strip_prefix("tty").is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    });
    terminals.count()
}

/// Returns the output of [`NODE`] on the host.
fn node_of_host() -> String {
    let stat = std::fs::metadata("/dev/loop-control").unwrap();
    let (major, minor) = (rustix::fs::major(stat.rdev()), rustix::fs::minor(stat.rdev()));
    format!("{:o} {} {major:x} {minor:x}\n", stat.mode() & 0o777, stat.uid())
}

/// A privileged container has all devices of the host, with their owners, and can open the devices, including a device
/// at a different path. As controls, a container that is not privileged and a container under a policy without /dev
/// have none of these devices.
#[test]
fn privileged_containers_have_all_devices() {
    let file = tempfile::Builder::new().prefix("executor-").tempdir_in("/srv").unwrap();
    let text = file.path().join("text");
    std::fs::write(&text, "text").unwrap();
    let paths = format!("host_paths = [{{ path = {:?}, suid = true, dev = true }}]\n", file.path());
    let nodes = [node(&format!("{paths}device_paths = [\"/dev\"]\n")), node(&paths)];
    let look = |node: &KubernetesNode, is_privileged: bool| {
        let sandbox = node.run_sandbox(&privileged(node.sandbox("a"))).unwrap();
        let mut config = with_security(node.script("c", "exec sleep 100000"), is_privileged);
        config.mounts = vec![Mount {
            host_path: text.display().to_string(),
            container_path: "/dev/termination-log".into(),
            ..Mount::default()
        }];
        if std::ptr::eq(node, &nodes[0]) && is_privileged {
            config.devices = vec![Device {
                host_path: "/dev/fuse".into(),
                container_path: "/dev/a/other".into(),
                permissions: "rw".into(),
            }];
        }
        let id = node.started(&sandbox, &config);
        let done = node.exec(&id, &["sh", "-c", LOOK], 10).unwrap();
        let modes = node.exec(&id, &["sh", "-c", NODE], 10).unwrap();
        node.remove_sandbox(&sandbox).unwrap();
        (String::from_utf8(done.stdout).unwrap(), String::from_utf8(modes.stdout).unwrap())
    };
    let before = nodes[0].daemon.footprint();
    let (found, modes) = look(&nodes[0], true);
    assert_eq!(found, format!("control\nfuse\nother\n{}\nsys\ncgroup\nfile\n", terminals()));
    assert_eq!(modes, node_of_host());
    assert_eq!(look(&nodes[0], false).0, "0\nfile\n");
    assert_eq!(look(&nodes[1], true).0, "0\nsys\ncgroup\nfile\n");
    nodes[0].daemon.wait_until_back_at(&before);
}

/// In a user namespace, a privileged container has only the standard devices, because device nodes of the host would
/// belong to none of its users. As a control, a privileged container with the host's ids has the device nodes.
#[test]
fn user_namespaces_have_standard_devices() {
    let node = node("device_paths = [\"/dev\"]\ngiven_id_ranges = [\"2013265920-2020474879\"]\n");
    let mapping = executor_cri_api::v1::IdMapping { host_id: 2_013_265_920, container_id: 0, length: 65_536 };
    let users = UserNamespace { mode: NamespaceMode::Pod.into(), uids: vec![mapping], gids: vec![mapping] };
    let look = |name: &str, users: Option<UserNamespace>| {
        let mut sandbox = privileged(node.networked_sandbox(name));
        let security = sandbox.linux.as_mut().unwrap().security_context.as_mut().unwrap();
        let namespaces = security.namespace_options.get_or_insert_default();
        namespaces.network = NamespaceMode::Node.into();
        namespaces.userns_options = users;
        let sandbox = node.run_sandbox(&sandbox).unwrap();
        let id = node.started(&sandbox, &with_security(node.script("c", "exec sleep 100000"), true));
        let script = format!("ls /dev | grep -c '^tty[0-9]'; {NODE}");
        let done = node.exec(&id, &["sh", "-c", &script], 10).unwrap();
        node.remove_sandbox(&sandbox).unwrap();
        String::from_utf8(done.stdout).unwrap()
    };
    assert_eq!(look("users", Some(users)), "0\n");
    assert_eq!(look("host", None), format!("{}\n{}", terminals(), node_of_host()));
}
