//! Defines the states of a container and their order.
//!
//! ```text
//! reserved -> initializing -> created -> running -> (stopping) -> wiping -> completed
//!     \____________\____________\___________\___________\__________^
//! ```
//! After every failure, the container goes through the state `wiping`. Reports of shims may be duplicated or late.
//! Reports and records may skip states, because the daemon was not running. [`advance`] returns the states that the
//! container goes through, in order, so that a client sees each state once, and no state after `completed`.

use serde::{Deserialize, Serialize};

/// State of a container, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Accepted; the container's capacity is reserved.
    Reserved,
    /// A shim is preparing the container.
    Initializing,
    /// Prepared; the process is not started.
    Created,
    /// The process runs.
    Running,
    /// The stop signal was sent to the container's process.
    Stopping,
    /// The process has exited, or never ran; the secrets are being wiped.
    Wiping,
    /// The result is recorded, and the container does not change any more.
    Completed,
}

/// Returns the states that a container goes through after `from`, up to and including `reported`; none if `reported` is
/// not later than `from`. `ran` is true if the process was started. Such a container goes through `running`, even if
/// the process exited before `running` was reported.
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
    /// All states, in order.
    pub const ALL: [Self; 7] = [
        Self::Reserved,
        Self::Initializing,
        Self::Created,
        Self::Running,
        Self::Stopping,
        Self::Wiping,
        Self::Completed,
    ];

    /// Returns the state's name in output and filters.
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
        /// For any sequence of reports, each state is reported at most once and in order: none after `completed`,
        /// `wiping` before `completed`, and `running` before any later state if the process was started.
        #[test]
        fn states_advance_in_order(reports in proptest::collection::vec(0usize..7, 0..40), started in 0usize..40) {
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
