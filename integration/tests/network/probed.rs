//! CHECK: `network check` calls the plugins for each container of a network. Lists and checks do not delay starts.

use std::fs;
use std::process::Command;

use executor_proto::v1::RunRequest;
use integration::cli::{self, CliOutput};
use integration::daemon::Daemon;
use integration::network::Network;
use integration::request::{RequestBuilder as _, sh};
use integration::rootfs::Rootfs;
use integration::wait;
use serde_json::{Value, json};

use super::{sleeping, until_clean};

/// A plugin that writes the input of each command to files. Its CHECK runs the script in the file `check`.
const PROBED: &str = r#"
cat > "DIR/$CNI_COMMAND-$CNI_CONTAINERID"
env | grep ^CNI_ | sort > "DIR/env-$CNI_COMMAND-$CNI_CONTAINERID"
case $CNI_COMMAND in
ADD) echo '{"cniVersion":"1.0.0","ips":[{"address":"10.9.0.5/24"}],"kept":true}' ;;
CHECK) [ -e DIR/check ] && . DIR/check ;;
esac
exit 0
"#;

fn world(seconds: u32) -> (Daemon, Network, Rootfs) {
    let network = Network::new();
    network.plugin("probed", &PROBED.replace("DIR", &network.dir().display().to_string()));
    network.plugin("after", "[ $CNI_COMMAND = ADD ] && echo '{\"cniVersion\":\"1.0.0\",\"last\":true}'; exit 0");
    configure(&network, "test", &json!({"cniVersion": "1.0.0"}));
    let daemon = network.with_plugin_timeout(seconds, "").start();
    (daemon, network, Rootfs::busybox())
}

fn configure(network: &Network, name: &str, keys: &Value) {
    let mut list = json!({"name": name, "plugins": [{"type": "probed"}, {"type": "after"}]});
    list.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    fs::write(network.dir().join(format!("net.d/{name}.conflist")), list.to_string()).unwrap();
}

fn on(name: &str, id: &str, rootfs: &Rootfs) -> RunRequest {
    RunRequest { network_name: name.into(), ..sleeping(id, rootfs) }
}

fn check(daemon: &Daemon, name: &str) -> CliOutput {
    cli::run(&daemon.socket(), &["network", "check", name, "--json"])
}

/// Reads the plugin's input file for this command and container.
fn input(network: &Network, kind: &str, id: &str) -> String {
    let prefix = format!("{kind}-{id}-");
    let names = fs::read_dir(network.dir()).unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap());
    let name = names.filter(|name| name.starts_with(&prefix)).last().unwrap_or_else(|| panic!("no {prefix}"));
    fs::read_to_string(network.dir().join(name)).unwrap()
}

#[test]
fn check_names_broken_containers() {
    let (daemon, network, rootfs) = world(30);
    for id in ["one", "two"] {
        daemon.api.started(on("test", id, &rootfs));
    }
    let before = network.calls().len();
    let fine = check(&daemon, "test");
    assert_eq!(fine.status, 0, "{fine:?}");
    let result = |id: &str, outcome: &str, message: &str| json!({"id": id, "outcome": outcome, "message": message});
    let both = json!([result("one", "connected", ""), result("two", "connected", "")]);
    assert_eq!(fine.json(), json!({"checks": both, "unchecked": 0}));
    let calls = ["CHECK probed netns", "CHECK after netns"];
    assert_eq!(network.calls()[before..], [calls, calls].concat());
    // The input has the parameters of ADD and the final result.
    let given: Value = serde_json::from_str(&input(&network, "CHECK", "one")).unwrap();
    assert_eq!(given["prevResult"], json!({"cniVersion": "1.0.0", "last": true}));
    assert_eq!((&given["name"], &given["cniVersion"]), (&"test".into(), &"1.0.0".into()));
    let environment = |verb: &str| input(&network, &format!("env-{verb}"), "one").replace(verb, "");
    assert_eq!(environment("CHECK"), environment("ADD"));

    // The first failure stops the check of its container: `after` is not called. Checks of other containers continue.
    let fails = "case $CNI_CONTAINERID in one-*) echo '{\"code\":100,\"msg\":\"eth0 is gone\"}'; exit 1;; esac";
    fs::write(network.dir().join("check"), fails).unwrap();
    let before = network.calls().len();
    let broken = check(&daemon, "test");
    assert_eq!(broken.status, 1, "{broken:?}");
    let why = "plugin `probed`, CHECK: eth0 is gone (code 100)";
    assert_eq!(broken.json()["checks"], json!([result("one", "broken", why), result("two", "connected", "")]));
    assert_eq!(network.calls()[before..], ["CHECK probed netns", "CHECK probed netns", "CHECK after netns"]);
    let table = cli::run(&daemon.socket(), &["network", "check", "test"]);
    let rows: Vec<&str> = table.stdout.lines().collect();
    assert!(table.status == 1 && rows[1].starts_with("one ") && rows[1].contains(why), "{table:?}");
    for id in ["one", "two"] {
        daemon.api.delete(id, true).unwrap();
    }
    assert_eq!(network.leftovers(daemon.setup()), Vec::<String>::new());
}

#[test]
fn check_is_skipped_with_a_reason() {
    let (daemon, network, rootfs) = world(30);
    configure(&network, "old", &json!({"cniVersion": "0.3.1"}));
    configure(&network, "off", &json!({"cniVersion": "1.0.0", "disableCheck": true}));
    for name in ["test", "old", "off"] {
        daemon.api.started(on(name, name, &rootfs));
    }
    let before = network.calls().len();
    // The operator can disable checks of running containers.
    configure(&network, "test", &json!({"cniVersion": "1.0.0", "disableCheck": true}));
    for (name, why) in [
        ("old", "CNI 0.3.1 has no CHECK"),
        ("off", "the configuration sets disableCheck"),
        ("test", "the configuration sets disableCheck"),
    ] {
        let skipped = check(&daemon, name);
        assert_eq!(skipped.status, 0, "{skipped:?}");
        assert_eq!(skipped.json()["checks"], json!([{"id": name, "outcome": "skipped", "message": why}]));
    }
    assert_eq!(network.calls().len(), before, "no plugin is called");
    configure(&network, "test", &json!({"cniVersion": "1.0.0"}));
    assert_eq!(check(&daemon, "test").json()["checks"][0]["outcome"], "connected", "control failed");
    for (name, words) in [("bridge", "network `bridge` is built in"), ("nope", "no network `nope` is configured")] {
        let refused = check(&daemon, name);
        assert!(refused.status == 125 && refused.stderr.contains(words), "{refused:?}");
    }
}

/// A removal cancels the check of its container. A plugin never runs for both at the same time.
#[test]
fn removal_ends_a_check() {
    let (daemon, network, rootfs) = world(30);
    daemon.api.started(on("test", "removed", &rootfs));
    let checking = network.dir().join("checking");
    fs::write(network.dir().join("check"), format!("touch {}; exec sleep 100000", checking.display())).unwrap();
    let before = network.calls().len();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| check(&daemon, "test"));
        wait::until("the plugin runs", || checking.exists().then_some(()));
        daemon.api.delete("removed", true).unwrap();
        let ended = running.join().unwrap();
        assert_eq!((ended.status, &ended.json()["checks"][0]["outcome"]), (1, &"broken".into()), "{ended:?}");
    });
    assert_eq!(network.calls()[before..], ["CHECK probed netns", "DEL after netns", "DEL probed netns"]);
    until_clean(&network, &daemon);
}

/// A plugin that hangs is killed. A background process that ADD started continues to run.
#[test]
fn hanging_check_is_bounded() {
    let (daemon, network, rootfs) = world(2);
    let stays = network.dir().join("stays");
    let script = format!(
        "[ $CNI_COMMAND = ADD ] || exit 0; setsid sleep 100000 >/dev/null 2>&1 </dev/null & echo $! > {}; \
         echo '{{\"cniVersion\":\"1.0.0\"}}'",
        stays.display()
    );
    network.plugin("after", &script);
    daemon.api.started(on("test", "hangs", &rootfs));
    let left = fs::read_to_string(stays).unwrap();
    let is_running = || std::path::Path::new("/proc").join(left.trim()).exists();
    fs::write(network.dir().join("check"), "sleep 100000").unwrap();
    let hung = check(&daemon, "test");
    let json = hung.json();
    let message = &json["checks"][0]["message"];
    assert!(message.as_str().unwrap().starts_with("plugin `probed`, CHECK: no response within "), "{hung:?}");
    assert!(is_running());
    daemon.api.delete("hangs", true).unwrap();
    wait::until("the process ends with its container", || (!is_running()).then_some(()));
    until_clean(&network, &daemon);
}

/// If a list of networks blocks on a configuration file, starts are not delayed.
#[test]
fn slow_list_delays_no_start() {
    let (daemon, network, rootfs) = world(30);
    let slow = network.dir().join("net.d/90-slow.conf");
    assert!(
        Command::new("mkfifo").arg(&slow).status().unwrap().success(),
        "cannot create a FIFO, on which a reader waits for a writer"
    );
    std::thread::scope(|scope| {
        let listing = scope.spawn(|| cli::run(&daemon.socket(), &["network", "ls"]));
        let is_listing = || {
            let names = integration::host::processes().into_iter();
            let mut names = names.filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/comm")).ok());
            names.any(|name| name.trim() == "executor-net").then_some(())
        };
        wait::until("the configurations are being read", is_listing);
        daemon.api.started(sh("exec sleep 100000").id("meanwhile").rootfs(&rootfs.reference()));
        let writer = fs::File::options().write(true).open(&slow).unwrap();
        drop(writer);
        let listed = listing.join().unwrap();
        assert!(listed.stderr.contains("90-slow.conf: the path is not a regular file"), "{listed:?}");
    });
    daemon.api.delete("meanwhile", true).unwrap();
}
