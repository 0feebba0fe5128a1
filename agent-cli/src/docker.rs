//! Docker commands and flags that agent-cli does not have, each with its equivalent or the reason, for usage errors.

/// Docker's commands and flags, in docker's spelling, each with advice.
const TABLE: [(&str, &str); 100] = [
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
    ("rename", "the id of a container is fixed; choose it with `run --name`"),
    ("port", "use `agent-cli inspect`, which shows published ports"),
    ("diff", "changes of the root file system are not listed"),
    ("export", "root file systems are not exported; use `agent-cli cp` for files"),
    ("version", "use `agent-cli --version`, or `agent-cli info` for executord"),
    ("volume", "volumes have no commands; use `run --volume`, `--mount` or `--tmpfs`"),
    ("compose", "use `agent-cli kube` with Kubernetes objects"),
    ("swarm", "executord runs one node; a control plane schedules"),
    ("service", "executord runs one node; a control plane schedules"),
    ("stack", "executord runs one node; a control plane schedules"),
    ("network", "the operator configures networks with CNI files; use `run --network`"),
    ("history", "layers are not described; see `agent-cli image inspect`"),
    ("plugin", "there are no plugins"),
    ("trust", "the operator requires signatures: `images.signed` in executord's configuration"),
    ("buildx", "images are not built here; build with buildah or docker and use `agent-cli image import`"),
    ("builder", "images are not built here; build with buildah or docker and use `agent-cli image import`"),
    ("bake", "images are not built here; build with buildah or docker and use `agent-cli image import`"),
    ("checkpoint", "processes are not saved; `agent-cli pause` suspends them in memory"),
    ("node", "executord runs one node; a control plane schedules"),
    ("secret", "use `run --file NAME=@FILE` and `agent-cli rotate`"),
    ("config", "use `run --public-file`, or `agent-cli kube` with a ConfigMap"),
    ("system prune", "use `agent-cli container prune` and `agent-cli image prune`"),
    ("init", "write Kubernetes objects for `agent-cli kube`, or a file for `run --action`"),
    ("debug", "use `agent-cli exec`; files of the host are copied into a container with `agent-cli cp`"),
    ("scout", "images are not scanned; the operator requires signatures: `images.signed` in executord's configuration"),
    ("sbom", "images are not scanned; use syft or trivy"),
    ("model", "models are not run; put one into an image or a volume"),
    ("manifest", "indexes are not edited; use skopeo or buildah"),
    ("top ID", "use `agent-cli exec ID ps` for the processes of a container; `agent-cli top` shows all containers"),
    ("--link", "containers of one pod share a network; see `agent-cli pod` and `--pod`"),
    ("--security-opt", "use `--seccomp-profile` or `--apparmor-profile`"),
    ("--pid", "process namespaces of the host are not shared"),
    ("--publish-all", "name each port with `--publish`"),
    ("--ipc", "IPC namespaces of the host are not shared; use `--pod` to share within a pod"),
    ("--annotation", "use `--label`"),
    ("--attach", "leave it out; without `--detach` output is shown, and `--interactive` sends input"),
    ("--blkio-weight", "use `--io-weight`, 1 to 10000; the usual weight is 100"),
    ("--blkio-weight-device", "use `--io-weight`, which applies to all disks"),
    ("--cgroup-parent", "the operator sets it: `cgroup_parent` in the launcher's configuration"),
    ("--cgroupns", "each container has a cgroup namespace of its own"),
    ("--cidfile", "`run --detach` prints the id; choose it with `--name`"),
    ("--cpu-count", "it is for Windows; use `--cpus`"),
    ("--cpu-percent", "it is for Windows; use `--cpus`"),
    ("--cpu-period", "use `--cpus`"),
    ("--cpu-quota", "use `--cpus`"),
    ("--cpu-rt-period", "real-time scheduling has no limit of its own; see `--ulimit rtprio`"),
    ("--cpu-rt-runtime", "real-time scheduling has no limit of its own; see `--ulimit rtprio`"),
    ("--cpu-shares", "use `--cpu-weight`, 1 to 10000; docker's 1024 is the weight 100"),
    ("--device-cgroup-rule", "use `--device` with permissions"),
    ("--device-read-bps", "disks are shared by weight; use `--io-weight`"),
    ("--device-read-iops", "disks are shared by weight; use `--io-weight`"),
    ("--device-write-bps", "disks are shared by weight; use `--io-weight`"),
    ("--device-write-iops", "disks are shared by weight; use `--io-weight`"),
    ("--disable-content-trust", "the operator requires signatures: `images.signed` in executord's configuration"),
    ("--domainname", "write the whole name with `--hostname`"),
    ("--expose", "every port of a container can be reached by its peers; publish one with `--publish`"),
    ("--health-start-interval", "use `--health-interval`"),
    ("--io-maxbandwidth", "it is for Windows; use `--io-weight`"),
    ("--io-maxiops", "it is for Windows; use `--io-weight`"),
    ("--ip", "the network's CNI configuration chooses addresses"),
    ("--ip6", "the network's CNI configuration chooses addresses"),
    ("--isolation", "it is for Windows; use `--userns`"),
    ("--kernel-memory", "kernel memory counts towards `--memory`"),
    ("--label-file", "use `--label` for each"),
    ("--link-local-ip", "the network's CNI configuration chooses addresses"),
    ("--log-driver", "use `agent-cli logs`; the operator configures log sinks"),
    ("--log-opt", "use `--log-rate`, `--log-lines` and `--log-tag`"),
    ("--mac-address", "the network's CNI configuration chooses addresses"),
    ("--memory-swappiness", "use `--memory-swap`; as much as `--memory` is no swap"),
    ("--network-alias", "use `--add-host`, or `--pod` for containers that reach one another at localhost"),
    ("--no-healthcheck", "health checks of images are not run; use `--health-cmd`"),
    ("--oom-kill-disable", "use `--oom-score-adj`"),
    ("--all-tags", "name each image"),
    ("--digests", "`agent-cli images` shows digests"),
    ("--host", "use `--socket`, or `--address` for executord on another machine"),
    ("--last", "use `agent-cli ps --all`"),
    ("--latest", "use `agent-cli ps --all`"),
    ("--no-trunc", "ids and commands are whole in `--json` and `--format`"),
    ("--size", "use `agent-cli system df`"),
    ("--type", "`agent-cli inspect` shows containers; use `agent-cli image inspect` for images"),
    ("--quiet", "progress goes to standard error: `2>/dev/null`"),
    ("--runtime", "executord has one runtime"),
    ("--sig-proxy", "signals are always forwarded, except with `--detach`"),
    ("--storage-opt", "use `--disk`"),
    ("--use-api-socket", "executord's socket is not given to containers; see `--runtime-token`"),
    ("--uts", "a container has a host name of its own; use `--hostname`"),
    ("--volume-driver", "volumes are directories that the operator configures; use `--volume`"),
    ("--volumes-from", "name each volume with `--volume`; containers of one pod share the pod's volumes"),
];

/// Short forms and other names of flags, with those of the table.
const ALIASES: [(&str, &str); 9] = [
    ("-P", "--publish-all"),
    ("-H", "--host"),
    ("-a", "--attach"),
    ("-c", "--cpu-shares"),
    ("-n", "--last"),
    ("-q", "--quiet"),
    ("-s", "--size"),
    ("--net-alias", "--network-alias"),
    ("prune", "system prune"),
];

/// Returns advice for a docker command or flag.
pub(crate) fn advice(word: &str) -> Option<&'static str> {
    let word = ALIASES.iter().find(|(alias, _)| *alias == word).map_or(word, |(_, name)| *name);
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
