# A process of a container attempts to access the container's first process, which holds the secrets: as the same user
# and as another user.
import ctypes, errno, os, sys

secret = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)


def traced():
    if libc.ptrace(16, 1, 0, 0) == -1:
        raise OSError(ctypes.get_errno(), '')
    os.waitpid(1, 0x40000000)  # __WALL, because the process is not a child
    libc.ptrace(17, 1, 0, 0)


def read(path):
    with open(path, 'rb') as file:
        file.read(1)


def root():
    inside, here = os.stat('/proc/1/root'), os.stat('/')
    print('root of init is', 'the same' if (inside.st_dev, inside.st_ino) == (here.st_dev, here.st_ino) else 'another')
    os.listdir('/proc/1/root/etc')


ways = {
    'file': lambda: read(secret),
    'file by root of init': lambda: read('/proc/1/root' + secret),
    'environment': lambda: read('/proc/1/environ'),
    'memory': lambda: open('/proc/1/mem', 'rb').close(),
    'descriptors': lambda: os.listdir('/proc/1/fd'),
    'root': root,
    'trace': traced,
}
for user in (0, 65534):
    if os.fork() == 0:
        if user:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        for name, way in ways.items():
            try:
                way()
                outcome = 'went through'
            except OSError as error:
                outcome = errno.errorcode[error.errno]
            print(user, name, '=>', outcome, flush=True)
        os._exit(0)
    os.wait()
