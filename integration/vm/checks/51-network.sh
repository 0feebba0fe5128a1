# A network of CNI plugins with a published port is reachable from the host and from peers, before and after restarts; egress
# is closed; and nothing is left after any exit.
. "$VM/lib.sh"
same '' "$(network_left)" 'network objects before the check'
web() {
    agent-cli run -d --id "$1" --network blue --publish "$2:8000" $IMAGE -- 'exec busybox nc -ll -p 8000 -e /bin/echo from-web'
}
says() {
    busybox nc -w 2 "$1" "$2" </dev/null | grep -q from-web
}
web web 8080
address=$(agent-cli inspect --json web | field '["network_status"]["addresses"][0]' | cut -d/ -f1)
has "$address" '^10\.88\.'
[ -n "$(network_left)" ] || fail 'control failed: there are no network objects while the container runs'
eventually 60 says "$address" 8000
eventually 60 says 127.0.0.1 8080
! says 127.0.0.1 8081 || fail 'control failed: a port that is not published responds'
peer() {
    agent-cli run --network blue $IMAGE -- "busybox nc -w 2 $1 $2 </dev/null"
}
has "$(peer "$address" 8000)" '^from-web$'

# The registry listens at the gateway, but containers cannot reach it.
busybox nc -w 2 10.88.0.1 5000 </dev/null || fail 'control failed: the host cannot reach the registry'
same 1 "$(status_of agent-cli run --network blue $IMAGE -- 'busybox nc -w 2 10.88.0.1 5000 </dev/null')" 'egress'
same 125 "$(status_of agent-cli run --network blue --egress $IMAGE)" 'egress, as installed'

systemctl restart executor-launcher executord
eventually 60 serves
eventually 60 says 127.0.0.1 8080
agent-cli rm -f web
same '' "$(network_left)" 'network objects after the removal'
web lost 8080
eventually 60 says 127.0.0.1 8080
kill -9 $(shims)
agent-cli wait lost || true
agent-cli rm lost
same '' "$(network_left)" 'network objects after the shim was killed'
