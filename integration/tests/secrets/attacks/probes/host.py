# Attacks of a container on the host and its kernel. `marker` is a file of the host, `handle` is the file's handle in
# the file system that contains /usr, and `stranger` is a process of the host.
marker, stranger, init = facts['marker'], facts['stranger'], facts['init']
NUMBERS = {
    'x86_64': {'io_setup': 206, 'bpf': 321, 'perf_event_open': 298, 'add_key': 248, 'userfaultfd': 323, 'syslog': 103},
    'aarch64': {'io_setup': 0, 'bpf': 280, 'perf_event_open': 241, 'add_key': 217, 'userfaultfd': 282, 'syslog': 116},
}[os.uname().machine]


def by_handle():
    kind, number = facts['handle']
    number = bytes.fromhex(number)
    handle = ctypes.create_string_buffer(struct.pack('Ii', len(number), kind) + number)
    near = os.open('/usr', os.O_RDONLY)
    os.read(call(libc.open_by_handle_at, near, handle, os.O_RDONLY), 1)


def device(name, kind, major, minor, use=False):
    path = scratch + '/' + name
    os.mknod(path, kind | 0o666, os.makedev(major, minor))
    try:
        if use:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    finally:
        os.unlink(path)


def joined(name):
    with open(f'/proc/{init}/ns/{name}') as file:
        call(libc.setns, file.fileno(), 0)


def out_of_a_chroot():
    """Escapes with a second chroot while a directory above stays open, then ascends as far as possible."""
    top = os.open('/', os.O_RDONLY)
    os.chroot(scratch)
    os.fchdir(top)
    for _ in range(64):
        os.chdir('..')


def pivoted():
    call(libc.unshare, NEWNS)
    mount('tmpfs', scratch, 'tmpfs', 0)
    os.mkdir(scratch + '/old')
    system({'x86_64': 155, 'aarch64': 41}[os.uname().machine], scratch, scratch + '/old')


def by_descriptor():
    """Tries to reach the host's file through every open descriptor except the standard three."""
    for name in os.listdir('/proc/self/fd'):
        path = f'/proc/self/fd/{name}'
        if int(name) > 2 and os.path.isdir(path) and not os.readlink(path).startswith('/proc/'):
            return read(path + marker)
    raise OSError(errno.EBADF, '')


def release_agent():
    """Sets the program that the kernel runs as the host's root when a cgroup becomes empty (CVE-2022-0492)."""
    mount('cgroup', scratch, 'cgroup', 0, facts['hierarchy'])
    try:
        writable(scratch + '/release_agent')
    finally:
        call(libc.umount2, scratch, MNT_DETACH)


def interface():
    """Changes the state of a network interface: RTM_NEWLINK for loopback."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        netlink.send(struct.pack('IHHIIBxHiII', 32, 16, 5, 1, 0, 0, 0, 1, 1, 1))
        code = struct.unpack('i', netlink.recv(4096)[16:20])[0]
        if code:
            raise OSError(-code, '')


def traced(pid):
    call(libc.ptrace, SEIZE, pid, 0, 0)
    call(libc.ptrace, 0x4207, pid, 0, 0)
    os.waitpid(pid, WALL)
    call(libc.ptrace, DETACH, pid, 0, 0)


def attributes():
    """Returns the arguments of bpf for a map of one entry."""
    return ctypes.create_string_buffer(struct.pack('IIII', 2, 4, 4, 1) + bytes(100))


def asynchronous():
    """Allocates one of the asynchronous requests that the whole host shares."""
    context = ctypes.c_ulong()
    system(NUMBERS['io_setup'], 1, ctypes.byref(context))
    system(NUMBERS['io_setup'] + 1, context)


def events():
    """Returns the arguments of perf_event_open for the processor's clock."""
    return ctypes.create_string_buffer(struct.pack('II', 1, 112) + bytes(104))


# Kernel data that a mount shows.
attack('mount: another proc', mounted, 'proc', scratch, 'proc', 0)
attack('mount: another sys', mounted, 'sysfs', scratch, 'sysfs', 0)
attack('mount: a tmpfs', mounted, 'tmpfs', scratch, 'tmpfs', 0)
attack('mount: a tmpfs by descriptor', system, 430, 'tmpfs', 0)
attack('mount: cgroups, version 2', mounted, 'cgroup2', scratch, 'cgroup2', 0)
attack('mount: the agent of cgroups', release_agent)
attack('mount: over a masked directory', mounted, 'tmpfs', '/proc/scsi' if os.path.isdir('/proc/scsi') else '/proc/sys', 'tmpfs', 0)
attack('mount: a read-only path taken away', call, libc.umount2, '/proc/sys', MNT_DETACH)
attack('mount: /sys writable', mount, None, '/sys', None, MS_REMOUNT | MS_BIND)
attack('mount: the root writable', mount, None, '/', None, MS_REMOUNT | MS_BIND)
# Devices.
attack('device: make a disk', device, 'disk', stat.S_IFBLK, 8, 0)
attack('device: make memory', device, 'mem', stat.S_IFCHR, 1, 1)
attack('device: open a made disk', device, 'disk', stat.S_IFBLK, *facts['disk'], True)
attack('device: the log of the kernel', writable, '/dev/kmsg')
# Files of the kernel.
attack('write: /proc/sys, a program for cores', writable, '/proc/sys/kernel/core_pattern')
attack('write: /proc/sys, the host name', writable, '/proc/sys/kernel/hostname')
attack('write: /proc/sys, the network', writable, '/proc/sys/net/ipv4/ip_forward')
attack('write: /proc/irq', writable, '/proc/irq/default_smp_affinity')
attack('write: /sys', writable, '/sys/class/net/lo/mtu')
attack('write: cgroups', writable, facts['cgroup'])
attack('read: /proc/timer_list', read, '/proc/timer_list')
attack('read: the log of the kernel', system, NUMBERS['syslog'], 3, ctypes.create_string_buffer(64), 64)
# The host's files.
attack('host: root of init', read, f'/proc/{init}/root{marker}')
attack('host: directory of init', read, f'/proc/{init}/cwd/' + '../' * 32 + marker)
attack('host: a descriptor that leaked', by_descriptor)
attack('host: open by handle', by_handle)
attack('host: chroot', apart, out_of_a_chroot)
attack('host: another root', apart, pivoted)
# The host's processes.
attack('process: a signal', os.kill, stranger, 0)
attack('process: trace', traced, stranger)
attack('process: memory', lambda: os.close(os.open(f'/proc/{stranger}/mem', os.O_RDONLY)))
attack('process: environment', read, f'/proc/{stranger}/environ')
# Namespaces.
attack('namespace: of users', apart, call, libc.unshare, NEWUSER)
attack('namespace: of mounts', apart, call, libc.unshare, NEWNS)
attack('namespace: mounts of init', apart, joined, 'mnt')
attack('namespace: network of init', apart, joined, 'net')
# System calls through which the kernel is attacked.
attack('call: io_setup', asynchronous)
attack('call: bpf', lambda: os.close(system(NUMBERS['bpf'], 0, attributes(), 116)))
attack('call: perf_event_open', lambda: os.close(system(NUMBERS['perf_event_open'], events(), 0, -1, -1, 0)))
attack('call: add_key', system, NUMBERS['add_key'], 'user', 'x', 'x', 1, -1)
attack('read: /proc/keys', read, '/proc/keys')  # contains at least the key of the previous attack
attack('call: userfaultfd', lambda: os.close(system(NUMBERS['userfaultfd'], 0)))
attack('call: io_uring_setup', lambda: os.close(system(425, 1, ctypes.create_string_buffer(120))))
attack('call: the host name', lambda: socket.sethostname(socket.gethostname()))
# The network.
attack('network: any packet', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close())
attack('network: any protocol', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 255).close())
attack('network: an interface', interface)
