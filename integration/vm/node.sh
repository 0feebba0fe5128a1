# Functions of the checks that make the machine a node for Kubernetes. Sourced after lib.sh: `. "$VM/node.sh"`.
# Parameter: made, a directory for the check's files. A check that reboots the machine sets it to a directory on disk.

config=/etc/executor/executor.toml
unit=/run/systemd/system/kubelet.service
made=${made:-$(mktemp -d)}
mkdir -p "$made"
# After a reboot, the machine is already a node.
if [ ! -e "$made/executor.toml" ]; then
    cp $config "$made/executor.toml"
    network_left >"$made/network"
fi
before=$(cat "$made/network")

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
    rm -rf "$made" /var/log/pods
    restarted
}

# Waits until no cgroup of a container and no network is left. A kubelet leaves the cgroups of the QoS classes.
node_is_empty() {
    eventually 60 sh -c '! find /sys/fs/cgroup/kubepods -type d -name "executor-*" 2>/dev/null | grep .'
    [ ! -e /sys/fs/cgroup/kubepods ] || find /sys/fs/cgroup/kubepods -depth -type d -exec rmdir {} +
    eventually 60 sh -c ". $VM/lib.sh; [ \"\$(network_left)\" = \"$before\" ]"
}

# typed PAGE NUMBER: runs a block of commands of a guide. The image of the pod is from this machine's registry.
typed() {
    awk -v wanted="$2" '/^```sh$/ { found++; shown = found == wanted; next } /^```$/ { shown = 0 } shown' \
        "/payload/docs/kubernetes-$1.md" | sed "s|registry.k8s.io/[^ ]*|$IMAGE|" >"$made/block"
    [ -s "$made/block" ] || fail "the guide kubernetes-$1.md has no code block $2"
    timeout 200 sh -eu "$made/block" || fail "code block $2 of kubernetes-$1.md exited with $?"
}

# kubelet_unit OPTION...: makes a unit like the unit of kubeadm's packages.
kubelet_unit() {
    cat >$unit <<END
[Service]
ExecStart=/payload/programs/kubelet --config=/var/lib/kubelet/config.yaml --hostname-override=node $*
Delegate=yes
Restart=always
RestartSec=1
END
    systemctl daemon-reload
}

# Sets up the node with the first two blocks of the guide. dpkg excluded the documentation that they use.
guide_up() {
    example=/usr/share/doc/executor/examples/kubernetes-node.toml
    mkdir -p /var/lib/kubelet
    ln -s /payload/programs/crictl /usr/local/bin/crictl
    echo 'runtime-endpoint: unix:///run/executor-cri/cri.sock' >/etc/crictl.yaml
    [ -e $example ] || install -D -m 644 /payload/docs/kubernetes-node.toml $example
    typed node 1
    typed node 2
    eventually 60 crictl info
}

# Starts a kubelet without an API server, which responds without a certificate, with the third block of the guide.
standalone_kubelet() {
    kubelet_unit
    typed node 3
    cat >>/var/lib/kubelet/config.yaml <<END
failSwapOn: false
readOnlyPort: 10255
fileCheckFrequency: 1s
END
    systemctl restart kubelet
    eventually 120 is 'pods' '[]'
}

# Undoes guide_up and standalone_kubelet.
guide_down() {
    rm -rf /etc/kubernetes
    systemctl stop kubelet 2>/dev/null || true
    rm -f $unit /etc/systemd/logind.conf.d/99-kubelet.conf /etc/cni/net.d/10-pods.conflist /usr/local/bin/crictl /etc/crictl.yaml
    systemctl daemon-reload
    systemctl kill -s HUP systemd-logind
    sed -i '/^kubelet:/d' /etc/subuid /etc/subgid
    userdel kubelet 2>/dev/null || true
    node_down
    rm -rf /var/lib/kubelet /srv/secrets /etc/executor/executor-cri.toml
}

# Prints the value of a Python expression about the pods, from the kubelet's own endpoint. `pod` is the first pod.
pod() {
    python3 - "$1" <<END
import json, sys, urllib.request
pods = json.load(urllib.request.urlopen("http://127.0.0.1:10255/pods", timeout=20))["items"] or []
named = {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0] for pod in pods if pod["status"].get("containerStatuses")}
print(eval(sys.argv[1], {"pods": pods, "pod": pods[0] if pods else None, "named": named}))
END
}

is() {
    [ "$(pod "$1")" = "$2" ]
}
