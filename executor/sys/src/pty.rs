//! Terminals: made within a container by the process that is to have one, kept by a process outside.
//!
//! The descriptor that leads out is made by the kernel from the one that was opened, never by a path that the container
//! could have changed; and what was opened is looked at, because the container's `/dev` is the container's own.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, fstat, major, minor};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// Multiplexer of terminals, in the caller's own root: a link into the container's own devpts.
const MULTIPLEXER: &str = "/dev/ptmx";

/// Both ends of a terminal.
#[derive(Debug)]
pub struct Terminal {
    /// The end that the keeper reads and writes.
    pub master: OwnedFd,
    /// The end that the process has as its terminal.
    pub slave: OwnedFd,
}

/// Characters of a terminal's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Lines.
    pub rows: u16,
    /// Characters of a line.
    pub columns: u16,
}

impl Default for Window {
    fn default() -> Self {
        Self { rows: 24, columns: 80 }
    }
}

impl Window {
    /// Returns a window of this size, with the default for a side of 0.
    pub fn new(rows: u16, columns: u16) -> Self {
        let default = Self::default();
        let side = |side: u16, default: u16| if side == 0 { default } else { side };
        Self { rows: side(rows, default.rows), columns: side(columns, default.columns) }
    }
}

impl Terminal {
    /// A new terminal of the devpts that the caller's root has. It belongs to the caller's user.
    ///
    /// # Errors
    /// No such devpts, or something else in its place.
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

    /// Makes it the caller's controlling terminal and its three standard descriptors. Gives the end that is left.
    ///
    /// # Errors
    /// None in practice.
    pub fn control(self) -> io::Result<OwnedFd> {
        // The first process of a container leads a session already.
        match rustix::process::setsid() {
            Ok(_) | Err(rustix::io::Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
        rustix::process::ioctl_tiocsctty(&self.slave)?;
        stdio(self.slave.as_fd(), self.slave.as_fd(), self.slave.as_fd())?;
        Ok(self.master)
    }
}

/// Returns whether this is the kernel's multiplexer: a container may have put something else there.
fn is_multiplexer(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let stat = fstat(fd)?;
    let device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    Ok(device && (major(stat.st_rdev), minor(stat.st_rdev)) == (5, 2))
}

/// Tells a terminal, by either end, how large its window is. Its processes get SIGWINCH where that is news.
///
/// # Errors
/// Not a terminal.
pub fn resize(terminal: BorrowedFd<'_>, window: Window) -> io::Result<()> {
    let size = Winsize { ws_row: window.rows, ws_col: window.columns, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(tcsetwinsize(terminal, size)?)
}

/// Makes these the standard descriptors of the caller.
///
/// # Errors
/// None in practice.
pub fn stdio(stdin: BorrowedFd<'_>, stdout: BorrowedFd<'_>, stderr: BorrowedFd<'_>) -> io::Result<()> {
    rustix::stdio::dup2_stdin(stdin)?;
    rustix::stdio::dup2_stdout(stdout)?;
    Ok(rustix::stdio::dup2_stderr(stderr)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_has_two_ends_and_a_size() {
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
    fn what_is_no_multiplexer_is_not_taken_for_one() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let file = tempfile::tempfile().unwrap();
        assert!(!is_multiplexer(null.as_fd()).unwrap() && !is_multiplexer(file.as_fd()).unwrap());
    }
}
