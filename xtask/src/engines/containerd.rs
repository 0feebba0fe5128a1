//! Debian's containerd, with all its files in a temporary directory.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};

use super::Runtime;
use super::room::{self, Room};
use crate::workspace::output;

/// Registries that critest names. Their images come from the local registry.
pub(super) const REGISTRIES: [&str; 3] = ["registry.k8s.io", "k8s.gcr.io", "gcr.io"];
/// Range of the addresses of pods on a single node.
pub(super) const PODS: &str = "10.88.0.0/16";
/// Name of the socket in the directory of a run.
pub(super) const SOCKET: &str = "containerd.sock";

/// Starts containerd in the namespaces of `room`. containerd exits when the namespaces are removed.
pub(super) fn start(room: &Room, directory: &Path, registry: &str) -> anyhow::Result<Runtime> {
    write_configuration(directory, registry, PODS)?;
    serve(room, directory)?;
    let version = output(Command::new("containerd").arg("--version"))?;
    let version = version.split_whitespace().nth(2).unwrap_or("of unknown version").to_owned();
    Ok(Runtime { name: format!("containerd {version}"), socket: directory.join(SOCKET) })
}

/// Writes the configuration of containerd, for a registry and an address range of pods.
pub(super) fn write_configuration(directory: &Path, registry: &str, pods: &str) -> anyhow::Result<()> {
    for name in REGISTRIES {
        let hosts = directory.join("certs.d").join(name);
        fs::create_dir_all(&hosts)?;
        let text = format!(
            "server = \"http://{registry}\"\n[host.\"http://{registry}\"]\ncapabilities = [\"pull\", \"resolve\"]\n"
        );
        fs::write(hosts.join("hosts.toml"), text)?;
    }
    let networks = directory.join("cni");
    fs::create_dir_all(&networks)?;
    fs::write(networks.join("10-engines.conflist"), network(directory, pods).to_string())?;
    fs::write(directory.join("containerd.toml"), settings(directory, &directory.join(SOCKET)))?;
    Ok(())
}

/// Starts containerd with its configuration. Returns the process of nsenter.
pub(super) fn serve(room: &Room, directory: &Path) -> anyhow::Result<Child> {
    let mut command = room.command("containerd");
    command.arg("--config").arg(directory.join("containerd.toml"));
    room::serve(command, &directory.join("containerd.log"), &directory.join(SOCKET))
}

/// Returns a CNI configuration for pods in an address range. The network does not masquerade, because there is no other
/// network and pods of other nodes must see the addresses of pods.
pub(super) fn network(directory: &Path, pods: &str) -> serde_json::Value {
    serde_json::json!({
        "cniVersion": "1.0.0",
        "name": "engines",
        "plugins": [
            {
                "type": "bridge", "bridge": "engines0", "isGateway": true, "hairpinMode": true,
                "ipam": {
                    "type": "host-local", "dataDir": directory.join("leases"),
                    "ranges": [[{"subnet": pods}]], "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

fn settings(directory: &Path, socket: &Path) -> String {
    let (directory, socket) = (directory.display(), socket.display());
    format!(
        r#"version = 2
root = "{directory}/root"
state = "{directory}/state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper"]
[grpc]
address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "registry.k8s.io/pause:3.9"
restrict_oom_score_adj = true
stream_server_address = "127.0.0.1"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{directory}/cni"
[plugins."io.containerd.grpc.v1.cri".registry]
config_path = "{directory}/certs.d"
"#
    )
}
