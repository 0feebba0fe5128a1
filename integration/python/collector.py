"""A collector of traces on gRPC's C core, with the messages of OpenTelemetry's own Python package.

Usage: collector.py. Prints its port, and then each span that it receives as a line of JSON.
"""

import json
from concurrent import futures

import grpc
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service


def named(attributes):
    """Returns attributes as a dict of values by name."""
    return {one.key: next(iter(MessageToDict(one.value).values())) for one in attributes}


class Collector(service.TraceServiceServicer):
    def Export(self, request, context):
        for resource in request.resource_spans:
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                record = {
                    "name": span.name,
                    "trace": span.trace_id.hex(),
                    "span": span.span_id.hex(),
                    "parent": span.parent_span_id.hex(),
                    "nanoseconds": span.end_time_unix_nano - span.start_time_unix_nano,
                    "attributes": named(span.attributes),
                    "resource": named(resource.resource.attributes),
                }
                print(json.dumps(record), flush=True)
        return messages.ExportTraceServiceResponse()


server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
service.add_TraceServiceServicer_to_server(Collector(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(port, flush=True)
server.wait_for_termination()
