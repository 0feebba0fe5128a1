//! Counts the bytes that were written to a unix stream socket and not yet read by the peer.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Returns the number of bytes that the peer has not read, including kernel overhead per buffer. Returns 0 if the peer
/// has read everything or has closed its socket.
///
/// # Errors
/// Returns an error if the descriptor is not a socket.
pub fn unread(socket: impl AsFd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request (TIOCOUTQ, also named SIOCOUTQ) writes one int, the type of `bytes`.
    if unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(usize::try_from(bytes).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn unread_bytes_remain_until_last_read() {
        let (mut a, mut b) = UnixStream::pair().unwrap();
        assert_eq!(unread(&a).unwrap(), 0);
        a.write_all(&[0; 1000]).unwrap();
        assert!(unread(&a).unwrap() >= 1000);
        b.read_exact(&mut [0; 999]).unwrap();
        assert_ne!(unread(&a).unwrap(), 0);
        b.read_exact(&mut [0; 1]).unwrap();
        assert_eq!(unread(&a).unwrap(), 0);
        a.write_all(&[0; 1000]).unwrap();
        drop(b);
        assert_eq!(unread(&a).unwrap(), 0);
        assert!(unread(tempfile::tempfile().unwrap()).is_err());
    }
}
