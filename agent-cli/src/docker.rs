//! Words of docker that agent-cli does not have, each with its equivalent or the reason, for errors of usage.
//!
//! `docs/guides/coming-from-docker.md` holds the same table.

/// Words of docker, in docker's spelling, each with advice.
const TABLE: [(&str, &str); 62] = [
    ("import", "use `agent-cli image import`, which reads archives of `docker save` and OCI layouts"),
    ("save", "images are not exported; copy them between registries with skopeo"),
    ("build", "images are not built here; build with buildah or docker and use `agent-cli image import`"),
    ("push", "images are not pushed; use skopeo or buildah"),
    ("tag", "images are not tagged; use skopeo or buildah"),
    ("commit", "images are not made from containers; use `run --output` to keep files"),
    ("login", "use `--registry-auth-file` with the file that docker or podman wrote"),
    ("logout", "agent-cli stores no credentials; see `--registry-auth-file`"),
    ("search", "registries are not searched"),
    ("create", "a container starts when it is created; use `agent-cli run -d`"),
    ("start", "a completed container is not started again; use `agent-cli run`"),
    ("restart", "use `agent-cli stop` and `agent-cli run`, or `run --restart` for restarts after a failure"),
    ("pause", "containers are not paused"),
    ("unpause", "containers are not paused"),
    ("rename", "the id of a container is fixed; choose it with `run --name`"),
    ("update", "limits are fixed when a container is run; see `run --memory`, `--cpus` and `--pids`"),
    ("port", "use `agent-cli inspect`, which shows published ports"),
    ("diff", "changes of the root file system are not listed"),
    ("export", "root file systems are not exported; use `agent-cli cp` for files"),
    ("version", "use `agent-cli --version`, or `agent-cli info` for executord"),
    ("volume", "volumes have no commands; use `run --volume`, `--mount` or `--tmpfs`"),
    ("compose", "use `agent-cli kube` with Kubernetes objects"),
    ("swarm", "executord runs one node; a control plane schedules"),
    ("service", "executord runs one node; a control plane schedules"),
    ("stack", "executord runs one node; a control plane schedules"),
    ("network", "networks are CNI configuration files of the operator; `run --network` chooses one"),
    ("history", "the history of an image is not kept; see `agent-cli image inspect`"),
    ("buildx", "images are not built here; build with buildah or docker and use `agent-cli image import`"),
    ("builder", "images are not built here; build with buildah or docker and use `agent-cli image import`"),
    ("manifest", "indexes are not edited; use skopeo or buildah"),
    ("trust", "the operator requires signatures with `[[images.signed]]`"),
    ("plugin", "executord has no plugins"),
    ("checkpoint", "containers are not checkpointed"),
    ("secret", "secrets are files of a container; use `run --file` and `agent-cli rotate`"),
    ("config", "use `run --public-file`, or `agent-cli kube` with a ConfigMap"),
    ("node", "executord runs one node; a control plane schedules"),
    ("--link", "containers of one pod share a network; see `agent-cli pod` and `--pod`"),
    ("--security-opt", "use `--seccomp-profile` or `--apparmor-profile`"),
    ("--pid", "process namespaces of the host are not shared"),
    ("--publish-all", "name each port with `--publish`"),
    ("--ipc", "IPC namespaces of the host are not shared; use `--pod` to share within a pod"),
    ("--uts", "UTS namespaces of the host are not shared; use `--hostname`"),
    ("--cgroupns", "cgroup namespaces of the host are not shared"),
    ("--volumes-from", "name each volume with `--volume`; containers of one pod share the pod's volumes"),
    ("--cidfile", "`run --detach` prints the id; choose it with `--name`"),
    ("--expose", "ports are published with `--publish`, and need no declaration"),
    ("--ip", "the network's IPAM plugin chooses addresses"),
    ("--ip6", "the network's IPAM plugin chooses addresses"),
    ("--mac-address", "the network's plugins choose addresses"),
    ("--network-alias", "use `--add-host`, or a pod"),
    ("--log-driver", "logs are files of executord; read them with `agent-cli logs`"),
    ("--log-opt", "the operator bounds logs with `launcher.log_bytes_max`; see `--log-rate` and `--no-logs`"),
    ("--no-healthcheck", "health checks of images are not run; add checks with `--health-cmd`"),
    ("--cpu-shares", "use `--cpu-weight`, where 100 is the usual weight"),
    ("--cpu-quota", "use `--cpus`"),
    ("--cpu-period", "use `--cpus`"),
    ("--blkio-weight", "use `--io-weight`"),
    ("--memory-swappiness", "use `--memory-swap`"),
    ("--storage-opt", "use `--disk` for the size of the root file system"),
    ("--annotation", "use `--label`"),
    ("--runtime", "executord has one runtime"),
    ("--isolation", "executord has one form of isolation"),
];

/// Returns advice for a word of docker.
pub(crate) fn advice(word: &str) -> Option<&'static str> {
    let word = if word == "-P" { "--publish-all" } else { word };
    TABLE.iter().find(|(name, _)| *name == word).map(|(_, advice)| *advice)
}

#[cfg(test)]
mod tests {
    use super::TABLE;

    #[test]
    fn guide_table_matches_the_code() {
        let guide = include_str!("../../docs/guides/coming-from-docker.md");
        let rows: Vec<&str> = guide.lines().filter(|line| line.starts_with("| `")).collect();
        let expected: Vec<String> = TABLE.iter().map(|(word, advice)| format!("| `{word}` | {advice} |")).collect();
        assert_eq!(rows, expected);
    }
}
