//! Manages signing processes: forks them with their end of a connection to executord, and reaps them.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use executor_core::protocol::{Done, LauncherAnswer, Reason, Refused, SIGNERS_MAX};
use executor_sys::process::{self, Fork};
use executor_sys::ready::is_readable;
use executor_sys::seqpacket::Seqpacket;

use super::Server;
use crate::errors::failed;
use crate::identity;

/// A signing process.
pub(super) struct Signer {
    pub(super) pid: i32,
    pub(super) pidfd: OwnedFd,
}

impl Server {
    /// Starts a signing process. The process itself reports whether it can sign.
    pub(super) fn open_signer(&mut self, fds: Vec<OwnedFd>) -> Result<LauncherAnswer, Refused> {
        if !self.host.identity.is_on() {
            let why = "identity.ca_certificate is missing in the launcher's configuration, but set in the daemon's";
            return Err(Refused::new(Reason::Precondition, why));
        }
        let Ok([connection]) = <[OwnedFd; 1]>::try_from(fds) else {
            return Err(Refused::new(Reason::Invalid, "a signer needs one descriptor: its connection"));
        };
        let connection = Seqpacket::from_peer(connection)
            .map_err(|error| Refused::new(Reason::Invalid, format!("connection of a signer: {error}")))?;
        self.reap_signers();
        if self.signers.len() >= SIGNERS_MAX {
            return Err(Refused::new(
                Reason::Busy,
                format!("the maximum number of signing processes ({SIGNERS_MAX}) is running"),
            ));
        }
        let parent = std::process::id();
        let reported = |error: io::Error| failed("cannot start a signer", &error);
        let room = process::room_for_one(connection.as_fd()).map_err(reported)?;
        let pid = match process::fork().map_err(reported)? {
            Fork::Parent(pid) => pid,
            Fork::Child => {
                drop(room);
                self.abandon();
                self.host.show_role(&["signer"]);
                process::exit_now(i32::from(identity::run(&self.host.identity, &connection, parent).is_err()))
            }
        };
        drop(room);
        let pidfd = process::pidfd(pid).map_err(reported)?;
        self.signers.push(Signer { pid, pidfd });
        Ok(LauncherAnswer::Done(Done {}))
    }

    /// Reaps signing processes that have exited.
    pub(super) fn reap_signers(&mut self) {
        self.signers.retain(|signer| {
            let ended = is_readable(&signer.pidfd);
            if ended {
                let _ = process::wait_for(signer.pid);
            }
            !ended
        });
    }

    /// Kills all signing processes, because the launcher exits or the settings have changed.
    pub(super) fn kill_signers(&mut self) {
        for signer in self.signers.drain(..) {
            let _ = process::pidfd_signal(signer.pidfd.as_fd(), libc::SIGKILL); // the process may have just exited
            let _ = process::wait_for(signer.pid);
        }
    }
}
