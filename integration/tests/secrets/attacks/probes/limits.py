# Attempts of a container to use more of the host's resources than its limits allow. Each attempt runs in a separate
# process, so that its resources are released when the process exits. If the kernel kills the process, the signal is
# reported.
BLOCK = b'x' * 65536
AMOUNT, PROCESSES, TERMINALS = facts['amount'], facts['processes'], facts['terminals']


def filled(ends):
    """Fills pipes or sockets without reading until together they hold the amount."""
    kept, held, last = [], 0, 0
    while held < AMOUNT and len(kept) < 1500:
        end, write = ends(kept)
        begun = held
        try:
            while held < AMOUNT:
                held += write(BLOCK)
        except BlockingIOError:
            pass
        if held == begun:
            raise OSError(errno.ENOBUFS, '')
    if held < AMOUNT:
        raise OSError(errno.ENOBUFS, '')


def pipe(kept):
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    kept.append((read_end, write_end))
    return write_end, lambda block: os.write(write_end, block)


def local(kept):
    one, other = socket.socketpair()
    one.setblocking(False)
    kept.append((one, other))
    return one, one.send


def stream(kept):
    """Makes at most 40 connections: the kernel accepts the first packets of each, whatever the limit."""
    if len(kept) == 40:
        raise OSError(errno.ENOBUFS, '')
    with socket.create_server(('127.0.0.1', 0)) as server:
        one = socket.create_connection(server.getsockname())
        kept.append((one, server.accept()[0]))
    one.setblocking(False)
    return one, one.send


def received(one):
    """Returns the number of unread bytes in a socket."""
    return struct.unpack('9I', one.getsockopt(socket.SOL_SOCKET, 55, 36))[0]  # SO_MEMINFO


def datagrams():
    """Counts the received data: a socket accepts only as much data as fits its buffer, and silently drops other data."""
    kept, held = [], 0
    while held < AMOUNT and len(kept) < 1500:
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.bind(('127.0.0.1', 0))
        kept.append(one)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            for _ in range(6):
                other.sendto(BLOCK[:32768], one.getsockname())
        # On a busy machine the kernel delivers the datagrams a moment later.
        until = time.monotonic() + 2
        while not (queued := received(one)):
            if time.monotonic() > until:
                raise OSError(errno.ENOBUFS, '')
            time.sleep(0.01)
        held += queued
    if held < AMOUNT:
        raise OSError(errno.ENOBUFS, '')


def written(path):
    with open(path, 'wb', buffering=0) as file:
        os.unlink(path)
        for _ in range(AMOUNT // len(BLOCK)):
            file.write(BLOCK)


def in_memory():
    file = os.memfd_create('x')
    for _ in range(AMOUNT // len(BLOCK)):
        os.write(file, BLOCK)


def shared():
    number = call(libc.shmget, 0, AMOUNT, 0o600)
    libc.shmat.restype = ctypes.c_void_p
    try:
        at = libc.shmat(number, None, 0)
        if at in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), '')
        call(libc.shmctl, number, 0, None)  # IPC_RMID: the segment is removed with its last user
        ctypes.memset(at, 1, AMOUNT)
    except OSError:
        libc.shmctl(number, 0, None)
        raise


def forked():
    children = []
    try:
        for _ in range(PROCESSES):
            pid = os.fork()
            if pid == 0:
                signal.pause()
            children.append(pid)
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def threads():
    import threading
    enough = threading.Event()
    try:
        for _ in range(PROCESSES):
            threading.Thread(target=enough.wait, daemon=True).start()
    except RuntimeError:  # Python's exception for EAGAIN
        raise OSError(errno.EAGAIN, '') from None
    finally:
        enough.set()


def terminals():
    kept = [os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY) for _ in range(TERMINALS)]
    assert len(kept) == TERMINALS


def files():
    kept = [os.open('/', os.O_PATH) for _ in range(facts['files'])]
    assert len(kept) == facts['files']


attack('processes: by fork', apart, forked)
attack('processes: by threads', apart, threads)
attack('files: open ones', apart, files)
attack('terminals', apart, terminals)
attack('memory: its own', apart, lambda: bytearray(BLOCK) * (AMOUNT // len(BLOCK)))
attack('memory: of no file', apart, in_memory)
attack('memory: shared', apart, shared)
attack('memory: in /dev/shm', apart, written, '/dev/shm/x')
attack('memory: in /tmp', apart, written, scratch + '/x')
attack('memory: in pipes', apart, filled, pipe)
attack('memory: in local sockets', apart, filled, local)
attack('memory: in TCP connections', apart, filled, stream)
attack('memory: in UDP sockets', apart, datagrams)
