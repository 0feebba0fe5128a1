//! executor-cri with its own executord and launcher, with all their files in a temporary directory.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::Runtime;
use super::containerd::{PODS, REGISTRIES, network};
use super::room::{self, Room};
use crate::dist;
use crate::workspace::output;

/// Name of the cgroup of all containers.
pub(super) const CGROUP: &str = "executor-engines";

/// Starts executord, which starts its launcher, and executor-cri. All exit when the namespaces of `room` are removed.
/// Pods may mount the paths below `paths`.
pub(super) fn start(
    room: &Room,
    directory: &Path,
    programs: &Path,
    paths: &Path,
    registry: &str,
) -> anyhow::Result<Runtime> {
    let directory = directory.join("executor");
    let networks = directory.join("cni");
    fs::create_dir_all(&networks)?;
    fs::write(networks.join("10-engines.conflist"), network(&directory, PODS).to_string())?;
    let configuration = directory.join("executor.toml");
    fs::write(&configuration, settings(&directory, paths, registry))?;
    let executord = directory.join("run/executor.sock");
    let mut command = room.command(programs.join(dist::DAEMON));
    command.arg("--config").arg(&configuration);
    room::serve(command, &directory.join("executord.log"), &executord)?;
    let socket = directory.join("cri.sock");
    let mut command = room.command(programs.join(dist::CRI));
    command.args(["--log", "debug", "--socket"]).arg(&socket).arg("--executor").arg(&executord);
    command.arg("--state-dir").arg(directory.join("cri"));
    room::serve(command, &directory.join("executor-cri.log"), &socket)?;
    let version = output(Command::new(programs.join(dist::CRI)).arg("--version"))?;
    Ok(Runtime { name: version.trim().to_owned(), socket })
}

/// Returns the configuration of a node, which allows all requests of Kubernetes.
fn settings(directory: &Path, paths: &Path, registry: &str) -> String {
    let (directory, paths) = (directory.display(), paths.display());
    let mirrors =
        REGISTRIES.map(|name| format!("[[images.mirrors]]\nregistry = \"{name}\"\nmirrors = [\"{registry}\"]\n"));
    format!(
        r#"run_dir = "{directory}/run"
state_dir = "{directory}/state"
keep_root = true
listen = "unix://{directory}/run/executor.sock"
[policy]
allow_privileged = true
allow_host_network = true
allow_host_userns = true
allow_host_pid = true
allow_host_ipc = true
allow_egress = true
allow_connect = true
allow_new_privileges = true
allow_no_seccomp = true
allow_seccomp_profile = true
allow_unmasked = true
allow_no_limits = true
host_ids_sysctls = true
cni_args = true
keep_until_deleted_max = 1000
capabilities_allowed = ["ALL"]
cgroup_parents = ["/pods-{CGROUP}"]
host_paths = [{{ path = "{paths}", propagation = "bidirectional", dev = true }}]
device_paths = ["/dev"]
log_dirs = ["{paths}"]
given_id_ranges = ["65536-1000000000"]
ports_allowed = ["1-65535"]
cni_conf_dir = "{directory}/cni"
cni_bin_dirs = ["/usr/lib/cni"]
[launcher]
cgroup_parent = "{CGROUP}"
{mirrors}"#,
        mirrors = mirrors.concat()
    )
}
