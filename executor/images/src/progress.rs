//! Reports the progress of a pull to its subscribers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use executor_core::image::Digest;
use executor_sys::mutex::locked;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::ImageError;
use crate::record::{ImageRecord, LayerRecord};

/// Minimum interval between two reports in which only byte counts change.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

pub type PullResult = Result<ImageRecord, Arc<ImageError>>;

/// State of a pull for its subscribers.
#[derive(Clone, Debug, Default)]
pub struct State {
    pub progress: Progress,
    /// Outcome of the pull after its completion.
    pub outcome: Option<PullResult>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Digest of the manifest, once known.
    pub digest: Option<Digest>,
    /// Layers, lowest first; empty until known.
    pub layers: Vec<LayerProgress>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerProgress {
    pub digest: Digest,
    pub size: u64,
    pub done: u64,
    pub stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The download has not started.
    Waiting,
    Fetching,
    /// Complete and verified; waiting for the layers below.
    Fetched,
    Unpacking,
    /// The layer is unpacked.
    Done,
    /// The layer was present before the pull.
    Present,
}

/// Sends progress to the subscribers.
pub(crate) struct Reporter {
    sender: Arc<watch::Sender<State>>,
    last: Mutex<Option<Instant>>,
}

impl Reporter {
    pub(crate) fn new(sender: Arc<watch::Sender<State>>) -> Self {
        Self { sender, last: Mutex::new(None) }
    }

    pub(crate) fn start(&self, digest: &Digest, layers: &[LayerRecord]) {
        let layers = layers.iter().map(|layer| LayerProgress {
            digest: layer.digest.clone(),
            size: layer.size,
            done: 0,
            stage: Stage::Waiting,
        });
        let progress = Progress { digest: Some(digest.clone()), layers: layers.collect() };
        self.sender.send_modify(|state| state.progress = progress);
    }

    pub(crate) fn stage(&self, index: usize, stage: Stage) {
        self.sender.send_modify(|state| {
            if let Some(layer) = state.progress.layers.get_mut(index) {
                layer.stage = stage;
                if stage >= Stage::Fetched {
                    layer.done = layer.size;
                }
            }
        });
    }

    pub(crate) fn bytes(&self, index: usize, done: u64) {
        let now = Instant::now();
        let mut last = locked(&self.last);
        let reported = last.is_none_or(|last| now - last >= REPORT_INTERVAL);
        if reported {
            *last = Some(now);
        }
        drop(last);
        self.sender.send_if_modified(|state| {
            if let Some(layer) = state.progress.layers.get_mut(index) {
                layer.done = done;
            }
            reported
        });
    }
}
