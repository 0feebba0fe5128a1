//! Shares one pull between all clients that request the same image at the same time.
//!
//! A pull is a separate task. Clients watch its state. When all clients have disconnected, the pull ends, and a later
//! pull continues with the fetched data. Two calls share a pull only if they name the same image and have the same
//! credentials, so that no client gets an image by another client's password.

use std::sync::{Arc, Mutex, Weak};

use executor_core::image::ImageReference;
use executor_registry_auth::Credentials;
use executor_sys::mutex::locked;
use tokio::sync::watch;

use crate::progress::{PullResult, State};

/// Receives the states of a pull.
#[derive(Clone, Debug)]
pub struct Watcher(watch::Receiver<State>);

impl Watcher {
    /// Returns the current state on the first call, then the newest state after each change. Returns `None` after the
    /// last state.
    pub async fn next(&mut self) -> Option<State> {
        // A state that was not returned yet is returned even if the pull has completed.
        self.0.changed().await.ok()?;
        Some(self.0.borrow_and_update().clone())
    }

    /// Waits for the outcome. Returns `None` if the pull was aborted because all watchers had disconnected.
    pub(crate) async fn outcome(&mut self) -> Option<PullResult> {
        let state = self.0.wait_for(|state| state.outcome.is_some()).await.ok()?;
        state.outcome.clone()
    }
}

/// Key of a running pull. The task of the pull owns the key, and drops the credentials with the key.
pub(crate) struct Pull {
    pub(crate) reference: ImageReference,
    pub(crate) credentials: Option<Arc<Credentials>>,
    pub(crate) sender: Arc<watch::Sender<State>>,
}

/// Running pulls. The references are weak, so that no password of a finished pull remains.
#[derive(Default)]
pub(crate) struct Pulls(Mutex<Vec<Weak<Pull>>>);

impl Pulls {
    /// Joins a running pull, or registers and returns a new pull, whose task the caller must start.
    pub(crate) fn join(
        &self,
        reference: &ImageReference,
        credentials: Option<Credentials>,
    ) -> (Watcher, Option<Arc<Pull>>) {
        let mut running = locked(&self.0);
        running.retain(|pull| pull.strong_count() > 0);
        let same =
            |pull: &Arc<Pull>| pull.reference == *reference && pull.credentials.as_deref() == credentials.as_ref();
        // A finished pull is not joined, so that a new request gets current data.
        let there = running.iter().filter_map(Weak::upgrade).find(same).map(|pull| Arc::clone(&pull.sender));
        if let Some(sender) = there.filter(|sender| sender.borrow().outcome.is_none() && sender.receiver_count() > 0) {
            let mut receiver = sender.subscribe();
            receiver.mark_changed();
            return (Watcher(receiver), None);
        }
        let (sender, mut receiver) = watch::channel(State::default());
        receiver.mark_changed();
        let pull =
            Pull { reference: reference.clone(), credentials: credentials.map(Arc::new), sender: Arc::new(sender) };
        let pull = Arc::new(pull);
        running.push(Arc::downgrade(&pull));
        (Watcher(receiver), Some(pull))
    }
}
