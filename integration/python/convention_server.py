"""A convention's server, written only from the protocol's text and with Python's standard library.

Usage: convention_server.py CERTIFICATE KEY LOG. Serves HTTPS on a port of 127.0.0.1, which it prints as its first line. Appends
each request to LOG as a line of JSON: path, headers, body. The path selects the answer.
"""

import http.server
import json
import ssl
import sys
import threading

STOPPED = threading.Event()


def containers(context):
    return context["status"]["template"]["spec"]["containers"]


def add(container, name, value):
    """Adds a variable, unless it exists."""
    variables = container.setdefault("env", [])
    if any(variable["name"] == name for variable in variables):
        return []
    variables.append({"name": name, "value": value})
    return [f"add-{name.lower()}"]


def hello(context):
    return add(containers(context)[0], "CONVENTION_SERVER", "HELLO FROM CONVENTION")


def seen(context):
    """Lists the names of the existing variables in a variable."""
    names = ",".join(variable["name"] for variable in containers(context)[0].get("env", []))
    return add(containers(context)[0], "SEEN", names or "nothing")


def boms(context):
    """Labels a template with the number of bills of materials of its images."""
    count = sum(len(image.get("boms") or []) for image in context["spec"]["imageConfig"])
    labels = context["status"]["template"].setdefault("metadata", {}).setdefault("labels", {})
    if labels.get("boms") == str(count):
        return []
    labels["boms"] = str(count)
    return ["label-boms"]


def privileged(context):
    containers(context)[0]["securityContext"] = {"privileged": True}
    return ["widen"]


def host_path(context):
    spec = context["status"]["template"]["spec"]
    if not any(volume["name"] == "host" for volume in spec.setdefault("volumes", [])):
        spec["volumes"].append({"name": "host", "hostPath": {"path": "/"}})
        containers(context)[0].setdefault("volumeMounts", []).append({"name": "host", "mountPath": "/host"})
    return ["widen"]


def host_network(context):
    context["status"]["template"]["spec"].update({"hostNetwork": True, "hostPID": True, "hostIPC": True})
    return ["widen"]


def capabilities(context):
    containers(context)[0]["securityContext"] = {"capabilities": {"add": ["SYS_ADMIN"]}, "runAsUser": 0}
    return ["widen"]


def init_container(context):
    container = {"name": "init", "image": containers(context)[0]["image"], "securityContext": {"privileged": True}}
    context["status"]["template"]["spec"].setdefault("initContainers", []).append(container)
    return ["widen"]


def steal(context):
    """Puts the value of the first variable into the name of an image."""
    container = containers(context)[0]
    container["image"] = "127.0.0.1:1/" + container["env"][0]["value"].lower()
    return ["steal"]


def grow(context):
    """Changes the template in every round."""
    containers(context)[0].setdefault("args", []).append("more")
    return ["grow"]


def forge(context):
    annotations = context["status"]["template"].setdefault("metadata", {}).setdefault("annotations", {})
    annotations["conventions.carto.run/applied-conventions"] = "trusted/checked"
    return ["forge"]


DECORATE = {
    f"/{function.__name__.replace('_', '-')}": function
    for function in (hello, seen, boms, privileged, host_path, host_network, capabilities, init_container, steal, grow, forge)
}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with open(sys.argv[3], "a", encoding="utf-8") as log:
            line = {"path": self.path, "headers": {name.lower(): value for name, value in self.headers.items()}, "body": json.loads(body)}
            log.write(json.dumps(line) + "\n")
        context = json.loads(body)
        context["status"] = {"template": json.loads(json.dumps(context["spec"]["template"]))}
        answer = getattr(self, "answer" + self.path.replace("/", "_").replace("-", "_"), None)
        if answer:
            answer(context)
        else:
            context["status"]["appliedConventions"] = DECORATE[self.path](context)
            self.send(200, context)

    def send(self, status, context, content_type="application/json", more=()):
        body = context if isinstance(context, bytes) else json.dumps(context).encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in more:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def answer_status(self, context):
        self.send(503, context)

    def answer_created(self, context):
        self.send(201, context)

    def answer_redirect(self, context):
        self.send(307, b"", more=[("Location", "/hello")])

    def answer_html(self, context):
        self.send(200, context, "text/html")

    def answer_text(self, context):
        self.send(200, b"hello")

    def answer_kind(self, context):
        self.send(200, {**context, "kind": "PodIntent"})

    def answer_empty(self, context):
        self.send(200, {**context, "status": {}})

    def answer_cut(self, context):
        """Announces more bytes than it sends."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        self.wfile.write(b'{"apiVersion": ')
        self.close_connection = True

    def answer_slow(self, context):
        """Sends a byte, and then waits until the server exits."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        self.wfile.write(b"{")
        STOPPED.wait()

    def answer_huge(self, context):
        """Sends as long as the client reads."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        piece = b" " * 65536
        while True:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))

    def answer_drip(self, context):
        """Sends a byte at intervals, as long as the client reads."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        while not STOPPED.wait(0.1):
            self.wfile.write(b" ")

    def answer_away(self, context):
        """Redirects to another server, whose port is in the first variable."""
        port = containers(context)[0]["env"][0]["value"]
        self.send(307, b"", more=[("Location", f"http://127.0.0.1:{port}/internal")])

    def answer_nested(self, context):
        """Answers with deeply nested objects in one field."""
        text = json.dumps(context)[:-1] + ', "x": ' + '{"a":' * 100000 + "1" + "}" * 100000 + "}"
        self.send(200, text.encode())

    def answer_other(self, context):
        """Answers with an object other than the requested object."""
        spec = context["status"]["template"]["spec"]
        spec["containers"] = [{"name": "evil", "image": "127.0.0.1:1/evil:1", "securityContext": {"privileged": True}}]
        context["metadata"] = {"name": "evil", "namespace": "kube-system"}
        self.send(200, context)

    def answer_deep(self, context):
        """Answers with deeply nested lists."""
        self.send(200, b"[" * 1000000)

    def log_message(self, *arguments):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # clients that disconnect are part of the test


def main(certificate, key, _log):
    server = Server(("127.0.0.1", 0), Handler)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()  # returns when the test closes the pipe
    STOPPED.set()


main(*sys.argv[1:])
