//! Downloads and uploads of the steps of running containers.
//!
//! ```text
//!  shim's record: a step waits ──> task ── URL (memory file) ──> worker ── http ──> server
//!                                   │                              │ file in the state directory
//!                                   │                              v
//!                                   └── process in the container <── worker: look, unpack
//!  shim <── end of the step ───────┘
//! ```
//! The container's own task ([`Transferring`]) begins a transfer when it finds its step in the record, and drops it when the
//! step has ended or was cancelled. A later daemon finds the same steps, and begins the same transfers again. URL and bytes of a
//! tenant are read by workers alone, which this process starts from its own program and ends by closing their sockets.

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
use executor_transfers::job::{Failure, FailureKind, Fetch, Form, Job, Look, Report, Send, Unpack};
use executor_transfers::one_line;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::api_error::{ApiError, Kind};
use crate::ipc::memfiles::Wiped;
use crate::model::container::Handle;
use crate::model::container::link::ShimLink;
use crate::model::status::ContainerStatus;
use crate::node::Node;
use crate::operations::copy;
use crate::operations::exec::{self, CopyDirection, ExecOutcome, ExecSession, Stdio};
use crate::store::artifacts::{Entry, Settings, Turn};
use worker::{Idle, Worker};

/// Pauses between attempts.
const RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));

/// Transfers of a container that are under way, each with the start of its step, which may begin again. They end when this is
/// dropped.
#[derive(Debug, Default)]
pub(crate) struct Transferring(BTreeMap<usize, (Timestamp, AbortHandle)>);

impl Drop for Transferring {
    fn drop(&mut self) {
        self.0.values().for_each(|(_, task)| task.abort());
    }
}

impl Transferring {
    /// Begins the transfers whose steps run, and gives up those whose steps have ended.
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

/// Returns when a step began that runs.
fn start_of(path: &str, steps: &[StepRecord]) -> Option<Timestamp> {
    steps.iter().find(|step| step.path == path && step.state == StepState::Running)?.started_at
}

/// A transfer.
struct Transfer {
    node: Arc<Node>,
    id: ContainerId,
    link: Arc<ShimLink>,
    plan: Arc<Plan>,
    index: usize,
    /// Start of its step.
    began: Timestamp,
}

/// The shim is gone, or the step has ended: nobody waits for the transfer any more.
struct RecvError;

/// Why an attempt did not succeed.
enum Missed {
    Failed(Failure),
    RecvError,
}

impl From<Failure> for Missed {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<RecvError> for Missed {
    fn from(_: RecvError) -> Self {
        Self::RecvError
    }
}

impl From<io::Error> for Missed {
    fn from(error: io::Error) -> Self {
        Self::Failed(Failure::transient(crate::plain(&error)))
    }
}

/// Attempts at one thing.
struct Attempts<'a> {
    transfer: &'a Transfer,
    retry: Backoff,
    made: u32,
}

impl Attempts<'_> {
    /// Waits before another attempt.
    ///
    /// # Errors
    /// There is none: the failure is final, or there were enough.
    async fn again(&mut self, missed: Missed) -> Result<(), Missed> {
        match missed {
            Missed::Failed(Failure { why, kind: FailureKind::Transient })
                if self.made < self.transfer.settings().attempts =>
            {
                let (container, made) = (&self.transfer.id, self.made);
                tracing::debug!(%container, why, made, "an attempt at a transfer has failed");
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

    /// Carries it out, and tells the shim the end.
    async fn execute(self) {
        let Some(planned) = self.plan.transfers.get(self.index) else { return };
        let (container, step) = (&self.id, &planned.id);
        tracing::debug!(%container, step, "a transfer begins");
        let ended = match planned.direction {
            Direction::Download => self.download(planned).await,
            Direction::Upload => self.upload(planned).await,
        };
        let (bytes, error) = match ended {
            Ok(bytes) => (bytes, String::new()),
            Err(Missed::Failed(failure)) => (0, one_line(&failure.why)),
            Err(Missed::RecvError) => return,
        };
        match &*error {
            "" => tracing::info!(%container, step, bytes, "a transfer has ended"),
            why => tracing::info!(%container, step, why, "a transfer has failed"),
        }
        let end = EndTransfer { transfer: self.number(), error, bytes, began: self.began.0 };
        if let Err(Some(problem)) = self.link.call(ShimCall::EndTransfer(end)).await {
            tracing::debug!(%container, step, "the end of a transfer was not taken: {problem}");
        }
    }

    fn number(&self) -> u32 {
        u32::try_from(self.index).unwrap_or(u32::MAX)
    }

    /// Gets the URL, in a memory file that is never read here.
    async fn url(&self) -> Result<Wiped, Missed> {
        let call = ShimCall::ReadTransfer(ReadTransfer { transfer: self.number() });
        let fd = self.link.call_with_fds(call, &[]).await.ok().flatten().ok_or(RecvError)?;
        Ok(Wiped(MemFile::from_fd_to_wipe(fd, URL_MAX as u64)?))
    }

    /// Starts a worker, has the shim limit its processor time, and gives it a job.
    async fn start(&self, job: &Job, fds: &[BorrowedFd<'_>]) -> Result<Worker, Missed> {
        let failed = |error: io::Error| Failure::transient(format!("worker: {}", crate::plain(&error)));
        let idle = Idle::start().map_err(failed)?;
        let pidfd = idle.pidfd().map_err(failed)?;
        let call = ShimCall::LimitWorker(LimitWorker { transfer: self.number() });
        match self.link.call_with_fds(call, &[pidfd.as_fd()]).await {
            Ok(_) => Ok(idle.give(job, fds).map_err(failed)?),
            Err(Some(refused)) if refused.reason() != Reason::NotFound => {
                Err(Failure::transient(format!("worker: {}", refused.message)).into())
            }
            Err(_) => Err(RecvError.into()), // the step has ended
        }
    }

    /// Has a worker do a job, and returns its report.
    async fn work(&self, job: &Job, fds: &[BorrowedFd<'_>]) -> Result<Report, Missed> {
        Ok(self.start(job, fds).await?.report().await?)
    }

    /// Waits for its turn.
    async fn turn(&self) -> Result<Turn, RecvError> {
        self.node.artifacts.turns.wait(&self.id).await.ok_or(RecvError)
    }

    /// Has a worker read the place of the URL.
    async fn place(&self) -> Result<String, Missed> {
        let url = self.url().await?;
        match self.work(&Job::Locate, &[url.0.as_fd()]).await? {
            Report::Located { place } => Ok(place),
            _ => Err(unexpected().into()),
        }
    }

    fn attempts(&self) -> Attempts<'_> {
        Attempts { transfer: self, retry: RETRY, made: 1 }
    }

    /// Bounds the time of a transfer.
    async fn in_time<T>(&self, transfer: impl Future<Output = Result<T, Missed>>) -> Result<T, Missed> {
        let limit = self.settings().time_max;
        let late = |_| Failure::last(format!("it took longer than {} s", limit.as_secs()));
        timeout(limit, transfer).await.map_err(late)?
    }

    async fn download(&self, planned: &PlannedTransfer) -> Result<u64, Missed> {
        let cache = &self.node.artifacts.cache;
        let _turn = self.turn().await?;
        self.in_time(async {
            // Of several downloads of one artifact the first one fetches it. The others wait in their own time.
            let held = match cache.is_used() && !planned.cache_key.is_empty() {
                true => Some(cache.hold(&self.place().await?, &planned.cache_key).await),
                false => None,
            };
            let mut attempts = self.attempts();
            let entry = loop {
                match self.fetch(held.as_deref()).await {
                    Ok(entry) => break entry,
                    Err(missed) => attempts.again(missed).await?,
                }
            };
            // The next one may fetch while this one is unpacked.
            let look =
                Look { checksum: planned.checksum.clone(), unpacked_bytes_max: self.settings().unpacked_bytes_max };
            let looked = self.work(&Job::Look(look), &[entry.file.as_fd()]).await?;
            let Report::Looked { form, bytes } = looked else { return Err(unexpected().into()) };
            if let Some(held) = &held {
                cache.store(held, &entry);
            }
            let mut attempts = self.attempts();
            while let Err(missed) = self.unpack(planned, form, &entry.file).await {
                attempts.again(missed).await?;
            }
            Ok(bytes)
        })
        .await
    }

    /// Fetches the artifact, or finds that the cached copy is the present one.
    async fn fetch(&self, key: Option<&str>) -> Result<Entry, Missed> {
        let cache = &self.node.artifacts.cache;
        let cached = key.and_then(|key| cache.get(key));
        let url = self.url().await?;
        let mut fresh = cache.staging().map_err(|error| {
            Failure::last(format!("no room for a download in {}: {}", cache.dir().display(), crate::plain(&error)))
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

    /// Has a downloaded file unpacked in the container, by a process there.
    async fn unpack(&self, planned: &PlannedTransfer, form: Form, file: &File) -> Result<(), Missed> {
        let path = Path::new(&planned.path);
        let (dir, name) = match form {
            Form::File => match (path.parent(), path.file_name().and_then(|name| name.to_str())) {
                (Some(dir), Some(name)) if !planned.path.ends_with('/') => (dir, name),
                _ => {
                    let why = format!("{} is a directory, and the download is not an archive", planned.path);
                    return Err(Failure::last(why).into());
                }
            },
            Form::Tar | Form::TarGzip | Form::Zip => (path, ""),
        };
        let copy = CopyDirection::In { download: true };
        let (session, Stdio { input, stdout, stderr, .. }) = self.enter(planned, &dir.to_string_lossy(), copy).await?;
        let failure = copy::failure(stderr);
        let Some(input) = input else { return Err(unexpected().into()) };
        let job =
            Job::Unpack(Unpack { form, name: name.to_owned(), unpacked_bytes_max: self.settings().unpacked_bytes_max });
        let started = self.start(&job, &[file.as_fd(), input.fd()]).await?;
        drop(input); // the worker has the pipe's only end
        let written = started.report().await;
        let done = async {
            let _ = copy::all(&stdout).await;
            copy::succeeded(session.ended().await, failure).await
        };
        match written {
            Err(Failure { kind: FailureKind::Final | FailureKind::Transient, why }) => Err(Failure::last(why).into()),
            Ok(Report::Unpacked) | Err(_) => done.await.map_err(|problem| of_problem(&problem).into()),
            Ok(_) => Err(unexpected().into()),
        }
    }

    /// Starts a process in the container that copies as the step's user.
    async fn enter(
        &self,
        planned: &PlannedTransfer,
        path: &str,
        direction: CopyDirection,
    ) -> Result<(ExecSession, Stdio), Missed> {
        let user = planned.user.to_string();
        match exec::archive(&self.node, self.id.as_str(), path, &user, direction).await {
            Ok(ExecOutcome::Running(session, stdio)) => Ok((session, stdio)),
            Ok(ExecOutcome::Failed(ExecFailure { message, .. })) => Err(Failure::last(message).into()),
            Err(problem) => Err(of_problem(&problem).into()),
        }
    }

    async fn upload(&self, planned: &PlannedTransfer) -> Result<u64, Missed> {
        let _turn = self.turn().await?;
        self.in_time(async {
            let mut attempts = self.attempts();
            loop {
                match self.send(planned).await {
                    Ok(bytes) => return Ok(bytes),
                    Err(missed) => attempts.again(missed).await?,
                }
            }
        })
        .await
    }

    /// Reads the files in the container, by a process there, and has them sent.
    async fn send(&self, planned: &PlannedTransfer) -> Result<u64, Missed> {
        let url = self.url().await?;
        let copy = CopyDirection::Out { follow: true, stat: false };
        let (session, Stdio { stdout, stderr, .. }) = self.enter(planned, &planned.path, copy).await?;
        let failure = copy::failure(stderr);
        let job = Job::Send(Send { rules: self.settings().rules() });
        let started = self.start(&job, &[url.0.as_fd(), stdout.fd()]).await?;
        drop(stdout); // the worker has the pipe's only end
        let sent = started.report().await;
        let done = || async { copy::succeeded(session.ended().await, failure).await };
        match sent {
            Ok(Report::Sent { bytes }) => match done().await {
                Ok(()) => Ok(bytes),
                Err(problem) => Err(of_problem(&problem).into()),
            },
            // The process in the container knows more, where it has failed.
            Err(failure @ Failure { kind: FailureKind::Pipe, .. }) => {
                Err(done().await.err().map_or(Failure::last(failure.why), |problem| of_problem(&problem)).into())
            }
            Err(failure) => Err(failure.into()),
            Ok(_) => Err(unexpected().into()),
        }
    }
}

fn unexpected() -> Failure {
    Failure::last("a worker gave an unexpected report")
}

/// A problem with the process in the container. What depends on the launcher may pass.
fn of_problem(problem: &ApiError) -> Failure {
    let reported: Vec<String> = problem.violations.iter().map(|violation| violation.description.clone()).collect();
    let why = if reported.is_empty() { problem.message.to_string() } else { reported.join("; ") };
    if problem.kind == Kind::Unavailable { Failure::transient(why) } else { Failure::last(why) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_run_are_found_by_their_paths() {
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
