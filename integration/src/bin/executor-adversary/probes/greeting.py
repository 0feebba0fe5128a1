# Checks that the runtime socket serves this container: its first frame arrives within some seconds.
import socket
import time

end = time.time() + 10
while True:
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.settimeout(2)
            one.connect("/run/executor/runtime.sock")
            one.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            if one.recv(9)[3:4] == b"\x04":
                print("greeting received", flush=True)
                break
            why = "another answer"
    except OSError as error:
        why = str(error)
    if time.time() > end:
        print("greeting missing:", why, flush=True)
        break
    time.sleep(0.1)
time.sleep(100000)
