//! Keeps the launcher's certificate signer current: requests that the CA files are reread when they change, on SIGHUP,
//! and for each new launcher.
//!
//! executord watches the files and never reads the key. If a new CA cannot sign, an error is reported, and the previous
//! CA stays in use until the signer process exits. The certificate and the key are rarely replaced at the same moment,
//! so failures are retried.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use executor_core::backoff::Backoff;
use executor_core::time::Timestamp;
use tokio::signal::unix::Signal;
use tokio::time::sleep;

use crate::background::renewal;
use crate::node::Node;

/// Delay after a change before the files are read, because several files are often written in sequence.
const READ_DELAY: Duration = Duration::from_millis(100);
/// Poll interval in the absence of notifications.
const POLL_INTERVAL: Duration = Duration::from_secs(60);
/// Pauses between attempts to reread the CA.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Keeps the launcher's certificate signer current until the daemon stops.
pub(crate) async fn run_authority_reload(node: Arc<Node>, mut hangup: Signal) {
    let settings = &node.config.identity;
    let paths = [&settings.ca_certificate, &settings.ca_key];
    let mut greetings = node.launcher.watch_greetings();
    let mut retry = RETRY;
    let (mut seen, mut reported, mut is_wanted) = (None, String::new(), true);
    loop {
        let mut changes = renewal::watch(&node, paths.map(PathBuf::as_path), "the CA's files");
        // Changes after this point produce notifications.
        let is = paths.map(|path| version(path));
        is_wanted |= seen.as_ref() != Some(&is);
        let is_connected = node.launcher.session().is_ok();
        if is_wanted && is_connected {
            match node.signer.reopen(&node.launcher).await {
                Ok(ready) => {
                    let until = Timestamp(ready.not_after.saturating_mul(1_000_000_000)).rfc3339();
                    tracing::info!(subject = ready.subject, until, "the CA can sign container certificates");
                    (is_wanted, seen) = (false, Some(is));
                    reported.clear();
                    retry.reset();
                }
                Err(problem) => {
                    let why = problem.to_string();
                    if why != reported {
                        tracing::error!("{why}");
                        reported = why;
                    }
                }
            }
        }
        let pause = if is_wanted && is_connected { retry.pause() } else { POLL_INTERVAL };
        tokio::select! {
            Some(_) = changes.join_next() => sleep(READ_DELAY).await,
            _ = hangup.recv() => {
                tracing::info!("SIGHUP: reading the CA's files again");
                is_wanted = true;
            }
            _ = greetings.changed() => is_wanted = true, // the signer exited with the last launcher
            () = sleep(pause) => {}
            () = node.until_stopping() => return,
        }
    }
}

/// Returns metadata that identifies a version of a file; `None` if the metadata cannot be read.
fn version(path: &Path) -> Option<(u64, u64, i64, i64)> {
    let file = std::fs::metadata(path).ok()?;
    Some((file.ino(), file.len(), file.mtime(), file.mtime_nsec()))
}
