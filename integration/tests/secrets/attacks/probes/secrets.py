# Attempts of a container to make its secret files writable, or to hide, replace, remove or mount them elsewhere. The
# last line deletes them all.
directory, secret = facts['point'], facts['secret']


def created(path):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))


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


read(secret)  # the file exists and this user can read it
# The mount itself. On the host the first attempt makes it writable, which the following attempts need.
attack('mount: remount writable', mount, None, directory, None, MS_REMOUNT | MS_BIND)
attack('mount: set attributes', attributes)
attack('mount: hide below another', mounted, 'tmpfs', directory, 'tmpfs', 0)
attack('mount: show elsewhere', mounted, directory, scratch, None, MS_BIND)
attack('mount: clone the tree', tree)
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
attack('directory: a new file', created, directory + '/new')
attack('directory: a new directory', lambda: os.mkdir(directory + '/newdir'))
attack('directory: a link', lambda: os.symlink('/etc/passwd', directory + '/link'))
attack('directory: a pipe', lambda: os.mkfifo(directory + '/pipe'))
attack('file: remove', lambda: os.unlink(secret))
attack('file: replace', created, secret)
attack('mount: open by handle', by_handle)
attack('mount: unmount', call, libc.umount2, directory, MNT_DETACH)
