//! Tests pods with their own user namespaces: rule C56.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use executor_cri_api::v1::{Mount, RunPodSandboxRequest};
use integration::cri::{KubernetesNode, POLICY};
use integration::network::Network;

/// With `cri.user_namespaces = "all"`, each ordinary pod has its own range of ids, and files in volumes keep their
/// owners. As controls, a pod with the handler `executor-host` and a pod on the host's network have the host's ids.
#[test]
fn every_pod_has_own_users() {
    let network = Network::new();
    network.configure("10-test.conflist", "test", &[]);
    // Users of the host must not reach files that containers leave in the directory.
    let hidden = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::set_permissions(hidden.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let volume = hidden.path().join("volume");
    fs::create_dir(&volume).unwrap();
    let policy = format!("{POLICY}host_paths = [{volume:?}]\n");
    let setup = network.setup(&policy);
    fs::write(setup.home().join("cri.toml"), "[cri]\nuser_namespaces = \"all\"\n").unwrap();
    let node = KubernetesNode::with(setup);
    let run = |name: &str, handler: &str, is_in_host: bool| {
        let mut config = if is_in_host { node.sandbox(name) } else { node.networked_sandbox(name) };
        config.log_directory.clear();
        let request = RunPodSandboxRequest { config: Some(config), runtime_handler: handler.into() };
        let mut runtime = node.runtime();
        let sandbox = node.block_on(runtime.run_pod_sandbox(request)).unwrap().into_inner().pod_sandbox_id;
        let mut config = node.script("c", "exec sleep 100000");
        let host_path = volume.display().to_string();
        config.mounts.push(Mount { container_path: "/data".into(), host_path, ..Mount::default() });
        let id = node.started(&sandbox, &config);
        let script = format!("touch /data/{name}; cat /proc/self/uid_map");
        let printed = String::from_utf8(node.exec(&id, &["sh", "-c", &script], 30).unwrap().stdout).unwrap();
        assert_eq!(fs::metadata(volume.join(name)).unwrap().uid(), 0, "the owner of the file of {name}");
        let ids: Vec<u32> = printed.split_whitespace().map(|word| word.parse().unwrap()).collect();
        (sandbox, ids[1], ids[2])
    };
    let (a, first, length) = run("a", "", false);
    let (b, second, _) = run("b", "executor", false);
    let are_apart = first.abs_diff(second) >= length;
    assert!(first > 0 && second > 0 && are_apart && length == 65_536, "{first}, {second}, {length}");
    let (host, ids, _) = run("host", "executor-host", false);
    assert_eq!(ids, 0);
    let (networked, ids, _) = run("node", "", true);
    assert_eq!(ids, 0);
    for sandbox in [a, b, host, networked] {
        node.remove_sandbox(&sandbox).unwrap();
    }
}
