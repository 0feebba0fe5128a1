"""Prints the name in each frame with a mark that arrives at eth0: MARK:NAME;"""

import re
import socket

ALL = 3  # ETH_P_ALL
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL)) as sniffer:
    sniffer.bind(("eth0", ALL))
    print("up", flush=True)
    while True:
        frame, (_, _, direction, _, _) = sniffer.recvfrom(2000)
        for name in re.findall(rb"MARK:([a-z0-9-]+);", frame):
            if direction != socket.PACKET_OUTGOING:
                print(name.decode(), flush=True)
