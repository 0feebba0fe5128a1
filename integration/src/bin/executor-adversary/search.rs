//! Searches a process's memory for secrets that the process should have wiped.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use executor_residue::process::Process;
use executor_residue::{Needles, Search};

/// Time within which a process must wipe its secrets.
const WIPE_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the secrets that a process currently has in memory, with the size of each finding.
pub(crate) fn find_secrets(pid: i32, secrets: &[(&str, &[u8])]) -> anyhow::Result<Vec<String>> {
    let mut needles = Needles::new()?;
    secrets.iter().for_each(|(name, secret)| needles.add(name, secret));
    let mut search = Search::new(&needles);
    search.process(&Process::from_pid(pid.cast_unsigned()).with_context(|| format!("process {pid} does not exist"))?);
    let report = search.report();
    ensure!(report.unsearched.is_empty(), "cannot search all memory of process {pid}: {report:?}");
    Ok(report.hits.iter().map(ToString::to_string).collect())
}

/// Waits up to [`WIPE_TIMEOUT`] until the memory of a process contains no secret. Returns the remaining secrets.
pub(crate) fn remaining_secrets(pid: i32, secrets: &[(&str, &[u8])]) -> anyhow::Result<Vec<String>> {
    let end = Instant::now() + WIPE_TIMEOUT;
    loop {
        let held = find_secrets(pid, secrets)?;
        if held.is_empty() || Instant::now() > end {
            return Ok(held);
        }
    }
}
