"""Makes the calls on its input over one persistent connection, with gRPC's C core.

Usage: calls.py SOCKET, or calls.py HOST:PORT CERTIFICATE KEY CA. Reads lines of "METHOD REQUEST", with the request in base64.
Prints "OK" or the error status for each line.
"""

import base64
import sys

import grpc

from client import connect


def main(address, files):
    with connect(address, files) as channel:
        for line in sys.stdin:
            method, request = line.split(" ")
            call = channel.unary_unary(method)
            try:
                call(base64.b64decode(request), timeout=60)
                answer = "OK"
            except grpc.RpcError as error:
                answer = f"{error.code().name} {error.details()}"
            print(answer, flush=True)


main(sys.argv[1], sys.argv[2:])
