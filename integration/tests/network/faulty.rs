//! Faulty plugins: the container is refused with the plugin's name and the reason, and all plugins undo their work.

use executor_proto::v1::RunRequest;
use integration::host;
use integration::network::Network;
use integration::request::RequestBuilder;
use integration::rootfs::Rootfs;
use serde_json::json;

use crate::sleeping;

/// If the second plugin fails at ADD, the error names it, and all work is undone, including the first plugin's work.
#[test]
fn faulty_plugin_is_named_and_rolled_back() {
    let (network, rootfs) = (Network::new(), Rootfs::busybox());
    let table = [
        ("hangs", "sleep 100000", "plugin `faulty`, ADD: no response within "),
        ("hangs-and-ignores", "trap '' TERM INT HUP; while :; do sleep 1000; done", "no response within "),
        ("garbage", "echo hello", "plugin `faulty`, ADD: the output is not a JSON object: expected value"),
        ("nothing", ":", "the output is not a JSON object: EOF"),
        ("list", "echo '[1]'", "the output is not a JSON object: it is another JSON type"),
        ("endless", "yes", "plugin `faulty`, ADD: the output has more than 1048576 bytes"),
        ("complains", "yes >&2", "no response within "),
        (
            "fails",
            "echo '{\"code\":7,\"msg\":\"no such range\",\"details\":\"10.0.0.0/33\"}'; exit 1",
            "no such range: 10.0.0.0/33 (code 7)",
        ),
        ("dies", "echo 'cannot open shared object' >&2; exit 127", "ADD: cannot open shared object"),
        ("killed", "kill -9 $$", "was killed by signal 9"),
        (
            "wrong",
            "echo '{\"cniVersion\":\"1.0.0\",\"ips\":[{\"address\":\"x\"}]}'",
            "plugin `faulty`: `ips[0]` of the result",
        ),
    ];
    network.plugin("fine", "[ $CNI_COMMAND = ADD ] && echo '{\"cniVersion\":\"1.0.0\"}'; exit 0");
    let list = json!({"cniVersion": "1.0.0", "name": "test", "plugins": [{"type": "fine"}, {"type": "faulty"}]});
    std::fs::write(network.dir().join("net.d/10-test.conflist"), list.to_string()).unwrap();
    let daemon = network.with_plugin_timeout(3, "").start();
    let before = daemon.footprint();
    let mut calls = 0;
    for (id, script, words) in table {
        network.plugin("faulty", &format!("[ $CNI_COMMAND = ADD ] || exit 0; {script}"));
        let refused = daemon.api.run(sleeping(id, &rootfs)).unwrap_err();
        assert!(
            refused.message().contains("network `test`: ") && refused.message().contains(words),
            "{id}: {refused:?}"
        );
        let made = network.calls();
        let expected = ["ADD fine netns", "ADD faulty netns", "DEL faulty netns", "DEL fine netns"];
        assert_eq!(made[calls..], expected, "{id}");
        calls = made.len();
        assert_eq!(network.leftovers(daemon.setup()), Vec::<String>::new(), "{id}");
        daemon.wait_until_back_at(&before);
    }
    let left = host::processes().into_iter().filter(|pid| {
        std::fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|all| String::from_utf8_lossy(&all).contains("CNI_CONTAINERID"))
    });
    assert_eq!(left.collect::<Vec<_>>(), Vec::<i32>::new(), "no plugin is left");
}

/// A container whose egress cannot be closed is not started. Here a plugin has created the executor's chain without a
/// hook.
#[test]
fn container_fails_if_egress_stays_open() {
    let (network, rootfs) = (Network::new(), Rootfs::busybox());
    let nft = "nsenter --net=$CNI_NETNS nft 'add table inet executor-egress; add chain inet executor-egress output'";
    network.plugin("takes", &format!("[ $CNI_COMMAND = ADD ] && {nft} && echo '{{\"cniVersion\":\"1.0.0\"}}'; exit 0"));
    let list = json!({"cniVersion": "1.0.0", "name": "test", "type": "takes"});
    std::fs::write(network.dir().join("net.d/10-test.conf"), list.to_string()).unwrap();
    let daemon = network.daemon("allow_egress = true");
    let refused = daemon.api.run(sleeping("closed", &rootfs)).unwrap_err();
    assert!(refused.message().contains("network `test`: cannot block egress: "), "{refused:?}");
    assert_eq!(network.calls(), ["ADD takes netns", "DEL takes netns"]);
    assert_eq!(network.leftovers(daemon.setup()), Vec::<String>::new());
    daemon.api.run(RunRequest { egress: true, ..sleeping("control", &rootfs) }).unwrap();
}

/// The executor uses the newest version that the configuration allows and that all plugins support.
#[test]
fn versions_are_agreed_upon() {
    let (network, rootfs) = (Network::new(), Rootfs::busybox());
    let speaks = |name: &str, versions: &str| {
        let said = network.dir().join(name);
        let script = format!(
            "case $CNI_COMMAND in VERSION) echo '{{\"supportedVersions\":[{versions}]}}';; \
             ADD) cat >{}; echo '{{\"cniVersion\":\"0.4.0\"}}';; esac",
            said.display()
        );
        network.plugin(name, &script);
    };
    let list = json!({
        "cniVersion": "1.1.0", "cniVersions": ["0.3.1", "0.4.0", "1.0.0", "1.1.0"], "name": "test",
        "plugins": [{"type": "old"}, {"type": "new"}],
    });
    std::fs::write(network.dir().join("net.d/10-test.conflist"), list.to_string()).unwrap();
    speaks("old", "\"0.3.1\", \"0.4.0\"");
    speaks("new", "\"0.4.0\", \"1.0.0\", \"1.1.0\"");
    let daemon = network.daemon("");
    let before = daemon.footprint();
    daemon.api.started(sleeping("agreed", &rootfs));
    for name in ["old", "new"] {
        let given = std::fs::read_to_string(network.dir().join(name)).unwrap();
        assert!(given.contains("\"cniVersion\":\"0.4.0\""), "{given}");
    }
    daemon.api.delete("agreed", true).unwrap();
    speaks("old", "\"0.1.0\"");
    let refused = daemon.api.run(sleeping("none", &rootfs)).unwrap_err();
    assert!(refused.message().contains("support no common version of CNI"), "{refused:?}");
    daemon.wait_until_back_at(&before);
}

/// A plugin receives its own environment variables and none of the executor's, three descriptors, the host's mount
/// namespace, and its configuration.
#[test]
fn plugin_sees_only_host_and_its_inputs() {
    let (network, rootfs) = (Network::new(), Rootfs::busybox());
    let dir = network.dir().display();
    let look = format!(
        "[ $CNI_COMMAND = ADD ] || exit 0; cat >{dir}/stdin; env -u _ -u PWD -u SHLVL -u OLDPWD | sort >{dir}/environment; \
         ls /proc/self/fd >{dir}/descriptors; readlink /proc/self/ns/mnt /proc/self/ns/net >{dir}/namespaces; \
         grep -c . /proc/self/cgroup >/dev/null; cat /proc/self/cgroup >{dir}/cgroup; \
         grep SigBlk /proc/self/status >{dir}/signals; echo '{{\"cniVersion\":\"1.0.0\"}}'"
    );
    network.plugin("look", &look);
    let list = json!({"cniVersion": "1.0.0", "name": "test", "type": "look", "own": [1, 2]});
    std::fs::write(network.dir().join("net.d/10-test.conf"), list.to_string()).unwrap();
    let daemon = network.daemon("");
    daemon.api.started(sleeping("looked-at", &rootfs).env("TOKEN", "of-the-container"));
    let read = |name: &str| std::fs::read_to_string(network.dir().join(name)).unwrap();
    let environment = read("environment");
    let names: Vec<&str> = environment.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name).collect();
    assert_eq!(names, ["CNI_ARGS", "CNI_COMMAND", "CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS", "CNI_PATH", "PATH"]);
    assert!(
        environment.contains("CNI_CONTAINERID=looked-at-") && environment.contains("CNI_IFNAME=eth0"),
        "{environment}"
    );
    let netns = daemon.setup().run_dir().join("netns/looked-at");
    assert!(environment.contains(&format!("CNI_NETNS={}", netns.display())), "{environment}");
    let given: serde_json::Value = serde_json::from_str(&read("stdin")).unwrap();
    assert_eq!(given, json!({"cniVersion": "1.0.0", "name": "test", "type": "look", "own": [1, 2]}));
    // `ls` has one descriptor open.
    assert_eq!(read("descriptors").split_whitespace().collect::<Vec<_>>(), ["0", "1", "2", "3"]);
    let mounts = std::fs::read_link("/proc/self/ns/mnt").unwrap();
    assert_eq!(read("namespaces").lines().next(), mounts.to_str(), "the host's own mounts");
    assert_eq!(read("signals").split_whitespace().nth(1), Some("0000000000000000"));
    assert!(read("cgroup").contains("/.network.looked-at"), "{}", read("cgroup"));
}

/// Programs and configurations that other users than root can write are not used.
#[test]
fn files_writable_by_others_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let (network, rootfs) = (Network::new(), Rootfs::busybox());
    network.plugin("open", "echo '{}'");
    let list = json!({"cniVersion": "1.0.0", "name": "test", "type": "open"});
    let conf = network.dir().join("net.d/10-test.conf");
    std::fs::write(&conf, list.to_string()).unwrap();
    let daemon = network.daemon("");
    let mode = |path: &std::path::Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    daemon.api.started(sleeping("control", &rootfs));
    mode(&network.dir().join("bin/open"), 0o777);
    let refused = |id: &str| daemon.api.run(sleeping(id, &rootfs)).unwrap_err().message().to_owned();
    assert!(refused("program").contains("bin/open is writable by users other than root"));
    mode(&network.dir().join("bin/open"), 0o755);
    mode(&conf, 0o666);
    assert!(refused("configuration").contains("is writable by users other than root"));
    mode(&conf, 0o644);
    std::fs::remove_file(network.dir().join("bin/open")).unwrap();
    assert!(refused("gone").contains("plugin `open`, ADD: no program of this name in"));
    // Without the plugin, a container cannot be removed from its network. The removal would be retried after this test,
    // and the mounts would keep the directory.
    for name in ["control", "program", "gone"] {
        let kept = daemon.setup().run_dir().join("netns").join(name);
        let _ = std::process::Command::new("umount").arg("-l").arg(kept).status();
    }
}
