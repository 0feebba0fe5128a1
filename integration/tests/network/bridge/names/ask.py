"""Asks a name server, and prints the code and the records: ask.py [SERVER,PROTOCOL,TYPE,NAME[,EDNS_SIZE]]..."""

import socket
import struct
import sys

TYPES = {"A": 1, "PTR": 12, "MX": 15, "TXT": 16, "AAAA": 28, "AXFR": 252}
CODES = {0: "NOERROR", 1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED"}
ID = 0x1234


def query(kind, name, size):
    labels = [label.encode() for label in name.split(".") if label]
    encoded = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    additional = b"\0" + struct.pack("!HHIH", 41, size, 0, 0) if size else b""
    header = struct.pack("!HHHHHH", ID, 0x0100, 1, 0, 0, 1 if size else 0)
    return header + encoded + struct.pack("!HH", TYPES[kind], 1) + additional


def skip_name(packet, at):
    while packet[at]:
        if packet[at] >= 0xC0:
            return at + 2
        at += 1 + packet[at]
    return at + 1


def read_name(packet, at):
    labels = []
    while packet[at]:
        if packet[at] >= 0xC0:
            at = struct.unpack_from("!H", packet, at)[0] & 0x3FFF
            continue
        labels.append(packet[at + 1 : at + 1 + packet[at]].decode())
        at += 1 + packet[at]
    return ".".join(labels)


def describe(packet):
    number, flags, questions, answers, _, _ = struct.unpack_from("!HHHHHH", packet)
    assert number == ID and flags & 0x8000, packet
    words = [CODES.get(flags & 15, str(flags & 15))]
    if flags & 0x0200:
        words.append("TRUNCATED")
    at = 12
    for _ in range(questions):
        at = skip_name(packet, at) + 4
    for _ in range(answers):
        at = skip_name(packet, at)
        kind, _, _, length = struct.unpack_from("!HHIH", packet, at)
        at += 10
        data = packet[at : at + length]
        if kind == 1:
            words.append(socket.inet_ntop(socket.AF_INET, data))
        elif kind == 28:
            words.append(socket.inet_ntop(socket.AF_INET6, data))
        else:
            words.append(read_name(packet, at))
        at += length
    return " ".join(words)


def receive(stream, length):
    data = b""
    while len(data) < length:
        more = stream.recv(length - len(data))
        if not more:
            raise OSError("closed")
        data += more
    return data


def ask(server, protocol, packet):
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    if protocol == "udp":
        asking = socket.socket(family, socket.SOCK_DGRAM)
        asking.settimeout(7)
        asking.connect((server, 53))
        asking.send(packet)
        return describe(asking.recv(65535))
    stream = socket.socket(family, socket.SOCK_STREAM)
    stream.settimeout(7)
    stream.connect((server, 53))
    stream.sendall(struct.pack("!H", len(packet)) + packet)
    return describe(receive(stream, struct.unpack("!H", receive(stream, 2))[0]))


if __name__ == "__main__":
    for question in sys.argv[1:]:
        server, protocol, kind, name, *size = question.split(",")
        try:
            print(ask(server, protocol, query(kind, name, int(size[0]) if size else 0)))
        except OSError as error:
            print("NOTHING")
