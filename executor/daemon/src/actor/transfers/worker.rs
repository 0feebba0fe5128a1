//! Starts and drives workers: short-lived processes of this executable that run `executor_transfers`.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::Stdio;

use executor_sys::process;
use executor_sys::seqpacket::Seqpacket;
use executor_transfers::job::{Failure, Job, PACKET_MAX, Report, WORKER_ARGUMENT};
use tokio::process::{Child, Command};

use crate::ipc::packets::Packets;

/// The running executable. The path works even if the file was replaced.
const PROGRAM: &str = "/proc/self/exe";
/// Environment variables that locate the system's CA certificates.
const CERTIFICATES: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];

/// A worker process, killed on drop.
pub(super) struct Worker {
    child: Child,
    packets: Packets,
}

/// A worker without a job, killed on drop.
pub(super) struct Idle {
    child: Child,
    socket: Seqpacket,
}

impl Idle {
    /// Starts a worker.
    ///
    /// # Errors
    /// Returns an error if the limit on processes or descriptors is reached.
    pub(super) fn start() -> io::Result<Self> {
        let (socket, theirs) = Seqpacket::pair()?;
        let mut command = Command::new(PROGRAM);
        command.arg(WORKER_ARGUMENT).env_clear();
        command.envs(CERTIFICATES.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        Ok(Self { child: command.spawn()?, socket })
    }

    /// Returns a pidfd of the worker process.
    ///
    /// # Errors
    /// Returns an error if the limit on descriptors is reached.
    pub(super) fn pidfd(&self) -> io::Result<OwnedFd> {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok());
        process::pidfd(pid.ok_or(io::ErrorKind::NotFound)?)
    }

    /// Sends the worker its job.
    ///
    /// # Errors
    /// Returns an error if the worker has exited or the limit on descriptors is reached.
    pub(super) fn send(self, job: &Job, fds: &[BorrowedFd<'_>]) -> io::Result<Worker> {
        let Self { child, socket } = self;
        socket.send(&serde_json::to_vec(job)?, fds)?;
        Ok(Worker { child, packets: Packets::new(socket)? })
    }
}

impl Worker {
    /// Waits for the report, then kills the process and waits for its exit.
    pub(super) async fn report(mut self) -> Result<Report, Failure> {
        let mut buffer = vec![0; PACKET_MAX];
        let reported = self.packets.recv_bytes(&mut buffer).await.ok().flatten();
        let report = reported.and_then(|length| serde_json::from_slice(&buffer[..length]).ok());
        if report.is_some() {
            let _ = self.child.kill().await; // the worker may have exited by itself
        }
        match report {
            Some(Report::Failed(failure)) => Err(failure),
            Some(report) => Ok(report),
            None => {
                let status = self.child.wait().await;
                let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
                Err(Failure::last(format!(
                    "the worker exited without a report ({status}); the archive may exceed the worker's limit on memory or CPU time"
                )))
            }
        }
    }
}
