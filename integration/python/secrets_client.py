"""Calls GetSecrets in another language, as a container's program does.

Usage: secrets_client.py SOCKET RUNTIME_SOCKET TOKEN_FILE. Gets the interface by reflection from SOCKET, calls RUNTIME_SOCKET with
the token of TOKEN_FILE several times over one channel (the server closes the connection after each call; the library
reconnects), then without a token, and prints the responses as one JSON document.
"""

import json
import sys

import grpc
from google.protobuf import json_format

from client import Executor, connect


def main(socket, runtime_socket, token_file):
    with open(token_file, encoding="ascii") as file:
        metadata = [("authorization", f"Bearer {file.read()}")]
    with connect(socket) as main_channel, connect(runtime_socket) as channel:
        executor = Executor(channel, learn_from=main_channel)
        answers = [json_format.MessageToDict(executor.GetSecrets({}, metadata)) for _ in range(10)]
        try:
            executor.GetSecrets({})
            refused = None
        except grpc.RpcError as error:
            refused = error.code().name
    print(json.dumps({"answers": answers, "refused": refused}))


main(*sys.argv[1:])
