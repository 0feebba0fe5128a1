# Processes executed in a running container: with its user and its secrets, with a terminal, under its limits.
. "$VM/lib.sh"
printf secret-of-the-host | agent-cli run -d --id long --pids 40 --file a=@- $IMAGE -- 'exec sleep 1000'
same 1234 "$(agent-cli exec long -- /bin/id -u)" 'the user'
same 0 "$(agent-cli exec --user 0 long -- /bin/id -u)" 'another user'
same secret-of-the-host "$(agent-cli exec long -- /bin/cat /etc/cf-service-bindings/a)" 'its secrets'
same 41 "$(status_of agent-cli exec long -- /bin/sh -c 'exit 41')" 'exit status'
same word "$(echo word | agent-cli exec -i long -- /bin/cat)" 'standard input'
on_terminal() {
    python3 -c 'import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))' "$@" </dev/null
}
has "$(on_terminal agent-cli exec -it long -- /bin/sh -c '[ -t 0 ] && [ -t 1 ] && echo on a terminal')" '^on a terminal'
agent-cli exec long -- /bin/sleep 999 &
waiting=$!
counted() {
    # An executed process has a cgroup of its own below the container's.
    set -- $(cat "$dir/cgroup.procs" "$dir"/exec-*/cgroup.procs)
    [ $# = 2 ] && [ "$(cat "/proc/$1/comm" "/proc/$2/comm" | uniq)" = sleep ]
}
dir=$(cgroup_of long)
eventually 60 counted
agent-cli rm -f long
code=0
wait $waiting || code=$?
[ $code != 0 ] || fail 'the process outlived its container'
[ ! -d "$dir" ] || fail "$dir still exists"
