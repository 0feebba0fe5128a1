"""Sends frames through eth0, each with its name as a mark: frames.py NODES NAME...

NODES is JSON: for each of `own`, `victim`, `third` and `host` the hardware address `mac` and the addresses `v4`, `v6`.
"""

import ipaddress
import json
import socket
import struct
import sys

nodes = json.loads(sys.argv[1])
OTHER_MAC = "02:65:de:ad:be:ef"
BROADCAST = "ff:ff:ff:ff:ff:ff"
ALL_NODES_MAC, ALL_NODES = "33:33:00:00:00:01", "ff02::1"
ARP, IPV4, IPV6, VLAN, UNKNOWN = 0x0806, 0x0800, 0x86DD, 0x8100, 0x88B5
UDP, ICMPV6, HOP_BY_HOP, DESTINATION_OPTIONS = 17, 58, 0, 60


def packed(ip):
    return ipaddress.ip_address(ip).packed


def hardware(mac):
    return bytes.fromhex(mac.replace(":", ""))


def link_local(mac):
    m = hardware(mac)
    return str(ipaddress.ip_address(b"\xfe\x80" + bytes(6) + bytes([m[0] ^ 2]) + m[1:3] + b"\xff\xfe" + m[3:]))


def checksum(data):
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def ethernet(source, to, kind, payload):
    return hardware(to) + hardware(source) + struct.pack(">H", kind) + payload


def transport(source, to, protocol, header, at, payload):
    """Returns header and payload with the checksum at an offset of the header."""
    whole = header + payload
    pseudo = packed(source) + packed(to) + struct.pack(">II", len(whole), protocol)
    return whole[:at] + struct.pack(">H", checksum(pseudo + whole) or 0xFFFF) + whole[at + 2 :]


def ip(source, to, protocol, payload, extension=None):
    if ":" in source:
        if extension is not None:
            payload = bytes([protocol, 0, 1, 4, 0, 0, 0, 0]) + payload  # one option of padding
            protocol = extension
        return struct.pack(">IHBB", 6 << 28, len(payload), protocol, 255) + packed(source) + packed(to) + payload
    header = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(payload), 1, 0, 64, protocol, 0) + packed(source) + packed(to)
    return header[:10] + struct.pack(">H", checksum(header)) + header[12:] + payload


def udp(source, to, mark, ports=(9999, 9999)):
    header = struct.pack(">HHHH", *ports, 8 + len(mark), 0)
    return ip(source, to, UDP, transport(source, to, UDP, header, 6, mark))


def arp(operation, mac, ip, to_mac, to_ip, mark):
    return (
        struct.pack(">HHBBH", 1, IPV4, 6, 4, operation)
        + hardware(mac) + packed(ip) + hardware(to_mac) + packed(to_ip) + mark
    )


def icmp(source, to, kind, body, extension=None):
    return ip(source, to, ICMPV6, transport(source, to, ICMPV6, bytes([kind, 0, 0, 0]), 2, body), extension)


def option(kind, value):
    value += bytes(-(len(value) + 2) % 8)
    return bytes([kind, (len(value) + 2) // 8]) + value


def advertisement(target, mac, mark):
    """Returns the body of a neighbour advertisement that overrides entries."""
    return struct.pack(">I", 0x20000000) + packed(target) + option(2, hardware(mac)) + option(253, mark)


def router(mac, mark):
    return struct.pack(">BBHII", 64, 0, 1800, 0, 0) + option(1, hardware(mac)) + option(253, mark)


def frame(name):
    mark = f"MARK:{name};".encode()
    own, victim, third, host = (nodes[node] for node in ("own", "victim", "third", "host"))
    own_ll, victim_ll = link_local(own["mac"]), link_local(victim["mac"])

    def to_victim(kind, payload, source=own["mac"]):
        return ethernet(source, victim["mac"], kind, payload)

    def to_host(kind, payload):
        return ethernet(own["mac"], host["mac"], kind, payload)

    def tagged(kind, payload):
        return to_victim(VLAN, struct.pack(">HH", 0, kind) + payload)

    def claim(ip):
        return arp(2, own["mac"], ip, victim["mac"], victim["v4"], mark)

    def neighbour(target):
        return icmp(own["v6"], victim["v6"], 136, advertisement(target, own["mac"], mark))

    def redirect():
        body = bytes(4) + packed(own_ll) + packed("2001:db8::2") + option(2, hardware(own["mac"])) + option(253, mark)
        return icmp(own_ll, victim_ll, 137, body)

    def router_frame(extension=None):
        payload = icmp(own_ll, ALL_NODES, 134, router(own["mac"], mark), extension)
        return ethernet(own["mac"], ALL_NODES_MAC, IPV6, payload)

    frames = {
        # Frames with the sender's own addresses.
        "own4": lambda: to_victim(IPV4, udp(own["v4"], victim["v4"], mark)),
        "own6": lambda: to_victim(IPV6, udp(own["v6"], victim["v6"], mark)),
        "own-arp": lambda: to_victim(ARP, claim(own["v4"])),
        "own-neighbour": lambda: to_victim(IPV6, neighbour(own["v6"])),
        # Frames with other hardware addresses.
        "mac4": lambda: to_victim(IPV4, udp(own["v4"], victim["v4"], mark), OTHER_MAC),
        "mac6": lambda: to_victim(IPV6, udp(own["v6"], victim["v6"], mark), OTHER_MAC),
        "mac-of-third": lambda: to_victim(IPV4, udp(own["v4"], victim["v4"], mark), third["mac"]),
        "mac-of-host": lambda: to_victim(IPV4, udp(own["v4"], victim["v4"], mark), host["mac"]),
        # Frames with other IP addresses.
        "ip4-of-third": lambda: to_victim(IPV4, udp(third["v4"], victim["v4"], mark)),
        "ip4-of-host": lambda: to_victim(IPV4, udp(host["v4"], victim["v4"], mark)),
        "ip4-of-outside": lambda: to_victim(IPV4, udp("192.0.2.2", victim["v4"], mark)),
        "ip4-none": lambda: to_victim(IPV4, udp("0.0.0.0", victim["v4"], mark)),
        "ip6-of-third": lambda: to_victim(IPV6, udp(third["v6"], victim["v6"], mark)),
        "ip6-of-host": lambda: to_victim(IPV6, udp(host["v6"], victim["v6"], mark)),
        "ip6-none": lambda: to_victim(IPV6, udp("::", victim["v6"], mark)),
        "ip6-link-local-of-third": lambda: to_victim(IPV6, udp(link_local(third["mac"]), victim_ll, mark)),
        "tagged-ip4-of-third": lambda: tagged(IPV4, udp(third["v4"], victim["v4"], mark)),
        "tagged-ip6-of-third": lambda: tagged(IPV6, udp(third["v6"], victim["v6"], mark)),
        # Frames of false neighbours and routers.
        "arp-third": lambda: to_victim(ARP, claim(third["v4"])),
        "arp-host": lambda: to_victim(ARP, claim(host["v4"])),
        "arp-to-all": lambda: ethernet(own["mac"], BROADCAST, ARP, claim(third["v4"])),
        "arp-mac": lambda: to_victim(ARP, arp(2, OTHER_MAC, own["v4"], victim["mac"], victim["v4"], mark)),
        "tagged-arp": lambda: tagged(ARP, claim(third["v4"])),
        "neighbour-third": lambda: to_victim(IPV6, neighbour(third["v6"])),
        "neighbour-host": lambda: to_victim(IPV6, neighbour(host["v6"])),
        "tagged-neighbour": lambda: tagged(IPV6, neighbour(third["v6"])),
        "router": router_frame,
        "router-hop-by-hop": lambda: router_frame(HOP_BY_HOP),
        "router-options": lambda: router_frame(DESTINATION_OPTIONS),
        "redirect": lambda: to_victim(IPV6, redirect()),
        "unknown-type": lambda: to_victim(UNKNOWN, mark),
        # Frames to the host, with the sender's own addresses.
        "host4": lambda: to_host(IPV4, udp(own["v4"], host["v4"], mark)),
        "host6": lambda: to_host(IPV6, udp(own["v6"], host["v6"], mark)),
        "host-loopback4": lambda: to_host(IPV4, udp(own["v4"], "127.0.0.1", mark)),
        "host-loopback6": lambda: to_host(IPV6, udp(own["v6"], "::1", mark)),
        "host-alias": lambda: to_host(IPV6, udp(own["v6"], host["alias"], mark)),
        # An answer in the name of another container to a client of the host at ::1.
        "forged-answer": lambda: to_host(IPV6, udp(third["v6"], host["alias"], mark, (8080, host["client"]))),
    }
    return frames[name]()


with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
    sender.bind(("eth0", 0))
    for name in sys.argv[2:]:
        sender.send(frame(name))
