# Runs the commands of docs/guides/kubernetes-node.md and kubernetes-secrets.md on this machine: a stock kubelet without
# an API server, under systemd and cgroup version 2.
# A static pod runs in the cgroups of its QoS class. Its certificate, a secret by reference, is replaced while the pod runs,
# and is not on the host. The pod outlives the kubelet, and the kubelet stops it in time when the machine shuts down.
# programs: crictl kubelet
# seconds: 900
. "$VM/lib.sh"
[ -x /payload/programs/kubelet ] || exit 77
. "$VM/node.sh"
finish() {
    [ $? = 0 ] || { pod 'pod and pod["status"]' || true; journalctl -b -u kubelet -n 30 --no-pager -o cat; }
    guide_down
}
trap finish EXIT

guide_up
at 'executor-cri serves'
standalone_kubelet
at 'the kubelet serves'

typed secrets 1
eventually 120 is 'pod["status"]["containerStatuses"][0]["ready"]' True
id=$(pod 'pod["status"]["containerStatuses"][0]["containerID"]')
id=${id#executor://}
pid=$(crictl inspect "$id" | field '["info"]["pid"]')
cgroup=/sys/fs/cgroup$(sed -n 's/^0:://p' "/proc/$pid/cgroup")
has "$cgroup" '^/sys/fs/cgroup/kubepods/besteffort/pod'
at 'a static pod runs, and its certificate was replaced'

# Key and certificate match. On the host, only the directory of the provider has the key.
crictl exec "$id" busybox cat /run/secrets/tls/tls.crt >"$made/crt"
crictl exec "$id" busybox cat /run/secrets/tls/tls.key >"$made/key"
same "$(openssl pkey -in "$made/key" -pubout)" "$(openssl x509 -in "$made/crt" -noout -pubkey)" 'the public key'
has "$(openssl x509 -in "$made/crt" -noout -subject)" 'web-2'
for version in web-1 web-2; do
    part=$(sed -n 2p /srv/secrets/$version/tls.key)
    for where in /var/lib/kubelet /var/lib/executor /var/lib/executor-cri /var/log/pods /run/executor /run/executor-cri; do
        ! grep -rqsF --devices=skip -- "$part" $where || fail "the key of $version is in $where"
    done
done
grep -qF -- "$part" "$made/key" || fail 'control failed: the search does not find the copy of this check'

# After a kill, the kubelet finds the container again.
kill -9 "$(systemctl show -P MainPID kubelet)"
eventually 120 sh -c '[ "$(systemctl show -P NRestarts kubelet)" -ge 1 ] && systemctl is-active kubelet'
eventually 120 is 'pod["status"]["containerStatuses"][0]["ready"]' True
same "executor://$id" "$(pod 'pod["status"]["containerStatuses"][0]["containerID"]')" 'the container after a kill of the kubelet'
same 0 "$(pod 'pod["status"]["containerStatuses"][0]["restartCount"]')" 'restarts'
at 'the kubelet was killed'

# A pod with limits, which exits in time.
cat >/etc/kubernetes/manifests/limited.yaml <<END
apiVersion: v1
kind: Pod
metadata: {name: limited}
spec:
  terminationGracePeriodSeconds: 20
  containers:
  - name: limited
    image: $IMAGE
    command: [/bin/sh, -c]
    args: ["trap 'echo ended in time; exit 0' TERM; echo started; while true; do busybox sleep 0.2; done"]
    readinessProbe: {exec: {command: [busybox, "true"]}, periodSeconds: 1, timeoutSeconds: 20}
    resources: {requests: {memory: 32Mi}, limits: {memory: 64Mi, cpu: 500m}}
END
limited='[pod for pod in pods if pod["metadata"]["name"] == "limited-node"][0]'
eventually 120 is "$limited"'["status"]["containerStatuses"][0]["ready"]' True
id=$(pod "$limited"'["status"]["containerStatuses"][0]["containerID"]')
id=${id#executor://}
cgroup=/sys/fs/cgroup$(sed -n 's/^0:://p' "/proc/$(crictl inspect "$id" | field '["info"]["pid"]')/cgroup")
has "$cgroup" '^/sys/fs/cgroup/kubepods/burstable/pod'
same 67108864 "$(cat "$cgroup/memory.max")" 'the limit of the container'
same 67108864 "$(cat "${cgroup%/*}/memory.max")" 'the limit of the pod'
at 'a pod with a limit is ready'

# logind announces a shutdown: the kubelet delays the shutdown, and stops the pods.
eventually 60 sh -c 'systemd-inhibit --list --no-legend | grep -q kubelet'
busctl emit /org/freedesktop/login1 org.freedesktop.login1.Manager PrepareForShutdown b true
eventually 90 is '{pod["status"]["phase"] for pod in pods} <= {"Failed", "Succeeded"}' True
same Terminated "$(pod "$limited"'["status"]["reason"]')" 'the reason'
has "$(cat /var/log/pods/default_limited-node_*/limited/0.log)" 'ended in time'
same CONTAINER_EXITED "$(crictl inspect "$id" | field '["status"]["state"]')" 'the state'
same 0 "$(crictl inspect "$id" | field '["status"]["exitCode"]')" 'the exit code'
at 'the pods ended with the machine'

rm /etc/kubernetes/manifests/*.yaml
eventually 120 is 'pods' '[]'
systemctl stop kubelet
crictl rmp -a -f
node_is_empty
agent-cli image rm $IMAGE
