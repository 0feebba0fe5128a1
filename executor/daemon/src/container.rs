//! A container as the daemon has it: facts that one task changes and everybody else watches.
//!
//! ```text
//!  admit ──> Handle ── known: watch ──> Get, List, Wait, StreamLogs
//!              │  └── shim: link ─────> Stop, Signal
//!              └── driven by one task (actor), from its launch or its recovery to its completion
//! ```
//! The handle outlives the task: a completed container is its facts alone.

pub mod actor;
pub mod facts;
pub mod link;
pub mod records;

use std::sync::{Arc, Mutex};

use executor_core::ident::ContainerId;
use executor_core::lifecycle::State;
use tokio::sync::{Notify, watch};

use crate::locked;
use crate::problem::Problem;
use facts::Facts;
use link::ShimLink;

/// What a watcher sees.
#[derive(Clone, Debug)]
pub enum Known {
    /// It is there.
    Here(Arc<Facts>),
    /// It could not be made as asked; nothing of it is left.
    Refused(Problem),
    /// It was deleted; this is what was known last.
    Deleted(Arc<Facts>),
}

/// A container.
#[derive(Debug)]
pub struct Handle {
    id: ContainerId,
    request_tag: String,
    known: watch::Sender<Known>,
    shim: Mutex<Option<Arc<ShimLink>>>,
    /// The launcher said that it has finished this container.
    pub(crate) shim_lost: Notify,
    /// Held by the one call that deletes it.
    pub(crate) deleting: tokio::sync::Mutex<()>,
    /// Held by the one call that updates its files.
    pub(crate) updating: tokio::sync::Mutex<()>,
}

impl Handle {
    /// A container that is as `facts` say.
    pub fn new(facts: Facts) -> Self {
        Self {
            id: facts.plan.id.clone(),
            request_tag: facts.request_tag.clone(),
            known: watch::Sender::new(Known::Here(Arc::new(facts))),
            shim: Mutex::new(None),
            shim_lost: Notify::new(),
            deleting: tokio::sync::Mutex::new(()),
            updating: tokio::sync::Mutex::new(()),
        }
    }

    /// Its id.
    pub fn id(&self) -> &ContainerId {
        &self.id
    }

    /// Keyed hash of the request that made it.
    pub fn request_tag(&self) -> &str {
        &self.request_tag
    }

    /// What is known now. Of one that was refused or deleted: nothing.
    pub fn facts(&self) -> Option<Arc<Facts>> {
        match &*self.known.borrow() {
            Known::Here(facts) => Some(Arc::clone(facts)),
            Known::Refused(_) | Known::Deleted(_) => None,
        }
    }

    /// The state now; `None` for one that is gone.
    pub fn state(&self) -> Option<State> {
        match &*self.known.borrow() {
            Known::Here(facts) => Some(facts.state),
            Known::Refused(_) | Known::Deleted(_) => None,
        }
    }

    /// It is completed, or gone.
    pub fn is_over(&self) -> bool {
        self.state().is_none_or(|state| state == State::Completed)
    }

    /// Watches it.
    pub fn watch(&self) -> watch::Receiver<Known> {
        self.known.subscribe()
    }

    /// Waits until its process was started, or never will be.
    ///
    /// # Errors
    /// It could not be made as asked.
    pub async fn started(&self) -> Result<Arc<Facts>, Problem> {
        self.wait_for(Facts::start_is_decided).await
    }

    /// Waits until it is completed.
    ///
    /// # Errors
    /// It could not be made as asked.
    pub async fn completed(&self) -> Result<Arc<Facts>, Problem> {
        self.wait_for(|facts| facts.state == State::Completed).await
    }

    /// Waits until its shim is connected, or it is completed or gone.
    pub(crate) async fn settled(&self) {
        let mut watch = self.watch();
        let over = |known: &Known| !matches!(known, Known::Here(facts) if facts.state != State::Completed);
        // Both changes are published: a link is set before the shim's first report is.
        let _ = watch.wait_for(|known| over(known) || self.shim().is_some()).await;
    }

    async fn wait_for(&self, condition: impl Fn(&Facts) -> bool) -> Result<Arc<Facts>, Problem> {
        let mut watch = self.watch();
        let known = watch.wait_for(|known| !matches!(known, Known::Here(facts) if !condition(facts))).await;
        match known.as_deref() {
            Ok(Known::Here(facts) | Known::Deleted(facts)) => Ok(Arc::clone(facts)),
            Ok(Known::Refused(problem)) => Err(problem.clone()),
            // The sender lives as long as `self`.
            Err(_) => Err(Problem::no_container(self.id.as_str())),
        }
    }

    /// Tells watchers.
    pub(crate) fn publish(&self, known: Known) {
        self.known.send_replace(known);
    }

    /// The way to its shim, while there is one.
    pub(crate) fn shim(&self) -> Option<Arc<ShimLink>> {
        locked(&self.shim).clone()
    }

    pub(crate) fn set_shim(&self, link: Option<Arc<ShimLink>>) {
        *locked(&self.shim) = link;
    }
}
