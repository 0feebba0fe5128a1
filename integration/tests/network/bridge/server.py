"""Answers each TCP connection and each UDP datagram with its name and the client's address: server.py NAME PORT."""

import selectors
import socket
import sys

name, port = sys.argv[1], int(sys.argv[2])


def answer(client):
    ip = client[0].removeprefix("::ffff:")
    return f"{name} {ip}".encode()


tcp = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=100)
udp = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
udp.bind(("::", port))
waiting = selectors.DefaultSelector()
for server in (tcp, udp):
    waiting.register(server, selectors.EVENT_READ)
print("up", flush=True)
while True:
    for key, _ in waiting.select():
        try:
            if key.fileobj is tcp:
                connection, client = tcp.accept()
                connection.sendall(answer(client))
                connection.close()
            else:
                _, client = udp.recvfrom(100)
                udp.sendto(answer(client), client)
        except OSError:
            pass  # the client has disconnected, or is not reachable
