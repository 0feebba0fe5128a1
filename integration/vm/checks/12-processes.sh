# The process limit is enforced.
. "$VM/lib.sh"
script='i=0; while [ $i -lt 20 ]; do sleep 5 & i=$((i + 1)); done; echo all'
printed=$(run --pids 8 -- sh -c "$script" 2>&1) || true
has "$printed" 'fork'
run -d --id many --pids 8 -- sleep 1000
same 8 "$(cat "$(cgroup_of many)/pids.max")" pids.max
agent-cli rm -f many
has "$(run --pids 64 -- sh -c "$script" 2>&1)" '^all$'
