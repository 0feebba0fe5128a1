//! Polls or waits for a single descriptor. For several descriptors see [`crate::events`].

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Flags for a peer that sends no more data, or for an invalid descriptor.
const GONE: PollFlags = PollFlags::HUP.union(PollFlags::RDHUP).union(PollFlags::ERR).union(PollFlags::NVAL);

/// Returns true if the peer of a socket has closed it, at least for writing. There may still be unread data.
pub fn hung_up(fd: impl AsFd) -> bool {
    poll_now(&fd, PollFlags::RDHUP).intersects(GONE)
}

/// Returns true if a read would not block or, for a pidfd, if the process has exited.
pub fn is_readable(fd: impl AsFd) -> bool {
    !poll_now(&fd, PollFlags::IN).is_empty()
}

/// Waits until a read would not block or the deadline passes. Returns true if it would not block.
///
/// # Errors
/// Returns an error if memory runs out.
pub fn readable_by(fd: impl AsFd, deadline: Instant) -> io::Result<bool> {
    wait_until(&fd, PollFlags::IN, deadline)
}

/// Waits until a write would not block or the deadline passes. Returns true if it would not block.
///
/// # Errors
/// Returns an error if memory runs out.
pub fn writable_by(fd: impl AsFd, deadline: Instant) -> io::Result<bool> {
    wait_until(&fd, PollFlags::OUT, deadline)
}

fn poll_now(fd: &impl AsFd, flags: PollFlags) -> PollFlags {
    let mut fds = [PollFd::new(fd, flags)];
    loop {
        match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Err(Errno::INTR) => {}
            Err(_) => return PollFlags::empty(),
            Ok(_) => return fds[0].revents(),
        }
    }
}

fn wait_until(fd: &impl AsFd, flags: PollFlags, deadline: Instant) -> io::Result<bool> {
    loop {
        match poll(&mut [PollFd::new(fd, flags)], Some(&until(deadline))) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(count) => return Ok(count > 0),
        }
    }
}

/// Returns the time until the deadline as a timeout for poll, or 0 if the deadline has passed.
pub(crate) fn until(deadline: Instant) -> Timespec {
    let left = deadline.saturating_duration_since(Instant::now());
    Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    #[test]
    fn half_closed_peer_counts_as_hung_up() {
        let (a, b) = UnixStream::pair().unwrap();
        assert!(!hung_up(&b) && !is_readable(&b));
        (&a).write_all(b"x").unwrap();
        assert!(!hung_up(&b) && is_readable(&b));
        a.shutdown(Shutdown::Write).unwrap();
        assert!(hung_up(&b) && !hung_up(&a));
        let (c, d) = UnixStream::pair().unwrap();
        drop(c);
        assert!(hung_up(&d));
    }

    #[test]
    fn a_deadline_ends_a_wait() {
        let (a, b) = UnixStream::pair().unwrap();
        let deadline = Instant::now() + Duration::from_millis(20);
        assert!(!readable_by(&b, deadline).unwrap());
        assert!(Instant::now() >= deadline);
        assert!(!readable_by(&b, deadline).unwrap(), "the deadline has passed");
        assert!(writable_by(&a, Instant::now()).unwrap());
        (&a).write_all(b"x").unwrap();
        assert!(readable_by(&b, Instant::now() + Duration::from_secs(60)).unwrap());
    }
}
