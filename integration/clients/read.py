"""Reads all bindings with both Python clients and prints the results, at the start and on every SIGUSR1.

The argument is the directory that contains the clients.
"""

import contextlib
import json
import os
import signal
import sys

sys.path.insert(0, sys.argv[1])

from bindings import bindings as nebhale
from pyservicebinding import binding


def found(read):
    """Returns the result of a client, or its error. Redirects standard output, because one client prints paths."""
    with contextlib.redirect_stdout(sys.stderr):
        try:
            return read()
        except Exception as error:
            return "failed: " + type(error).__name__


def one(b):
    return {
        "name": b.get_name(),
        "type": b.get_type(),
        "provider": b.get_provider(),
        "password": b.get("password"),
        "certificate": (b.get_as_bytes("certificates") or b"").hex(),
    }


def pyservicebinding():
    all_of_them = binding.ServiceBinding()
    return {
        "all": sorted((b.get("name", "-") for b in all_of_them.all_bindings())),
        "sql": all_of_them.bindings("postgresql"),
        "provided": len(all_of_them.bindings("postgresql", "postgresql")),
        "other": len(all_of_them.bindings("mysql")),
    }


def service_bindings():
    all_of_them = nebhale.cached(nebhale.from_service_binding_root())
    return {
        "all": sorted(b.get_name() for b in all_of_them),
        "sql": [one(b) for b in nebhale.filter(all_of_them, "PostgreSQL")],
        "provided": len(nebhale.filter(all_of_them, "postgresql", "postgresql")),
        "other": len(nebhale.filter(all_of_them, "mysql")),
    }


signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
while True:
    seen = {"pyservicebinding": found(pyservicebinding), "service-bindings": found(service_bindings)}
    os.write(1, ("READ " + json.dumps(seen) + "\n").encode())
    signal.sigwait([signal.SIGUSR1])
