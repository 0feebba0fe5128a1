//! Reads reports of the processes that copy files in containers: status, summary, failure.

use std::sync::Arc;

use executor_core::record::Exit;
use executor_core::shortage;
use tokio::task::JoinSet;

use crate::api_error::{ApiError, Kind};
use crate::operations::exec::StdioFd;

/// Maximum size of a report, in bytes: status of a path, summary, or failure.
pub(crate) const REPORT_MAX: usize = 16 << 10;

/// Reads until the buffer is full; returns `false` if the input ends earlier.
pub(crate) async fn fill(end: &StdioFd, buffer: &mut [u8]) -> bool {
    let mut filled = 0;
    while filled < buffer.len() {
        match end.read(&mut buffer[filled..]).await {
            Ok(length @ 1..) => filled += length,
            _ => return false,
        }
    }
    true
}

/// Reads a whole report, up to [`REPORT_MAX`] bytes.
pub(crate) async fn read_report(end: &StdioFd) -> Vec<u8> {
    let (mut reported, mut length) = (vec![0; REPORT_MAX], 0);
    while let Ok(more @ 1..) = end.read(&mut reported[length..]).await {
        length += more;
    }
    reported.truncate(length);
    reported
}

/// Spawns a task that reads the process's failure report.
pub(crate) fn failure(stderr: Option<Arc<StdioFd>>) -> JoinSet<String> {
    let mut reading = JoinSet::new();
    if let Some(stderr) = stderr {
        reading.spawn(async move { String::from_utf8_lossy(&read_report(&stderr).await).into_owned() });
    }
    reading
}

/// Checks the exit of the process. The error contains the process's failure report, if any.
pub(crate) async fn check_exit(exit: Option<Exit>, mut failure: JoinSet<String>) -> Result<(), ApiError> {
    let lost =
        || ApiError::new(Kind::Unavailable, "the supervisor of the copy process was lost: the copy is incomplete");
    let exit = exit.ok_or_else(lost)?;
    if exit == Exit::Code(0) {
        return Ok(());
    }
    let words = failure.join_next().await.and_then(Result::ok).filter(|words| !words.is_empty());
    let words = words.unwrap_or_else(|| match exit {
        Exit::Code(code) => format!("the copy process exited with code {code}"),
        Exit::Signal(signal) => format!(
            "the copy process was killed by signal {signal}; after SIGKILL the container may have exited or be out of memory"
        ),
    });
    let kind = if shortage::named(&words).is_some() { Kind::Exhausted } else { Kind::Precondition };
    Err(ApiError::new(kind, words))
}
