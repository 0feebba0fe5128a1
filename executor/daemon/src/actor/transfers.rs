//! Downloads and uploads of the steps of running containers.
//!
//! ```text
//!  shim's record: step running ──> task ── URL (memory file) ──> worker ── http ──> server
//!                                   │                              │ file in the state directory
//!                                   │                              v
//!                                   └── process in the container <── worker: inspect, unpack
//!  shim <── end of the step ───────┘
//! ```
//! The container's own task ([`Transferring`]) starts a transfer when the shim's record lists the transfer's step as
//! running, and drops the transfer when the step has completed or was cancelled. After a restart of the daemon, the
//! record lists the same steps, so the daemon restarts their transfers. Only worker processes read a tenant's URL and
//! data. The daemon starts workers from its own executable and stops them by closing their sockets.

mod worker;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use executor_core::backoff::Backoff;
use executor_core::ident::ContainerId;
use executor_core::lifecycle::State;
use executor_core::limits::URL_MAX;
use executor_core::plan::{Direction, Plan, PlannedTransfer};
use executor_core::protocol::{EndTransfer, LimitWorker, ReadTransfer, Reason, ShimCall};
use executor_core::record::{StepRecord, StepState};
use executor_core::time::Timestamp;
use executor_proto::v1::ExecFailure;
use executor_sys::memfile::MemFile;
use executor_transfers::job::{Failure, FailureKind, Fetch, FileFormat, InspectJob, Job, Report, Send, Unpack};
use executor_transfers::one_line;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::api_error::{ApiError, Kind};
use crate::ipc::memfiles::WipedPayload;
use crate::model::container::Handle;
use crate::model::container::link::ShimLink;
use crate::model::status::ContainerStatus;
use crate::node::Node;
use crate::operations::copy;
use crate::operations::exec::{self, CopyDirection, ExecOutcome, ExecSession, Stdio};
use crate::store::artifacts::{Entry, Settings, TransferSlot};
use worker::{Idle, Worker};

/// Pauses between attempts of a transfer.
const RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));

/// Running transfers of a container by index, each with the start time of its step, because a step may run again.
/// Dropping this stops the transfers.
#[derive(Debug, Default)]
pub(crate) struct Transferring(BTreeMap<usize, (Timestamp, AbortHandle)>);

impl Drop for Transferring {
    fn drop(&mut self) {
        self.0.values().for_each(|(_, task)| task.abort());
    }
}

impl Transferring {
    /// Starts the transfers of running steps, and cancels the transfers of finished steps.
    pub(crate) fn follow(
        &mut self,
        node: &Arc<Node>,
        handle: &Arc<Handle>,
        facts: &ContainerStatus,
        link: &Arc<ShimLink>,
    ) {
        if facts.plan.transfers.is_empty() {
            return;
        }
        let live = matches!(facts.state, State::Running | State::Stopping);
        let began = |transfer: &PlannedTransfer| start_of(&transfer.id, &facts.steps).filter(|_| live);
        self.0.retain(|index, (of, task)| {
            let goes_on = facts.plan.transfers.get(*index).and_then(began) == Some(*of);
            if !goes_on {
                task.abort();
            }
            goes_on
        });
        for (index, transfer) in facts.plan.transfers.iter().enumerate() {
            let Some(began) = began(transfer) else { continue };
            self.0.entry(index).or_insert_with(|| {
                let transfer = Transfer {
                    node: Arc::clone(node),
                    id: handle.id().clone(),
                    link: Arc::clone(link),
                    plan: Arc::clone(&facts.plan),
                    index,
                    began,
                };
                (began, tokio::spawn(transfer.execute()).abort_handle())
            });
        }
    }
}

/// Returns the start time of the step with this path, if the step is running.
fn start_of(path: &str, steps: &[StepRecord]) -> Option<Timestamp> {
    steps.iter().find(|step| step.path == path && step.state == StepState::Running)?.started_at
}

struct Transfer {
    node: Arc<Node>,
    id: ContainerId,
    link: Arc<ShimLink>,
    plan: Arc<Plan>,
    index: usize,
    /// Start time of the step.
    began: Timestamp,
}

/// The shim has exited or the step has completed, so the result is no longer needed.
struct WorkerRecvError;

/// Reason why an attempt of a transfer failed.
enum AttemptError {
    Failed(Failure),
    RecvError,
}

impl From<Failure> for AttemptError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<WorkerRecvError> for AttemptError {
    fn from(_: WorkerRecvError) -> Self {
        Self::RecvError
    }
}

impl From<io::Error> for AttemptError {
    fn from(error: io::Error) -> Self {
        Self::Failed(Failure::transient(executor_core::errors::plain(&error)))
    }
}

/// Attempts that a transfer has made, and the pause before the next attempt.
struct Attempts<'a> {
    transfer: &'a Transfer,
    retry: Backoff,
    made: u32,
}

impl Attempts<'_> {
    /// Waits until another attempt may start.
    ///
    /// # Errors
    /// Returns the failure if it is final or no attempts are left.
    async fn again(&mut self, error: AttemptError) -> Result<(), AttemptError> {
        match error {
            AttemptError::Failed(Failure { why, kind: FailureKind::Transient })
                if self.made < self.transfer.settings().attempts =>
            {
                let (container, made) = (&self.transfer.id, self.made);
                tracing::debug!(%container, why, made, "a transfer attempt failed; retrying");
                self.made += 1;
                tokio::time::sleep(self.retry.pause()).await;
                Ok(())
            }
            last => Err(last),
        }
    }
}

impl Transfer {
    fn settings(&self) -> &Settings {
        &self.node.artifacts.settings
    }

    /// Runs the transfer, and reports the result to the shim.
    async fn execute(self) {
        let Some(planned) = self.plan.transfers.get(self.index) else { return };
        let (container, step) = (&self.id, &planned.id);
        tracing::debug!(%container, step, "transfer started");
        let ended = match planned.direction {
            Direction::Download => self.download(planned).await,
            Direction::Upload => self.upload(planned).await,
        };
        let (bytes, error) = match ended {
            Ok(bytes) => (bytes, String::new()),
            Err(AttemptError::Failed(failure)) => (0, one_line(&failure.why)),
            Err(AttemptError::RecvError) => return,
        };
        match &*error {
            "" => tracing::info!(%container, step, bytes, "transfer completed"),
            why => tracing::info!(%container, step, why, "transfer failed"),
        }
        let end = EndTransfer { transfer: self.number(), error, bytes, began: self.began.0 };
        if let Err(Some(problem)) = self.link.call(ShimCall::EndTransfer(end)).await {
            tracing::debug!(%container, step, "the shim did not accept the result of a transfer: {problem}");
        }
    }

    fn number(&self) -> u32 {
        u32::try_from(self.index).unwrap_or(u32::MAX)
    }

    /// Returns a memory file with the URL. This process never reads the URL.
    async fn url(&self) -> Result<WipedPayload, AttemptError> {
        let call = ShimCall::ReadTransfer(ReadTransfer { transfer: self.number() });
        let fd = self.link.call_with_fds(call, &[]).await.ok().flatten().ok_or(WorkerRecvError)?;
        Ok(WipedPayload(MemFile::from_fd_to_wipe(fd, URL_MAX as u64)?))
    }

    /// Starts a worker, lets the shim limit the worker's CPU time, and sends the worker a job.
    async fn start(&self, job: &Job, fds: &[BorrowedFd<'_>]) -> Result<Worker, AttemptError> {
        let failed = |error: io::Error| {
            Failure::transient(format!("cannot start a worker: {}", executor_core::errors::plain(&error)))
        };
        let idle = Idle::start().map_err(failed)?;
        let pidfd = idle.pidfd().map_err(failed)?;
        let call = ShimCall::LimitWorker(LimitWorker { transfer: self.number() });
        match self.link.call_with_fds(call, &[pidfd.as_fd()]).await {
            Ok(_) => Ok(idle.send(job, fds).map_err(failed)?),
            Err(Some(refused)) if refused.reason() != Reason::NotFound => {
                Err(Failure::transient(format!("cannot limit a worker: {}", refused.message)).into())
            }
            Err(_) => Err(WorkerRecvError.into()), // the step has completed
        }
    }

    /// Runs a job on a worker, and returns the worker's report.
    async fn work(&self, job: &Job, fds: &[BorrowedFd<'_>]) -> Result<Report, AttemptError> {
        Ok(self.start(job, fds).await?.report().await?)
    }

    /// Waits for a transfer slot.
    async fn turn(&self) -> Result<TransferSlot, WorkerRecvError> {
        self.node.artifacts.turns.wait(&self.id).await.ok_or(WorkerRecvError)
    }

    /// Returns the URL's location for the cache key. A worker parses the URL.
    async fn place(&self) -> Result<String, AttemptError> {
        let url = self.url().await?;
        match self.work(&Job::Locate, &[url.0.as_fd()]).await? {
            Report::Located { place } => Ok(place),
            _ => Err(unexpected().into()),
        }
    }

    fn attempts(&self) -> Attempts<'_> {
        Attempts { transfer: self, retry: RETRY, made: 1 }
    }

    /// Runs a transfer with the configured time limit.
    async fn in_time<T>(&self, transfer: impl Future<Output = Result<T, AttemptError>>) -> Result<T, AttemptError> {
        let limit = self.settings().time_max;
        let late = |_| Failure::last(format!("the transfer exceeded its time limit of {} s", limit.as_secs()));
        timeout(limit, transfer).await.map_err(late)?
    }

    async fn download(&self, planned: &PlannedTransfer) -> Result<u64, AttemptError> {
        let cache = &self.node.artifacts.cache;
        let _turn = self.turn().await?;
        self.in_time(async {
            // Concurrent downloads of one artifact share one fetch. The wait counts against the time limit of each
            // download.
            let held = match cache.is_used() && !planned.cache_key.is_empty() {
                true => Some(cache.hold(&self.place().await?, &planned.cache_key).await),
                false => None,
            };
            let mut attempts = self.attempts();
            let entry = loop {
                match self.fetch(held.as_deref()).await {
                    Ok(entry) => break entry,
                    Err(error) => attempts.again(error).await?,
                }
            };
            // Inspect the download before adding it to the cache.
            let look = InspectJob {
                checksum: planned.checksum.clone(),
                unpacked_bytes_max: self.settings().unpacked_bytes_max,
            };
            let looked = self.work(&Job::Look(look), &[entry.file.as_fd()]).await?;
            let Report::Looked { form, bytes } = looked else { return Err(unexpected().into()) };
            // Release the key before unpacking, so that the next download of this artifact need not wait.
            if let Some(held) = held {
                cache.store(&held, &entry);
            }
            let mut attempts = self.attempts();
            while let Err(error) = self.unpack(planned, form, &entry.file).await {
                attempts.again(error).await?;
            }
            Ok(bytes)
        })
        .await
    }

    /// Fetches the artifact if the cached copy is not current.
    async fn fetch(&self, key: Option<&str>) -> Result<Entry, AttemptError> {
        let cache = &self.node.artifacts.cache;
        let cached = key.and_then(|key| cache.get(key));
        let url = self.url().await?;
        let mut fresh = cache.staging().map_err(|error| {
            Failure::last(format!(
                "cannot create a file for the download in {}: {}",
                cache.dir().display(),
                executor_core::errors::plain(&error)
            ))
        })?;
        let known = cached.as_ref().map(|entry| entry.validators.clone()).unwrap_or_default();
        let job = Job::Fetch(Fetch { rules: self.settings().rules(), known });
        match self.work(&job, &[url.0.as_fd(), fresh.file.as_fd()]).await? {
            Report::Fetched { validators } => {
                fresh.validators = validators;
                if key.is_some() {
                    self.node.metrics.looked_up(false);
                }
                Ok(fresh)
            }
            Report::NotModified => {
                self.node.metrics.looked_up(true);
                Ok(cached.ok_or_else(unexpected)?)
            }
            _ => Err(unexpected().into()),
        }
    }

    /// Unpacks a downloaded file, through a process in the container.
    async fn unpack(&self, planned: &PlannedTransfer, form: FileFormat, file: &File) -> Result<(), AttemptError> {
        let path = Path::new(&planned.path);
        let (dir, name) = match form {
            FileFormat::File => match (path.parent(), path.file_name().and_then(|name| name.to_str())) {
                (Some(dir), Some(name)) if !planned.path.ends_with('/') => (dir, name),
                _ => {
                    let why = format!("{} is a directory, and the download is not an archive", planned.path);
                    return Err(Failure::last(why).into());
                }
            },
            FileFormat::Tar | FileFormat::TarGzip | FileFormat::Zip => (path, ""),
        };
        let copy = CopyDirection::In { download: true };
        let (session, Stdio { input, stdout, stderr, .. }) = self.enter(planned, &dir.to_string_lossy(), copy).await?;
        let failure = copy::failure(stderr);
        let Some(input) = input else { return Err(unexpected().into()) };
        let job =
            Job::Unpack(Unpack { form, name: name.to_owned(), unpacked_bytes_max: self.settings().unpacked_bytes_max });
        let started = self.start(&job, &[file.as_fd(), input.fd()]).await?;
        drop(input); // the worker holds this end of the pipe
        let written = started.report().await;
        let done = async {
            let _ = copy::read_report(&stdout).await;
            copy::check_exit(session.ended().await, failure).await
        };
        match written {
            Err(Failure { kind: FailureKind::Final | FailureKind::Transient, why }) => Err(Failure::last(why).into()),
            Ok(Report::Unpacked) | Err(_) => done.await.map_err(|problem| to_failure(&problem).into()),
            Ok(_) => Err(unexpected().into()),
        }
    }

    /// Starts a process in the container that copies files as the step's user.
    async fn enter(
        &self,
        planned: &PlannedTransfer,
        path: &str,
        direction: CopyDirection,
    ) -> Result<(ExecSession, Stdio), AttemptError> {
        let user = planned.user.to_string();
        match exec::archive(&self.node, self.id.as_str(), path, &user, direction).await {
            Ok(ExecOutcome::Running(session, stdio)) => Ok((session, stdio)),
            Ok(ExecOutcome::Failed(ExecFailure { message, .. })) => Err(Failure::last(message).into()),
            Err(problem) => Err(to_failure(&problem).into()),
        }
    }

    async fn upload(&self, planned: &PlannedTransfer) -> Result<u64, AttemptError> {
        let _turn = self.turn().await?;
        self.in_time(async {
            let mut attempts = self.attempts();
            loop {
                match self.send(planned).await {
                    Ok(bytes) => return Ok(bytes),
                    Err(error) => attempts.again(error).await?,
                }
            }
        })
        .await
    }

    /// Reads the files through a process in the container, and uploads them.
    async fn send(&self, planned: &PlannedTransfer) -> Result<u64, AttemptError> {
        let url = self.url().await?;
        let copy = CopyDirection::Out { follow: true, stat: false };
        let (session, Stdio { stdout, stderr, .. }) = self.enter(planned, &planned.path, copy).await?;
        let failure = copy::failure(stderr);
        let job = Job::Send(Send { rules: self.settings().rules() });
        let started = self.start(&job, &[url.0.as_fd(), stdout.fd()]).await?;
        drop(stdout); // the worker holds this end of the pipe
        let sent = started.report().await;
        let done = || async { copy::check_exit(session.ended().await, failure).await };
        match sent {
            Ok(Report::Sent { bytes }) => match done().await {
                Ok(()) => Ok(bytes),
                Err(problem) => Err(to_failure(&problem).into()),
            },
            // The error of the process in the container has more detail.
            Err(failure @ Failure { kind: FailureKind::Pipe, .. }) => {
                Err(done().await.err().map_or(Failure::last(failure.why), |problem| to_failure(&problem)).into())
            }
            Err(failure) => Err(failure.into()),
            Ok(_) => Err(unexpected().into()),
        }
    }
}

fn unexpected() -> Failure {
    Failure::last("a worker sent an unexpected report")
}

/// Converts an API error of the process in the container. Launcher failures may be transient.
fn to_failure(problem: &ApiError) -> Failure {
    let reported: Vec<String> = problem.violations.iter().map(|violation| violation.description.clone()).collect();
    let why = if reported.is_empty() { problem.message.to_string() } else { reported.join("; ") };
    if problem.kind == Kind::Unavailable { Failure::transient(why) } else { Failure::last(why) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_steps_are_found_by_path() {
        let step = |path: &str, state| StepRecord {
            path: path.into(),
            state,
            started_at: Some(Timestamp(7)),
            ..StepRecord::default()
        };
        let steps = [step("setup", StepState::Succeeded), step("action", StepState::Running)];
        let start_of = |path: &str| start_of(path, &steps);
        assert_eq!([start_of("action"), start_of("setup"), start_of("other")], [Some(Timestamp(7)), None, None]);
    }
}
