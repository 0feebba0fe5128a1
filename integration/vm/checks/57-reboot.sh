# A node with an API server survives a reboot, and a crash of the machine (rule C44 of docs/guides/cri-rules.md).
# Before the kubelet starts, old sandboxes are NOTREADY, old containers EXITED, and addresses free. The kubelet then starts
# the pods of a Deployment in new sandboxes, and does not repeat a Job. The logs of the last containers stay readable.
# programs: crictl etcd kube-apiserver kube-controller-manager kube-scheduler kubectl kubelet
# seconds: 1200
. "$VM/lib.sh"
[ -x /payload/programs/kube-apiserver ] || exit 77
made=/var/lib/check-reboot
. "$VM/node.sh"
address=192.0.2.1
control='etcd kube-apiserver kube-controller-manager kube-scheduler'
export KUBECONFIG=$made/kubeconfig

finish() {
    status=$?
    case $status in
    8[89]) return ;;
    0) ;;
    *)
        crictl pods || true
        crictl ps -a || true
        for name in kubelet $control executor-cri; do
            journalctl -b -u "$name" -n 12 --no-pager -o cat | cut -c1-400 | sed "s/^/$name: /"
        done
        ;;
    esac
    # shellcheck disable=SC2086 # names
    systemctl stop kubelet $control 2>/dev/null || true
    for name in $control; do rm -f "/run/systemd/system/$name.service"; done
    ip link delete node0 2>/dev/null || true
    guide_down
}
trap finish EXIT

# service NAME TYPE AFTER OPTION...: makes the unit of a program.
service() {
    name=$1 type=$2 after=$3
    shift 3
    cat >"/run/systemd/system/$name.service" <<END
[Unit]
After=$after
[Service]
Type=$type
ExecStart=/payload/programs/$name $*
Restart=always
RestartSec=1
# An emulated processor needs longer than the default.
TimeoutStartSec=infinity
END
}

# Starts the control plane, without waiting for it. The bridge has an address that the kubelet accepts as the node's.
control_plane() {
    ip link add node0 type bridge
    ip address add $address/24 dev node0
    ip link set node0 up
    service etcd notify '' --data-dir=$made/etcd --heartbeat-interval=1000 --election-timeout=5000
    service kube-apiserver notify etcd.service --etcd-servers=http://127.0.0.1:2379 --bind-address=$address \
        --advertise-address=$address --service-cluster-ip-range=10.96.0.0/16 --authorization-mode=AlwaysAllow \
        --token-auth-file=$made/tokens --disable-admission-plugins=ServiceAccount --cert-dir=$made/certificates \
        --service-account-issuer=https://kubernetes.default.svc --service-account-key-file=$made/accounts.pub \
        --service-account-signing-key-file=$made/accounts.key --kubelet-preferred-address-types=InternalIP \
        --endpoint-reconciler-type=none --enable-priority-and-fairness=false --profiling=false
    service kube-controller-manager simple kube-apiserver.service --kubeconfig=$KUBECONFIG --leader-elect=false \
        --secure-port=0 --controllers=deployment-controller,replicaset-controller,job-controller
    service kube-scheduler simple kube-apiserver.service --kubeconfig=$KUBECONFIG --leader-elect=false --secure-port=0
    systemctl daemon-reload
    # shellcheck disable=SC2086 # names
    systemctl start --no-block $control
}

# Prints the value of a Python expression about the pods and the job, from the API server. `web` are the Deployment's pods.
api() {
    python3 - "$1" <<END
import json, ssl, sys, urllib.request
def get(path):
    request = urllib.request.Request("https://$address:6443" + path, headers={"Authorization": "Bearer check"})
    return json.load(urllib.request.urlopen(request, timeout=60, context=ssl._create_unverified_context()))
def first(pod):
    return (pod["status"].get("containerStatuses") or [{}])[0]
pods = sorted(get("/api/v1/namespaces/default/pods")["items"], key=lambda pod: pod["metadata"]["name"])
web = [pod for pod in pods if pod["metadata"]["name"].startswith("web-")]
once = [pod for pod in pods if pod["metadata"]["name"].startswith("once-")]
job = get("/apis/batch/v1/namespaces/default/jobs")["items"]
print(eval(sys.argv[1]))
END
}

api_is() {
    [ "$(api "$1")" = "$2" ]
}

# Prints the value of a Python expression about the runtime's sandboxes and containers.
runtime() {
    crictl pods -o json >"$made/sandboxes.json"
    crictl ps -a -o json >"$made/containers.json"
    python3 - "$1" <<END
import json, sys
pods = json.load(open("$made/sandboxes.json"))["items"]
containers = json.load(open("$made/containers.json"))["containers"]
def attempts(prefix, state):
    return sorted(pod["metadata"]["attempt"] for pod in pods
                  if pod["metadata"]["name"].startswith(prefix) and pod["state"] == "SANDBOX_" + state)
def runs(name, state):
    return sorted(one["metadata"]["attempt"] for one in containers
                  if one["metadata"]["name"] == name and one["state"] == "CONTAINER_" + state)
print(eval(sys.argv[1]))
END
}

runtime_is() {
    [ "$(runtime "$1")" = "$2" ]
}

# Succeeds if no address, interface, cgroup or mount of a sandbox exists.
nothing_runs() {
    [ "$(network_left)" = "$before" ] && [ -z "$(shims)" ] &&
        ! find /sys/fs/cgroup/kubepods -type d -name 'executor-*' 2>/dev/null | grep . &&
        ! grep -e /var/lib/kubelet/pods -e executor-secrets /proc/self/mountinfo
}

# ended REASON CODE: all containers have exited, with finish times between their creation and the current time. The last
# containers of the Deployment have this reason and code.
ended() {
    for id in $(crictl ps -aq); do crictl inspect "$id"; done >"$made/inspected"
    python3 - "$@" <<END || fail 'unexpected state of containers after the start of the machine'
import json, sys, time
text, now = open("$made/inspected").read().strip(), time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + 1))
while text:
    one, end = json.JSONDecoder().raw_decode(text)
    status, text = one["status"], text[end:].strip()
    name, attempt, result = *(status["metadata"][key] for key in ("name", "attempt")), [status["reason"], str(status["exitCode"])]
    times = [status[key][:19] for key in ("createdAt", "startedAt", "finishedAt")]
    print(name, attempt, status["state"], result, *times)
    assert status["state"] == "CONTAINER_EXITED"
    assert "2000" < times[0] <= times[2] <= now, now
    assert times[0] <= times[1] <= times[2], times
    assert name != "once" or result == ["Completed", "0"]
    assert name != "web" or attempt != $BOOT - 1 or result == sys.argv[1:]
END
}

# is_ready COUNT: two pods are ready with this count of restarts, and the job has completed once.
is_ready() {
    eventually 600 api_is '[first(pod).get("ready") for pod in web]' '[True, True]'
    eventually 120 api_is '[job[0]["status"].get(key, 0) for key in ("succeeded", "failed", "active")]' '[1, 0, 0]'
    same "[$1, $1]" "$(api '[first(pod)["restartCount"] for pod in web]')" 'restarts'
    same '[0]' "$(api '[first(pod)["restartCount"] for pod in once]')" 'restarts of the job'
    same '1' "$(cat /var/log/pods/default_once-*/once/*.log | grep -c 'done once')" 'runs of the job'
    api '[[pod["metadata"]["name"], pod["metadata"]["uid"]] for pod in pods]' >"$made/pods.$BOOT"
    cat /proc/sys/kernel/random/boot_id >"$made/boot.$BOOT"
    same 2 "$(api 'len({pod["status"]["podIP"] for pod in web})')" 'addresses'
}

# Starts the machine's kubelet, and checks that the pods of the last boot run again.
restarts() {
    last=$((BOOT - 1))
    kubelet_unit --kubeconfig=$KUBECONFIG --node-ip=$address
    systemctl start kubelet
    # The status of the last boot says that the pods are ready, until the kubelet has read the state of the runtime.
    eventually 600 api_is "[first(pod).get('restartCount') for pod in web]" "[$BOOT, $BOOT]"
    is_ready "$BOOT"
    at 'the pods are ready again'
    same "$(cat $made/pods.$last)" "$(cat $made/pods.$BOOT)" 'names and uids of the pods'
    same "[$BOOT, $BOOT]" "$(runtime 'attempts("web-", "READY")')" 'attempts of the sandboxes'
    same "[$BOOT, $BOOT]" "$(runtime 'runs("web", "RUNNING")')" 'attempts of the containers'
    same '[] [0]' "$(runtime 'attempts("once-", "READY")') $(runtime 'runs("once", "EXITED")')" 'the job'
    note "after boot $BOOT: $(api '[first(pod)["lastState"]["terminated"]["reason"] for pod in web]')"
    for pod in $(api '" ".join(pod["metadata"]["name"] for pod in web)'); do
        has "$(/payload/programs/kubectl logs -p "$pod")" "started in $(cat $made/boot.$last)"
        has "$(/payload/programs/kubectl logs "$pod")" "started in $(cat $made/boot.$BOOT)"
    done
    at 'the logs are readable'
}

case $BOOT in
0)
    guide_up
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out $made/accounts.key
    openssl pkey -in $made/accounts.key -pubout -out $made/accounts.pub
    echo 'check,check,1,"system:masters"' >$made/tokens
    cat >$KUBECONFIG <<END
apiVersion: v1
kind: Config
current-context: check
contexts: [{name: check, context: {cluster: check, user: check}}]
clusters: [{name: check, cluster: {server: "https://$address:6443", insecure-skip-tls-verify: true}}]
users: [{name: check, user: {token: check}}]
END
    cat >/var/lib/kubelet/config.yaml <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/executor-cri/cri.sock
cgroupDriver: cgroupfs
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
failSwapOn: false
END
    cat >$made/manifest.yaml <<END
apiVersion: v1
kind: Secret
metadata: {name: password}
stringData: {value: canary}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 20
      tolerations: [{operator: Exists}]
      containers:
      - name: web
        image: $IMAGE
        command: [/bin/sh, -c]
        args:
        - |
          trap 'echo ended in time; exit 0' TERM
          read -r boot </proc/sys/kernel/random/boot_id
          echo started in \$boot
          busybox sleep 100000 & wait
        readinessProbe: {exec: {command: [busybox, test, -s, /run/password/value]}, periodSeconds: 5, timeoutSeconds: 20}
        volumeMounts: [{name: password, mountPath: /run/password}]
      volumes: [{name: password, secret: {secretName: password}}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: once}
spec:
  template:
    spec:
      restartPolicy: Never
      tolerations: [{operator: Exists}]
      containers: [{name: once, image: $IMAGE, command: [/bin/sh, -c, echo done once]}]
END
    control_plane
    kubelet_unit --kubeconfig=$KUBECONFIG --node-ip=$address
    systemctl start kubelet
    eventually 600 /payload/programs/kubectl apply -f $made/manifest.yaml
    note "the API server was ready $(cut -d' ' -f1 /proc/uptime) s after the boot"
    at 'the API server responds'
    is_ready 0
    [ "$(network_left)" != "$before" ] || fail 'control failed: pods have no addresses'
    ! nothing_runs >/dev/null || fail 'control failed: pods have neither cgroups nor mounts'
    at 'the pods are ready'
    exit 88
    ;;
1)
    control_plane
    eventually 120 crictl info
    same '([], [0, 0], [0])' \
        "$(runtime 'attempts("", "READY"), attempts("web-", "NOTREADY"), attempts("once-", "NOTREADY")')" 'sandboxes'
    # systemd sends SIGTERM to all processes at the end of a shutdown: the programs exit on their own.
    ended Completed 0
    has "$(cat /var/log/pods/default_web-*/web/0.log)" 'ended in time'
    eventually 60 nothing_runs
    at 'the last boot has left only records'
    restarts
    # In a crash no process exits gracefully, and data that the kernel has not written is lost. `run` syncs the disk
    # before the crash.
    exit 89
    ;;
esac

control_plane
eventually 120 crictl info
same '[]' "$(runtime 'attempts("", "READY") + runs("web", "RUNNING")')" 'running pods and containers after the crash'
ended ContainerStatusUnknown 137
eventually 60 nothing_runs
at 'the crash has left only records'
restarts

# Each minute, the kubelet removes old containers, except the last container of a pod, and sandboxes without containers.
eventually 200 runtime_is 'runs("web", "EXITED"), attempts("web-", "NOTREADY")' '([1, 1], [1, 1])'
at 'the kubelet has removed the first sandboxes'
/payload/programs/kubectl delete deployment,replicaset,job --all
/payload/programs/kubectl delete pod --all
eventually 200 runtime_is 'pods + containers' '[]'
eventually 60 sh -c '! ls -d /var/log/pods/default_* /var/lib/kubelet/pods/* 2>/dev/null | grep .'
same '' "$(agent-cli ps -aq)" "executord's records"
systemctl stop kubelet
eventually 60 nothing_runs
node_is_empty
agent-cli image rm $IMAGE
