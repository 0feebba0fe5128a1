//! VERSION: a plugin is called for its versions once, and again if its file changes.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::{SystemTime, UNIX_EPOCH};

use integration::daemon::Daemon;
use integration::network::Network;
use integration::rootfs::Rootfs;
use integration::wait;
use serde_json::json;

use super::sleeping;

/// A plugin that supports the versions listed in the file `versions`, and refuses other versions.
const SPEAKS: &str = r#"
list=$(cat VERSIONS)
case $CNI_COMMAND in
VERSION) echo "{\"supportedVersions\":[$list]}" ;;
ADD)
    version=$(sed 's/.*"cniVersion":\("[^"]*"\).*/\1/')
    case $list in *$version*) ;; *) echo '{"code":1,"msg":"another version"}'; exit 1 ;; esac
    echo "{\"cniVersion\":$version}"
    ;;
esac
exit 0
"#;

struct World {
    daemon: Daemon,
    network: Network,
    rootfs: Rootfs,
    started: u32,
}

impl World {
    fn start() -> Self {
        let network = Network::new();
        let versions = ["0.4.0", "1.0.0", "1.1.0"];
        let list =
            json!({"cniVersion": "1.1.0", "cniVersions": versions, "name": "test", "plugins": [{"type": "speaks"}]});
        fs::write(network.dir().join("net.d/10-test.conflist"), list.to_string()).unwrap();
        let daemon = network.daemon("");
        let world = Self { daemon, network, rootfs: Rootfs::busybox(), started: 0 };
        world.speak(&versions);
        world.replace_plugin("");
        world
    }

    fn speak(&self, versions: &[&str]) {
        let list = versions.iter().map(|version| format!("{version:?}")).collect::<Vec<_>>().join(",");
        fs::write(self.network.dir().join("versions"), list).unwrap();
    }

    fn replace_plugin(&self, comment: &str) {
        let versions = self.network.dir().join("versions");
        let script = SPEAKS.replace("VERSIONS", &versions.display().to_string());
        self.network.plugin("speaks", &format!("{script}\n# {comment}"));
        // The executor caches a response only if the file is old enough: otherwise a later change might not be noticed.
        let changed = fs::metadata(self.network.dir().join("bin/speaks")).unwrap().ctime();
        wait::until("the last change is not recent", || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
            (now > u64::try_from(changed).unwrap() + 4).then_some(())
        });
    }

    /// Starts a container and deletes it. Returns the plugin calls until the container ran, and the version that ADD
    /// used.
    fn calls_of_a_start(&mut self) -> (Vec<String>, String) {
        self.started += 1;
        let (id, before) = (format!("c{}", self.started), self.network.calls().len());
        self.daemon.api.started(sleeping(&id, &self.rootfs));
        let calls = self.network.calls()[before..].to_vec();
        let record = fs::read(self.daemon.setup().state_dir().join(format!("networks/{id}.json"))).unwrap();
        let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
        self.daemon.api.delete(&id, true).unwrap();
        (calls, record["version"].as_str().unwrap().to_owned())
    }
}

#[test]
fn plugins_are_asked_once_per_file() {
    let mut world = World::start();
    let (asked, not_asked) = (vec!["VERSION speaks".to_owned(), "ADD speaks netns".into()], vec!["ADD speaks netns"]);
    assert_eq!(world.calls_of_a_start(), (asked.clone(), "1.1.0".into()));
    for _ in 0..2 {
        let (calls, version) = world.calls_of_a_start();
        assert_eq!((calls, &*version), (not_asked.iter().map(ToString::to_string).collect(), "1.1.0"));
    }
    world.speak(&["0.4.0"]);
    world.replace_plugin("another file");
    assert_eq!(world.calls_of_a_start(), (asked, "0.4.0".into()));
    assert_eq!(world.calls_of_a_start().0, not_asked);
}

/// A plugin is a script that runs another program. If that program changes, the script's file does not change, but the
/// plugin refuses the version. The next start asks for the versions again.
#[test]
fn refused_version_is_asked_again() {
    let mut world = World::start();
    assert_eq!(world.calls_of_a_start().1, "1.1.0");
    world.speak(&["1.0.0"]);
    let refused = world.daemon.api.run(sleeping("refused", &world.rootfs)).unwrap_err();
    assert!(refused.message().contains("plugin `speaks`, ADD: another version (code 1)"), "{refused:?}");
    let (calls, version) = world.calls_of_a_start();
    assert_eq!((calls[0].as_str(), &*version), ("VERSION speaks", "1.0.0"));
}
