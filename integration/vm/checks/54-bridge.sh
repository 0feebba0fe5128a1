# A built-in network works with the package as installed: published ports in both families, names of peers by executord on
# the gateway, closed egress, restarts of both daemons, and nothing is left.
. "$VM/lib.sh"
before=$(network_left)
web() {
    agent-cli run -d --id "$1" --network bridge --publish "$2:8000" $IMAGE -- \
        'exec busybox nc -ll -p 8000 -e /bin/echo from-web'
}
says() {
    busybox nc -w 2 "$1" "$2" </dev/null | grep -q from-web
}
named() {
    agent-cli run --network bridge $IMAGE -- "busybox nslookup $1" 2>&1 | grep -q "$2"
}
web web 8092
address=$(agent-cli inspect --json web | field '["network_status"]["addresses"][0]' | cut -d/ -f1)
has "$address" '^10\.61\.'
eventually 60 says "$address" 8000
eventually 60 says 127.0.0.1 8092
eventually 60 says ::1 8092
! says 127.0.0.1 8093 || fail 'control failed: a port that is not published responds'
has "$(agent-cli run --network bridge $IMAGE -- "busybox nc -w 2 $address 8000 </dev/null")" '^from-web$'
at 'ports and peers respond'

eventually 60 named web "$address"
! named nowhere "$address" || fail 'control failed: the name of no container resolves'
! agent-cli run --network bridge $IMAGE -- "busybox nc -w 2 10.61.0.1 5000 </dev/null" ||
    fail 'a container without egress reaches the registry at the gateway'
at 'names are resolved'

systemctl restart executor-launcher executord
eventually 60 serves
eventually 60 says 127.0.0.1 8092
eventually 60 named web "$address"
agent-cli rm -f web
same "$before" "$(network_left)" 'network objects after the removal'
web lost 8092
eventually 60 says 127.0.0.1 8092
kill -9 $(shims)
agent-cli wait lost || true
agent-cli rm lost
same "$before" "$(network_left)" 'network objects after the shim was killed'
