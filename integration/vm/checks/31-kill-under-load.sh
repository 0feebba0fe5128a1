# kill -9 of either daemon, and of both, under load: systemd restarts them, containers keep running, exit codes are correct.
# seconds: 600
. "$VM/lib.sh"
pid() {
    systemctl show -p MainPID --value "$1"
}
for n in 1 2 3 4; do
    printf secret-$n-secret | run -d --id "long$n" --file a=@- -- sh -c "while [ ! -e /tmp/end ]; do
        trap 'exit $n' USR1; sleep 0.2; done"
done
launch() {
    run -d --id "$1" -- sh -c "sleep 1; exit $2" || agent-cli inspect "$1"
}
# A request that fails while a daemon is down is repeated. After a kill of both daemons they no longer have the original
# request, and refuse the id as in use. `inspect` then shows that the container exists.
(for n in 1 2 3 4 5; do eventually 60 launch "short$n" $((n + 20)); done) &
load=$!
at "four containers run, five more are requested"
for round in 1 2 3; do
    for victims in executord executor-launcher 'executord executor-launcher'; do
        for victim in $victims; do
            kill -9 "$(pid $victim)"
        done
        eventually 30 serves
        at "round $round: $victims killed and restarted"
    done
done
wait $load
at "all containers have been started"
for n in 1 2 3 4 5; do
    same $((n + 20)) "$(status_of agent-cli wait "short$n")" "short$n"
    at "short$n ended"
done
for n in 1 2 3 4; do
    same running "$(agent-cli inspect --json "long$n" | field '["state"]')" "long$n"
    agent-cli signal "long$n" USR1
    same $n "$(status_of agent-cli wait "long$n")" "long$n"
    at "long$n ended"
done
restarts=$(systemctl show -p NRestarts --value executord.service)
[ "$restarts" -ge 6 ] || fail "control failed: systemd restarted executord $restarts times, expected at least 6"
agent-cli rm $(agent-cli ps -aq)
same '' "$(cgroups)" 'cgroups of containers'
