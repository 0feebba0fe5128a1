//! Reads the credentials of the peer of a unix stream socket.
//!
//! The kernel records the credentials at the time of connect; later changes in the peer have no effect.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Maximum number of supplementary groups of a process (the kernel's NGROUPS_MAX).
const GROUPS_MAX: usize = 65_536;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

impl Peer {
    /// Returns true if the group is the peer's primary group or one of its supplementary groups.
    pub fn is_member(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// Returns the credentials of the peer of a connected socket.
///
/// # Errors
/// Returns an error if the descriptor is not a unix socket or not connected.
pub fn credentials(socket: impl AsFd) -> io::Result<Peer> {
    let credentials = rustix::net::sockopt::socket_peercred(socket.as_fd())?;
    let groups = groups(socket)?;
    Ok(Peer { uid: credentials.uid.as_raw(), gid: credentials.gid.as_raw(), groups })
}

fn groups(socket: impl AsFd) -> io::Result<Vec<u32>> {
    let mut room: usize = 64;
    loop {
        let mut groups: Vec<libc::gid_t> = vec![0; room];
        let mut bytes = (room * size_of::<libc::gid_t>()) as libc::socklen_t;
        // SAFETY: the kernel writes at most `bytes` bytes into `groups`, which is that large, and any bytes are valid
        // numbers. `bytes` is a live variable of the right type.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        if result == 0 {
            groups.truncate(bytes as usize / size_of::<libc::gid_t>());
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || room >= GROUPS_MAX {
            return Err(error);
        }
        // The kernel usually returns the required size. If not, retry with twice the size.
        room = (bytes as usize / size_of::<libc::gid_t>()).max(room * 2).min(GROUPS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn peer_of_socket_pair_is_this_process() {
        let (a, _b) = UnixStream::pair().unwrap();
        let peer = credentials(&a).unwrap();
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert_eq!(peer.gid, rustix::process::getegid().as_raw());
        let mut mine: Vec<u32> = rustix::process::getgroups().unwrap().iter().map(|gid| gid.as_raw()).collect();
        let mut groups = peer.groups.clone();
        mine.sort_unstable();
        groups.sort_unstable();
        assert_eq!(groups, mine);
        assert!(peer.is_member(peer.gid));
        assert!(!peer.is_member(4_000_000_000));
    }

    #[test]
    fn peer_of_regular_file_fails() {
        assert!(credentials(tempfile::tempfile().unwrap()).is_err());
    }
}
