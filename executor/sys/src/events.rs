//! Provides the event loop of a single-threaded process, which waits for descriptors and deadlines in one call of poll.
//!
//! ```text
//!  each turn:   register descriptors, each with a token                  Events::read, write, ...
//!               set the earliest deadline                                Events::due
//!               wait                                                     Events::wait
//!               handle the returned tokens and the expired deadlines
//! ```
//! A registration lasts for one turn and borrows the descriptor, so the descriptor is always open. Unlike with epoll,
//! registering needs no system call. Signals are received through a descriptor ([`crate::process::SignalEvents`]).

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::ready::until;

/// Descriptors to wait for, each with a token.
#[derive(Debug)]
pub struct Events<'fd, T> {
    fds: Vec<PollFd<'fd>>,
    tokens: Vec<T>,
    due: Option<Instant>,
}

impl<T> Default for Events<'_, T> {
    fn default() -> Self {
        Self { fds: Vec::new(), tokens: Vec::new(), due: None }
    }
}

impl<'fd, T: Copy> Events<'fd, T> {
    /// Registers for input, for a peer's hangup, or for the exit of a process (pidfd).
    pub fn read(&mut self, fd: BorrowedFd<'fd>, token: T) {
        self.add(fd, PollFlags::IN, token);
    }

    /// Registers for writability.
    pub fn write(&mut self, fd: BorrowedFd<'fd>, token: T) {
        self.add(fd, PollFlags::OUT, token);
    }

    /// Registers only for a hangup, even if unread input is pending.
    pub fn hangup(&mut self, fd: BorrowedFd<'fd>, token: T) {
        self.add(fd, PollFlags::RDHUP, token);
    }

    /// Sets the deadline of the wait. If there are several deadlines, the earliest counts.
    pub fn due(&mut self, at: impl IntoIterator<Item = Instant>) {
        self.due = self.due.into_iter().chain(at).min();
    }

    /// Waits until a descriptor is ready or a deadline passes. Returns the tokens of the ready descriptors in the order
    /// of registration. Returns no token if a deadline passed or a signal interrupted the wait.
    ///
    /// # Errors
    /// Returns an error if memory runs out or there are more descriptors than the process may have.
    pub fn wait(mut self) -> io::Result<Vec<T>> {
        let timeout = self.due.map(until);
        match poll(&mut self.fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        let ready = self.fds.iter().zip(&self.tokens).filter(|(fd, _)| !fd.revents().is_empty());
        Ok(ready.map(|(_, token)| *token).collect())
    }

    fn add(&mut self, fd: BorrowedFd<'fd>, flags: PollFlags, token: T) {
        self.fds.push(PollFd::from_borrowed_fd(fd, flags));
        self.tokens.push(token);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Token {
        First,
        Second,
        Room,
        Gone,
    }

    #[test]
    fn ready_descriptors_are_returned_by_token() {
        let ((a, b), (c, d)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let all = || {
            let mut events = Events::default();
            events.read(b.as_fd(), Token::First);
            events.read(d.as_fd(), Token::Second);
            events.hangup(d.as_fd(), Token::Gone);
            events.due([Instant::now()]);
            events.wait().unwrap()
        };
        assert_eq!(all(), []);
        (&c).write_all(b"x").unwrap();
        assert_eq!(all(), [Token::Second]);
        (&a).write_all(b"x").unwrap();
        assert_eq!(all(), [Token::First, Token::Second]);
        drop(c);
        assert_eq!(all(), [Token::First, Token::Second, Token::Gone]);
        let mut events = Events::default();
        events.write(a.as_fd(), Token::Room);
        assert_eq!(events.wait().unwrap(), [Token::Room]);
    }

    #[test]
    fn the_earliest_time_ends_a_wait() {
        let (_a, b) = UnixStream::pair().unwrap();
        let began = Instant::now();
        let mut events = Events::default();
        events.read(b.as_fd(), Token::First);
        events.due([began + Duration::from_secs(600), began + Duration::from_millis(20)]);
        events.due(None);
        assert_eq!(events.wait().unwrap(), []);
        assert!(began.elapsed() >= Duration::from_millis(20) && began.elapsed() < Duration::from_secs(600));
    }
}
