# Stopping the units stops no container; after a start every container is found, even if it has exited.
. "$VM/lib.sh"
run -d --id stays -- sleep 1000
run -d --id ends -- sh -c 'sleep 2; exit 9'
stays=$(agent-cli inspect --json stays | field '["processes"][0]["pid"]')
systemctl stop executord.socket executord.service executor-launcher.service
for unit in executord.socket executord.service executor-launcher.service; do
    same inactive "$(systemctl is-active $unit || true)" "$unit"
done
same 125 "$(status_of agent-cli info)" 'no daemon listens'
ended() {
    [ -e /var/lib/executor/containers/ends/exit.json ] && [ -s /var/lib/executor/containers/ends/exit.json ]
}
eventually 30 ended
same sleep "$(cat "/proc/$stays/comm")" 'the container continues to run'
# Only the socket is active: the first call starts the daemon, which starts its launcher.
systemctl start executord.socket
eventually 60 serves
same "$stays" "$(agent-cli inspect --json stays | field '["processes"][0]["pid"]')" 'the same process'
same 9 "$(status_of agent-cli wait ends)" 'the container that exited without a daemon'
agent-cli rm -f stays ends
