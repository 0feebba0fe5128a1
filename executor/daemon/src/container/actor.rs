//! The one task that changes a container: from its launch, or from its recovery, to its completion.
//!
//! ```text
//!  launch ──> follow the shim's reports ──> exit record ──> completed
//!    │               │  connection lost
//!    │               └──> exit record? shim again? else wait for the launcher, which finishes what a shim left
//!    └─ refused ──> wiping, completed, deleted: the id is free, and whoever waits is told why
//! ```
//! Reports may come twice, late or not at all: only `lifecycle::advance` says what is news, and only an exit record
//! completes a container, unless nobody is left who could write one.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use executor_core::lifecycle::{State, advance};
use executor_core::protocol::{self, LauncherAnswer, LauncherCall, ShimNews};
use executor_core::record::{Exit, FailureKind};
use executor_sys::memfile::MemFile;
use executor_sys::seqpacket::Seqpacket;

use super::facts::Facts;
use super::link::ShimLink;
use super::{Handle, Known, records};
use crate::events::What;
use crate::launcher::{Lost, Session};
use crate::node::Node;
use crate::problem::{Kind, Problem};

/// Between attempts to reach a shim whose connection broke: the first, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// What goes to the launcher with a new container. Holds the only copies of its secrets in this process.
#[derive(Debug)]
pub(crate) struct Cargo {
    /// This daemon's end of the connection to the shim.
    pub(crate) ours: Arc<ShimLink>,
    /// The shim's end.
    pub(crate) theirs: Seqpacket,
    /// The plan, as JSON.
    pub(crate) plan: MemFile,
    /// Program, arguments, environment.
    pub(crate) process: MemFile,
    /// Contents of files.
    pub(crate) files: MemFile,
}

impl Cargo {
    /// Overwrites the secrets: nobody took them over.
    pub(crate) fn wipe(&self) {
        wipe(&self.process);
        wipe(&self.files);
    }
}

fn wipe(file: &MemFile) {
    if let Err(error) = file.wipe() {
        tracing::error!(%error, "a memory file of a container that was not launched could not be wiped");
    }
}

/// A container and what its task needs.
struct Actor {
    node: Arc<Node>,
    handle: Arc<Handle>,
    facts: Facts,
    /// Secrets of which nobody has said that they were taken over. Overwritten once the container runs, or is no more.
    unconfirmed: Vec<MemFile>,
}

/// How following a shim ended.
enum Followed {
    /// With the container.
    Completed,
    /// With the connection.
    Lost,
    /// With the launcher's word that the shim is gone and the container finished.
    Finished,
}

/// Launches a container that was admitted, and drives it to its end.
pub(crate) async fn launch(node: Arc<Node>, handle: Arc<Handle>, facts: Facts, session: Arc<Session>, cargo: Cargo) {
    let mut actor = Actor { node, handle, facts, unconfirmed: Vec::new() };
    actor.admitted();
    let link = match actor.hand_over(&session, cargo).await {
        Ok(link) => link,
        Err(problem) => return actor.refuse(problem),
    };
    actor.advance(State::Initializing);
    actor.drive(Some(link)).await;
}

/// Finds a container of an earlier daemon again, and drives it to its end.
pub(crate) async fn resume(node: Arc<Node>, handle: Arc<Handle>, facts: Facts, link: Option<Arc<ShimLink>>) {
    Actor { node, handle, facts, unconfirmed: Vec::new() }.drive(link).await;
}

impl Actor {
    /// Gives the container to the launcher.
    async fn hand_over(&mut self, session: &Session, cargo: Cargo) -> Result<Arc<ShimLink>, Problem> {
        let launch = LauncherCall::Launch(protocol::Launch {
            container_id: self.handle.id().to_string(),
            request_tag: self.facts.request_tag.clone(),
            created_at: self.facts.created_at.0,
        });
        let fds = [cargo.theirs.as_fd(), cargo.plan.as_fd(), cargo.process.as_fd(), cargo.files.as_fd()];
        let answer = session.call(launch, &fds).await;
        let refused = match answer {
            Ok(LauncherAnswer::Done(_)) => None,
            // Nobody knows whether a shim was forked: its connection will tell.
            Err(Lost::NotAnswered | Lost::Late(_)) => {
                self.unconfirmed = vec![cargo.process, cargo.files];
                return Ok(cargo.ours);
            }
            Ok(LauncherAnswer::Refused(refused)) => Some(refused.into()),
            Ok(_) => Some(Problem::new(Kind::Internal, "the launcher gave an answer of another kind")),
            Err(lost @ Lost::NotSent) => Some(Problem::new(
                Kind::Unavailable,
                format!("no launcher serves {}: {lost}", self.node.launcher.socket().display()),
            )),
        };
        if let Some(problem) = refused {
            cargo.wipe();
            return Err(problem);
        }
        Ok(cargo.ours)
    }

    /// Follows the container to its completion, over as many connections as it takes.
    async fn drive(mut self, mut link: Option<Arc<ShimLink>>) {
        let mut pause = RETRY.0;
        // Without a connection: a container of an earlier daemon, whose shim may only just have been forked.
        let mut greeted = link.is_some();
        loop {
            if let Some(link) = link.take() {
                self.handle.set_shim(Some(Arc::clone(&link)));
                let followed = self.follow(&link).await;
                self.handle.set_shim(None);
                link.close();
                match followed {
                    Ok(Followed::Completed) => return,
                    Ok(Followed::Lost) => {}
                    Ok(Followed::Finished) => return self.finished(),
                    Err(refused) => return self.refuse(refused),
                }
            }
            // Asked for first, so that a greeting between the look at the disk and the wait is not missed.
            let mut greetings = self.node.launcher.watch_greetings();
            greetings.mark_unchanged();
            if self.conclude_from_record() {
                return;
            }
            if self.facts.boot_id != self.node.boot_id {
                return self.conclude_without_record(
                    FailureKind::HostStopped,
                    "the machine was stopped while the container ran",
                );
            }
            if !greeted {
                // A launcher that has greeted says with it that every shim listens or is gone. It may have done so
                // before this task came to look.
                greeted = true;
                let mut first = self.node.launcher.watch_greetings();
                let _ = first.wait_for(|greetings| *greetings > 0).await;
                continue;
            }
            match Seqpacket::connect(&self.node.paths.shim_socket(self.handle.id())) {
                Ok(socket) => match ShimLink::new(socket) {
                    Ok(again) => {
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).min(RETRY.1);
                        link = Some(again);
                        continue;
                    }
                    Err(error) => tracing::error!(container = %self.handle.id(), %error, "cannot watch a shim"),
                },
                Err(error) => tracing::debug!(container = %self.handle.id(), %error, "its shim does not answer"),
            }
            // The run directory goes last of all: without it nobody has anything left to finish.
            if !self.node.paths.live_container(self.handle.id()).exists() {
                return self.finished();
            }
            // No shim and no record: the launcher is the one to finish it, now or when it is there again.
            tokio::select! {
                () = self.handle.shim_lost.notified() => return self.finished(),
                _ = greetings.changed() => {}
            }
            if Seqpacket::connect(&self.node.paths.shim_socket(self.handle.id())).is_err() {
                return self.finished();
            }
        }
    }

    /// Follows one connection.
    async fn follow(&mut self, link: &ShimLink) -> Result<Followed, Problem> {
        loop {
            let news = tokio::select! {
                news = link.next() => news,
                () = self.handle.shim_lost.notified() => return Ok(Followed::Finished),
            };
            match news {
                Ok(Some(ShimNews::Reached(reached))) => match protocol::state_of(reached.state) {
                    Some(State::Completed) => {
                        if self.conclude_from_record() {
                            return Ok(Followed::Completed);
                        }
                        return Ok(Followed::Lost);
                    }
                    Some(state) => self.reached(state),
                    None => tracing::debug!(container = %self.handle.id(), state = reached.state, "an unknown state"),
                },
                Ok(Some(ShimNews::Refused(refused))) if self.facts.started_at.is_none() => return Err(refused.into()),
                Ok(Some(ShimNews::Refused(refused))) => {
                    tracing::error!(container = %self.handle.id(), "its shim refuses late: {}", refused.message);
                }
                Ok(Some(ShimNews::Done(_))) => {}
                Ok(None) => return Ok(Followed::Lost),
                Err(error) => {
                    tracing::warn!(container = %self.handle.id(), %error, "the connection to its shim broke");
                    return Ok(Followed::Lost);
                }
            }
        }
    }

    /// A state before `completed` was reported. Its record may be ahead of the report; the state follows the reports,
    /// so that a process that ran for a moment only is still seen to have run.
    fn reached(&mut self, reported: State) {
        let generation = self.facts.files_generation;
        match records::live(&self.node.paths, self.handle.id()) {
            Ok(Some(record)) => self.facts.learn(record),
            Ok(None) => {} // at its end already: the exit record will tell
            Err(error) => tracing::error!(container = %self.handle.id(), error = crate::chain(&error), "bad record"),
        }
        self.advance(reported);
        if generation > 0 && self.facts.files_generation > generation {
            self.files_updated();
        }
    }

    /// Its files were replaced, by this daemon or another.
    fn files_updated(&self) {
        let (id, generation) = (self.handle.id(), self.facts.files_generation);
        tracing::info!(container = %id, files_generation = generation);
        self.node.events.append(id, What::FilesUpdated(generation), None, crate::now());
        self.node.ledger.put(Arc::new(self.facts.clone()));
    }

    /// Completes the container if its exit record is there.
    fn conclude_from_record(&mut self) -> bool {
        match records::exit(&self.node.paths, self.handle.id()) {
            Ok(None) => false,
            Ok(Some(record)) => {
                self.facts.conclude(record);
                self.complete();
                true
            }
            Err(error) => {
                let told = crate::chain(&error);
                tracing::error!(container = %self.handle.id(), error = told, "bad exit record");
                self.conclude_without_record(
                    FailureKind::SupervisorLost,
                    format!("how the process ended is unknown: {told}"),
                );
                true
            }
        }
    }

    fn conclude_without_record(&mut self, kind: FailureKind, message: impl Into<String>) {
        self.facts.conclude_without_record(kind, message, crate::now());
        self.complete();
    }

    /// The launcher has done what it could, and there is no shim.
    fn finished(mut self) {
        if self.conclude_from_record() {
            return;
        }
        if self.facts.state > State::Initializing && !self.node.paths.kept_container(self.handle.id()).exists() {
            return self.forget();
        }
        if self.facts.state <= State::Initializing && self.facts.prepared.is_none() {
            return self.refuse(Problem::new(
                Kind::Unavailable,
                "the launcher or the container's shim was lost while it was being made; nothing of it is left",
            ));
        }
        self.conclude_without_record(
            FailureKind::SupervisorLost,
            "the container's shim was lost, and no record of its end is there",
        );
    }

    fn wipe_unconfirmed(&mut self) {
        self.unconfirmed.drain(..).for_each(|file| wipe(&file));
    }

    fn admitted(&self) {
        self.told(State::Reserved);
        self.node.ledger.put(Arc::new(self.facts.clone()));
    }

    /// Goes on to a state before `completed`, and tells everybody.
    fn advance(&mut self, reached: State) {
        let passed = advance(self.facts.state, reached);
        self.facts.state = self.facts.state.max(reached);
        if self.facts.state >= State::Running {
            self.wipe_unconfirmed();
        }
        let facts = Arc::new(self.facts.clone());
        self.handle.publish(Known::Here(Arc::clone(&facts)));
        for state in passed {
            self.told(*state);
        }
        if !passed.is_empty() {
            self.node.ledger.put(facts);
        }
    }

    /// The container is at its end: its capacity is free before anybody hears of it.
    fn complete(&mut self) {
        let passed = advance(self.facts.state, State::Completed);
        self.facts.state = State::Completed;
        self.wipe_unconfirmed();
        self.node.registry.release(self.handle.id());
        let facts = Arc::new(self.facts.clone());
        self.handle.publish(Known::Here(Arc::clone(&facts)));
        for state in passed {
            self.told(*state);
        }
        self.node.ledger.put(facts);
        self.node.retention.completed();
    }

    /// What it left on disk is gone: it was completed and deleted in the ledger's last moment before a kill.
    fn forget(&mut self) {
        self.wipe_unconfirmed();
        let id = self.handle.id();
        tracing::info!(container = %id, "it was deleted before the restart");
        self.node.events.append(id, What::Deleted, None, crate::now());
        self.node.ledger.forget(id);
        self.node.registry.remove(id);
        self.handle.publish(Known::Refused(Problem::no_container(id.as_str())));
    }

    /// It could not be made as asked: nothing of it stays, and the id is free before the caller hears of it.
    fn refuse(mut self, problem: Problem) {
        self.wipe_unconfirmed();
        let id = self.handle.id();
        tracing::warn!(container = %id, "refused: {problem}");
        self.facts.conclude_without_record(FailureKind::Prepare, &*problem.message, crate::now());
        for state in advance(self.facts.state, State::Completed) {
            self.told(*state);
        }
        self.node.events.append(id, What::Deleted, None, crate::now());
        self.node.ledger.forget(id);
        self.node.registry.remove(id);
        self.handle.publish(Known::Refused(problem));
    }

    /// Logs a transition, here and in the event log.
    fn told(&self, state: State) {
        let id = self.handle.id();
        let end = self.facts.end.as_ref().filter(|_| state == State::Completed);
        match end {
            None => tracing::info!(container = %id, state = state.name()),
            Some(end) => {
                let (code, signal) = match end.exit {
                    Some(Exit::Code(code)) => (Some(code), None),
                    Some(Exit::Signal(signal)) => (None, Some(signal)),
                    None => (None, None),
                };
                let failure = end.failure.as_ref().map(|failure| failure.message.as_str());
                tracing::info!(container = %id, state = state.name(), code, signal, oom = end.oom_killed, failure);
            }
        }
        self.node.events.append(id, What::Reached(state), end.cloned(), crate::now());
    }
}
