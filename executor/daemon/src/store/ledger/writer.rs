//! The thread that writes the ledger. The thread waits for a change, collects further changes for a short time, and
//! writes them as one durable batch.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use executor_core::backoff::Backoff;
use executor_sys::mutex::locked;

use super::LedgerBatch;
use super::store::{FirstWrite, Store, StoreError};

/// Time for which a batch collects changes: an fsync costs milliseconds on a disk that containers use.
const BATCH_DELAY: Duration = Duration::from_millis(100);
/// Pauses between attempts while the disk fails.
const RETRY: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));
/// Stack size of the thread, in bytes.
const STACK: usize = 256 << 10;

#[derive(Debug, Default)]
struct WriterShared {
    state: Mutex<WriterState>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct WriterState {
    batch: LedgerBatch,
    trouble: Option<String>,
    closing: bool,
}

#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<WriterShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Writer {
    /// Starts the writer with a store. On a full disk there is no store, and the daemon's first write is pending.
    pub(super) fn start(begun: Result<Store, (StoreError, FirstWrite)>, path: PathBuf) -> std::io::Result<Self> {
        let shared = Arc::new(WriterShared::default());
        let (store, pending) = match begun {
            Ok(store) => (Some(store), None),
            Err((error, begin)) => {
                let mut state = locked(&shared.state);
                state.trouble = Some(trouble(&path, &error));
                tracing::error!(
                    "cannot write the ledger: {}: new containers are refused until the ledger can be written",
                    trouble(&path, &error)
                );
                state.batch.reserved = Some(begin.reserved); // makes the batch non-empty, so that it is written
                (None, Some(begin))
            }
        };
        let file = LedgerFile { store, pending, path };
        let thread = std::thread::Builder::new().name("ledger".into()).stack_size(STACK).spawn({
            let shared = Arc::clone(&shared);
            move || run_writer(&shared, file)
        })?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    pub(super) fn add(&self, change: impl FnOnce(&mut LedgerBatch)) {
        let mut state = locked(&self.shared.state);
        let was_empty = state.batch.is_empty();
        change(&mut state.batch);
        let is_waited_for = !state.batch.waiting.is_empty();
        drop(state);
        if was_empty || is_waited_for {
            self.shared.wake.notify_one();
        }
    }

    pub(super) fn trouble(&self) -> Option<String> {
        locked(&self.shared.state).trouble.clone()
    }

    pub(super) fn close(&self) {
        locked(&self.shared.state).closing = true;
        self.shared.wake.notify_one();
        let thread = locked(&self.thread).take();
        if let Some(thread) = thread {
            // The result does not matter: a panic has aborted the process, or fails a test.
            let _ = thread.join();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.close();
    }
}

/// The store, if open, and the daemon's first write, if pending.
struct LedgerFile {
    store: Option<Store>,
    pending: Option<FirstWrite>,
    path: PathBuf,
}

fn run_writer(shared: &WriterShared, mut file: LedgerFile) {
    let mut retry = RETRY;
    loop {
        let (mut batch, closing) = next_batch(shared);
        if !batch.is_empty() {
            match file.write(&batch) {
                Ok(()) => {
                    retry.reset();
                    for waiting in batch.waiting.drain(..) {
                        let _ = waiting.send(()); // the receiver may be dropped
                    }
                    if locked(&shared.state).trouble.take().is_some() {
                        tracing::info!("the ledger can be written again");
                    }
                }
                Err(error) => {
                    // After an error redb rejects every operation until the store is reopened.
                    file.store = None;
                    give_back(shared, batch, &error, &file.path, retry.pause(), closing);
                }
            }
        }
        if closing {
            return;
        }
    }
}

impl LedgerFile {
    fn write(&mut self, batch: &LedgerBatch) -> Result<(), StoreError> {
        let store = match &mut self.store {
            Some(store) => store,
            None => self.store.insert(Store::open(&self.path)?),
        };
        if let Some(begin) = self.pending {
            store.start(begin)?;
            self.pending = None;
        }
        store.write(batch)
    }
}

/// Formats an error with the state directory.
fn trouble(path: &std::path::Path, error: &StoreError) -> String {
    format!("state directory {}: {error}", path.ancestors().nth(2).unwrap_or(path).display())
}

/// Waits for the next batch. The flag is true if the ledger is being closed.
fn next_batch(shared: &WriterShared) -> (LedgerBatch, bool) {
    let mut state = locked(&shared.state);
    while state.batch.is_empty() && !state.closing {
        state = wait(shared, state, None);
    }
    let gathered = std::time::Instant::now();
    while !state.closing && state.batch.waiting.is_empty() && gathered.elapsed() < BATCH_DELAY {
        state = wait(shared, state, Some(BATCH_DELAY));
    }
    let oldest_event = state.batch.oldest_event;
    let batch = std::mem::replace(&mut state.batch, LedgerBatch { oldest_event, ..LedgerBatch::default() });
    (batch, state.closing)
}

/// Keeps a batch that could not be written, logs the reason once, and waits before the next attempt. When the daemon
/// exits, logs that the batch is lost.
fn give_back(
    shared: &WriterShared,
    batch: LedgerBatch,
    error: &StoreError,
    path: &std::path::Path,
    pause: Duration,
    closing: bool,
) {
    let mut state = locked(&shared.state);
    let trouble = trouble(path, error);
    if closing {
        tracing::error!(
            "cannot write the ledger: {trouble}: the ledger's last changes are lost; the containers' own records remain"
        );
        return;
    }
    if state.trouble.as_ref() != Some(&trouble) {
        tracing::error!(
            "cannot write the ledger: {trouble}: new containers are refused until the ledger can be written"
        );
    }
    state.trouble = Some(trouble);
    state.batch.take_back(batch);
    let until = std::time::Instant::now() + pause;
    while let Some(left) = until.checked_duration_since(std::time::Instant::now()) {
        if state.closing {
            return;
        }
        state = wait(shared, state, Some(left));
    }
}

fn wait<'a>(
    shared: &'a WriterShared,
    state: MutexGuard<'a, WriterState>,
    most: Option<Duration>,
) -> MutexGuard<'a, WriterState> {
    match most {
        None => shared.wake.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner),
        Some(most) => shared.wake.wait_timeout(state, most).unwrap_or_else(std::sync::PoisonError::into_inner).0,
    }
}
