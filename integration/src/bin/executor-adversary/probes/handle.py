# Repeatedly requests the handle on the secret files from a shim, on the socket that is its standard input.
import socket
import sys
import time

asked, end = bytes.fromhex(sys.argv[1]), time.time() + 5
with socket.socket(fileno=0) as shim:
    shim.settimeout(0.3)
    while time.time() < end:
        time.sleep(0.1)  # the shim has no handle before the files exist
        try:
            shim.send(asked)
            message, descriptors, _, _ = socket.recv_fds(shim, 65536, 4)
        except TimeoutError:
            continue
        except OSError as error:
            print("no handle:", error)
            break
        if descriptors:
            print("a handle")
            break
        if not message:
            print("no handle: the connection closed")
            break
    else:
        print("no handle")
