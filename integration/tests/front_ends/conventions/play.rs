//! `agent-cli kube play` with conventions, in real containers.

use std::process::{Command, Stdio};

use integration::cli::{CliOutput, finish};
use integration::daemon::Daemon;
use integration::dist;
use integration::rootfs::Rootfs;
use serde_json::json;

use integration::conventions::World;

const VALUE: &str = "canary-90ce-of-a-secret";

struct Player {
    world: World,
    daemon: Daemon,
    rootfs: Rootfs,
}

impl Player {
    fn kube(&self, arguments: &[&str]) -> CliOutput {
        let mut command = Command::new(dist::binary("agent-cli"));
        command.arg("--socket").arg(self.daemon.socket()).arg("kube").args(arguments);
        command.current_dir(self.world.dir.path()).env("XDG_RUNTIME_DIR", self.world.dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        finish(command.spawn().unwrap())
    }

    fn play(&self, command: &str) -> CliOutput {
        let image = format!("example.com/box:1={}", self.rootfs.reference());
        self.kube(&[command, "web.yaml", "--conventions", "conventions.toml", "--image-override", &image])
    }
}

/// A variable from a convention reaches the container. An addition without a grant fails the whole play. The convention
/// never receives the value of the Secret, but the container has it.
#[test]
fn play_is_decorated_before_it_runs() {
    let player = Player { world: World::start(), daemon: Daemon::start(), rootfs: Rootfs::busybox() };
    let script = format!("echo $CONVENTION_SERVER; test \"$PASSWORD\" = {VALUE} && echo whole");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {"restartPolicy": "Never", "containers": [{
            "name": "app", "image": "example.com/box:1", "command": ["sh", "-c", script],
            "env": [{"name": "PASSWORD", "value": VALUE}],
        }]},
    });
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"k": VALUE}});
    player.world.write("web.yaml", &format!("{pod}\n---\n{secret}\n"));

    player.world.register(&[("greeter", "hello", ""), ("widener", "privileged", "")]);
    for command in ["diff", "play"] {
        let refused = player.play(command);
        let expected = "spec.containers[app].securityContext.privileged: convention widener: adds privileged mode";
        assert!(refused.status == 125 && refused.stderr.contains(expected), "{refused:?}");
        assert!(refused.stderr.contains("the registration lacks the grant privileged"), "{refused:?}");
    }
    assert_eq!(player.kube(&["ps", "--json"]).json(), json!([]));

    player.world.register(&[("greeter", "hello", "")]);
    let ran = player.play("play");
    assert_eq!(ran.status, 0, "{ran:?}");
    assert_eq!(player.daemon.api.output("default_web_app").text(), "HELLO FROM CONVENTION\nwhole\n");
    let sent = std::fs::read_to_string(player.world.dir.path().join("log")).unwrap();
    assert!(sent.contains("CONVENTION_SERVER") && !sent.contains(VALUE));
    // With the same files and conventions, nothing changes.
    assert!(player.play("play").stderr.contains("nothing has changed"));
    assert_eq!(player.kube(&["down", "web"]).status, 0);
}
