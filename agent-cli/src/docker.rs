//! Docker commands and flags that agent-cli does not have. A usage error names the equivalent in agent-cli, or the
//! reason why there is none.

/// Docker's commands and flags, in docker's spelling, each with advice. A command of a group has two words.
const TABLE: [(&str, &str); 95] = [
    ("import", "use `agent-cli image import`, which reads archives of `docker save` and OCI layouts"),
    ("save", "images are not exported; copy them between registries with skopeo"),
    ("build", "images are not built here; build with buildah or docker and use `agent-cli image import`"),
    ("push", "images are not pushed; use skopeo or buildah"),
    ("tag", "images are not tagged; use skopeo or buildah"),
    ("commit", "images are not made from containers; use `run --output` to keep files"),
    ("login", "use `--registry-auth-file` with the file that docker or podman wrote"),
    ("logout", "agent-cli stores no credentials; see `--registry-auth-file`"),
    ("search", "searching registries is not supported"),
    ("create", "use `agent-cli run --hold`, and `agent-cli start` for the process"),
    ("restart", "use `agent-cli stop` and `agent-cli run`, or `run --restart` for restarts after a failure"),
    ("rename", "the id of a container is fixed; choose it with `run --name`"),
    ("port", "use `agent-cli inspect`, which shows published ports"),
    ("diff", "listing changes to the root file system is not supported"),
    ("export", "root file systems are not exported; use `agent-cli cp` for files"),
    ("version", "use `agent-cli --version`, or `agent-cli info` for executord"),
    ("volume", "volumes have no commands; use `run --volume`, `--mount` or `--tmpfs`"),
    ("compose", "use `agent-cli kube` with Kubernetes objects"),
    ("swarm", "executord manages one node; use a control plane to schedule containers on several"),
    ("service", "executord manages one node; use a control plane to schedule containers on several"),
    ("stack", "executord manages one node; use a control plane to schedule containers on several"),
    (
        "network create",
        "the operator configures networks, with `networks.NAME` in executord's configuration or with CNI files; see `agent-cli network ls`",
    ),
    ("network rm", "the operator configures networks, and an unused one has no interface and no rules on the host"),
    ("network prune", "the operator configures networks, and an unused one has no interface and no rules on the host"),
    ("network connect", "a container's network is fixed; choose it with `run --network`"),
    ("network disconnect", "a container's network is fixed; choose it with `run --network`"),
    ("history", "the history of layers is not shown; see `agent-cli image inspect`"),
    ("plugin", "plugins are not supported"),
    ("trust", "the operator configures required signatures with `images.signed` in executord's configuration"),
    ("buildx", "images are not built here; build with buildah or docker and use `agent-cli image import`"),
    ("builder", "images are not built here; build with buildah or docker and use `agent-cli image import`"),
    ("bake", "images are not built here; build with buildah or docker and use `agent-cli image import`"),
    ("checkpoint", "checkpoints are not supported; `agent-cli pause` suspends processes in memory"),
    ("node", "executord manages one node; use a control plane to schedule containers on several"),
    ("secret", "use `run --file NAME=@FILE` and `agent-cli rotate`"),
    ("config", "use `run --public-file`, or `agent-cli kube` with a ConfigMap"),
    ("system prune", "use `agent-cli container prune` and `agent-cli image prune`"),
    ("init", "write Kubernetes objects for `agent-cli kube`, or a file for `run --action`"),
    ("debug", "use `agent-cli exec`; files of the host are copied into a container with `agent-cli cp`"),
    (
        "scout",
        "images are not scanned; the operator configures required signatures with `images.signed` in executord's configuration",
    ),
    ("sbom", "images are not scanned; use syft or trivy"),
    ("model", "models cannot be run; add the model to an image or a volume"),
    ("manifest", "image indexes cannot be edited; use skopeo or buildah"),
    ("top ID", "use `agent-cli exec ID ps` for the processes of a container; `agent-cli top` shows all containers"),
    ("--link", "containers of one pod share a network; see `agent-cli pod` and `--pod`"),
    ("--publish-all", "name each port with `--publish`"),
    ("--annotation", "use `--label`"),
    ("--attach", "omit it; output is shown unless `--detach` is set, and `--interactive` sends input"),
    ("--blkio-weight", "use `--io-weight`, 1 to 10000; the default is 100"),
    ("--blkio-weight-device", "use `--io-weight`, which applies to all disks"),
    ("--cgroupns", "each container has its own cgroup namespace"),
    ("--cidfile", "`run --detach` prints the id; choose it with `--name`"),
    ("--cpu-count", "the option applies only to Windows; use `--cpus`"),
    ("--cpu-percent", "the option applies only to Windows; use `--cpus`"),
    ("--cpu-rt-period", "real-time scheduling time cannot be limited; see `--ulimit rtprio`"),
    ("--cpu-rt-runtime", "real-time scheduling time cannot be limited; see `--ulimit rtprio`"),
    ("--device-cgroup-rule", "use `--device` with permissions"),
    ("--device-read-bps", "disks are shared by weight; use `--io-weight`"),
    ("--device-read-iops", "disks are shared by weight; use `--io-weight`"),
    ("--device-write-bps", "disks are shared by weight; use `--io-weight`"),
    ("--device-write-iops", "disks are shared by weight; use `--io-weight`"),
    (
        "--disable-content-trust",
        "the operator configures required signatures with `images.signed` in executord's configuration",
    ),
    ("--domainname", "include the domain in `--hostname`"),
    ("--expose", "every port of a container can be reached by its peers; publish one with `--publish`"),
    ("--health-start-interval", "use `--health-interval`"),
    ("--io-maxbandwidth", "the option applies only to Windows; use `--io-weight`"),
    ("--io-maxiops", "the option applies only to Windows; use `--io-weight`"),
    ("--ip", "the network chooses addresses"),
    ("--ip6", "the network chooses addresses"),
    ("--isolation", "the option applies only to Windows; use `--userns`"),
    ("--kernel-memory", "kernel memory counts towards `--memory`"),
    ("--label-file", "use `--label` for each"),
    ("--link-local-ip", "the network chooses addresses"),
    ("--log-driver", "use `agent-cli logs`; the operator configures log sinks"),
    ("--log-opt", "use `--log-rate`, `--log-lines` and `--log-tag`"),
    ("--mac-address", "the network chooses addresses"),
    ("--memory-swappiness", "use `--memory-swap`; the same value as `--memory` disables swap"),
    ("--no-healthcheck", "health checks of images are not run; use `--health-cmd`"),
    ("--oom-kill-disable", "use `--oom-score-adj`"),
    ("--all-tags", "name each image"),
    ("--digests", "`agent-cli images` shows digests"),
    ("--host", "use `--socket`, or `--address` for executord on another machine"),
    ("--last", "use `agent-cli ps --all`"),
    ("--latest", "use `agent-cli ps --all`"),
    ("--no-trunc", "`--json` and `--format` print full ids and commands"),
    ("--size", "use `agent-cli system df`"),
    ("--type", "`agent-cli inspect` shows containers; use `agent-cli image inspect` for images"),
    ("--quiet", "lists and `image pull` have it; elsewhere redirect the progress on standard error with `2>/dev/null`"),
    ("--runtime", "executord has a single runtime"),
    ("--sig-proxy", "signals are not forwarded: Ctrl-C stops the container of `run`; see `agent-cli signal`"),
    ("--storage-opt", "use `--disk`"),
    ("--use-api-socket", "executord's socket cannot be mounted into containers; see `--runtime-token`"),
    ("--uts", "each container has its own host name; use `--hostname`"),
    ("--volume-driver", "volumes are directories that the operator configures; use `--volume`"),
    ("--volumes-from", "name each volume with `--volume`; containers of one pod share the pod's volumes"),
];

/// Short forms and other names of flags, each with its name in the table.
const ALIASES: [(&str, &str); 7] = [
    ("-P", "--publish-all"),
    ("-H", "--host"),
    ("-a", "--attach"),
    ("-n", "--last"),
    ("-q", "--quiet"),
    ("-s", "--size"),
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
