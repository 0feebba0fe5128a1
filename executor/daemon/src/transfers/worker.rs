//! Workers: short-lived processes of this program (`executor_transfers`), seen from executord.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::Stdio;

use executor_sys::seqpacket::Seqpacket;
use executor_transfers::job::{Failure, Job, PACKET_MAX, Report, WORKER_ARGUMENT};
use tokio::process::{Child, Command};

use crate::packets::Packets;

/// This program, whatever became of its file since.
const PROGRAM: &str = "/proc/self/exe";
/// Variables that say where the system's certificates are.
const CERTIFICATES: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];

/// A worker with its job. It is killed when this is dropped.
pub(super) struct Worker {
    child: Child,
    packets: Packets,
}

/// Starts a worker.
///
/// # Errors
/// No process or descriptor is left.
pub(super) fn start(job: &Job, fds: &[BorrowedFd<'_>]) -> io::Result<Worker> {
    let (ours, theirs) = Seqpacket::pair()?;
    ours.send(&serde_json::to_vec(job)?, fds)?;
    let mut command = Command::new(PROGRAM);
    command.arg(WORKER_ARGUMENT).env_clear();
    command.envs(CERTIFICATES.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let child = command.spawn()?;
    Ok(Worker { child, packets: Packets::new(ours)? })
}

/// Starts a worker, and waits for its report.
pub(super) async fn run(job: &Job, fds: &[BorrowedFd<'_>]) -> Result<Report, Failure> {
    let started = start(job, fds).map_err(|error| Failure::transient(format!("worker: {}", crate::plain(&error))))?;
    started.report().await
}

impl Worker {
    /// Waits for the report.
    pub(super) async fn report(mut self) -> Result<Report, Failure> {
        let mut buffer = vec![0; PACKET_MAX];
        let told = self.packets.recv_bytes(&mut buffer).await.ok().flatten();
        match told.and_then(|length| serde_json::from_slice(&buffer[..length]).ok()) {
            Some(Report::Failed(failure)) => Err(failure),
            Some(report) => Ok(report),
            None => {
                let status = self.child.wait().await;
                let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
                Err(Failure::last(format!(
                    "the worker ended without a report ({status}); an archive may need more memory or processor time than a worker has"
                )))
            }
        }
    }
}
