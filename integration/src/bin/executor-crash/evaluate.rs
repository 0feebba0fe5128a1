//! Checks the conditions that must hold after a kill, once a supervisor has restarted the exited processes.
//!
//! The order of the checks is:
//! - the container's outcome: its exit code is known or reported as unknown, or the container does not exist and the
//!   client saw an error
//! - the same request again under the same id
//! - the deletion
//! - a new run under the same id
//! - leftovers on the host and in memory, when no container is running

use std::time::{Duration, Instant};

use executor_proto::v1::{Container, Result as Ending, RunRequest, RunResponse, State, exit_status, failure};
use executor_residue::process::Process;
use executor_residue::{Needles, Report, Search};
use integration::footprint::Footprint;
use integration::supervised::{Part, Supervised};
use integration::{identity, wait};
use tonic::{Code, Status};

use crate::cycle::{self, CODE, ClientAnswers, Secrets, bounded, drive};
use crate::host_network::HostNetwork;

/// Timeout for cleanup by a shim and by the kernel after a container's exit.
pub(crate) const CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time for which a copy of a secret may stay in memory, in a buffer that is about to be overwritten.
const WIPE_TIMEOUT: Duration = Duration::from_secs(1);

/// Outcome of a container after a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fate {
    /// The exit code is known.
    Known,
    /// The exit code is reported as unknown.
    Unknown,
    /// The container does not exist, and the client saw an error.
    Refused,
}

impl Fate {
    pub(crate) const ALL: [Self; 3] = [Self::Known, Self::Unknown, Self::Refused];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Known => "exit code known",
            Self::Unknown => "exit code reported as unknown",
            Self::Refused => "refused, id free",
        }
    }
}

/// Result of the checks after one kill.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// Outcome of the container, if it was determined.
    pub(crate) fate: Option<Fate>,
    /// True if the result contains a wipe receipt; `None` if there is no result.
    pub(crate) receipt: Option<bool>,
    /// Every violated condition.
    pub(crate) wrong: Vec<String>,
}

/// A kill and the cycle in which it happened.
pub(crate) struct KilledCycle<'a> {
    pub(crate) node: &'a Supervised,
    pub(crate) before: &'a Footprint,
    pub(crate) request: &'a RunRequest,
    pub(crate) secrets: &'a Secrets,
    /// Needles for the secrets of this cycle and of earlier cycles.
    pub(crate) needles: &'a Needles,
    /// Simulated host of the node, if its containers are on a network.
    pub(crate) host: Option<&'a HostNetwork>,
    /// True if the container's shim was not killed, so the exit code must be known.
    pub(crate) shim_lived: bool,
    /// True if both the launcher and executord were killed, so that the key for request digests is lost.
    pub(crate) key_lost: bool,
}

impl KilledCycle<'_> {
    /// Checks every condition.
    pub(crate) fn evaluate(&self, answers: &ClientAnswers) -> Verdict {
        let mut verdict = Verdict::default();
        self.check_client(answers, &mut verdict);
        let there = self.find_fate(answers, &mut verdict);
        if there {
            self.check_same_request(&mut verdict);
        }
        self.check_deletion(there, &mut verdict);
        self.check_next_run(&mut verdict);
        if let Err(left) = self.node.wait_until_back_at(self.before, CLEANUP_TIMEOUT) {
            verdict.wrong.push(format!("leftovers on the host: {}", left.trim_end().replace('\n', "; ")));
        }
        if let Some(Err(left)) = self.host.map(|host| wait::within(CLEANUP_TIMEOUT, || host.check(self.node))) {
            verdict.wrong.push(format!("leftovers on the network: {}", left.join("; ")));
        }
        verdict.wrong.extend(check_residue(|| search(self.node, self.needles, true)));
        verdict
    }

    /// Checks that no call by the client hung, and that the responses are correct.
    fn check_client(&self, answers: &ClientAnswers, verdict: &mut Verdict) {
        let calls = [
            ("Run", answers.run.as_ref().and_then(|run| run.as_ref().err())),
            ("StreamLogs", answers.output.as_ref().and_then(|output| output.as_ref().err())),
            ("UpdateFiles", answers.update.as_ref().and_then(|update| update.as_ref().err())),
            ("GetOutputs", answers.captured.as_ref().and_then(|captured| captured.as_ref().err())),
            ("Wait", answers.wait.as_ref().and_then(|wait| wait.as_ref().err())),
            ("Delete", answers.delete.as_ref().and_then(|delete| delete.as_ref().err())),
        ];
        for (name, error) in calls {
            if let Some(error) = error.filter(|error| cycle::hung(error)) {
                verdict.wrong.push(format!("{name} {}", error.message()));
            }
        }
        if let Some(Ok(run)) = &answers.run
            && !run.created
        {
            verdict.wrong.push("Run of a new id returned created=false".into());
        }
        if self.shim_lived
            && let Some(Ok(captured)) = &answers.captured
            && captured != cycle::CONTENT
        {
            verdict.wrong.push(format!("the client received the outputs {:?}", String::from_utf8_lossy(captured)));
        }
        if self.shim_lived
            && let Some(Ok(output)) = &answers.output
            && *output != cycle::output(self.secrets)
        {
            verdict.wrong.push(format!("the client read {:?}", String::from_utf8_lossy(output)));
        }
    }

    /// Determines the outcome of the container. Returns true if the container exists.
    fn find_fate(&self, answers: &ClientAnswers, verdict: &mut Verdict) -> bool {
        let id = &self.request.id;
        let run_failed = answers.run.as_ref().is_none_or(Result::is_err);
        let waited = answers.wait.as_ref().and_then(|wait| wait.as_ref().ok());
        match drive(&self.node.api, async |mut rpc| cycle::get(&mut rpc, id).await) {
            Ok(_) => {
                if matches!(answers.delete, Some(Ok(()))) {
                    verdict.wrong.push("the deleted container exists".into());
                }
                let brought =
                    drive(&self.node.api, async |mut rpc| cycle::let_proceed(&mut rpc, id, self.secrets).await);
                if let Err(status) = brought {
                    verdict.wrong.push(format!("UpdateFiles: {}", describe(&status)));
                }
                match drive(&self.node.api, async |mut rpc| cycle::wait(&mut rpc, id).await) {
                    Ok(container) => self.check_result(&container, waited, verdict),
                    // The container existed while it was being created, and then its start failed.
                    Err(status) if run_failed && refused(&status) => {
                        verdict.fate = Some(Fate::Refused);
                        return false;
                    }
                    Err(status) => verdict
                        .wrong
                        .push(format!("Wait does not report the exit of the container: {}", describe(&status))),
                }
                true
            }
            Err(status) if status.code() == Code::NotFound => {
                match (waited, run_failed) {
                    (Some(container), _) if answers.delete.is_some() => self.check_result(container, None, verdict),
                    (_, true) => verdict.fate = Some(Fate::Refused),
                    _ => verdict.wrong.push("Run succeeded, but the container is unknown".into()),
                }
                false
            }
            Err(status) => {
                verdict.wrong.push(format!("Get: {}", describe(&status)));
                true
            }
        }
    }

    /// Checks that a completed container reports its exit correctly, with the same result for all callers.
    fn check_result(&self, container: &Container, earlier: Option<&Container>, verdict: &mut Verdict) {
        let Some(ending) = container.result.as_ref().filter(|_| container.state() == State::Completed) else {
            verdict.wrong.push(format!("Wait returned a container in state {}", container.state().as_str_name()));
            return;
        };
        verdict.receipt = Some(ending.wipe.is_some());
        // The kill hit the process itself, or the process that starts the steps of a tree. The failure in the result
        // reports this.
        let is_cut = ending.failure.as_ref().is_some_and(|failure| failure.kind() == failure::Kind::Action);
        if is_cut && exit_code(ending).is_none() {
            verdict.fate = Some(Fate::Known);
            return;
        }
        match (exit_code(ending), &ending.failure) {
            (Some(CODE), None) => verdict.fate = Some(Fate::Known),
            // If the process exits on its own with a code other than 0, the result has a failure in addition to the
            // exit code.
            (Some(CODE), Some(failure)) if failure.kind() == failure::Kind::Action => verdict.fate = Some(Fate::Known),
            (None, Some(_)) if ending.exit.is_none() => verdict.fate = Some(Fate::Unknown),
            _ => verdict.wrong.push(format!("the result has exit {:?} and failure {:?}", ending.exit, ending.failure)),
        }
        if self.shim_lived && verdict.fate == Some(Fate::Unknown) {
            verdict.wrong.push(format!("the shim was not killed, but the exit code is unknown: {:?}", ending.failure));
        }
        if let Some(earlier) = earlier.and_then(|earlier| earlier.result.as_ref())
            && earlier != ending
        {
            verdict.wrong.push(format!("the client received the result {earlier:?}, and later {ending:?}"));
        }
        if self.shim_lived && earlier.is_none() && container.state() == State::Completed {
            let id = &self.request.id;
            match drive(&self.node.api, async |mut rpc| cycle::read_output(&mut rpc, id).await) {
                Ok(output) if output == cycle::output(self.secrets) => {}
                Ok(output) => verdict.wrong.push(format!("the log contains {:?}", String::from_utf8_lossy(&output))),
                Err(status) if status.code() == Code::NotFound => {} // deleted by the client's own last call
                Err(status) => verdict.wrong.push(format!("StreamLogs: {}", describe(&status))),
            }
        }
    }

    /// Checks that the same request under the same id returns the existing container.
    fn check_same_request(&self, verdict: &mut Verdict) {
        match self.run() {
            Ok(false) => {}
            Ok(true) => verdict.wrong.push("the repeated request created the container a second time".into()),
            Err(status) if self.key_lost && status.code() == Code::AlreadyExists => {}
            Err(status) => verdict.wrong.push(format!("the repeated request: {}", describe(&status))),
        }
    }

    fn check_deletion(&self, there: bool, verdict: &mut Verdict) {
        let id = &self.request.id;
        let delete = executor_proto::v1::DeleteRequest { id: id.clone(), force: true };
        match drive(&self.node.api, async |mut rpc| bounded(rpc.delete(delete)).await) {
            Ok(_) => {}
            Err(status) if !there && status.code() == Code::NotFound => {}
            Err(status) => verdict.wrong.push(format!("Delete: {}", describe(&status))),
        }
    }

    /// Checks that a new run under the same id works and can be deleted.
    fn check_next_run(&self, verdict: &mut Verdict) {
        let id = &self.request.id;
        self.secrets.offer_first();
        match self.run() {
            Ok(true) => {}
            Ok(false) => return verdict.wrong.push("the next run with the same id returned the old container".into()),
            Err(status) => return verdict.wrong.push(format!("the next run: {}", describe(&status))),
        }
        let delete = executor_proto::v1::DeleteRequest { id: id.clone(), force: true };
        let (output, ended, captured, deleted) = drive(&self.node.api, async |mut rpc| {
            if let Err(status) = cycle::wait_until_up(&mut rpc, id).await {
                verdict.wrong.push(format!("the next run: StreamLogs: {}", describe(&status)));
            }
            if let Err(status) = cycle::let_proceed(&mut rpc, id, self.secrets).await {
                verdict.wrong.push(format!("the next run: UpdateFiles: {}", describe(&status)));
            }
            let output = cycle::read_output(&mut rpc, id).await;
            let (ended, captured) = (cycle::wait(&mut rpc, id).await, cycle::captured(&mut rpc, id).await);
            (output, ended, captured, bounded(rpc.delete(delete)).await)
        });
        if !captured.as_ref().is_ok_and(|captured| captured == cycle::CONTENT) {
            verdict.wrong.push(format!("the next run: unexpected outputs {captured:?}"));
        }
        match ended.as_ref().map(|ended| ended.result.as_ref().and_then(exit_code)) {
            Ok(Some(CODE)) => {}
            Ok(_) => verdict.wrong.push(format!("the next run exited with {ended:?}")),
            Err(status) => verdict.wrong.push(format!("the next run: Wait: {}", describe(status))),
        }
        match output {
            Ok(output) if output == cycle::output(self.secrets) => {}
            Ok(output) => verdict.wrong.push(format!("the next run printed {:?}", String::from_utf8_lossy(&output))),
            Err(status) => verdict.wrong.push(format!("the next run: StreamLogs: {}", describe(&status))),
        }
        if let Err(status) = deleted {
            verdict.wrong.push(format!("the next run: Delete: {}", describe(&status)));
        }
    }

    /// Makes the request again. Returns true if a container was created.
    fn run(&self) -> Result<bool, Status> {
        run(self.node, self.request).map(|run| run.created)
    }
}

/// Makes a request after a kill. executord may not have detected yet that the launcher was killed. In that case
/// executord returns UNAVAILABLE, as documented, and this function repeats the call.
pub(crate) fn run(node: &Supervised, request: &RunRequest) -> Result<RunResponse, Status> {
    let answer = wait::within(CLEANUP_TIMEOUT, || {
        let request = request.clone();
        match drive(&node.api, async |mut rpc| bounded(rpc.run(request)).await) {
            Err(status) if status.code() == Code::Unavailable => Err(status),
            answer => Ok(answer.map(tonic::Response::into_inner)),
        }
    });
    answer.unwrap_or_else(Err)
}

/// Checks that a search finds no secret. Returns the violations.
pub(crate) fn check_residue(search: impl Fn() -> Report) -> Vec<String> {
    let deadline = Instant::now() + WIPE_TIMEOUT;
    loop {
        let report = search();
        if !report.found() {
            return report.unsearched.iter().map(|it| format!("cannot search {}: {}", it.what, it.why)).collect();
        }
        if Instant::now() > deadline {
            let hits: Vec<String> = report.hits.iter().map(ToString::to_string).collect();
            return vec![format!("a secret remains: {}", hits.join("; "))];
        }
        // The process overwrites the buffer in its next step.
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Searches all files of the node, and the memory and descriptors of the executor's processes, including shims if
/// `shims` is true.
pub(crate) fn search(node: &Supervised, needles: &Needles, shims: bool) -> Report {
    let mut search = Search::new(needles);
    search.files(node.home());
    let own = [node.pid(Part::Executord), node.pid(Part::Launcher)];
    let signers = identity::signers(node.pid(Part::Launcher));
    let shims = if shims { node.shims() } else { Vec::new() };
    for pid in own.into_iter().chain(signers).chain(shims) {
        if let Some(process) = Process::from_pid(pid.unsigned_abs()) {
            search.process(&process);
        }
    }
    search.report()
}

fn exit_code(ending: &Ending) -> Option<i32> {
    match ending.exit.as_ref()?.status.as_ref()? {
        exit_status::Status::Code(code) => Some(*code),
        exit_status::Status::Signal(_) => None,
    }
}

fn refused(status: &Status) -> bool {
    !cycle::hung(status)
}

pub(crate) fn describe(status: &Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}
