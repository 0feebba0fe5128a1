# kill -9 of either daemon, and of both, under load: systemd starts them again, containers run on, exit codes are right.
# seconds: 300
. "$VM/lib.sh"
pid() {
    systemctl show -p MainPID --value "$1"
}
for n in 1 2 3 4 5 6; do
    printf secret-$n-secret | run -d --id "long$n" --file a=@- -- sh -c "while [ ! -e /tmp/end ]; do
        trap 'exit $n' USR1; sleep 0.05; done"
done
(for n in 1 2 3 4 5 6 7 8; do eventually 60 run -d --id "short$n" -- sh -c "sleep 1; exit $((n + 20))"; done) &
load=$!
for round in 1 2 3; do
    for victims in executord executor-launcher 'executord executor-launcher'; do
        for victim in $victims; do
            kill -9 "$(pid $victim)"
        done
        eventually 30 serves
    done
done
wait $load
for n in 1 2 3 4 5 6 7 8; do
    same $((n + 20)) "$(status_of agent-cli wait "short$n")" "short$n"
done
for n in 1 2 3 4 5 6; do
    same running "$(agent-cli inspect --json "long$n" | field '["state"]')" "long$n"
    agent-cli signal "long$n" USR1
    same $n "$(status_of agent-cli wait "long$n")" "long$n"
done
restarts=$(systemctl show -p NRestarts --value executord.service)
[ "$restarts" -ge 6 ] || fail "the control: systemd started executord again $restarts times"
agent-cli rm $(agent-cli ps -aq)
same '' "$(cgroups)" 'cgroups of containers'
