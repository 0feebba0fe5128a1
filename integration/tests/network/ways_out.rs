//! After every kind of exit, a container is removed from its network: no rule, address, interface or namespace is left.

use executor_proto::v1::{PortMapping, RunRequest};
use integration::daemon::{Daemon, has_ended, kill};
use integration::network::Network;
use integration::request::{RequestBuilder, program};
use integration::rootfs::Rootfs;
use integration::wait;

use crate::{on_cni, sleeping};

fn published(id: &str, rootfs: &Rootfs) -> RunRequest {
    let port = PortMapping { host_port: 18080, container_port: 80, ..PortMapping::default() };
    RunRequest { ports: vec![port], ..sleeping(id, rootfs) }
}

/// Creates a network that also has firewall rules.
fn network() -> (Network, Rootfs) {
    let network = Network::new();
    network.configure("10-test.conflist", "test", &[serde_json::json!({"type": "firewall"})]);
    (network, Rootfs::busybox())
}

fn is_clean(network: &Network, daemon: &Daemon) {
    wait::until_ok("no network object is left", || match network.leftovers(daemon.setup()) {
        left if left.is_empty() => Ok(()),
        left => Err(left.join("\n")),
    });
}

pub(super) fn kill_and_wait(pid: i32) {
    kill(pid, 9);
    wait::until("the killed process has exited", || has_ended(pid).then_some(()));
}

#[test]
fn network_is_removed_after_exit_or_failure() {
    let (network, rootfs) = network();
    let daemon = network.daemon("");
    daemon.api.started(published("ends", &rootfs));
    let taken = daemon.api.run(published("second", &rootfs)).unwrap_err();
    assert!(taken.message().contains("host port 18080/tcp is already published by container `ends`"), "{taken:?}");
    let there = network.leftovers(daemon.setup());
    let kinds = ["CNI-DN-", " id: ", "10.123.0.", "veth", "networks/ends.json", "netns/ends"];
    for kind in kinds {
        assert!(there.iter().any(|one| one.contains(kind)), "control failed: {kind} does not exist: {there:#?}");
    }
    daemon.api.stop("ends", Some(0)).unwrap();
    daemon.api.wait("ends").unwrap();
    is_clean(&network, &daemon);

    // The program does not exist, so the start fails after every plugin has run.
    let nowhere = daemon.api.run(on_cni(program("/nope", &[]).id("nowhere").rootfs(&rootfs.reference())));
    assert!(nowhere.is_err() || daemon.api.wait("nowhere").is_ok());
    is_clean(&network, &daemon);
}

#[test]
fn shim_is_killed() {
    let (network, rootfs) = network();
    let daemon = network.daemon("");
    daemon.api.started(published("lost", &rootfs));
    kill_and_wait(daemon.record("lost").shim.pid);
    daemon.api.wait("lost").unwrap();
    is_clean(&network, &daemon);
    daemon.api.started(published("next", &rootfs)); // needs the port, which must be free again
}

#[test]
fn network_is_removed_after_all_are_killed() {
    let (network, rootfs) = network();
    let mut daemon = network.daemon("");
    daemon.api.started(published("swept", &rootfs));
    daemon.api.started(sleeping("ends-alone", &rootfs));
    let init = |id: &str| daemon.record(id).prepared.unwrap().init.pid;
    let (shim, launcher, both) =
        (daemon.record("swept").shim.pid, daemon.launcher().unwrap(), [init("swept"), init("ends-alone")]);
    // The network is removed with its configuration from the container's start.
    network.remove_config("10-test.conflist");
    daemon.kill();
    kill_and_wait(launcher);
    // The launcher is not running. One container exits and its shim removes it from the network. The other container
    // loses its shim as well.
    kill_and_wait(both[1]);
    kill_and_wait(shim);
    kill_and_wait(both[0]);
    daemon.start_again();
    daemon.api.wait("swept").unwrap();
    daemon.api.wait("ends-alone").unwrap();
    is_clean(&network, &daemon);
}

/// If a shim is killed while a plugin runs, the plugin is killed with all its children, and is then called to undo its
/// work.
#[test]
fn killed_shim_during_plugin_is_cleaned_up() {
    let network = Network::new();
    let rootfs = Rootfs::busybox();
    let stays = network.dir().join("stays");
    let script = format!(
        "[ $CNI_COMMAND = ADD ] || exit 0; sleep 100001 & echo $! >{}.new; mv {0}.new {0}; wait",
        stays.display()
    );
    network.plugin("waits", &script);
    network.configure("10-test.conflist", "test", &[serde_json::json!({"type": "waits"})]);
    let daemon = network.setup("").start();
    let request = published("middle", &rootfs);
    std::thread::scope(|scope| {
        let run = scope.spawn(|| daemon.api.run(request));
        let left: i32 = wait::until("the plugin runs", || std::fs::read_to_string(&stays).ok()?.trim().parse().ok());
        kill_and_wait(daemon.record("middle").shim.pid);
        wait::until("the plugin's child has exited", || has_ended(left).then_some(()));
        let _ = run.join();
    });
    is_clean(&network, &daemon);
    assert_eq!(network.calls(), ["ADD waits netns", "DEL waits netns"]);
}

/// After a reboot, plugins are called without a network namespace and release their state on disk.
#[test]
fn network_is_released_after_reboot() {
    let network = Network::new();
    let rootfs = Rootfs::busybox();
    let note = "[ $CNI_COMMAND = ADD ] && sed 's/.*\"prevResult\":\\({.*}\\),\"type.*/\\1/'; exit 0";
    network.plugin("note", note);
    network.configure("10-test.conflist", "test", &[serde_json::json!({"type": "note"})]);
    let mut daemon = network.daemon("");
    daemon.api.started(sleeping("before", &rootfs));
    let record = daemon.record("before");
    let (shim, init, launcher) = (record.shim.pid, record.prepared.unwrap().init.pid, daemon.launcher().unwrap());
    daemon.kill();
    for pid in [launcher, shim, init] {
        kill_and_wait(pid);
    }
    let path = daemon.setup().state_dir().join("networks/before.json");
    let kept = std::fs::read_to_string(&path).unwrap();
    let other = kept.replace(&record.shim.boot_id, "00000000-0000-0000-0000-000000000000");
    assert_ne!(kept, other);
    std::fs::write(&path, other).unwrap();
    daemon.start_again();
    daemon.api.wait("before").unwrap();
    assert_eq!(network.calls(), ["ADD note netns", "DEL note"]);
    let left = network.leftovers(daemon.setup());
    assert!(!left.iter().any(|one| one.contains("10.123.0.") && !one.contains("CNI-")), "{left:?}");
}

/// If a network record is incomplete after a power failure, it blocks nothing.
#[test]
fn incomplete_network_record_blocks_nothing() {
    let (network, rootfs) = network();
    let mut daemon = network.daemon("");
    daemon.kill();
    kill_and_wait(daemon.launcher().unwrap());
    let kept = daemon.setup().state_dir().join("networks/half.json");
    std::fs::write(&kept, "{\"id\":\"half\"").unwrap();
    daemon.start_again();
    assert!(!kept.exists());
    daemon.api.started(sleeping("half", &rootfs));
}

/// If a plugin fails at the removal, only its own state is left: the container is completed, and the plugin is called
/// again.
#[test]
fn failed_plugin_removal_is_retried() {
    let network = Network::new();
    let rootfs = Rootfs::busybox();
    let flag = network.dir().join("fails");
    let pass = "sed 's/.*\"prevResult\":\\({.*}\\),\"type.*/\\1/'";
    let script = format!(
        "[ $CNI_COMMAND = ADD ] && {{ {pass}; exit 0; }}; [ -e {} ] && {{ echo '{{\"code\":100,\"msg\":\"not now\"}}'; exit 1; }}; exit 0",
        flag.display()
    );
    network.plugin("late", &script);
    network.configure("10-test.conflist", "test", &[serde_json::json!({"type": "late"})]);
    let daemon = network.daemon("");
    daemon.api.started(sleeping("late", &rootfs));
    std::fs::write(&flag, "").unwrap();
    daemon.api.stop("late", Some(0)).unwrap();
    daemon.api.wait("late").unwrap();
    // The exit is reported before the failure is logged.
    wait::until("the failure is logged", || {
        let logged = daemon.setup().logged();
        logged.contains("network `test`: plugin `late`, DEL: not now (code 100)").then_some(())
    });
    assert!(daemon.setup().state_dir().join("networks/late.json").exists());
    std::fs::remove_file(&flag).unwrap();
    daemon.api.delete("late", false).unwrap();
    is_clean(&network, &daemon);
}
