"""A client in another language that gets the description of executor.v1 only by reflection.

Usage: client.py SOCKET, or client.py HOST:PORT CERTIFICATE KEY CA. Runs a RunAction with volume mounted files, waits for its exit, reads its log, and prints
its observations as one JSON document.
"""

import base64
import json
import sys

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

SCRIPT = "id -un; cat /etc/cf-service-bindings/db/password /run/one; echo to stderr >&2; exit 7"


class Executor:
    """Client of the service, with a method for each RPC. A method takes the request as a dict and returns messages."""

    def __init__(self, channel, learn_from=None):
        pool = DescriptorPool(ProtoReflectionDescriptorDatabase(learn_from or channel))
        service = pool.FindServiceByName("executor.v1.Executor")
        for method in service.methods:
            setattr(self, method.name, self._call(channel, service.full_name, method))

    @staticmethod
    def _call(channel, service, method):
        request_class = GetMessageClass(method.input_type)
        multi = channel.unary_stream if method.server_streaming else channel.unary_unary
        call = multi(
            f"/{service}/{method.name}",
            request_serializer=request_class.SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        return lambda request, metadata=None: call(
            json_format.ParseDict(request, request_class()), timeout=30, metadata=metadata
        )


def base64_of(text):
    """JSON encodes bytes as base64."""
    return base64.b64encode(text.encode()).decode()


def connect(address, files=()):
    """Returns a channel to a unix socket; with the files of a certificate, its key and a CA, a TLS channel to a port."""
    if not files:
        return grpc.insecure_channel(f"unix://{address}")
    certificate, key, ca = (open(file, "rb").read() for file in files)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, key, certificate))


def main(address, files):
    with connect(address, files) as channel:
        executor = Executor(channel)
        run = {
            "path": "/bin/sh",
            "args": ["-c", SCRIPT],
            "user": "vcap",
            "volume_mounted_files": [
                {"path": "db/password", "content": base64_of("from python\n")},
                {"path": "/run/one", "content": base64_of("and one more\n")},
            ],
        }
        # The container prints its files, to show that they were delivered.
        started = executor.Run({"id": "python-1", "action": {"run": run}, "redaction": "REDACTION_NONE"})
        container = executor.Wait({"id": "python-1"}).container
        log = {"LOG_STREAM_STDOUT": "", "LOG_STREAM_STDERR": ""}
        for entry in executor.StreamLogs({"id": "python-1", "follow": True}):
            stream = type(entry).DESCRIPTOR.fields_by_name["stream"].enum_type.values_by_number[entry.stream].name
            log[stream] += entry.data.decode()
        try:
            executor.Run({"id": "python-2", "action": {"run": {"path": "", "user": "a b"}}})
            refused = None
        except grpc.RpcError as error:
            refused = {"code": error.code().name, "message": error.details()}
        executor.Delete({"id": "python-1"})
    container = json_format.MessageToDict(container, preserving_proto_field_name=True)
    print(json.dumps({"created": started.created, "container": container, "log": log, "refused": refused}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
