# A node survives jumps of its clock, by an hour forward and two hours back, while pods with probes and secrets run.
# No container is restarted, probes and secrets continue, commands and stops take their real durations, and refused
# certificates are reported as expired or not valid yet. The machine has no time synchronisation.
# programs: crictl kubelet
# seconds: 1200
. "$VM/lib.sh"
[ -x /payload/programs/kubelet ] || exit 77
. "$VM/node.sh"
pki=/etc/executor/check-pki
following=
began_at=$(($(date +%s) - $(uptime_seconds)))
# Restores the correct time.
right() {
    date -s "@$((began_at + $(uptime_seconds)))" >/dev/null
}
finish() {
    [ $? = 0 ] || { pod named || true; journalctl -b -u kubelet -n 30 --no-pager -o cat; }
    right
    # shellcheck disable=SC2086 # process ids
    [ -z "$following" ] || kill $following 2>/dev/null || true
    systemctl stop check-registry-tls 2>/dev/null || true
    guide_down
    rm -rf $pki
}
trap finish EXIT

# issue NAME FROM UNTIL: makes a certificate that is valid from and until these seconds from now.
issue() {
    name=$1
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$name" -keyout $pki/"$name.key" \
        -out $pki/"$name.csr" 2>$pki/log
    openssl ca -batch -notext -config $pki/ca.conf -in $pki/"$name.csr" -out $pki/"$name.crt" \
        -startdate "$(stamp "$2")" -enddate "$(stamp "$3")" 2>$pki/log || fail "$(cat $pki/log)"
    chown executor $pki/"$name.key"
}
stamp() {
    date -u -d "@$(($(date +%s) + $1))" +%Y%m%d%H%M%SZ
}

# Prints the output of a caller over TLS, and of a pull from a registry with TLS.
caller() {
    agent-cli --address 127.0.0.1:7443 --tls-cert $pki/client.crt --tls-key $pki/client.key --tls-ca $pki/ca.crt info 2>&1
}
pull() {
    crictl pull 127.0.0.1:5443/example/app:1 2>&1
}

# password TEXT: stores a password, which replaces the old password in the container.
password() {
    printf %s "$1" >/srv/secrets/new
    chown executor: /srv/secrets/new
    mv /srv/secrets/new /srv/secrets/password
    eventually 90 has_password "$1"
}
has_password() {
    [ "$(crictl exec "$steady" busybox cat /run/secrets/password)" = "$1" ]
}

count() {
    wc -l <"$probes/$1"
}
probed() {
    [ "$(count live)" -ge $((live + 3)) ] && [ "$(count ready)" -ge $((ready + 3)) ]
}

# unharmed TEXT: the container continues to run, is probed, has current statistics and gets the new password.
unharmed() {
    live=$(count live) ready=$(count ready)
    # The kubelet does not probe a container before its start time plus `initialDelaySeconds` (prober/worker.go).
    case "$1" in
    back*) ;;
    *) eventually 120 probed ;;
    esac
    eventually 60 is 'named["steady-node"]["ready"]' True
    same "0 executor://$steady" "$(pod '"{restartCount} {containerID}".format(**named["steady-node"])')" "$1"
    same "CONTAINER_RUNNING $pid" "$(crictl inspect "$steady" | python3 -c '
import json, sys
answer = json.load(sys.stdin)
print(answer["status"]["state"], answer["info"]["pid"])')" "$1"
    password "$1"
    crictl stats -o json "$steady" | python3 -c '
import json, sys, time
[stats] = json.load(sys.stdin)["stats"]
cpu, memory = stats["cpu"], stats["memory"]
print(cpu)
assert int(cpu["usageCoreNanoSeconds"]["value"]) > 0 and int(memory["workingSetBytes"]["value"]) > 0, stats
assert abs(int(cpu["timestamp"]) / 1e9 - time.time()) < 120, (cpu, time.time())
assert 0 <= int((cpu.get("usageNanoCores") or {}).get("value", 0)) < 4e9, cpu
' || fail "invalid statistics of the container: $1"
    crictl statsp >/dev/null
    at "unharmed: $1"
}

# jump SECONDS NAME: moves the clock while a pod stops, and while a command runs. Both take their real durations.
jump() {
    cat >"$made/deaf.yaml" <<END
apiVersion: v1
kind: Pod
metadata: {name: deaf, labels: {before: $2}}
spec:
  terminationGracePeriodSeconds: 20
  containers:
  - name: deaf
    image: $IMAGE
    command: [/bin/sh, -c]
    args:
    - |
      trap 'read -r up rest </proc/uptime; echo "signal \$up"' TERM
      while true; do read -r up rest </proc/uptime; echo "alive \$up"; busybox sleep 1; done
END
    mv "$made/deaf.yaml" /etc/kubernetes/manifests
    eventually 120 is 'named.get("deaf-node", {}).get("ready")' True
    tail -n +1 -f /var/log/pods/default_deaf-node_*/deaf/0.log >"$made/deaf.log" &
    following="$following $!"
    rm -f "$probes/command"
    {
        began=$(uptime_seconds) code=0
        crictl exec --sync --timeout 40 "$steady" sh -c 'echo >/probes/command; exec busybox sleep 1000' \
            >"$made/command.log" 2>&1 || code=$?
        echo "$code $(($(uptime_seconds) - began))" >"$made/command.took"
    } &
    command=$!
    eventually 60 [ -e "$probes/command" ]
    rm /etc/kubernetes/manifests/deaf.yaml
    eventually 60 grep -q signal "$made/deaf.log"
    date -s "@$(($(date +%s) + $1))"

    wait $command
    read -r code took <"$made/command.took"
    cat "$made/command.log"
    [ "$code" != 0 ] || fail 'the command succeeded, expected a timeout'
    has "$(cat "$made/command.log")" '[Tt]imeout|[Tt]imed out|[Dd]eadline'
    { [ "$took" -ge 39 ] && [ "$took" -le 60 ]; } || fail "the timeout of 40 s expired after $took s"
    eventually 120 is '"deaf-node" in named' False
    stopped=$(awk '$4 == "signal" { from = $5 } { until = $5 } END { printf "%d", until - from }' "$made/deaf.log")
    # The program notices the signal after at most a second, and prints each second.
    { [ "$stopped" -ge 16 ] && [ "$stopped" -le 25 ]; } || fail "the grace period of 20 s expired after $stopped s"
    note "$2: a timeout of 40 s took $took s, a grace period of 20 s $stopped s"
}

# Restarts the daemons.
daemons() {
    restarted
    systemctl restart executor-cri
    eventually 60 crictl info
}

guide_up
standalone_kubelet
at 'the kubelet serves'
mkdir -m 755 $pki
cat >$pki/ca.conf <<END
[ca]
default_ca = check
[check]
certificate = $pki/ca.crt
private_key = $pki/ca.key
database = $pki/index
new_certs_dir = $pki
rand_serial = yes
default_md = sha256
policy = names
x509_extensions = extensions
[names]
commonName = supplied
[extensions]
subjectAltName = IP:127.0.0.1
END
: >$pki/index
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=ca -keyout $pki/ca.key -out $pki/ca.crt
issue node -86400 86400
# These certificates are expired after the first jump, and not valid yet after the second.
issue client -600 1800
issue registry -600 1800
sed "s|^http: .*|http: {addr: \"127.0.0.1:5443\", tls: {certificate: $pki/registry.crt, key: $pki/registry.key}}|" \
    $IMAGES/registry.yml >"$made/registry.yml"
systemd-run --quiet --unit check-registry-tls docker-registry serve "$made/registry.yml"

mkdir -p /srv/secrets
printf first >/srv/secrets/password
chown -R executor: /srv/secrets
sed -i "s|^allow = \[\"\*\"\].*|&\nca_file = \"$pki/ca.crt\"\ninsecure_registries = [\"127.0.0.1:5000\"]|" $config
cat >>$config <<END
[listen.tcp]
address = "127.0.0.1:7443"
certificate = "$pki/node.crt"
key = "$pki/node.key"
client_ca = "$pki/ca.crt"
[[callers]]
cn = "client"
methods = ["read"]
[[secret_providers]]
name = "store"
type = "directory"
path = "/srv/secrets"
poll_seconds = 1
allow = [{ uid = 0, paths = ["/"] }]
END
cat >/etc/executor/executor-cri.toml <<END
[[cri.secrets]]
annotations = true
namespaces = ["default"]
provider = "store"
paths = ["/"]
END
daemons
eventually 60 pull
caller || fail 'control failed: a caller with a valid certificate is refused'

cat >"$made/steady.yaml" <<END
apiVersion: v1
kind: Pod
metadata:
  name: steady
  annotations:
    secrets.executor.v1/steady: |
      - {file: /run/secrets/password, provider: store, path: password}
spec:
  terminationGracePeriodSeconds: 20
  containers:
  - name: steady
    image: $IMAGE
    command: [/bin/sh, -c, "trap 'exit 0' TERM; busybox sleep 100000 & wait"]
    # A failure restarts the container. The timeout is for a slow machine.
    livenessProbe: {exec: {command: [sh, -c, "echo >>/probes/live"]}, periodSeconds: 2, timeoutSeconds: 60, failureThreshold: 1}
    readinessProbe: {exec: {command: [sh, -c, "echo >>/probes/ready"]}, periodSeconds: 2, timeoutSeconds: 60}
    volumeMounts: [{name: probes, mountPath: /probes}]
  volumes: [{name: probes, emptyDir: {}}]
END
cp "$made/steady.yaml" /etc/kubernetes/manifests
eventually 180 is 'named.get("steady-node", {}).get("ready")' True
steady=$(pod 'named["steady-node"]["containerID"]')
steady=${steady#executor://}
pid=$(crictl inspect "$steady" | field '["info"]["pid"]')
probes=$(echo /var/lib/kubelet/pods/*/volumes/kubernetes.io~empty-dir/probes)
unharmed before
at 'the pod runs'

jump 3600 forward
unharmed forward
has "$(caller || true)" 'client.crt is expired or not valid yet'
has "$(journalctl -b -u executord -n 60 --no-pager -o cat)" "the caller's certificate is expired"
# The restart also ends connections to the registry, which were verified before the jump.
daemons
has "$(pull || true)" 'certificate expired'
unharmed forward-restarted

jump -7200 back
unharmed back
# A pod that starts now is probed now, and again when the clock has been set right.
sed 's/steady/late/; /name: probes/s/probes/late-probes/' "$made/steady.yaml" >"$made/late.yaml"
mv "$made/late.yaml" /etc/kubernetes/manifests
late=/var/lib/kubelet/pods/*/volumes/kubernetes.io~empty-dir/late-probes/live
late_is_probed() {
    # shellcheck disable=SC2086 # a pattern
    [ "$(cat $late | wc -l)" -ge "$1" ]
}
eventually 120 late_is_probed 3
at 'a new pod is probed'
has "$(caller || true)" 'client.crt is expired or not valid yet'
has "$(journalctl -b -u executord -n 60 --no-pager -o cat)" "the caller's certificate is not valid yet"
daemons
has "$(pull || true)" 'certificate is not valid before'
unharmed back-restarted

right
# shellcheck disable=SC2086 # a pattern
eventually 120 late_is_probed $(($(cat $late | wc -l) + 3))
unharmed right
same 'True 0' "$(pod '"{ready} {restartCount}".format(**named["late-node"])')" 'the pod that started before'
caller || fail 'a caller is refused after the clock was corrected'
eventually 60 pull
journal=$(journalctl -b --no-pager -o cat -u executord -u executor-launcher -u executor-cri)
! printf %s "$journal" | grep -i panic || fail 'a daemon panicked'
rm /etc/kubernetes/manifests/*.yaml
eventually 120 is 'pods' '[]'
systemctl stop kubelet
crictl rmp -a -f
node_is_empty
crictl rmi --all
