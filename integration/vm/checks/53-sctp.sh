# A published SCTP port of a built-in network is reachable from the host, which has SCTP here, in both families. The
# server is a process of the host in the container's network: the image has no program for SCTP.
. "$VM/lib.sh"
modprobe sctp
before=$(network_left)
agent-cli run -d --id sctp --network bridge --publish 8090:8000/sctp $IMAGE -- 'exec sleep 100000'
# The shim's child has the container's network.
init=$(cut -d' ' -f1 "/proc/$(agent-cli inspect --json sctp | field '["shim_pid"]')/task/"*/children)
cat >/tmp/sctp.py <<'END'
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[2] else socket.AF_INET
one = socket.socket(family, socket.SOCK_STREAM, 132)
if sys.argv[1] == "serve":
    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    one.bind((sys.argv[2], 8000))
    one.listen(8)
    while True:
        peer = one.accept()[0]
        peer.sendall(b"from-sctp")
        peer.close()
one.settimeout(2)
if sys.argv[2] in ("127.0.0.1", "::1"):
    one.bind((sys.argv[2], 0))
one.connect((sys.argv[2], int(sys.argv[3])))
print(one.recv(64).decode())
END
nsenter --net="/proc/$init/ns/net" python3 /tmp/sctp.py serve :: &
server=$!
says() {
    python3 /tmp/sctp.py connect "$1" "$2" | grep -qx from-sctp
}
address=$(agent-cli inspect --json sctp | field '["network_status"]["addresses"][0]' | cut -d/ -f1)
eventually 60 says "$address" 8000
eventually 60 says 127.0.0.1 8090
eventually 60 says ::1 8090
! says 127.0.0.1 8091 || fail 'control failed: a port that is not published responds'
# The port is reserved: neither a program of the host nor another container gets it, and TCP is another port.
python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132).bind(("127.0.0.1", 8090))' &&
    fail 'a program of the host can bind the published port'
python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_STREAM).bind(("127.0.0.1", 8090))'
same 125 "$(status_of agent-cli run --network bridge --publish 8090:8000/sctp $IMAGE)" 'the port in use'
kill $server
agent-cli rm -f sctp
! says 127.0.0.1 8090 || fail 'the port responds after the removal of the container'
same "$before" "$(network_left)" 'network objects after the removal'
