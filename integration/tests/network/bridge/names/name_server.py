"""A name server of the outside world: name_server.py LOG ADDRESS. Each query is a line of LOG: protocol and name.

Answers: big.* has 200 addresses; fail.* gets SERVFAIL; for forged.*, answers with a wrong id and a wrong question precede
the correct answer; silent.* gets no answer; every other name is 198.51.100.7.
"""

import socket
import struct
import sys
import threading

log = open(sys.argv[1], "a", buffering=1)
address = sys.argv[2]


def name_end(packet):
    at = 12
    while packet[at]:
        at += 1 + packet[at]
    return at + 1


def answers(packet, room):
    end = name_end(packet) + 4
    labels, at = [], 12
    while packet[at]:
        labels.append(packet[at + 1 : at + 1 + packet[at]].decode())
        at += 1 + packet[at]
    name = ".".join(labels)
    if packet[10:12] != b"\0\0":
        room = max(room, struct.unpack_from("!H", packet, end + 3)[0])
    question = packet[12:end]
    kind = struct.unpack_from("!H", packet, end - 4)[0]

    def answer(number, question, code, ips):
        records = b"".join(
            b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 60, 4) + socket.inet_aton(ip) for ip in ips if kind == 1
        )
        count = len(ips) if kind == 1 else 0
        header = struct.pack("!HHHHH", 0x8180 | code, 1, count, 0, 0)
        whole = number + header + question + records
        if len(whole) > room:
            whole = number + struct.pack("!HHHHH", 0x8380 | code, 1, 0, 0, 0) + question
        return whole

    number, first = packet[:2], labels[0] if labels else ""
    good = answer(number, question, 0, ["198.51.100.7"])
    if first == "big":
        return name, [answer(number, question, 0, [f"198.51.100.{last}" for last in range(200)])]
    if first == "fail":
        return name, [answer(number, question, 2, [])]
    if first == "silent":
        return name, []
    if first == "forged":
        other = bytes([number[0], number[1] ^ 1])
        wrong = question.replace(b"forged", b"f0rged")
        return name, [answer(other, question, 0, ["203.0.113.1"]), answer(number, wrong, 0, ["203.0.113.2"]), good]
    return name, [good]


def serve_tcp(server):
    while True:
        stream, _ = server.accept()
        with stream:
            try:
                length = struct.unpack("!H", stream.recv(2))[0]
                name, packets = answers(stream.recv(length), 65535)
                log.write(f"tcp {name}\n")
                for packet in packets:
                    stream.sendall(struct.pack("!H", len(packet)) + packet)
            except (OSError, struct.error):
                pass


family = socket.AF_INET6 if ":" in address else socket.AF_INET
threading.Thread(target=serve_tcp, args=[socket.create_server((address, 53), family=family)], daemon=True).start()
udp = socket.socket(family, socket.SOCK_DGRAM)
udp.bind((address, 53))
log.write("serves\n")
while True:
    packet, client = udp.recvfrom(4096)
    name, packets = answers(packet, 512)
    log.write(f"udp {name}\n")
    for answer in packets:
        udp.sendto(answer, client)
