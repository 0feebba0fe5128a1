# A client of gRPC's C core whose messages are bytes: makes a call for each line of JSON and prints its code.
import json
import sys

import grpc

options = [("grpc.default_authority", "localhost"), ("grpc.max_send_message_length", -1)]
with grpc.insecure_channel("unix://" + sys.argv[1], options=options) as channel:
    for line in sys.stdin:
        asked = json.loads(line)
        more = asked["more"]
        call = channel.unary_unary(asked["method"])
        try:
            call(
                bytes.fromhex(asked["message"]),
                timeout=60,
                metadata=list(more.get("metadata", {}).items()),
                compression=grpc.Compression.Gzip if more.get("gzip") else None,
            )
            print("OK", flush=True)
        except grpc.RpcError as error:
            print(error.code().name, flush=True)
