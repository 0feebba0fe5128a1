# No container, shim, cgroup or mount is left after the previous checks.
. "$VM/lib.sh"
same '' "$(agent-cli ps -aq)" containers
eventually 60 sh -c "[ -z \"\$(grep -lx executor-shim /proc/[0-9]*/comm 2>/dev/null)\" ]"
same '' "$(cgroups)" 'cgroups of containers'
same '' "$(ls /run/executor/containers)" 'run directory'
same '' "$(ls /var/lib/executor/containers)" 'state directory'
same '' "$(network_left)" 'networks'
same '' "$(loop_devices)" 'loop devices'
! grep -l executor-secrets /proc/[0-9]*/mountinfo || fail 'leftover mounts of secret files'
free=$(agent-cli info --json | python3 -c 'import json, sys; info = json.load(sys.stdin); print(info["total"] == info["remaining"])')
same True "$free" 'all capacity is free'
