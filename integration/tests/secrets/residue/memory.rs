//! Searches executord's memory for the secret of one call.

use executor_residue::process::Process;
use executor_residue::{Canary, Needles, Search};
use integration::daemon::Daemon;

/// Path of the call Run.
pub(crate) const RUN: &str = "/executor.v1.Executor/Run";

/// Returns true if executord's memory holds any part of a secret.
pub(crate) fn in_executord(daemon: &Daemon, secret: &Canary) -> bool {
    let mut needles = Needles::new().unwrap();
    needles.add("secret", secret.as_bytes());
    let mut search = Search::new(&needles);
    search.process(&Process::from_pid(daemon.pid() as u32).unwrap());
    let report = search.report();
    assert!(report.processes == 1 && report.unsearched.is_empty(), "{report:?}");
    report.found()
}

/// Checks that no part of the secret is left after one second, as docs/security-claims.md states.
pub(crate) fn is_gone(daemon: &Daemon, secret: &Canary, when: &str) {
    let begun = std::time::Instant::now();
    while in_executord(daemon, secret) {
        assert!(begun.elapsed() < std::time::Duration::from_secs(1), "{when}");
    }
}
