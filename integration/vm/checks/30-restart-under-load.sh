# Both daemons are restarted repeatedly while containers run, start and exit, from directories and images, with and
# without a network and a disk limit: no container is lost, and every exit code is correct.
# seconds: 600
. "$VM/lib.sh"
for n in 1 2 3 4; do
    script="while [ ! -e /tmp/end ]; do trap 'exit $n' USR1; sleep 0.2; done"
    case $n in
    1 | 2) set -- --rootfs "dir:$ROOTFS" -- sh -c "$script" ;;
    3) set -- --disk 32M $IMAGE -- "$script" ;;
    4) set -- --network blue --publish 8084:8000 $IMAGE -- "busybox nc -ll -p 8000 -e /bin/echo from-long & $script" ;;
    esac
    printf secret-$n-secret | agent-cli run -d --id "long$n" --file a=@- "$@"
done
launch() {
    agent-cli run -d --id "$1" $IMAGE -- "sleep 1; exit $2" || agent-cli inspect "$1"
}
says() {
    busybox nc -w 2 127.0.0.1 8084 </dev/null | grep -q from-long
}
# A request that fails during a restart is repeated. After a restart of both daemons they no longer have the original
# request, and refuse the id as in use. `inspect` then shows that the container exists.
(for n in 1 2 3 4 5; do eventually 60 launch "short$n" $((n + 20)); done) &
load=$!
at "four containers run, five more are requested"
for round in 1 2 3; do
    systemctl restart executord
    systemctl restart executor-launcher
    systemctl restart executord executor-launcher
    at "round $round"
done
wait $load
at "all containers have been started"
eventually 60 serves
eventually 60 says
for n in 1 2 3 4 5; do
    same $((n + 20)) "$(status_of agent-cli wait "short$n")" "short$n"
    at "short$n ended"
done
for n in 1 2 3 4; do
    same running "$(agent-cli inspect --json "long$n" | field '["state"]')" "long$n"
    agent-cli signal "long$n" USR1
    same $n "$(status_of agent-cli wait "long$n")" "long$n"
    at "long$n ended"
    same True "$(agent-cli inspect --json "long$n" | field '["result"]["wipe"]["verified"]')" "the wipe of long$n"
done
agent-cli rm $(agent-cli ps -aq)
same '' "$(cgroups)" 'cgroups of containers'
same '' "$(network_left)" 'network objects'
same '' "$(loop_devices)" 'loop devices'
