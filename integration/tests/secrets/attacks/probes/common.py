# Common part of all lists of attacks: runs one attack after the other and prints the outcome of each. `facts` is data
# about the environment, passed by the test.
import ctypes, errno, json, mmap, os, signal, socket, stat, struct, sys, time, traceback

facts = json.loads(sys.argv[1])
scratch = facts['scratch']
libc = ctypes.CDLL(None, use_errno=True)
MS_REMOUNT, MS_BIND, MNT_DETACH = 32, 4096, 2
AT_FDCWD, NEWNS, NEWUSER = -100, 0x20000, 0x10000000
OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH = 1, 4
SEIZE, DETACH, WALL = 0x4206, 17, 0x40000000


def text(value):
    return value.encode() if isinstance(value, str) else value


def call(function, *args):
    ctypes.set_errno(0)
    result = function(*map(text, args))
    if result == -1:
        raise OSError(ctypes.get_errno(), '')
    return result


def system(number, *args):
    return call(libc.syscall, number, *args)


def mount(source, target, kind, flags, options=None):
    call(libc.mount, source, target, kind, flags, options)


def mounted(source, target, kind, flags, options=None):
    """Mounts a file system and unmounts it immediately."""
    mount(source, target, kind, flags, options)
    call(libc.umount2, target, MNT_DETACH)


def read(path):
    with open(path, 'rb') as file:
        if not file.read(1):
            raise OSError(errno.ENODATA, '')  # the mask is an empty file or directory


def writable(path):
    """Opens for writing, and writes nothing, because the control does it on the host."""
    os.close(os.open(path, os.O_WRONLY))


def apart(function, *args):
    """Runs an attack that changes or ends its process in a child, which the kernel kills first if memory is short."""
    pid = os.fork()
    if pid == 0:
        code = 255
        try:
            with open('/proc/self/oom_score_adj', 'w') as file:
                file.write('1000')
            function(*args)
            code = 0
        except OSError as error:
            code = error.errno or 255
        except MemoryError:
            code = errno.ENOMEM
        except BaseException:
            traceback.print_exc()  # an error of the attack itself, which the test detects
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code < 0:
        raise ChildProcessError(signal.Signals(-code).name)
    if code:
        raise OSError(code, '')


def attack(name, function, *args):
    try:
        function(*args)
        outcome = 'went through'
    except OSError as error:
        outcome = errno.errorcode.get(error.errno, str(error))  # or the name of a signal
    print(name, '=>', outcome, flush=True)
