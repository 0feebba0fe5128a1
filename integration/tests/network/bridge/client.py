"""Connects to all targets concurrently; prints NUMBER=ANSWER for each that answers: client.py PROTOCOL,IP,PORT..."""

import socket
import sys
import threading


def connect(number, target):
    protocol, ip, port = target.split(",")
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    try:
        with socket.socket(family, kind) as client:
            client.settimeout(1)
            client.connect((ip, int(port)))
            if protocol == "udp":
                client.send(b"x")
            answer = client.recv(100).decode()
            print(f"{number}={answer}\n", end="", flush=True)
    except OSError:
        pass  # the target is not reached


for number, target in enumerate(sys.argv[1:]):
    threading.Thread(target=connect, args=(number, target)).start()
