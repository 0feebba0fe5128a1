//! The states of a container, and the one way through them.
//!
//! ```text
//! reserved -> initializing -> created -> running -> (stopping) -> wiping -> completed
//!     \____________\____________\___________\___________\__________^
//! ```
//! Every failure goes through wiping. What a shim or a record reports may skip states that the daemon did not
//! see (it was dead), may come twice, and may come late: [`advance`] tells which states are passed, in order,
//! so that a watcher sees each once and never one after `completed`.

use serde::{Deserialize, Serialize};

/// State of a container, in the order of its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Admitted: its capacity is held.
    Reserved,
    /// The container is being prepared by a shim.
    Initializing,
    /// Ready; its process is not started.
    Created,
    /// The process runs.
    Running,
    /// Asked to end.
    Stopping,
    /// The process has ended, or never ran; its secrets are being wiped.
    Wiping,
    /// Final.
    Completed,
}

/// Returns the states that are passed from `from` to `reported`, `reported` last; none if `reported` is not later. `ran` tells that
/// the process was started: one that ended before that was told is still seen to have run.
pub fn advance(from: State, reported: State, ran: bool) -> impl Iterator<Item = State> {
    let is_passed = move |state| match state {
        State::Reserved => false,
        State::Initializing | State::Created | State::Running => ran || reported <= State::Running,
        State::Stopping => reported == State::Stopping,
        State::Wiping | State::Completed => true,
    };
    State::ALL.into_iter().filter(move |state| from < *state && *state <= reported && is_passed(*state))
}

impl State {
    /// All states, in the order of life.
    pub const ALL: [Self; 7] = [
        Self::Reserved,
        Self::Initializing,
        Self::Created,
        Self::Running,
        Self::Stopping,
        Self::Wiping,
        Self::Completed,
    ];

    /// The state's name in output and filters.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::Initializing => "initializing",
            Self::Created => "created",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Wiping => "wiping",
            Self::Completed => "completed",
        }
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        /// Whatever is reported, in whatever order and however often: states are seen in the order of life, each
        /// at most once, none after `completed`, `wiping` before it, and `running` where the process was started before
        /// anything later was seen.
        #[test]
        fn any_history_is_one_life(reports in proptest::collection::vec(0usize..7, 0..40), started in 0usize..40) {
            let mut seen = vec![State::Reserved];
            for (at, report) in reports.into_iter().map(|i| State::ALL[i]).chain([State::Completed]).enumerate() {
                let now = seen[seen.len() - 1];
                let passed: Vec<State> = advance(now, report, at >= started).collect();
                let jumps = now < State::Running && report > State::Running && at >= started;
                proptest::prop_assert!(!jumps || passed.contains(&State::Running), "{:?} to {:?}", now, report);
                seen.extend(passed);
            }
            proptest::prop_assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", seen);
            proptest::prop_assert_eq!(&seen[seen.len() - 2..], [State::Wiping, State::Completed]);
        }
    }
}
