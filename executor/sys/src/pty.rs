//! Opens pseudo terminals: the process that uses a terminal opens it inside the container, and a process outside keeps
//! the master.
//!
//! The kernel derives the slave's descriptor from the opened master, and not from a path that the container could have
//! changed. The container controls its `/dev`, so the opened file is verified.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, fstat, major, minor};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// Path of the pty multiplexer below the caller's root: a link into the container's devpts.
const MULTIPLEXER: &str = "/dev/ptmx";

/// Both ends of a pseudo terminal.
#[derive(Debug)]
pub struct Terminal {
    /// End for the process outside the container.
    pub master: OwnedFd,
    /// End for the container process: its controlling terminal.
    pub slave: OwnedFd,
}

/// Size of a terminal window in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub rows: u16,
    pub columns: u16,
}

impl Default for Window {
    fn default() -> Self {
        Self { rows: 24, columns: 80 }
    }
}

impl Window {
    /// Returns a window of this size. A value of 0 selects the default.
    pub fn new(rows: u16, columns: u16) -> Self {
        let default = Self::default();
        let side = |side: u16, default: u16| if side == 0 { default } else { side };
        Self { rows: side(rows, default.rows), columns: side(columns, default.columns) }
    }
}

impl Terminal {
    /// Opens a new terminal in the devpts of the caller's root. The terminal belongs to the caller's user.
    ///
    /// # Errors
    /// Returns an error if the caller's root has no devpts, or another file is at the multiplexer's path.
    pub fn open() -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let master = rustix::fs::open(MULTIPLEXER, flags, Mode::empty())?;
        if !is_multiplexer(master.as_fd())? {
            return Err(io::Error::other(format!("{MULTIPLEXER} is not the kernel's terminal multiplexer")));
        }
        unlockpt(&master)?;
        let slave = ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        Ok(Self { master, slave })
    }

    /// Makes the slave the caller's controlling terminal and its three standard descriptors. Returns the master.
    ///
    /// # Errors
    /// Returns the kernel's error if a system call fails, which is not expected.
    pub fn control(self) -> io::Result<OwnedFd> {
        // PID 1 of a container already leads a session.
        match rustix::process::setsid() {
            Ok(_) | Err(rustix::io::Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
        rustix::process::ioctl_tiocsctty(&self.slave)?;
        stdio(self.slave.as_fd(), self.slave.as_fd(), self.slave.as_fd())?;
        Ok(self.master)
    }
}

/// Returns true if the file is the kernel's multiplexer. A container may have replaced it.
fn is_multiplexer(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let stat = fstat(fd)?;
    let device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    Ok(device && (major(stat.st_rdev), minor(stat.st_rdev)) == (5, 2))
}

/// Sets the window size of a terminal, by either end. If the size changes, the processes on the terminal get SIGWINCH.
///
/// # Errors
/// Returns an error if the descriptor is not a terminal.
pub fn resize(terminal: BorrowedFd<'_>, window: Window) -> io::Result<()> {
    let size = Winsize { ws_row: window.rows, ws_col: window.columns, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(tcsetwinsize(terminal, size)?)
}

/// Makes these descriptors the caller's standard descriptors.
///
/// # Errors
/// Returns the kernel's error if a system call fails, which is not expected.
pub fn stdio(stdin: BorrowedFd<'_>, stdout: BorrowedFd<'_>, stderr: BorrowedFd<'_>) -> io::Result<()> {
    rustix::stdio::dup2_stdin(stdin)?;
    rustix::stdio::dup2_stdout(stdout)?;
    Ok(rustix::stdio::dup2_stderr(stderr)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_has_two_ends_and_size() {
        let terminal = Terminal::open().unwrap();
        resize(terminal.master.as_fd(), Window { rows: 7, columns: 77 }).unwrap();
        let seen = rustix::termios::tcgetwinsize(&terminal.slave).unwrap();
        assert_eq!((seen.ws_row, seen.ws_col), (7, 77));
        rustix::io::write(&terminal.slave, b"out\n").unwrap();
        let mut buffer = [0; 16];
        let mut ready = [rustix::event::PollFd::new(&terminal.master, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut ready, None).unwrap();
        assert_eq!(rustix::io::read(&terminal.master, &mut buffer).unwrap(), 5);
    }

    #[test]
    fn other_files_are_not_pty_multiplexers() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let file = tempfile::tempfile().unwrap();
        assert!(!is_multiplexer(null.as_fd()).unwrap() && !is_multiplexer(file.as_fd()).unwrap());
    }
}
