# The memory limit is enforced, swap is off, and a kill by the kernel is reported.
. "$VM/lib.sh"
run -d --id limited --memory 48M -- sleep 1000
dir=$(cgroup_of limited)
same $((48 << 20)) "$(cat "$dir/memory.max")" memory.max
same 0 "$(cat "$dir/memory.swap.max")" memory.swap.max
# systemd updates the cgroup tree, but does not change limits that it did not set.
systemctl daemon-reload
systemctl daemon-reexec
same $((48 << 20)) "$(cat "$dir/memory.max")" 'memory.max after daemon-reexec'
agent-cli rm -f limited
[ ! -d "$dir" ] || fail "$dir still exists"

code=0
printed=$(run --keep --id oom --memory 32M -- sh -c 'head -c 200m /dev/zero | tail' 2>&1) || code=$?
has "$printed" 'the memory limit \(32 MiB\) was reached'
same 137 $code 'exit status'
same True "$(agent-cli inspect --json oom | field '["result"]["oom_killed"]')" oom_killed
agent-cli rm oom
same 0 "$(status_of run --memory 32M -- sh -c 'head -c 1m /dev/zero | tail >/dev/null')" 'control: a run within the limit'
