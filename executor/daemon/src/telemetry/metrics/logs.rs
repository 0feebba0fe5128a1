//! Computes the totals of written and dropped log output of all containers since the daemon's start.
//!
//! Each shim counts from the start of its own container. The total must never decrease, even if a container is deleted
//! or a shim does not respond, and must not jump when a daemon recovers the containers of an earlier daemon.

use std::collections::HashMap;

use executor_core::ident::ContainerId;
use executor_core::usage::LogUsage;

/// Counters of the log output of all containers.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    /// Sum of the counters of completed containers.
    ended: LogUsage,
    living: HashMap<ContainerId, Living>,
}

#[derive(Clone, Copy, Debug)]
struct Living {
    /// Counters at the start of this daemon, which are subtracted.
    before: LogUsage,
    last: LogUsage,
}

impl Living {
    fn grown(&self) -> LogUsage {
        let Self { before, last } = self;
        each(before, last, u64::saturating_sub)
    }
}

/// Computes new counters. `compute` receives each counter of `other` and the same counter of `one`, in this order.
fn each(one: &LogUsage, other: &LogUsage, compute: fn(u64, u64) -> u64) -> LogUsage {
    LogUsage {
        bytes: compute(other.bytes, one.bytes),
        lines: compute(other.lines, one.lines),
        limited_bytes: compute(other.limited_bytes, one.limited_bytes),
        overages: compute(other.overages, one.overages),
        lost_bytes: compute(other.lost_bytes, one.lost_bytes),
        file_lost_bytes: compute(other.file_lost_bytes, one.file_lost_bytes),
    }
}

impl Logs {
    /// Updates the counters of a running container. `adopted` is true if an earlier daemon admitted the container.
    pub(crate) fn read(&mut self, id: &ContainerId, usage: LogUsage, adopted: bool) {
        let before = if adopted { usage } else { LogUsage::default() };
        self.living.entry(id.clone()).or_insert(Living { before, last: usage }).last = usage;
    }

    /// Adds the final counters of a container. Skips a container of an earlier daemon whose counters were never read,
    /// because their increase is unknown.
    pub(crate) fn ended(&mut self, id: &ContainerId, usage: Option<LogUsage>) {
        let known = self.living.remove(id);
        let grown = match (known, usage) {
            (Some(living), last) => Living { last: last.unwrap_or(living.last), ..living }.grown(),
            (None, _) => return,
        };
        self.ended = each(&grown, &self.ended, u64::saturating_add);
    }

    /// Returns the sum of the counters of all containers. For a container that was removed without final counters, uses
    /// the last reading.
    pub(crate) fn sum(&mut self, is_there: impl Fn(&ContainerId) -> bool) -> LogUsage {
        let gone: Vec<ContainerId> = self.living.keys().filter(|id| !is_there(id)).cloned().collect();
        gone.iter().for_each(|id| self.ended(id, None));
        self.living.values().fold(self.ended, |sum, living| each(&living.grown(), &sum, u64::saturating_add))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(bytes: u64) -> LogUsage {
        LogUsage { bytes, ..LogUsage::default() }
    }

    #[test]
    fn log_counter_sum_is_monotonic() {
        let mut logs = Logs::default();
        let id = |name: &str| name.parse::<ContainerId>().unwrap();
        let there = |_: &ContainerId| true;
        logs.read(&id("new"), usage(0), false);
        logs.read(&id("new"), usage(10), false);
        logs.read(&id("old"), usage(1000), true);
        assert_eq!(logs.sum(there).bytes, 10, "counts of an earlier daemon are omitted");
        logs.read(&id("old"), usage(1001), true);
        assert_eq!(logs.sum(there).bytes, 11);
        logs.ended(&id("new"), Some(usage(15)));
        logs.ended(&id("new"), Some(usage(15)));
        assert_eq!(logs.sum(there).bytes, 16, "a completed container is counted once");
        assert_eq!(logs.sum(|_| false).bytes, 16, "a removed container keeps its last counts");
        logs.ended(&id("unread"), Some(usage(500)));
        assert_eq!(logs.sum(there).bytes, 16);
    }
}
