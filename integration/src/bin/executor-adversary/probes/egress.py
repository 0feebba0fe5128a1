"""Sends packets out of the container's network by many methods, immediately after the start.

Prints the number of sent packets.
"""
import socket
import sys

PORT = int(sys.argv[1])
tries = sent = 0


def attempt(send):
    global tries, sent
    tries += 1
    try:
        send()
        sent += 1
    except (OSError, ValueError):
        pass


def tcp(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(0.3)
        s.connect((address, PORT))


def fast_open(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(0.3)
        s.sendto(b"attack", 0x20000000, (address, PORT))


def udp(family, address, size, port=0, options=None):
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        if options:
            s.setsockopt(*options)
        s.bind(("", port))
        s.sendto(b"attack" + b"x" * size, (address, PORT))


def raw(family, kind, protocol, address):
    with socket.socket(family, kind, protocol) as s:
        s.sendto(b"attack" * 4, (address, PORT))


def packet():
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0800) as s:
        s.bind(("eth0", 0))
        s.send(b"attack" * 20)


peer = sys.argv[2]
places = [(socket.AF_INET6 if ":" in one else socket.AF_INET, one) for one in sys.argv[3:]]
for _ in range(5):
    for family, address in places:
        attempt(lambda: udp(family, address, 0))
for family, address in places:
    attempt(lambda: tcp(family, address))
    attempt(lambda: fast_open(family, address))
    attempt(lambda: udp(family, address, 20_000))
    attempt(lambda: udp(family, address, 0, 53))
    attempt(lambda: udp(family, address, 0, PORT))
    attempt(lambda: udp(family, address, 0, 0, (socket.SOL_SOCKET, 36, 1)))
    attempt(lambda: udp(family, address, 0, 0, (socket.SOL_SOCKET, socket.SO_BROADCAST, 1)))
    for kind, protocol in ((socket.SOCK_RAW, 17), (socket.SOCK_RAW, 255), (socket.SOCK_DGRAM, 136), (socket.SOCK_STREAM, 132)):
        attempt(lambda: raw(family, kind, protocol, address))
    if family == socket.AF_INET:
        # A loose source route over the peer (RFC 791).
        route = bytes([131, 11, 4]) + socket.inet_aton(peer) + socket.inet_aton(address) + b"\0"
        attempt(lambda: udp(family, address, 0, 0, (socket.IPPROTO_IP, socket.IP_OPTIONS, route)))
attempt(packet)
print(f"sent {sent} of {tries}", flush=True)
