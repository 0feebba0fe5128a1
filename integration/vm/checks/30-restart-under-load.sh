# Both daemons are restarted again and again while containers run, start and end: none is lost, every exit code is right.
# seconds: 300
. "$VM/lib.sh"
for n in 1 2 3 4 5 6; do
    printf secret-$n-secret | run -d --id "long$n" --file a=@- -- sh -c "while [ ! -e /tmp/end ]; do
        trap 'exit $n' USR1; sleep 0.05; done"
done
launch() {
    # What is asked for while a daemon is away is asked for again: the same request is the same container.
    eventually 60 run -d --id "$1" -- sh -c "sleep 1; exit $2"
}
(for n in 1 2 3 4 5 6 7 8; do launch "short$n" $((n + 20)); done) &
load=$!
for round in 1 2 3; do
    systemctl restart executord
    systemctl restart executor-launcher
    systemctl restart executord executor-launcher
done
wait $load
eventually 20 serves
for n in 1 2 3 4 5 6 7 8; do
    same $((n + 20)) "$(status_of agent-cli wait "short$n")" "short$n"
done
for n in 1 2 3 4 5 6; do
    same running "$(agent-cli inspect --json "long$n" | field '["state"]')" "long$n"
    agent-cli signal "long$n" USR1
    same $n "$(status_of agent-cli wait "long$n")" "long$n"
    same True "$(agent-cli inspect --json "long$n" | field '["result"]["wipe"]["verified"]')" "the wipe of long$n"
done
agent-cli rm $(agent-cli ps -aq)
same '' "$(cgroups)" 'cgroups of containers'
