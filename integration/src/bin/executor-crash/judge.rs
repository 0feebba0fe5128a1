//! What must hold after a kill, once a supervisor has started again what had died.
//!
//! Asked in this order: what became of the container (its exit code is known, or it is said that it is unknown, or
//! nothing of it is there and the client saw an error); the same request again under the same id; its deletion; a new
//! run under the same id; and then, with nothing alive, what is left on the host and in memory.

use std::time::{Duration, Instant};

use executor_proto::v1::{Container, Result as Ending, RunRequest, State, exit_status};
use executor_residue::process::Process;
use executor_residue::{Needles, Report, Search};
use integration::footprint::Footprint;
use integration::supervised::{Part, Supervised};
use tonic::{Code, Status};

use crate::life::{self, CODE, Secrets, Trail, bounded, drive};

/// How long the last steps of a shim and of the kernel may take.
const TIDY: Duration = Duration::from_secs(30);
/// How long after an end a copy of a secret may be in a buffer that is about to be overwritten.
const RESIDUE: Duration = Duration::from_secs(1);

/// What is known of a container's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fate {
    /// Its exit code.
    Known,
    /// That it is unknown.
    Unknown,
    /// That there is no container: the client saw an error.
    Refused,
}

impl Fate {
    pub(crate) const ALL: [Self; 3] = [Self::Known, Self::Unknown, Self::Refused];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Known => "exit code known",
            Self::Unknown => "unknown, and said so",
            Self::Refused => "refused, id free",
        }
    }
}

/// The judgement of one kill.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// What became of the container.
    pub(crate) fate: Option<Fate>,
    /// Its result has a receipt of the wipe. `None` where it has no result.
    pub(crate) receipt: Option<bool>,
    /// All that is wrong.
    pub(crate) wrong: Vec<String>,
}

/// What is asked about.
pub(crate) struct Case<'a> {
    pub(crate) node: &'a Supervised,
    pub(crate) before: &'a Footprint,
    pub(crate) request: &'a RunRequest,
    pub(crate) secrets: &'a Secrets,
    /// What finds it, and those of the lives before.
    pub(crate) needles: &'a Needles,
    /// The container's shim was not touched: its exit code must be known.
    pub(crate) shim_lived: bool,
    /// The key of request tags is gone, with launcher and executord.
    pub(crate) key_lost: bool,
}

impl Case<'_> {
    /// Asks everything.
    pub(crate) fn judge(&self, trail: &Trail) -> Verdict {
        let mut verdict = Verdict::default();
        self.client(trail, &mut verdict);
        let there = self.fate(trail, &mut verdict);
        if there {
            self.again(&mut verdict);
        }
        self.deleted(there, &mut verdict);
        self.next_run(&mut verdict);
        if let Err(left) = self.node.is_back_at(self.before, TIDY) {
            verdict.wrong.push(format!("left on the host: {}", left.trim_end().replace('\n', "; ")));
        }
        self.residue(&mut verdict);
        verdict
    }

    /// No call of the client's hung, and what it was told is right.
    fn client(&self, trail: &Trail, verdict: &mut Verdict) {
        let calls = [
            ("Run", trail.run.as_ref().and_then(|run| run.as_ref().err())),
            ("StreamLogs", trail.output.as_ref().and_then(|output| output.as_ref().err())),
            ("UpdateFiles", trail.update.as_ref().and_then(|update| update.as_ref().err())),
            ("GetOutputs", trail.captured.as_ref().and_then(|captured| captured.as_ref().err())),
            ("Wait", trail.wait.as_ref().and_then(|wait| wait.as_ref().err())),
            ("Delete", trail.delete.as_ref().and_then(|delete| delete.as_ref().err())),
        ];
        for (name, error) in calls {
            if let Some(error) = error.filter(|error| life::hung(error)) {
                verdict.wrong.push(format!("{name} {}", error.message()));
            }
        }
        if let Some(Ok(run)) = &trail.run
            && !run.created
        {
            verdict.wrong.push("Run of a new id answered created=false".into());
        }
        if self.shim_lived
            && let Some(Ok(captured)) = &trail.captured
            && captured != life::CONTENT
        {
            verdict.wrong.push(format!("the client got outputs {:?}", String::from_utf8_lossy(captured)));
        }
        if self.shim_lived
            && let Some(Ok(output)) = &trail.output
            && *output != life::output(self.secrets)
        {
            verdict.wrong.push(format!("the client read {:?}", String::from_utf8_lossy(output)));
        }
    }

    /// What became of the container. Tells whether it is there.
    fn fate(&self, trail: &Trail, verdict: &mut Verdict) -> bool {
        let id = &self.request.id;
        let run_failed = trail.run.as_ref().is_none_or(Result::is_err);
        let waited = trail.wait.as_ref().and_then(|wait| wait.as_ref().ok());
        match drive(&self.node.api, async |mut rpc| life::get(&mut rpc, id).await) {
            Ok(_) => {
                if matches!(trail.delete, Some(Ok(()))) {
                    verdict.wrong.push("it was deleted, and is there again".into());
                }
                let brought = drive(&self.node.api, async |mut rpc| life::bring_on(&mut rpc, id, self.secrets).await);
                if let Err(status) = brought {
                    verdict.wrong.push(format!("UpdateFiles: {}", words(&status)));
                }
                match drive(&self.node.api, async |mut rpc| life::wait(&mut rpc, id).await) {
                    Ok(container) => self.told(&container, waited, verdict),
                    // It was found while it was being made, and then it could not be made.
                    Err(status) if run_failed && refused(&status) => {
                        verdict.fate = Some(Fate::Refused);
                        return false;
                    }
                    Err(status) => verdict.wrong.push(format!("its fate is not told: Wait: {}", words(&status))),
                }
                true
            }
            Err(status) if status.code() == Code::NotFound => {
                match (waited, run_failed) {
                    (Some(container), _) if trail.delete.is_some() => self.told(container, None, verdict),
                    (_, true) => verdict.fate = Some(Fate::Refused),
                    _ => verdict.wrong.push("Run answered, and the container is forgotten".into()),
                }
                false
            }
            Err(status) => {
                verdict.wrong.push(format!("Get: {}", words(&status)));
                true
            }
        }
    }

    /// A completed container says how it ended, honestly, and says the same to everybody.
    fn told(&self, container: &Container, earlier: Option<&Container>, verdict: &mut Verdict) {
        let Some(ending) = container.result.as_ref().filter(|_| container.state() == State::Completed) else {
            verdict.wrong.push(format!("Wait answered a container that is {}", container.state().as_str_name()));
            return;
        };
        verdict.receipt = Some(ending.wipe.is_some());
        match (code(ending), &ending.failure) {
            (Some(CODE), None) => verdict.fate = Some(Fate::Known),
            (None, Some(_)) if ending.exit.is_none() => verdict.fate = Some(Fate::Unknown),
            _ => verdict.wrong.push(format!("it says exit {:?}, failure {:?}", ending.exit, ending.failure)),
        }
        if self.shim_lived && verdict.fate == Some(Fate::Unknown) {
            verdict.wrong.push(format!("its shim lived, and its end is unknown: {:?}", ending.failure));
        }
        if let Some(earlier) = earlier.and_then(|earlier| earlier.result.as_ref())
            && earlier != ending
        {
            verdict.wrong.push(format!("the client was told {earlier:?} before, and now {ending:?}"));
        }
        if self.shim_lived && earlier.is_none() && container.state() == State::Completed {
            let id = &self.request.id;
            match drive(&self.node.api, async |mut rpc| life::read_output(&mut rpc, id).await) {
                Ok(output) if output == life::output(self.secrets) => {}
                Ok(output) => verdict.wrong.push(format!("its log holds {:?}", String::from_utf8_lossy(&output))),
                Err(status) if status.code() == Code::NotFound => {} // deleted by the client's own last call
                Err(status) => verdict.wrong.push(format!("StreamLogs: {}", words(&status))),
            }
        }
    }

    /// The same request under the same id, while the container is there: the same container.
    fn again(&self, verdict: &mut Verdict) {
        match self.run() {
            Ok(false) => {}
            Ok(true) => verdict.wrong.push("the same request made the container a second time".into()),
            Err(status) if self.key_lost && status.code() == Code::AlreadyExists => {}
            Err(status) => verdict.wrong.push(format!("the same request again: {}", words(&status))),
        }
    }

    fn deleted(&self, there: bool, verdict: &mut Verdict) {
        let id = &self.request.id;
        let delete = executor_proto::v1::DeleteRequest { id: id.clone(), force: true };
        match drive(&self.node.api, async |mut rpc| bounded(rpc.delete(delete)).await) {
            Ok(_) => {}
            Err(status) if !there && status.code() == Code::NotFound => {}
            Err(status) => verdict.wrong.push(format!("Delete: {}", words(&status))),
        }
    }

    /// A new run under the same id works and goes.
    fn next_run(&self, verdict: &mut Verdict) {
        let id = &self.request.id;
        match self.run() {
            Ok(true) => {}
            Ok(false) => return verdict.wrong.push("the next run under the id found an old container".into()),
            Err(status) => return verdict.wrong.push(format!("the next run: {}", words(&status))),
        }
        let delete = executor_proto::v1::DeleteRequest { id: id.clone(), force: true };
        let (output, ended, captured, deleted) = drive(&self.node.api, async |mut rpc| {
            if let Err(status) = life::is_up(&mut rpc, id).await {
                verdict.wrong.push(format!("the next run: StreamLogs: {}", words(&status)));
            }
            if let Err(status) = life::bring_on(&mut rpc, id, self.secrets).await {
                verdict.wrong.push(format!("the next run: UpdateFiles: {}", words(&status)));
            }
            let output = life::read_output(&mut rpc, id).await;
            let (ended, captured) = (life::wait(&mut rpc, id).await, life::captured(&mut rpc, id).await);
            (output, ended, captured, bounded(rpc.delete(delete)).await)
        });
        if !captured.as_ref().is_ok_and(|captured| captured == life::CONTENT) {
            verdict.wrong.push(format!("the next run: outputs {captured:?}"));
        }
        match ended.as_ref().map(|ended| ended.result.as_ref().and_then(code)) {
            Ok(Some(CODE)) => {}
            Ok(_) => verdict.wrong.push(format!("the next run ended with {ended:?}")),
            Err(status) => verdict.wrong.push(format!("the next run: Wait: {}", words(status))),
        }
        match output {
            Ok(output) if output == life::output(self.secrets) => {}
            Ok(output) => verdict.wrong.push(format!("the next run printed {:?}", String::from_utf8_lossy(&output))),
            Err(status) => verdict.wrong.push(format!("the next run: StreamLogs: {}", words(&status))),
        }
        if let Err(status) = deleted {
            verdict.wrong.push(format!("the next run: Delete: {}", words(&status)));
        }
    }

    fn run(&self) -> Result<bool, Status> {
        let request = self.request.clone();
        drive(&self.node.api, async |mut rpc| bounded(rpc.run(request)).await).map(|run| run.into_inner().created)
    }

    /// No process of ours and no file holds a canary of this sweep.
    fn residue(&self, verdict: &mut Verdict) {
        let deadline = Instant::now() + RESIDUE;
        loop {
            let report = self.traces();
            if !report.found() {
                verdict
                    .wrong
                    .extend(report.unsearched.iter().map(|it| format!("not searched: {}: {}", it.what, it.why)));
                return;
            }
            if Instant::now() > deadline {
                let hits: Vec<String> = report.hits.iter().map(ToString::to_string).collect();
                return verdict.wrong.push(format!("the secret is left: {}", hits.join("; ")));
            }
            // A buffer is overwritten by what its owner does next.
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Memory and descriptors of our processes, and all files of the node.
    fn traces(&self) -> Report {
        let mut search = Search::new(self.needles);
        search.files(self.node.home());
        let own = [self.node.pid(Part::Executord), self.node.pid(Part::Launcher)];
        for pid in own.into_iter().chain(self.node.shims()) {
            if let Some(process) = Process::of(pid.unsigned_abs()) {
                search.process(&process);
            }
        }
        search.report()
    }
}

fn code(ending: &Ending) -> Option<i32> {
    match ending.exit.as_ref()?.status.as_ref()? {
        exit_status::Status::Code(code) => Some(*code),
        exit_status::Status::Signal(_) => None,
    }
}

fn refused(status: &Status) -> bool {
    !life::hung(status)
}

fn words(status: &Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}
