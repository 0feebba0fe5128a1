//! GC: with `launcher.cni_gc`, plugins remove stale attachments when a launcher starts and after a DEL that failed.

use std::fs;

use executor_proto::v1::RunRequest;
use integration::network::Network;
use integration::rootfs::Rootfs;
use integration::wait;
use serde_json::{Value, json};

use super::ways_out::kill_and_wait;
use super::{sleeping, until_clean};

/// A plugin that writes the input of GC to files. Its DEL fails while the file `fails` exists.
const COLLECTED: &str = r#"
case $CNI_COMMAND in
ADD) [ -e DIR/collecting ] && touch DIR/overlap; echo '{"cniVersion":"1.1.0"}' ;;
DEL) [ -e DIR/fails ] && { echo '{"code":100,"msg":"not now"}'; exit 1; } ;;
GC)
    cat > DIR/stdin; env | grep ^CNI_ | sort > DIR/environment
    [ -e DIR/slow ] && { touch DIR/collecting; while [ -e DIR/slow ]; do sleep 0.01; done; rm DIR/collecting; }
    echo "GC ${0##*/}" >> DIR/collected
    ;;
esac
exit 0
"#;

fn network() -> Network {
    let network = Network::new();
    let script = COLLECTED.replace("DIR", &network.dir().display().to_string());
    for name in ["first", "second", "other"] {
        network.plugin(name, &script);
    }
    let configure = |name: &str, version: &str, keys: Value| {
        let mut list = json!({"name": name, "cniVersion": version});
        list.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        fs::write(network.dir().join(format!("net.d/{name}.conflist")), list.to_string()).unwrap();
    };
    let other = json!([{"type": "other"}]);
    configure("test", "1.1.0", json!({"plugins": [{"type": "first", "own": 1}, {"type": "second"}]}));
    configure("old", "1.0.0", json!({"plugins": other}));
    configure("off", "1.1.0", json!({"plugins": other, "disableGC": true}));
    network
}

fn on(name: &str, id: &str, rootfs: &Rootfs) -> RunRequest {
    RunRequest { network_name: name.into(), ..sleeping(id, rootfs) }
}

fn until_collected(network: &Network, times: usize) {
    let expected = "GC first\nGC second\n".repeat(times);
    wait::until_ok("garbage is collected", || match fs::read_to_string(network.dir().join("collected")) {
        Ok(collected) if collected == expected => Ok(()),
        collected => Err(format!("{collected:?}")),
    });
}

#[test]
fn failed_removals_are_collected() {
    let (network, rootfs) = (network(), Rootfs::busybox());
    let mut daemon = network.configured("", "cni_gc = true").start();
    let read = |name: &str| fs::read_to_string(network.dir().join(name)).unwrap();
    // GC runs when a launcher starts.
    until_collected(&network, 1);
    let valid = |ids: &[&str]| {
        let given: Value = serde_json::from_str(&read("stdin")).unwrap();
        assert_eq!((&given["name"], &given["cniVersion"]), (&"test".into(), &"1.1.0".into()));
        let valid = given["cni.dev/valid-attachments"].as_array().unwrap();
        assert_eq!(given["cni.dev/attachments"], given["cni.dev/valid-attachments"]);
        assert_eq!(valid.len(), ids.len(), "{given}");
        for (one, id) in valid.iter().zip(ids) {
            assert!(one["containerID"].as_str().unwrap().starts_with(&format!("{id}-")), "{given}");
            assert_eq!(one["ifname"], "eth0");
        }
    };
    valid(&[]);
    let environment = read("environment");
    let names: Vec<&str> = environment.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    assert_eq!(names, ["CNI_COMMAND", "CNI_PATH"]);

    // GC runs after a DEL that failed. The attachment of that container is not valid, and attachments to other networks
    // are not listed.
    for (name, id) in [("test", "kept"), ("test", "stale"), ("old", "elsewhere")] {
        daemon.api.started(on(name, id, &rootfs));
    }
    fs::write(network.dir().join("fails"), "").unwrap();
    daemon.api.stop("stale", Some(0)).unwrap();
    until_collected(&network, 2);
    valid(&["kept"]);

    daemon.kill();
    kill_and_wait(daemon.launcher().unwrap());
    daemon.start_again();
    until_collected(&network, 3);
    valid(&["kept"]);
    fs::remove_file(network.dir().join("fails")).unwrap();
    for id in ["kept", "stale", "elsewhere"] {
        daemon.api.delete(id, true).unwrap();
    }
    until_clean(&network, &daemon);
}

/// By default there is no GC, because other runtimes may use the same networks.
#[test]
fn nothing_is_collected_by_default() {
    let (network, rootfs) = (network(), Rootfs::busybox());
    let daemon = network.daemon("");
    daemon.api.started(on("test", "fails", &rootfs));
    fs::write(network.dir().join("fails"), "").unwrap();
    daemon.api.stop("fails", Some(0)).unwrap();
    daemon.api.wait("fails").unwrap();
    wait::until("DEL has failed", || daemon.setup().logged().contains("DEL: not now (code 100)").then_some(()));
    fs::remove_file(network.dir().join("fails")).unwrap();
    daemon.api.delete("fails", true).unwrap();
    assert!(!network.calls().iter().any(|call| call.starts_with("GC ")), "{:?}", network.calls());
}

/// ADD waits until GC has completed. Starts on other networks do not wait.
#[test]
fn additions_wait_for_a_collection() {
    let (network, rootfs) = (network(), Rootfs::busybox());
    let (slow, collecting) = (network.dir().join("slow"), network.dir().join("collecting"));
    fs::write(&slow, "").unwrap();
    let daemon = network.configured("", "cni_gc = true").start();
    wait::until("GC runs", || collecting.exists().then_some(()));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| daemon.api.started(on("test", "waits", &rootfs)));
        daemon.api.started(on("bridge", "other", &rootfs));
        fs::remove_file(&slow).unwrap();
        waits.join().unwrap();
    });
    until_collected(&network, 1);
    assert!(!network.dir().join("overlap").exists());
    for id in ["waits", "other"] {
        daemon.api.delete(id, true).unwrap();
    }
}
