# Starts a process for each of many users of one container. Each process opens as many silent connections to the runtime
# socket as it can, up to 300.
import os
import socket
import sys
import time

users = int(sys.argv[1])
results, report = os.pipe()
for user in range(users):
    if os.fork() == 0:
        os.setgid(2000 + user)
        os.setuid(2000 + user)
        kept = []
        try:
            for _ in range(300):
                one = socket.socket(socket.AF_UNIX)
                one.settimeout(1)
                one.connect("/run/executor/runtime.sock")
                one.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
                kept.append(one)
        except OSError:
            pass
        os.write(report, f"{len(kept)}\n".encode())
        time.sleep(100000)
with os.fdopen(results) as lines:
    counts = [int(next(lines)) for _ in range(users)]
print(f"connected {sum(counts)} by {users} users", flush=True)
time.sleep(100000)
