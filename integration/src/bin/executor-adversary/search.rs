//! What a process remembers of secrets that it should have forgotten.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use executor_residue::process::Process;
use executor_residue::{Needles, Search};

/// How long a process may take to forget.
const WITHIN: Duration = Duration::from_secs(1);

/// Names of what a process holds now, with how much of each.
pub(crate) fn held(pid: i32, secrets: &[(&str, &[u8])]) -> anyhow::Result<Vec<String>> {
    let mut needles = Needles::new()?;
    secrets.iter().for_each(|(name, secret)| needles.add(name, secret));
    let mut search = Search::new(&needles);
    search.process(&Process::of(pid.cast_unsigned()).context("the process is gone")?);
    let report = search.report();
    ensure!(report.unsearched.is_empty(), "not all of it could be searched: {report:?}");
    Ok(report.hits.iter().map(ToString::to_string).collect())
}

/// The same after the time within which it must have forgotten; earlier where it has.
pub(crate) fn kept(pid: i32, secrets: &[(&str, &[u8])]) -> anyhow::Result<Vec<String>> {
    let end = Instant::now() + WITHIN;
    loop {
        let held = held(pid, secrets)?;
        if held.is_empty() || Instant::now() > end {
            return Ok(held);
        }
    }
}
