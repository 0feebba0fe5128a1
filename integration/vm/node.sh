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

# Uses docs/kubernetes-node.toml, and starts executor-cri.
node_up() {
    mkdir -p /var/log/pods /var/lib/kubelet
    cp /payload/docs/kubernetes-node.toml $config
    restarted
    systemctl start executor-cri
    eventually 60 crictl info
}

# Removes the pods, and restores the configuration.
node_down() {
    crictl rmp -a -f >/dev/null 2>&1 || true
    systemctl disable --quiet --now executor-cri
    cp "$made/executor.toml" $config
    rm -r "$made" /var/log/pods
    restarted
}

# Waits until no cgroup of a container and no network is left. A kubelet leaves the cgroups of the QoS classes.
node_is_empty() {
    eventually 60 sh -c '! find /sys/fs/cgroup/kubepods -type d -name "executor-*" 2>/dev/null | grep .'
    [ ! -e /sys/fs/cgroup/kubepods ] || find /sys/fs/cgroup/kubepods -depth -type d -exec rmdir {} +
    eventually 60 sh -c ". $VM/lib.sh; [ \"\$(network_left)\" = \"$before\" ]"
}
