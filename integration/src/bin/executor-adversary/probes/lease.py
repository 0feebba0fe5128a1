# Takes a lease on a file; the lease blocks every open for writing. The argument `stay` keeps the lease, and `open`
# opens the file for writing.
import errno
import fcntl
import os
import signal
import sys
import time

path, then = sys.argv[1:]
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = os.open(path, os.O_RDONLY)
try:
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    print("lease taken on", file, flush=True)
except OSError as error:
    print("lease refused,", errno.errorcode[error.errno], "on", file, flush=True)
if then == "open":
    try:
        os.open(path, os.O_RDWR | os.O_NONBLOCK)
    except BlockingIOError:
        print("writer waits")
else:
    time.sleep(100000)
