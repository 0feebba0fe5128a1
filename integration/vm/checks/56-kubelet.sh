# A stock kubelet without an API server, under systemd and cgroup version 2: a static pod runs in the cgroups of its class
# of service, and outlives the kubelet. Its certificate, a secret by reference, is replaced while it runs, and is nowhere
# else. When the machine shuts down, the kubelet ends it within its time.
# programs: crictl kubelet
# seconds: 600
. "$VM/lib.sh"
[ -x /payload/programs/kubelet ] || exit 77
. "$VM/node.sh"
manifests=/var/lib/kubelet/manifests
finish() {
    [ $? = 0 ] || { pod 'pod and pod["status"]'; journalctl -b -u kubelet -n 30 --no-pager -o cat; }
    rm -rf $manifests
    systemctl stop kubelet 2>/dev/null || true
    rm -f /etc/systemd/logind.conf.d/99-kubelet.conf
    systemctl kill -s HUP systemd-logind
    node_down
    rm -rf /var/lib/kubelet /srv/shop /etc/executor/executor-cri.toml
}
trap finish EXIT

# Prints what Python's expression says of the pod, from the kubelet's own endpoint.
pod() {
    python3 - "$1" <<END
import json, sys, urllib.request
pods = json.load(urllib.request.urlopen("http://127.0.0.1:10255/pods", timeout=20))["items"] or []
print(eval(sys.argv[1], {"pods": pods, "pod": pods[0] if pods else None}))
END
}
is() {
    [ "$(pod "$1")" = "$2" ]
}
start_kubelet() {
    systemctl reset-failed kubelet 2>/dev/null || true
    systemd-run --quiet --unit=kubelet --property=Delegate=yes /payload/programs/kubelet \
        --config=/var/lib/kubelet/config.yaml --hostname-override=node
}

# Makes a certificate and its key in the directory of the provider. Both are replaced in one step, as a CA's client does.
certify() {
    mkdir -p "/srv/shop/$1"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj "/CN=$1" \
        -keyout "/srv/shop/$1/tls.key" -out "/srv/shop/$1/tls.crt" 2>/dev/null
    chown -R executor: "/srv/shop/$1"
    ln -sfn "$1" /srv/shop/next
    mv -T /srv/shop/next /srv/shop/web
}
# Prints the common name of the certificate that the container has, if the key fits.
certificate() {
    crictl exec "$id" busybox cat /run/secrets/tls/tls.crt >"$made/crt"
    crictl exec "$id" busybox cat /run/secrets/tls/tls.key >"$made/key"
    [ "$(openssl x509 -in "$made/crt" -noout -pubkey)" = "$(openssl pkey -in "$made/key" -pubout)" ] || return 0
    openssl x509 -in "$made/crt" -noout -subject | sed 's/.*CN = //'
}
has_certificate() {
    [ "$(certificate)" = "$1" ]
}
certify first
cat >>$config <<END
[[secret_providers]]
name = "ca"
type = "directory"
path = "/srv/shop"
poll_seconds = 1
allow = [{ uid = 0, paths = ["/"] }] # the links to the newest pair lead out of a narrower path
END
cat >/etc/executor/executor-cri.toml <<END
[[cri.secrets]]
annotations = true
namespaces = ["default"]
provider = "ca"
paths = ["/"]
END

node_up
mkdir -p $manifests
cat >/var/lib/kubelet/config.yaml <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: $manifests
containerRuntimeEndpoint: unix:///run/executor-cri/cri.sock
cgroupDriver: cgroupfs
failSwapOn: false
readOnlyPort: 10255
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
fileCheckFrequency: 1s
shutdownGracePeriod: 30s
shutdownGracePeriodCriticalPods: 10s
END
executor-cri --check || fail 'the check with the configuration of the kubelet'
start_kubelet
eventually 120 is 'pods' '[]'
at 'the kubelet serves'

cat >$manifests/web.yaml <<END
apiVersion: v1
kind: Pod
metadata:
  name: web
  annotations:
    secrets.executor.v1/web: |
      - {file: /run/secrets/tls/tls.crt, provider: ca, path: web/tls.crt}
      - {file: /run/secrets/tls/tls.key, provider: ca, path: web/tls.key}
spec:
  terminationGracePeriodSeconds: 20
  containers:
  - name: web
    image: $IMAGE
    imagePullPolicy: IfNotPresent
    command: [/bin/sh, -c]
    args: ["trap 'echo ended in time; exit 0' TERM; echo started; while true; do busybox sleep 0.2; done"]
    readinessProbe: {exec: {command: [busybox, "true"]}, periodSeconds: 1, timeoutSeconds: 20}
    resources: {requests: {memory: 32Mi}, limits: {memory: 64Mi, cpu: 500m}}
END
eventually 120 is 'pod["status"]["containerStatuses"][0]["ready"]' True
id=$(pod 'pod["status"]["containerStatuses"][0]["containerID"]')
id=${id#executor://}
pid=$(crictl inspect "$id" | field '["info"]["pid"]')
cgroup=/sys/fs/cgroup$(sed -n 's/^0:://p' "/proc/$pid/cgroup")
has "$cgroup" '^/sys/fs/cgroup/kubepods/burstable/pod'
same 67108864 "$(cat "$cgroup/memory.max")" 'the limit of the container'
same 67108864 "$(cat "${cgroup%/*}/memory.max")" 'the limit of the pod'
at 'a static pod is ready'

# The certificate is replaced in the running container. The host has the key in the directory of the provider alone.
same first "$(certificate)" 'the certificate at the start'
certify second
eventually 60 has_certificate second
part=$(sed -n 2p /srv/shop/second/tls.key)
for where in /var/lib/kubelet /var/lib/executor /var/lib/executor-cri /var/log/pods /run/executor /run/executor-cri; do
    ! grep -rqsF --devices=skip -- "$part" $where || fail "the key is in $where"
done
grep -qF -- "$part" "$made/key" || fail 'the control: the same search finds the copy of this check'
at 'the certificate was replaced'

# The kubelet is killed, and finds the container again.
kill -9 "$(systemctl show -P MainPID kubelet)"
eventually 30 sh -c '! systemctl is-active kubelet'
start_kubelet
eventually 120 is 'pod["status"]["containerStatuses"][0]["ready"]' True
same "executor://$id" "$(pod 'pod["status"]["containerStatuses"][0]["containerID"]')" 'the container after a kill of the kubelet'
same 0 "$(pod 'pod["status"]["containerStatuses"][0]["restartCount"]')" 'restarts'
at 'the kubelet was killed'

# logind announces a shutdown: the kubelet, which delays it, ends the pod.
eventually 60 sh -c 'systemd-inhibit --list --no-legend | grep -q kubelet'
busctl emit /org/freedesktop/login1 org.freedesktop.login1.Manager PrepareForShutdown b true
eventually 90 is 'pod["status"]["phase"]' Failed
same Terminated "$(pod 'pod["status"]["reason"]')" 'the reason'
has "$(cat /var/log/pods/default_web-node_*/web/0.log)" 'ended in time'
same CONTAINER_EXITED "$(crictl inspect "$id" | field '["status"]["state"]')" 'the state'
same 0 "$(crictl inspect "$id" | field '["status"]["exitCode"]')" 'the exit code'
at 'the pod ended with the machine'

rm $manifests/web.yaml
eventually 120 is 'pods' '[]'
systemctl stop kubelet
crictl rmp -a -f
node_is_empty
agent-cli image rm $IMAGE
