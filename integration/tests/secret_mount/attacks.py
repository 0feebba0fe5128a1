import ctypes, errno, mmap, os, stat, sys

directory, scratch = sys.argv[1:3]
secret = directory + '/password'
libc = ctypes.CDLL(None, use_errno=True)
MS_REMOUNT, MS_BIND, MS_MOVE, MNT_DETACH = 32, 4096, 8192, 2
AT_FDCWD, NEWNS, NEWUSER = -100, 0x20000, 0x10000000
OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH = 1, 4


def text(value):
    return value.encode() if isinstance(value, str) else value


def call(function, *args):
    ctypes.set_errno(0)
    result = function(*map(text, args))
    if result == -1:
        raise OSError(ctypes.get_errno(), '')
    return result


def mount(source, target, kind, flags):
    call(libc.mount, source, target, kind, flags, None)


def system(number, *args):
    return call(libc.syscall, number, *args)


def attack(name, function, *args):
    try:
        function(*args)
        outcome = 'went through'
    except OSError as error:
        outcome = errno.errorcode[error.errno]
    print(name, '=>', outcome, flush=True)


def apart(function, *args):
    """In a process of its own, for what changes the process."""
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            function(*args)
        except OSError as error:
            code = error.errno
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise OSError(code, '')


def created(name):
    os.close(os.open(directory + '/' + name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))


def mapped():
    with open(secret, 'r+b') as file:
        mmap.mmap(file.fileno(), 0)[0] = 0x58


def by_handle():
    handle = ctypes.create_string_buffer((128).to_bytes(4, 'little') + bytes(132), 136)
    number = ctypes.c_int()
    call(libc.name_to_handle_at, AT_FDCWD, secret, handle, ctypes.byref(number), 0)
    root = os.open(directory, os.O_RDONLY)
    os.read(call(libc.open_by_handle_at, root, handle, os.O_RDONLY), 1)


def attributes():
    clear = (ctypes.c_uint64 * 4)(0, 1, 0, 0)  # MOUNT_ATTR_RDONLY
    system(442, AT_FDCWD, directory, 0, clear, ctypes.sizeof(clear))


def tree():
    taken = system(428, AT_FDCWD, directory, OPEN_TREE_CLONE)
    system(429, taken, '', AT_FDCWD, scratch, MOVE_MOUNT_F_EMPTY_PATH)
    call(libc.umount2, scratch, MNT_DETACH)


def another_root():
    os.chroot(directory)


def namespace():
    with open('/proc/1/ns/mnt') as file:
        call(libc.setns, file.fileno(), 0)


def new_namespace(flags):
    call(libc.unshare, flags)


def device(name, kind, major, minor):
    path = scratch + '/' + name
    os.mknod(path, kind | 0o666, os.makedev(major, minor))
    os.unlink(path)


def hidden():
    mount('tmpfs', directory, 'tmpfs', 0)
    call(libc.umount2, directory, MNT_DETACH)


def shown():
    mount(directory, scratch, None, MS_BIND)
    call(libc.umount2, scratch, MNT_DETACH)


def proc():
    mount('proc', scratch, 'proc', 0)
    call(libc.umount2, scratch, MNT_DETACH)


# The mount itself. On the host the first makes it writable, which what follows needs.
attack('mount: remount writable', mount, None, directory, None, MS_REMOUNT | MS_BIND)
attack('mount: set attributes', attributes)
attack('mount: hide below another', hidden)
attack('mount: show elsewhere', shown)
attack('mount: clone the tree', tree)
attack('mount: a new file system', system, 430, 'tmpfs', 0)
attack('mount: another proc', proc)
# The files.
attack('file: open for writing', lambda: os.close(os.open(secret, os.O_WRONLY)))
attack('file: truncate', lambda: os.truncate(secret, 3))
attack('file: append', lambda: open(secret, 'ab').close())
attack('file: map for writing', mapped)
attack('file: mode', lambda: os.chmod(secret, 0o644))
attack('file: owner', lambda: os.chown(secret, 4242, 4242))
attack('file: times', lambda: os.utime(secret))
attack('file: attribute', lambda: os.setxattr(secret, 'trusted.x' if os.access('/proc/1/root', os.R_OK) else 'user.x', b'x'))
attack('file: another name', lambda: os.link(secret, directory + '/linked'))
attack('file: a name outside', lambda: os.rename(secret, directory + '/password.old'))
attack('file: back', lambda: os.rename(directory + '/password.old', secret))
attack('directory: mode', lambda: os.chmod(directory, 0o777))
attack('directory: a new file', created, 'new')
attack('directory: a new directory', lambda: os.mkdir(directory + '/newdir'))
attack('directory: a link', lambda: os.symlink('/etc/passwd', directory + '/link'))
attack('directory: a pipe', lambda: os.mkfifo(directory + '/pipe'))
attack('file: remove', lambda: os.unlink(secret))
attack('file: replace', created, 'password')
# What leads around the mount.
attack('device: the disk', device, 'disk', stat.S_IFBLK, 8, 0)
attack('device: memory', device, 'mem', stat.S_IFCHR, 1, 1)
attack('open by handle', by_handle)
attack('namespace: a user namespace', apart, new_namespace, NEWUSER | NEWNS)
attack('namespace: another mount table', apart, new_namespace, NEWNS)
attack('namespace: that of init', apart, namespace)
attack('chroot', apart, another_root)
attack('mount: unmount', call, libc.umount2, directory, MNT_DETACH)
