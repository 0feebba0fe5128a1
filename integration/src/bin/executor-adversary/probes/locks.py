# Takes locks on byte ranges of files. No cgroup accounts for the memory of these locks.
import fcntl
import os
import struct
import sys
import time

F_OFD_SETLK, EACH = 37, 1000
wanted, taken, kept = int(sys.argv[1]), 0, []
while taken < wanted:
    file = os.open(f"/tmp/f{taken}", os.O_RDWR | os.O_CREAT)
    kept.append(file)
    # Lock the ranges from the end, so that the kernel does not search the existing locks.
    for at in range(EACH, 0, -1):
        fcntl.fcntl(file, F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 2 * at, 1, 0))
        taken += 1
print("taken", taken, flush=True)
time.sleep(100000)
