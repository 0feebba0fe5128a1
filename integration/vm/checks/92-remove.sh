# Removing the package stops every container gracefully, and leaves no process, mount or cgroup; containers' records and
# images stay on disk.
. "$VM/lib.sh"
printf secret-of-the-polite | run -d --id polite --file a=@- --grace 20s -- \
    sh -c "trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.2; done"
printf secret-of-the-deaf | run -d --id deaf --file a=@- --grace 2s -- sh -c "trap '' TERM; echo up; while :; do sleep 0.2; done"
agent-cli run -d --id plain --disk 32M --network blue --publish 8080:8000 $IMAGE -- 'exec sleep 1000'
agent-cli exec plain -- /bin/sleep 1000 &
for id in polite deaf; do
    eventually 60 sh -c "agent-cli logs $id | grep -q up"
done
[ -n "$(cgroups)" ] || fail 'control failed: containers have no cgroups'
[ -n "$(shims)" ] || fail 'control failed: containers have no shims'
[ -n "$(network_left)" ] || fail 'control failed: containers have no network objects'
[ -n "$(loop_devices)" ] || fail 'control failed: no loop device of a disk limit exists'
files=$(dpkg -L executor)
at "dpkg -r"
dpkg -r executor
at "removed"
same '' "$(shims)" shims
for name in executord executor-launche; do
    ! grep -lx $name /proc/[0-9]*/comm || fail "$name still runs"
done
[ ! -e /sys/fs/cgroup/executor ] || fail "leftover cgroups: $(find /sys/fs/cgroup/executor -type d)"
! grep -l executor /proc/[0-9]*/mountinfo || fail 'leftover mounts of executor'
same '' "$(network_left)" networks
same '' "$(loop_devices)" 'loop devices'
[ ! -e /run/executor ] || fail "leftover files: $(find /run/executor)"
for file in $files; do
    [ -d "$file" ] || [ "$file" = /etc/executor/executor.toml ] || [ ! -e "$file" ] || fail "$file still exists"
done
exit_of() {
    python3 -c "import json, sys; print(json.load(open('/var/lib/executor/containers/$1/exit.json'))$2)"
}
has "$(exit_of polite '["exit"]')" 7
has "$(exit_of deaf '["exit"]')" 9
for id in polite deaf plain; do
    has "$(exit_of $id '')" "'stopped': True"
done
for id in polite deaf; do
    has "$(exit_of $id '')" "'verified': True"
done
[ -n "$(find /var/lib/executor/layers/sha256 -name private)" ] || fail 'the image was removed'
grep -q bye /var/lib/executor/containers/polite/log || fail 'the log does not contain the last output of the container'
