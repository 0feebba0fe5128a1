"""Uses agent-cli on a terminal like a person: creates a terminal, types, reads, and checks its final state."""
import fcntl, os, pty, select, signal, struct, subprocess, sys, termios, time

POLL_TIMEOUT = 60


def command_line(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""  # the process has exited, or is not a process


class Session:
    def __init__(self, *command, rows=31, columns=117):
        self.master, self.slave = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self.slave)
        self.seen = b""

        def own_terminal():
            os.setsid()
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
                signal.signal(number, signal.SIG_DFL)  # as login does, independent of the test's parent
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            command, stdin=self.slave, stdout=self.slave, stderr=self.slave, preexec_fn=own_terminal
        )

    def resize(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def types(self, text):
        os.write(self.master, text.encode())

    def until(self, text):
        deadline = time.monotonic() + POLL_TIMEOUT
        while text.encode() not in self.seen:
            ready = select.select([self.master], [], [], max(0, deadline - time.monotonic()))[0]
            assert ready, f"{text!r} was not printed: {self.seen!r}"
            self.seen += os.read(self.master, 65536)
        self.seen = self.seen[self.seen.index(text.encode()) + len(text):]

    def until_it_sleeps(self, seconds):
        """Waits until the sleep runs, because bash can lose a signal during a fork."""
        deadline = time.monotonic() + POLL_TIMEOUT
        while f"sleep\0{seconds}\0".encode() not in map(command_line, os.listdir("/proc")):
            assert time.monotonic() < deadline, f"no process sleeps for {seconds} s"
            time.sleep(0.01)

    def raw(self):
        return not termios.tcgetattr(self.slave)[3] & termios.ICANON

    def await_raw(self):
        deadline = time.monotonic() + POLL_TIMEOUT
        while not self.raw():
            assert time.monotonic() < deadline and self.process.poll() is None, self.seen
            time.sleep(0.01)

    def ends(self, status):
        deadline = time.monotonic() + POLL_TIMEOUT
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"agent-cli has not exited: {self.seen!r}"
            if select.select([self.master], [], [], 0.05)[0]:
                self.seen += os.read(self.master, 65536)
        assert self.process.returncode == status, (self.process.returncode, self.seen)
        assert termios.tcgetattr(self.slave) == self.before, "the settings of the terminal were not restored"


def run(cli):
    session = Session(*cli, "run", "-it", "--id", "r", "-e", "PS1=rea''dy> ", "--", "/bin/bash", "--norc", "-i")
    session.await_raw()
    session.types("echo up-$((1+1))\n")
    session.until("up-2")
    session.types("stty size\n")
    session.until("31 117")
    session.resize(40, 100)
    session.types("(echo go''ing; sleep 1000)\n")
    session.until("going")
    session.until_it_sleeps(1000)
    session.types("\x03")
    session.types("stty size; exit 5\n")
    session.until("40 100")
    session.ends(5)


def detach(cli):
    session = Session(*cli, "run", "-it", "--id", "d", "--", "/bin/bash", "--norc", "-i")
    session.await_raw()
    session.types("echo up-$((1+1))\n")
    session.until("up-2")
    session.types("\x10\x11")
    session.ends(0)
    session = Session(*cli, "attach", "d")
    session.await_raw()
    session.types("echo again-$((1+1)); exit 6\n")
    session.until("again-2")
    session.ends(6)


def execute(cli):
    subprocess.run([*cli, "run", "-d", "--id", "e", "--", "sleep", "100000"], check=True, stdout=subprocess.DEVNULL)
    session = Session(*cli, "exec", "-it", "e", "--", "/bin/bash", "--norc", "-i")
    session.await_raw()
    session.types("stty size; tty\n")
    session.until("31 117")
    session.until("/dev/pts/")
    session.until("# ")
    session.types("\x04")
    session.ends(0)
    session = Session(*cli, "exec", "-it", "e", "--", "sh", "-c", "echo up; kill -9 $$")
    session.ends(137)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        session = Session(*cli, "exec", "-it", "e", "--", "sh", "-c", "echo up; sleep 100000")
        session.until("up")
        assert session.raw()
        session.process.send_signal(number)
        session.ends(128 + number)


def in_scripts(cli):
    def status(*command, stdin=b""):
        done = subprocess.run([*cli, *command], input=stdin, capture_output=True, timeout=POLL_TIMEOUT)
        return done.returncode, done.stdout, done.stderr

    assert status("exec", "e", "--", "sh", "-c", "echo out; echo err >&2; exit 3") == (3, b"out\n", b"err\n")
    assert status("exec", "-i", "e", "--", "cat", stdin=b"x" * 300_000) == (0, b"x" * 300_000, b"")
    assert status("exec", "e", "--", "/nope")[0] == 127
    assert status("exec", "e", "--", "/etc/passwd")[0] == 126
    assert status("exec", "no-such", "--", "true")[0] == 125
    code, _, reported = status("exec", "-it", "e", "--", "true")
    assert code == 125 and b"needs a terminal" in reported, reported
    code, _, reported = status("run", "-it", "--", "true")
    assert code == 125 and b"needs a terminal" in reported, reported
    assert status("run", "-i", "--", "cat", stdin=b"in\n" * 1000) == (0, b"in\n" * 1000, b"")
    assert status("exec", "-e", "A=b", "--user", "7:8", "--dir", "/tmp", "e", "--", "sh", "-c", "echo $A; pwd; id -u; id -g")[
        :2
    ] == (0, b"b\n/tmp\n7\n8\n")


if __name__ == "__main__":
    cli = sys.argv[1:]
    for part in (run, detach, execute, in_scripts):
        part(cli)
        print("done", part.__name__, flush=True)
