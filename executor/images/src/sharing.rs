//! Sharing of pulls: one pull for all clients that want the same image at the same time.
//!
//! A pull is a task of its own. Who waits for it watches its state; when nobody does any more it ends, and what it has
//! fetched stays to be taken up again. Two calls share a pull where they name the same image with the same credentials:
//! nobody gets what another one's password opened while the registry would not give it to them.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use executor_core::image::ImageReference;
use executor_registry_auth::Credentials;
use tokio::sync::watch;

use crate::progress::{Outcome, State};

/// Watches a pull.
#[derive(Clone, Debug)]
pub struct Watcher(watch::Receiver<State>);

impl Watcher {
    /// The state as it is, and then each time that it changes; `None` after the last.
    pub async fn next(&mut self) -> Option<State> {
        // Also of a pull that has ended meanwhile: what was not seen yet comes first.
        self.0.changed().await.ok()?;
        Some(self.0.borrow_and_update().clone())
    }

    /// Waits for the end. `None` where the pull was given up before, because nobody had waited for it for a moment.
    pub(crate) async fn outcome(&mut self) -> Option<Outcome> {
        let state = self.0.wait_for(|state| state.outcome.is_some()).await.ok()?;
        state.outcome.clone()
    }
}

/// A pull that is under way: what tells it apart, for as long as its task lives. The credentials go with it.
pub(crate) struct Pull {
    pub(crate) reference: ImageReference,
    pub(crate) credentials: Option<Arc<Credentials>>,
    pub(crate) sender: Arc<watch::Sender<State>>,
}

/// The pulls that are under way. The list keeps nothing alive: a pull that is over leaves no password in it.
#[derive(Default)]
pub(crate) struct Pulls(Mutex<Vec<Weak<Pull>>>);

impl Pulls {
    /// Joins the pull that is under way, or begins one: then there is a pull, for the task that carries it out.
    pub(crate) fn join(
        &self,
        reference: &ImageReference,
        credentials: Option<Credentials>,
    ) -> (Watcher, Option<Arc<Pull>>) {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|pull| pull.strong_count() > 0);
        let same =
            |pull: &Arc<Pull>| pull.reference == *reference && pull.credentials.as_deref() == credentials.as_ref();
        // One that has ended is no longer joined: whoever asks now gets what there is now.
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
