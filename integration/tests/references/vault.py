"""A server with the part of Vault's HTTP interface that a client of secrets uses, by its public documentation: KV version 2, AppRole
and TLS certificate logins, lookup and renewal of tokens, renewal of leases. It is strict: about paths, methods, headers, and ends.

    vault.py DIR [CERTIFICATE KEY CLIENT_CA]

DIR/state.json holds its secrets and rules, and is read for each request; DIR/port gets its port, and DIR/log a line for each request.
"""

import json
import os
import secrets
import ssl
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOME = sys.argv[1]
LOCK = threading.Lock()
TOKENS = {}  # token -> [ends, ttl, renewals left]
LEASES = {}  # id -> [ends, ttl, renewals left]


class Refused(Exception):
    pass


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.answer("GET")

    def do_POST(self):
        self.answer("POST")

    def do_PUT(self):
        self.answer("PUT")

    def answer(self, method):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        with LOCK:
            with open(os.path.join(HOME, "state.json")) as file:
                state = json.load(file)
            try:
                if state.get("down"):
                    raise Refused(503)
                status, document = 200, self.route(state, method, body)
            except Refused as refused:
                status, document = refused.args[0], {"errors": ["refused"]}
            with open(os.path.join(HOME, "log"), "a") as log:
                print(method, self.path, status, file=log, flush=True)
        if state.get("redirect"):
            self.send_response(307)
            self.send_header("Location", state["redirect"] + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        answer = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def route(self, state, method, body):
        if self.headers.get("X-Vault-Request") != "true":
            raise Refused(412)
        if self.headers.get("X-Vault-Namespace", "") != state.get("namespace", ""):
            raise Refused(404)
        path, _, query = self.path.partition("?")
        if not path.startswith("/v1/"):
            raise Refused(404)
        path = path[len("/v1/"):]
        if path == "auth/approle/login":
            asked = self.json(method, body)
            if (asked.get("role_id"), asked.get("secret_id")) != tuple(state["approle"]):
                raise Refused(400)
            return {"auth": self.token(state)}
        if path == "auth/cert/login":
            self.json(method, body)
            if not isinstance(self.connection, ssl.SSLSocket) or not self.connection.getpeercert():
                raise Refused(400)
            return {"auth": self.token(state)}
        mine = self.authorized(state)
        if path == "auth/token/lookup-self" and method == "GET":
            return {"data": {"ttl": mine[1] if mine else 0, "renewable": bool(mine)}}
        if path == "auth/token/renew-self":
            self.json(method, body)
            if not mine or mine[2] == 0:
                raise Refused(400)
            mine[0], mine[2] = time.monotonic() + mine[1], mine[2] - 1
            return {"auth": {"client_token": "", "lease_duration": mine[1], "renewable": True}}
        if path == "sys/leases/renew":
            lease = LEASES.get(self.json(method, body).get("lease_id"))
            if not lease or lease[0] < time.monotonic() or lease[2] == 0:
                raise Refused(400)
            lease[0], lease[2] = time.monotonic() + lease[1], lease[2] - 1
            return {"lease_id": self.json(method, body)["lease_id"], "lease_duration": lease[1], "renewable": True}
        if method != "GET":
            raise Refused(405)
        if path.startswith("kv/data/"):
            versions = state["kv"].get(path[len("kv/data/"):])
            number = len(versions or [])
            if query:
                name, _, value = query.partition("=")
                if name != "version" or not value.isdigit():
                    raise Refused(400)
                number = int(value)
            if not versions or not 1 <= number <= len(versions):
                raise Refused(404)
            return {"lease_id": "", "lease_duration": 0, "renewable": False,
                    "data": {"data": versions[number - 1], "metadata": {"version": number, "destroyed": False}}}
        if path.startswith("kv/"):
            raise Refused(404)
        if path == "database/creds/app":
            name = "database/creds/app/" + secrets.token_hex(8)
            LEASES[name] = [time.monotonic() + 3, 3, 1]
            value = state["database"] + "-" + secrets.token_hex(4)
            return {"lease_id": name, "lease_duration": 3, "renewable": True, "data": {"password": value}}
        raise Refused(404)

    def json(self, method, body):
        if method not in ("POST", "PUT") or self.headers.get("Content-Type") != "application/json":
            raise Refused(405)
        return json.loads(body)

    def token(self, state):
        token, ttl = "hvs." + secrets.token_hex(16), state.get("ttl", 3600)
        TOKENS[token] = [time.monotonic() + ttl, ttl, 1]
        return {"client_token": token, "lease_duration": ttl, "renewable": True}

    def authorized(self, state):
        token = self.headers.get("X-Vault-Token", "")
        if token and token == state.get("root"):
            return None
        mine = TOKENS.get(token)
        if not mine or mine[0] < time.monotonic():
            raise Refused(403)
        return mine


class Server(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """A client that closes its connection is no news."""


server = Server(("127.0.0.1", 0), Handler)
if len(sys.argv) > 2:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[2], sys.argv[3])
    context.load_verify_locations(sys.argv[4])
    context.verify_mode = ssl.CERT_REQUIRED
    server.socket = context.wrap_socket(server.socket, server_side=True)
with open(os.path.join(HOME, "port.new"), "w") as file:
    file.write(str(server.server_address[1]))
os.rename(os.path.join(HOME, "port.new"), os.path.join(HOME, "port"))
server.serve_forever()
