//! Sites of the nodes of a run: namespaces with a disk for each node, and a network that connects the nodes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use tempfile::TempDir;

use super::room::Room;
use crate::workspace::output;

/// Name of the first node.
pub(super) const NAME: &str = "node";
/// Address of the first node.
pub(super) const ADDRESS: &str = "192.0.2.2";
/// Maximum number of nodes in a run. Each node has a disk of 2 GiB and runs a kubelet.
pub(super) const MAX_NODES: u8 = 9;

/// Argument of a kubelet that runs static pods. [`PREPARE`] creates the directory.
pub(super) const STATIC_PODS: &str = "--pod-manifest-path=/var/lib/static-pods";

/// Script that prepares the namespaces of a node: puts the kubelet's directories and the runtime's images on a disk of
/// 2 GiB, and assigns ids to the user `kubelet`. `/tmp` is a tmpfs, so pods that mount `/tmp` do not change the
/// directory of the host. `$1` is the directory of the node, and `$2` the name of the node's parent cgroup.
const PREPARE: &str = r#"mount -t tmpfs none /tmp
mkdir /tmp/job-e2e
mount --make-rshared /
for dir in /run/netns /run/containerd /var/lib /var/log; do mkdir -p $dir; mount -t tmpfs none $dir; done
mkdir "$1/disk"
truncate --size 2G "$1/disk.img"
mke2fs -q -t ext4 -m 0 "$1/disk.img"
mount -o loop "$1/disk.img" "$1/disk"
mkdir -p "$1/disk/kubelet" "$1/disk/logs" /var/lib/kubelet /var/lib/static-pods /var/log/containers /var/log/pods
mount --bind "$1/disk/kubelet" /var/lib/kubelet
mount --bind "$1/disk/logs" /var/log/pods
for name in content.v1.content snapshotter.v1.overlayfs; do
    mkdir -p "$1/disk/$name" "$1/root/io.containerd.$name"
    mount --bind "$1/disk/$name" "$1/root/io.containerd.$name"
done
(cat /etc/passwd; echo kubelet:x:999:999::/:/usr/sbin/nologin) >"$1/passwd"
mount --bind "$1/passwd" /etc/passwd
echo kubelet:2013265920:7208960 >"$1/ids"
for file in /etc/subuid /etc/subgid; do mount --bind "$1/ids" $file; done
if [ -e /sys/fs/cgroup/cgroup.procs ]; then mkdir -p "/sys/fs/cgroup/$2"; else
    for dir in /sys/fs/cgroup/*; do [ ! -e $dir/cgroup.procs ] || mkdir -p "$dir/$2"; done
    for file in cpuset.cpus cpuset.mems; do cat /sys/fs/cgroup/cpuset/$file >"/sys/fs/cgroup/cpuset/$2/$file"; done
fi
"#;
/// Script that creates a network namespace with a bridge that connects the nodes. The bridge is in no node, because a
/// kubelet sets `bridge-nf-call-iptables`, with which kube-proxy would replace the addresses of packets between nodes.
const SWITCH: &str = "ip netns add switch
ip -n switch link add switch type bridge
ip -n switch link set switch up
ip link add node0 type veth peer name $1 netns switch
ip -n switch link set $1 master switch up";
/// Script that connects the interface `$1` of the first node to the bridge.
const PLUG: &str = "ip link set $1 netns switch
ip -n switch link set $1 master switch up";
/// Script that assigns an address (`$1`) and a default route to a node.
const CONNECT: &str = "ip address add $1/24 dev node0
ip link set node0 up
ip route add default via 192.0.2.1";

/// Copies the logs of all programs: the logs of the first node to a directory, and the logs of each other node to a
/// subdirectory.
pub(super) fn copy_logs(sites: &[Arc<Site>], to: &Path) -> anyhow::Result<()> {
    for site in sites {
        let to = if site.name == NAME { to.to_owned() } else { to.join(&site.name) };
        super::copy_logs(&site.directory, &to)?;
    }
    Ok(())
}

/// Namespaces, network settings and directory of a node.
pub(super) struct Site {
    /// Name of the node.
    pub(super) name: String,
    /// Address of the node.
    pub(super) address: String,
    /// Range of the addresses of the node's pods.
    pub(super) pods: String,
    /// Name of the node's parent cgroup. A kubelet kills the pods of another kubelet with the same parent.
    pub(super) cgroup: String,
    /// Directory with the files of the node, removed with the namespaces.
    pub(super) directory: PathBuf,
    pub(super) room: Room,
    _temporary: TempDir,
}

impl Site {
    /// Creates the site of the first node. `prefix` begins the names of the directory and of the cgroup.
    pub(super) fn first(prefix: &str) -> anyhow::Result<Arc<Self>> {
        let site = Self::open(prefix, 1)?;
        site.shell(SWITCH, &[&site.name])?;
        site.shell(CONNECT, &[&site.address])?;
        Ok(Arc::new(site))
    }

    /// Creates the sites of the nodes of a run, and routes between their pods.
    pub(super) fn several(prefix: &str, nodes: u8) -> anyhow::Result<Vec<Arc<Self>>> {
        let mut sites = vec![Self::first(prefix)?];
        for number in 2..=nodes {
            let (first, site) = (&sites[0], Self::open(prefix, number)?);
            first.room.connect(&site.name, &site.room, "node0")?;
            first.shell(PLUG, &[&site.name])?;
            site.shell(CONNECT, &[&site.address])?;
            for other in &sites {
                site.add_route(other)?;
                other.add_route(&site)?;
            }
            sites.push(Arc::new(site));
        }
        Ok(sites)
    }

    fn open(prefix: &str, number: u8) -> anyhow::Result<Self> {
        // Do not use `/tmp`, which pods may mount.
        let temporary = tempfile::Builder::new().prefix(&format!("executor-{prefix}-")).tempdir_in("/var/tmp")?;
        // No cgroup name contains another cgroup name, because a room removes all cgroups whose names contain its own
        // name.
        let cgroup = format!("{prefix}{number}-{}x", std::process::id());
        let name = if number == 1 { NAME.to_owned() } else { format!("{NAME}{number}") };
        let room = Room::open(temporary.path(), PREPARE, &cgroup).with_context(|| name.clone())?;
        Ok(Self {
            name,
            address: format!("192.0.2.{}", number + 1),
            pods: format!("10.88.{}.0/24", number - 1),
            cgroup,
            directory: temporary.path().to_owned(),
            room,
            _temporary: temporary,
        })
    }

    /// Adds a route to the pods of another node.
    fn add_route(&self, other: &Self) -> anyhow::Result<()> {
        self.shell("ip route add $1 via $2", &[&other.pods, &other.address])
    }

    fn shell(&self, script: &str, arguments: &[&str]) -> anyhow::Result<()> {
        output(self.room.command("sh").args(["-ec", script, "sh"]).args(arguments)).map(drop)
    }
}
