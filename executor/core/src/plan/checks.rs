//! Checks of a running container: what is checked, how often, and how many results count.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Time limit of a check where the request has none. Diego's.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(1);
/// Time between checks that pass, where the request has none. Diego's.
pub const INTERVAL_HEALTHY: Duration = Duration::from_secs(30);
/// Time between checks that do not pass, where the request has none. Diego's.
pub const INTERVAL_UNHEALTHY: Duration = Duration::from_secs(2);
/// Time in which a container must become healthy, where the request has none. Cloud Foundry's.
pub const START_TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);
/// Successes after which a check passes, where the request has no number.
pub const HEALTHY_DEFAULT: u32 = 1;
/// Failures after which a check no longer passes, where the request has no number. The kubelet's: with Diego's 1, a
/// program that does not answer for one second is ended.
pub const UNHEALTHY_DEFAULT: u32 = 3;

/// Checks of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checks {
    /// Checks that must pass before all others are made; the liveness checks, if there are none.
    pub startup: Vec<Check>,
    /// Checks that end the container when one fails.
    pub liveness: Vec<Check>,
    /// Checks that must pass for the container to be ready.
    pub readiness: Vec<Check>,
    /// Time from the start of the process in which the startup checks must pass; 0 in a draft for the default.
    pub start_timeout: Duration,
    /// Form of the monitor whose programs the liveness checks are.
    #[serde(default)]
    pub monitor: MonitorForm,
}

/// Form of a monitor, as far as it decides about reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MonitorForm {
    /// The checks are of no monitor.
    #[default]
    None,
    /// Some programs follow others: the first failure is reported.
    Serial,
    /// All programs are parallel: a failure has all of them made once more, and every failure is reported.
    Parallel,
}

/// A check. Zeros in a draft stand for defaults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Way in which the container is checked.
    pub probe: Probe,
    /// Time between checks; 0 for one that depends on the last result.
    pub interval: Duration,
    /// Time limit.
    pub timeout: Duration,
    /// Time from the start of the process to the first check.
    pub initial_delay: Duration,
    /// Successes in a row after which it passes.
    pub healthy_threshold: u32,
    /// Failures in a row after which it no longer passes; 0 of a startup check.
    pub unhealthy_threshold: u32,
    /// Source of the log lines with a program's output; the container's when empty.
    #[serde(default)]
    pub log_source: String,
}

/// Way in which a container is checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Probe {
    /// The status of an answer to an HTTP request.
    Http(HttpProbe),
    /// A connection to this port.
    Tcp(u16),
    /// The exit status of a program.
    Exec(ExecProbe),
}

/// An HTTP request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpProbe {
    /// Port.
    pub port: u16,
    /// Path with its query; `/` when empty in a draft.
    pub path: String,
    /// Headers.
    pub headers: Vec<(String, String)>,
    /// Statuses that pass; 200 to 399 when empty.
    pub statuses: Vec<u16>,
}

impl HttpProbe {
    /// True of a status that passes. As with the kubelet, a redirect passes: it is an answer, and is not followed.
    pub fn passes(&self, status: u16) -> bool {
        if self.statuses.is_empty() { (200..400).contains(&status) } else { self.statuses.contains(&status) }
    }
}

/// A program in the container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecProbe {
    /// Program.
    pub path: String,
    /// Arguments, which are not secret.
    pub args: Vec<String>,
    /// Working directory; the process's own when empty.
    pub dir: String,
    /// User; the container's own when empty.
    pub user: String,
    /// True when it has the environment of the container's process.
    #[serde(default)]
    pub container_environment: bool,
}

impl Check {
    /// Returns the time to the next check after a result.
    pub fn interval_after(&self, passing: bool) -> Duration {
        match (self.interval.is_zero(), passing) {
            (false, _) => self.interval,
            (true, true) => INTERVAL_HEALTHY,
            (true, false) => INTERVAL_UNHEALTHY,
        }
    }
}

impl Checks {
    /// True if the container has checks that decide that it has started: Diego's health monitoring.
    pub fn decide_start(&self) -> bool {
        !self.startup.is_empty() || !self.liveness.is_empty()
    }

    /// Returns all checks.
    pub fn all(&self) -> impl Iterator<Item = &Check> {
        self.startup.iter().chain(&self.liveness).chain(&self.readiness)
    }

    /// True when a connection into the container's network is made.
    pub fn connect(&self) -> bool {
        self.all().any(|check| !matches!(check.probe, Probe::Exec(_)))
    }
}
