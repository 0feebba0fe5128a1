# The package is a node for Kubernetes: `executor-cri --check` names the missing settings, the unit serves crictl, pods with
# limits run under cgroup version 2, and they outlive executor-cri. Nothing is left.
# programs: crictl
# seconds: 600
. "$VM/lib.sh"
[ -x /payload/programs/crictl ] || exit 77
. "$VM/node.sh"
trap node_down EXIT

# The package starts no service for a kubelet, and its default policy does not allow a node.
same inactive "$(systemctl is-active executor-cri || true)" 'the unit after the installation'
code=0
missing=$(executor-cri --check 2>&1) || code=$?
same 1 $code 'the check before the node is set up'
has "$missing" 'allow_no_limits = true'
has "$missing" 'cgroup_parents = \["/kubepods"\]'

node_up
executor-cri --check || fail 'executor-cri --check fails after the setup of the node'
same 'srw------- root root' "$(stat -c '%A %U %G' /run/executor-cri/cri.sock)" 'the socket'
has "$(crictl version)" 'RuntimeName: +executor'
at 'executor-cri serves'

crictl pull $IMAGE
cat >"$made/pod.json" <<END
{"metadata": {"name": "hello", "namespace": "default", "uid": "1"}, "hostname": "hello",
 "log_directory": "/var/log/pods/hello", "linux": {"cgroup_parent": "/kubepods/pod1"}}
END
cat >"$made/web.json" <<END
{"metadata": {"name": "web"}, "image": {"image": "$IMAGE"}, "log_path": "web.log",
 "command": ["/bin/sh", "-c"], "args": ["echo started; exec busybox sleep 1000"],
 "envs": [{"key": "CANARY", "value": "canary-of-the-node"}],
 "linux": {"resources": {"memory_limit_in_bytes": 67108864, "cpu_quota": 50000, "cpu_period": 100000}}}
END
mkdir -p /var/log/pods/hello
pod=$(crictl runp "$made/pod.json")
web=$(crictl create "$pod" "$made/web.json" "$made/pod.json")
crictl start "$web"
eventually 60 grep -q started /var/log/pods/hello/web.log
same hello "$(crictl exec "$web" busybox hostname)" 'the host name'
pid=$(crictl inspect "$web" | field '["info"]["pid"]')
cgroup=/sys/fs/cgroup$(sed -n 's/^0:://p' "/proc/$pid/cgroup")
has "$cgroup" '^/sys/fs/cgroup/kubepods/pod1/'
same 67108864 "$(cat "$cgroup/memory.max")" 'the memory limit'
same '50000 100000' "$(cat "$cgroup/cpu.max")" 'the quota'
crictl update --memory 134217728 "$web"
same 134217728 "$(cat "$cgroup/memory.max")" 'the changed limit'
used=$(crictl stats -o json "$web" | field '["stats"][0]["memory"]["workingSetBytes"]["value"]')
[ "$used" -gt 0 ] || fail "statistics: $used bytes, expected more than 0"
at 'a pod runs, and is limited'

# A restart and a kill of executor-cri, and of executord, change nothing for the container.
systemctl restart executor-cri
eventually 60 crictl info
same "$pid" "$(crictl inspect "$web" | field '["info"]["pid"]')" 'the process after a restart'
kill -9 "$(systemctl show -P MainPID executor-cri)"
eventually 60 crictl info
systemctl restart executord
eventually 60 serves
eventually 60 crictl exec "$web" busybox true
same "$pid" "$(crictl inspect "$web" | field '["info"]["pid"]')" 'the process after a kill'
! grep -rq canary-of-the-node /var/lib/executor-cri /var/lib/executor || fail 'an environment is on disk'
! journalctl -b --no-pager | grep -q canary-of-the-node || fail 'an environment is in the journal'
at 'restarts change nothing'

# With the drop-in of the guide, volumes that executor-cri mounts are visible to the kubelet.
drop_in=/etc/systemd/system/executor-cri.service.d/csi.conf
printf '[cri.csi]\n' >/etc/executor/executor-cri.toml
code=0
systemctl restart executor-cri 2>/dev/null || code=$?
same 1 $code 'a start without the drop-in'
has "$(journalctl -b -u executor-cri -n 20 --no-pager -o cat)" 'cri.csi: cannot mount volumes'
install -D -m 644 /payload/docs/executor-cri-csi.conf $drop_in
systemctl daemon-reload
systemctl restart executor-cri
eventually 60 crictl info
same "$(readlink /proc/1/ns/mnt)" "$(readlink "/proc/$(systemctl show -P MainPID executor-cri)/ns/mnt")" 'the mount namespace'
[ -S /var/lib/kubelet/plugins_registry/secrets.executor.v1-reg.sock ] || fail 'the socket for the kubelet does not exist'
rm -r ${drop_in%/*} /etc/executor/executor-cri.toml
systemctl daemon-reload
systemctl restart executor-cri
eventually 60 crictl info
same "$pid" "$(crictl inspect "$web" | field '["info"]["pid"]')" 'the process after these restarts'
at 'the plugin for volumes starts'

crictl stop "$web"
same CONTAINER_EXITED "$(crictl inspect "$web" | field '["status"]["state"]')" 'the state'
crictl rm "$web"
crictl stopp "$pod"
crictl rmp "$pod"
same '' "$(crictl ps -aq)$(crictl pods -q)" 'records'
node_is_empty
agent-cli image rm $IMAGE
