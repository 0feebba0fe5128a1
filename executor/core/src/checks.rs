//! Evaluates the results of a container's health checks.
//!
//! ```text
//!  starting ── all startup checks passed ──> started ── all readiness checks pass ──> ready
//!     │                                         │  <──── one fails ───────────────────┘
//!     └─ start_timeout ──> ended                └─ a liveness check fails ──> ended
//! ```
//! The input is results and times; the output is the check that is due next, health changes, and the order to terminate
//! the container. Times are counted from the start of the main action, which follows `setup`. The health survives a
//! restart of the daemon; the due times do not.
//!
//! A check that the executor could not execute counts neither as a success nor as a failure. After `start_timeout`, a
//! container is terminated only if the newest result of a startup check is a failure, and this daemon has executed that
//! check.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::plan::{Check, Checks, MonitorForm};
use crate::time::Timestamp;

/// Maximum length of a stored failure reason, in bytes.
pub const REASON_MAX: usize = 512;
/// Divisor of a check's interval. The quotient is the maximum random reduction of the interval.
const SPREAD_SHARE: u32 = 10;

/// Purpose of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// Checks that the container has started.
    Startup,
    /// Checks that the container still works.
    Liveness,
    /// Checks that the container can serve.
    Readiness,
}

/// Identifies a check of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckId {
    /// Purpose of the check, which selects the list of checks.
    pub purpose: Purpose,
    /// Index of the check in the list for its purpose.
    pub index: usize,
}

/// State of a check, derived from its results.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckState {
    /// True if the check passes, according to its thresholds.
    pub passing: bool,
    /// Number of consecutive successes up to the newest result.
    pub successes: u32,
    /// Number of consecutive failures up to the newest result.
    pub failures: u32,
    /// Time of the newest result.
    pub checked_at: Option<Timestamp>,
    /// Newest failure of the check, if it ever failed.
    pub last_failure: Option<CheckFailure>,
}

/// A failure of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckFailure {
    /// Time of the failure.
    pub at: Timestamp,
    /// Reason: one line of at most [`REASON_MAX`] bytes.
    pub reason: String,
}

/// Health of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// True once the startup checks have passed.
    pub started: bool,
    /// True if the container can serve, because all readiness checks pass.
    pub ready: bool,
    /// States of the startup checks.
    pub startup: Vec<CheckState>,
    /// States of the liveness checks.
    pub liveness: Vec<CheckState>,
    /// States of the readiness checks.
    pub readiness: Vec<CheckState>,
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckOutcome {
    /// The check passed.
    Passed,
    /// The check failed, with the reason.
    Failed(String),
    /// The executor could not execute the check.
    NotRun,
}

/// Change of the health that follows from a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HealthChange {
    /// The container became ready.
    Ready,
    /// The container is no longer ready.
    NotReady,
    /// The container must be terminated; holds the reason, worded as in Diego.
    End(String),
}

/// Monitors the health of one container.
#[derive(Debug)]
pub struct Monitor<'a> {
    checks: &'a Checks,
    health: Health,
    /// Times of the next checks, in the order of the lists in `health`.
    due: [Vec<Duration>; 3],
    /// One flag for each startup check: true if the newest result since the creation of this monitor is a failure.
    failed: Vec<bool>,
    /// Final round of liveness checks, which collects all failures. Unset until a liveness check reaches its failure
    /// threshold.
    last_round: Option<LastRound>,
    ended: bool,
}

/// Liveness checks that are repeated once before the container is terminated.
#[derive(Debug)]
struct LastRound {
    /// Indices of the checks that are still due.
    pending: Vec<usize>,
    /// Failure of each check, if it failed.
    failures: Vec<Option<String>>,
}

impl Health {
    /// Returns the states of all checks with this purpose.
    pub fn states(&self, purpose: Purpose) -> &[CheckState] {
        match purpose {
            Purpose::Startup => &self.startup,
            Purpose::Liveness => &self.liveness,
            Purpose::Readiness => &self.readiness,
        }
    }

    fn states_mut(&mut self, purpose: Purpose) -> &mut Vec<CheckState> {
        match purpose {
            Purpose::Startup => &mut self.startup,
            Purpose::Liveness => &mut self.liveness,
            Purpose::Readiness => &mut self.readiness,
        }
    }
}

/// Returns all checks with this purpose.
fn list(checks: &Checks, purpose: Purpose) -> &[Check] {
    match purpose {
        Purpose::Startup => &checks.startup,
        Purpose::Liveness => &checks.liveness,
        Purpose::Readiness => &checks.readiness,
    }
}

impl<'a> Monitor<'a> {
    /// Creates a monitor that continues with the stored health `kept`, if any. `spread` returns a random number below
    /// 1000, which spreads the checks of many containers over time.
    pub fn new(checks: &'a Checks, kept: Option<&Health>, now: Duration, mut spread: impl FnMut() -> u32) -> Self {
        let mut health = kept.cloned().unwrap_or_default();
        let mut due = [const { Vec::new() }; 3];
        for purpose in PURPOSES {
            let all = list(checks, purpose);
            health.states_mut(purpose).resize_with(all.len(), CheckState::default);
            // The first checks of a started container are spread over their interval. Otherwise, many containers would
            // be checked at the same time after a daemon restart.
            let first = |check: &Check| {
                let wait = if health.started { check.interval_after(true) } else { Duration::ZERO };
                (now + wait * spread().min(999) / 1000).max(check.initial_delay)
            };
            due[purpose as usize] = all.iter().map(first).collect();
        }
        let mut monitor = Self { checks, health, due, failed: Vec::new(), last_round: None, ended: false };
        monitor.failed = vec![false; list(checks, monitor.starting()).len()];
        if list(checks, monitor.starting()).is_empty() {
            monitor.health.started = true;
        }
        monitor
    }

    /// Returns the current health.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Returns the purpose whose checks decide if the container has started.
    fn starting(&self) -> Purpose {
        if self.checks.startup.is_empty() { Purpose::Liveness } else { Purpose::Startup }
    }

    /// Returns the check that is due first, with its time; `None` if there are no more checks.
    pub fn next(&self) -> Option<(CheckId, Duration)> {
        if let Some(LastRound { pending, .. }) = self.last_round.as_ref().filter(|_| !self.ended) {
            let index = *pending.first()?;
            return Some((CheckId { purpose: Purpose::Liveness, index }, self.due[Purpose::Liveness as usize][index]));
        }
        let active: &[Purpose] = match (self.ended, self.health.started) {
            (true, _) => &[],
            (false, false) => match self.starting() {
                Purpose::Startup => &[Purpose::Startup],
                _ => &[Purpose::Liveness],
            },
            (false, true) => &[Purpose::Liveness, Purpose::Readiness],
        };
        let of = |purpose: &Purpose| {
            let (due, purpose) = (&self.due[*purpose as usize], *purpose);
            due.iter().enumerate().map(move |(index, at)| (CheckId { purpose, index }, *at))
        };
        active.iter().flat_map(of).min_by_key(|(_, at)| *at)
    }

    /// Returns the check with this id.
    pub fn check(&self, id: CheckId) -> Option<&'a Check> {
        list(self.checks, id.purpose).get(id.index)
    }

    /// Returns the time at which the container is terminated if its startup checks have not passed. `None` if no
    /// startup check is failing, or if the container has started or has been terminated.
    pub fn deadline(&self) -> Option<Duration> {
        let open = !self.ended && !self.health.started;
        (open && self.failed.contains(&true)).then_some(self.checks.start_timeout)
    }

    /// Returns the order to terminate the container if the start deadline has passed.
    pub fn tick(&mut self, now: Duration) -> Option<HealthChange> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return None;
        }
        let states = self.health.states(self.starting()).iter().zip(&self.failed);
        let failures = states.filter(|(_, failed)| **failed).filter_map(|(state, _)| state.last_failure.as_ref());
        let reasons = failures.map(|failure| &*failure.reason).collect::<Vec<_>>().join("; ");
        let reason = shorten(&reasons);
        let why = format!("Instance never healthy after {}: {reason}", words_of(self.checks.start_timeout));
        self.ended = true;
        self.health.ready = false;
        Some(HealthChange::End(why))
    }

    /// Evaluates the result of a check. Returns the change, and true if the health should be stored. A success that
    /// changes nothing need not be stored.
    pub fn report(
        &mut self,
        id: CheckId,
        outcome: &CheckOutcome,
        now: Duration,
        at: Timestamp,
        spread: u32,
    ) -> (Option<HealthChange>, bool) {
        let Some(check) = self.check(id).filter(|_| !self.ended) else { return (None, false) };
        let starts = !self.health.started && id.purpose == self.starting();
        let before = self.health.clone();
        let state = &mut self.health.states_mut(id.purpose)[id.index];
        match outcome {
            CheckOutcome::Passed => {
                state.successes = state.successes.saturating_add(1);
                state.failures = 0;
                state.passing |= state.successes >= check.healthy_threshold;
                state.checked_at = Some(at);
            }
            CheckOutcome::Failed(reason) => {
                state.successes = 0;
                state.failures = state.failures.saturating_add(1);
                state.passing &= !starts && state.failures < check.unhealthy_threshold;
                state.checked_at = Some(at);
                state.last_failure = Some(CheckFailure { at, reason: shorten(reason) });
            }
            CheckOutcome::NotRun => {}
        }
        let good = state.passing && state.failures == 0 && *outcome != CheckOutcome::NotRun;
        let failures = state.failures;
        let interval = check.interval_after(good);
        self.due[id.purpose as usize][id.index] = now + interval - interval / SPREAD_SHARE * spread.min(999) / 1000;
        if starts {
            self.failed[id.index] = matches!(outcome, CheckOutcome::Failed(_));
            if self.health.states(id.purpose).iter().all(|state| state.passing) {
                self.start(now);
            }
        }
        let end = match (outcome, id.purpose) {
            _ if starts => self.tick(now),
            (_, Purpose::Liveness) if self.last_round.is_some() => self.record_in_last_round(id.index, outcome),
            (CheckOutcome::Failed(_), Purpose::Liveness) if failures >= check.unhealthy_threshold => {
                let count = self.checks.liveness.len();
                let others = |_: &usize| self.checks.monitor == MonitorForm::Parallel;
                let pending: Vec<usize> = (0..count).filter(|index| *index != id.index).filter(others).collect();
                pending.iter().for_each(|index| self.due[Purpose::Liveness as usize][*index] = now);
                self.last_round = Some(LastRound { pending, failures: vec![None; count] });
                self.record_in_last_round(id.index, outcome)
            }
            _ => None,
        };
        self.health.ready =
            !self.ended && self.health.started && self.health.readiness.iter().all(|state| state.passing);
        let change = end.or(match (before.ready, self.health.ready) {
            (false, true) => Some(HealthChange::Ready),
            (true, false) => Some(HealthChange::NotReady),
            _ => None,
        });
        let differs = |purpose| {
            let pairs = before.states(purpose).iter().zip(self.health.states(purpose));
            pairs.into_iter().any(|(old, new)| (old.passing, old.failures) != (new.passing, new.failures))
        };
        let keep = change.is_some() || before.started != self.health.started || PURPOSES.into_iter().any(differs);
        (change, keep)
    }

    /// Evaluates the result of a check in the final round. Once the round is complete, returns the order to terminate
    /// the container, with all failures.
    fn record_in_last_round(&mut self, index: usize, outcome: &CheckOutcome) -> Option<HealthChange> {
        let round = self.last_round.as_mut()?;
        if let CheckOutcome::Failed(reason) = outcome {
            round.failures[index] = Some(reason.clone());
        }
        round.pending.retain(|other| *other != index);
        if !round.pending.is_empty() {
            return None;
        }
        self.ended = true;
        let reasons = round.failures.iter().flatten().map(String::as_str).collect::<Vec<_>>().join("; ");
        Some(HealthChange::End(format!("Instance became unhealthy: {}", shorten(&reasons))))
    }

    /// Marks the container as started, and schedules the checks that follow.
    fn start(&mut self, now: Duration) {
        self.health.started = true;
        let own_liveness = self.starting() == Purpose::Startup;
        for purpose in [Purpose::Liveness, Purpose::Readiness] {
            let checks = list(self.checks, purpose).iter().zip(&mut self.due[purpose as usize]);
            for (check, due) in checks.filter(|_| purpose == Purpose::Readiness || own_liveness) {
                *due = now.max(check.initial_delay);
            }
        }
        for state in &mut self.health.liveness {
            // Failures before the start do not count afterwards.
            (state.passing, state.failures) = (true, 0);
        }
    }
}

/// All purposes, in the order of the lists in `Health`.
const PURPOSES: [Purpose; 3] = [Purpose::Startup, Purpose::Liveness, Purpose::Readiness];

/// Converts a reason to one line of at most [`REASON_MAX`] bytes.
fn shorten(reason: &str) -> String {
    let mut text: String = crate::text::replaced(reason, ' ');
    if text.len() > REASON_MAX {
        text.truncate((0..=REASON_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0));
    }
    text
}

/// Formats a duration as Diego does: `1m0s`, `5s`, `1.5s`, `500ms`.
pub fn words_of(duration: Duration) -> String {
    let (seconds, millis) = (duration.as_secs(), duration.subsec_millis());
    if seconds == 0 && millis > 0 {
        return format!("{millis}ms");
    }
    let fraction = match millis {
        0 => String::new(),
        _ => format!(".{millis:03}").trim_end_matches('0').to_owned(),
    };
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{rest}{fraction}s"),
        (0, _) => format!("{minutes}m{rest}{fraction}s"),
        _ => format!("{hours}h{minutes}m{rest}{fraction}s"),
    }
}

#[cfg(test)]
mod tests;
