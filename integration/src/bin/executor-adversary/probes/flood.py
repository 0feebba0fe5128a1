# Starts a process for each of several users of one container. Each process connects to the runtime socket in an endless
# loop.
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
        rounds = 0
        while True:
            try:
                with socket.socket(socket.AF_UNIX) as one:
                    one.connect("/run/executor/runtime.sock")
            except OSError:
                pass
            rounds += 1
            if rounds == 200:
                os.write(report, b"x")
os.read(results, 1)
print(f"flooding with {users} users", flush=True)
time.sleep(100000)
