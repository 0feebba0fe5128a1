# Allocates asynchronous I/O requests, of which the host has a limited number. The argument `one` allocates one request,
# and `all` allocates all requests. With `both`, a second process tries to allocate one request after the first process
# has allocated all.
import ctypes
import errno
import os
import sys
import time

NUMBER = {"x86_64": 206, "aarch64": 0}[os.uname().machine]
libc = ctypes.CDLL(None, use_errno=True)


def take(most, each):
    taken = 0
    while taken < most:
        context = ctypes.c_ulong()
        if libc.syscall(NUMBER, each, ctypes.byref(context)) < 0:
            return taken, errno.errorcode[ctypes.get_errno()]
        taken += each
    return taken, "as many as requested"


def everything():
    # The largest possible contexts, then smaller ones.
    taken, why = 0, ""
    for each in [1024, 16, 1]:
        more, why = take(1 << 20, each)
        taken += more
    return taken, why


what = sys.argv[1]
taken, why = take(1, 1) if what == "one" else everything()
print(f"requests taken {taken}, {why}", flush=True)
if what == "both":
    sys.stdout.flush()
    if os.fork() == 0:
        print("another:", take(1, 1)[1], flush=True)
        os._exit(0)
    os.wait()
if what == "all":
    time.sleep(100000)
