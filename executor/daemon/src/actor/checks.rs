//! Runs the checks of a running container, one at a time, and reports the results.
//!
//! Each container with checks has one task, which sleeps until a check is due. The container's own task (`actor`)
//! receives the reports and acts on them. The shim creates sockets in the container's network namespace; this process
//! connects them. The checks of a container use at most one connection or one executed program at a time, for at most
//! the check's time limit.
//!
//! If the executor cannot run a check (no shim, no launcher, no descriptors), the check counts neither as passed nor as
//! failed.

mod http;
mod program;

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use executor_core::checks::{CheckId, CheckOutcome, Health, HealthChange, Monitor, words_of};
use executor_core::plan::{Check, Checks, HttpProbe, Network, Probe};
use executor_core::protocol::{MakeSocket, ShimCall};
use executor_core::time::Timestamp;
use executor_sys::clock;
use tokio::net::TcpSocket;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout};
use zeroize::Zeroizing;

use crate::model::container::Handle;
use crate::model::status::ContainerStatus;
use crate::node::Node;

/// Time limit for the shim to create a socket. The shim may be busy writing new secret files.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(10);

/// The task that runs a container's checks. Dropping this stops the task.
#[derive(Debug)]
pub(crate) struct Checking {
    reports: mpsc::Receiver<CheckReport>,
    task: AbortHandle,
    /// Number of the checked run of the main action.
    run: u64,
}

/// Report after a check, or after a time limit of the checks has passed.
#[derive(Debug)]
pub(crate) struct CheckReport {
    pub(crate) health: Health,
    /// Action that the result causes, if any.
    pub(crate) change: Option<HealthChange>,
    /// True if the health must be stored in the ledger.
    pub(crate) keep: bool,
    /// Last lines of failed programs, for the container's log. The lines may contain secrets.
    pub(crate) outputs: Vec<FailedOutput>,
}

/// Last output lines of a failed check program.
#[derive(Clone, Debug)]
pub(crate) struct FailedOutput {
    id: CheckId,
    /// Log source of the lines. If empty, the lines use the container's log source.
    pub(crate) log_source: String,
    pub(crate) text: Zeroizing<String>,
}

/// Result of one check, with the last output lines of its program.
struct CheckRun {
    outcome: CheckOutcome,
    output: Zeroizing<String>,
}

impl CheckRun {
    fn from_outcome(outcome: CheckOutcome) -> Self {
        Self { outcome, output: Zeroizing::default() }
    }
}

impl Drop for Checking {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Checking {
    /// Starts the checks of a running container; `None` if the container has no checks.
    pub(crate) fn start(node: &Arc<Node>, handle: &Arc<Handle>, facts: &ContainerStatus) -> Option<Self> {
        let (run, started_at) = facts.run().filter(|_| facts.plan.checks.is_some())?;
        let (sender, reports) = mpsc::channel(1);
        let target = CheckTarget {
            node: Arc::clone(node),
            handle: Arc::clone(handle),
            address: address(facts),
            origin: Instant::now(),
            elapsed: elapsed(facts, started_at),
        };
        let (plan, kept) = (Arc::clone(&facts.plan), facts.health.clone());
        let task = tokio::spawn(async move {
            let Some(checks) = &plan.checks else { return };
            // The receiver is dropped when the container exits.
            let _ = target.watch(checks, kept.as_deref(), &sender).await;
        });
        Some(Self { reports, task: task.abort_handle(), run })
    }

    /// Returns the number of the checked run of the main action.
    pub(crate) fn run(&self) -> u64 {
        self.run
    }

    /// Waits for the next report; pends forever if the container has no checks, or if no further check is due.
    pub(crate) async fn next(checking: &mut Option<Self>) -> CheckReport {
        if let Some(checking) = checking
            && let Some(report) = checking.reports.recv().await
        {
            return report;
        }
        std::future::pending().await
    }
}

/// Returns the time since the start of the main action. If the main action started together with the container's init,
/// the time is the age of the init, so that a change of the wall clock does not end the start period. After `setup` or
/// a restart, the time is computed from the wall clock and is at most the age of the init.
fn elapsed(facts: &ContainerStatus, started_at: Timestamp) -> Duration {
    let by_date = crate::now().since(started_at);
    match facts.prepared.as_ref().map(|prepared| clock::age_of(prepared.init.start_time)) {
        Some(age) if facts.restarts.is_none() && facts.started_at == Some(started_at) => age,
        Some(age) => by_date.min(age),
        None => by_date,
    }
}

/// Returns the address that checks connect to: on a CNI network the container's own address, as in Diego and the
/// kubelet; otherwise loopback.
fn address(facts: &ContainerStatus) -> IpAddr {
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    if facts.plan.network != Network::Cni {
        return loopback;
    }
    let network = facts.prepared.as_ref().and_then(|prepared| prepared.network.as_ref());
    network.and_then(|on| on.addresses.first()).map_or(loopback, |address| address.ip)
}

/// Returns a random number below 1000, which spreads the checks of containers over time.
fn spread() -> u32 {
    (RandomState::new().build_hasher().finish() % 1000) as u32
}

/// The container that a task checks.
struct CheckTarget {
    node: Arc<Node>,
    handle: Arc<Handle>,
    address: IpAddr,
    /// Time at which the task was started.
    origin: Instant,
    /// Time from the start of the main action to `origin`.
    elapsed: Duration,
}

/// The receiver of the reports was dropped.
struct CheckRecvError;

impl CheckTarget {
    /// Returns the time since the start of the main action.
    fn now(&self) -> Duration {
        self.elapsed + self.origin.elapsed()
    }

    /// Converts a time since the start of the main action to an instant.
    fn at(&self, time: Duration) -> Instant {
        self.origin + time.saturating_sub(self.elapsed)
    }

    async fn watch(
        &self,
        checks: &Checks,
        kept: Option<&Health>,
        reports: &mpsc::Sender<CheckReport>,
    ) -> Result<(), CheckRecvError> {
        let mut monitor = Monitor::new(checks, kept, self.now(), spread);
        // Output of the checks whose last run failed.
        let mut failed: Vec<FailedOutput> = Vec::new();
        let send_report =
            async |monitor: &Monitor<'_>, change: Option<HealthChange>, keep: bool, failed: &[FailedOutput]| {
                let outputs = if matches!(change, Some(HealthChange::End(_))) { failed.to_vec() } else { Vec::new() };
                let report = CheckReport { health: monitor.health().clone(), change, keep, outputs };
                reports.send(report).await.map_err(|_| CheckRecvError)
            };
        if kept != Some(monitor.health()) {
            send_report(&monitor, None, true, &failed).await?;
        }
        while let Some((id, due)) = monitor.next() {
            let deadline = monitor.deadline();
            let over = async {
                match deadline {
                    Some(deadline) => sleep_until(self.at(deadline)).await,
                    None => std::future::pending().await,
                }
            };
            let made = async {
                sleep_until(self.at(due)).await;
                match monitor.check(id) {
                    Some(check) => self.make(check).await,
                    None => CheckRun::from_outcome(CheckOutcome::NotRun),
                }
            };
            let made = tokio::select! {
                made = made => Some(made),
                () = over => None,
            };
            let (change, keep) = match made {
                Some(made) => {
                    failed.retain(|output| output.id != id);
                    if matches!(made.outcome, CheckOutcome::Failed(_)) {
                        let log_source = monitor.check(id).map(|check| check.log_source.clone()).unwrap_or_default();
                        failed.push(FailedOutput { id, log_source, text: made.output });
                        failed.sort_by_key(|output| (output.id.purpose, output.id.index));
                    }
                    self.log(id, &made.outcome);
                    monitor.report(id, &made.outcome, self.now(), crate::now(), spread())
                }
                // The timer may fire slightly early, within its resolution.
                None => (monitor.tick(self.now().max(deadline.unwrap_or_default())), true),
            };
            send_report(&monitor, change, keep, &failed).await?;
        }
        Ok(())
    }

    fn log(&self, id: CheckId, outcome: &CheckOutcome) {
        let (container, purpose, index) = (self.handle.id(), id.purpose, id.index);
        match outcome {
            CheckOutcome::Passed => {}
            CheckOutcome::Failed(reason) => tracing::debug!(%container, ?purpose, index, reason, "a check failed"),
            CheckOutcome::NotRun => tracing::warn!(%container, ?purpose, index, "a check could not be run"),
        }
    }

    async fn make(&self, check: &Check) -> CheckRun {
        match &check.probe {
            Probe::Exec(probe) => program::check(&self.node, self.handle.id(), probe, check.timeout).await,
            Probe::Tcp(port) => CheckRun::from_outcome(self.connected(*port, check.timeout, None).await),
            Probe::Http(probe) => CheckRun::from_outcome(self.connected(probe.port, check.timeout, Some(probe)).await),
        }
    }

    /// Runs a check that connects to a port.
    async fn connected(&self, port: u16, limit: Duration, request: Option<&HttpProbe>) -> CheckOutcome {
        let Some(socket) = self.socket().await else { return CheckOutcome::NotRun };
        let to = SocketAddr::new(self.address, port);
        let made = timeout(limit, async {
            let stream = socket.connect(to).await.map_err(|error| reported(&error))?;
            match request {
                None => Ok(()),
                Some(request) => http::check(stream, to, request).await,
            }
        });
        let result = made.await.unwrap_or_else(|_| Err(format!("timed out after {}", words_of(limit))));
        // Same wording as Diego's healthcheck: users search for these texts.
        result.map_or_else(
            |why| {
                CheckOutcome::Failed(match request {
                    None => format!("Failed to make TCP connection to port {port}: {why}"),
                    Some(request) => {
                        format!("Failed to make HTTP request to '{}' on port {port}: {why}", request.path)
                    }
                })
            },
            |()| CheckOutcome::Passed,
        )
    }

    /// Gets a socket in the container's network namespace.
    async fn socket(&self) -> Option<TcpSocket> {
        let link = self.handle.shim()?;
        let call = ShimCall::MakeSocket(MakeSocket { ipv6: self.address.is_ipv6() });
        let fd = timeout(SOCKET_TIMEOUT, link.call_with_fds(call, &[])).await.ok()?.ok()??;
        Some(TcpSocket::from_std_stream(fd.into()))
    }
}

/// Returns the message for a connection error.
fn reported(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connection refused".into(),
        std::io::ErrorKind::ConnectionReset => "connection reset by peer".into(),
        _ => error.to_string(),
    }
}
