# Functions of the checks that make the machine a node for Kubernetes. Sourced after lib.sh: `. "$VM/node.sh"`.

config=/etc/executor/executor.toml
made=$(mktemp -d)
cp $config "$made/executor.toml"
before=$(network_left)

crictl() {
    /payload/programs/crictl --runtime-endpoint unix:///run/executor-cri/cri.sock --timeout 60s --config /dev/null "$@"
}

restarted() {
    systemctl restart executor-launcher executord
    eventually 60 serves
}

# Allows what docs/guides/kubernetes-node.md lists, and starts executor-cri.
node_up() {
    mkdir -p /var/log/pods /var/lib/kubelet
    cat >"$made/policy" <<END
allow_host_userns = true
allow_no_limits = true
allow_no_seccomp = true
allow_new_privileges = true
allow_unmasked = true
allow_egress = true
host_ids_sysctls = true
capabilities_allowed = ["ALL"]
cgroup_parents = ["/kubepods"]
log_dirs = ["/var/log/pods"]
cni_args = true
keep_until_deleted_max = 1000
cgroup_keys = ["memory.high", "memory.low", "memory.min", "memory.oom.group"]
oom_score_adj_min = -997
allow_connect = true
ports_allowed = ["1-65535"]
host_paths = [
    { path = "/var/lib/kubelet", propagation = "bidirectional", suid = true, dev = true },
]
allow_privileged = true
allow_host_network = true
allow_host_pid = true
allow_host_ipc = true
device_paths = ["/dev"]
given_id_ranges = ["2013265920-2020474879"]
END
    sed -i -e '/^ports_allowed/d' -e "/^\[policy\]/r $made/policy" $config
    restarted
    systemctl start executor-cri
    eventually 60 crictl info
}

# Removes the pods, and restores the configuration.
node_down() {
    crictl rmp -a -f >/dev/null 2>&1 || true
    systemctl stop executor-cri
    cp "$made/executor.toml" $config
    rm -r "$made" /var/log/pods
    restarted
}

# Waits until no cgroup of a container and no network is left. A kubelet leaves the cgroups of the classes of service.
node_is_empty() {
    eventually 60 sh -c '! find /sys/fs/cgroup/kubepods -type d -name "executor-*" 2>/dev/null | grep .'
    [ ! -e /sys/fs/cgroup/kubepods ] || find /sys/fs/cgroup/kubepods -depth -type d -exec rmdir {} +
    eventually 60 sh -c ". $VM/lib.sh; [ \"\$(network_left)\" = \"$before\" ]"
}
