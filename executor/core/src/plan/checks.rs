//! Defines the health checks of a container: probes, intervals and thresholds.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Default time limit of a check, as in Diego.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(1);
/// Default interval of a check that passes, as in Diego.
pub const INTERVAL_HEALTHY: Duration = Duration::from_secs(30);
/// Default interval of a check that does not pass, as in Diego.
pub const INTERVAL_UNHEALTHY: Duration = Duration::from_secs(2);
/// Default time in which a container must become healthy, as in Cloud Foundry.
pub const START_TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);
/// Default number of successes after which a check passes.
pub const HEALTHY_DEFAULT: u32 = 1;
/// Default number of failures after which a check no longer passes. The kubelet has the same default. With Diego's
/// default, 1, a program that does not respond for one second would be terminated.
pub const UNHEALTHY_DEFAULT: u32 = 3;

/// Health checks of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checks {
    /// Checks that must pass before any other check runs. If empty, the liveness checks must pass first.
    pub startup: Vec<Check>,
    /// Checks that terminate the container if one of them fails.
    pub liveness: Vec<Check>,
    /// Checks that must pass for the container to be ready.
    pub readiness: Vec<Check>,
    /// Time from the start of the process within which the startup checks must pass. In a draft, 0 = the default.
    pub start_timeout: Duration,
    /// Structure of the monitor action from which the liveness checks were created.
    #[serde(default)]
    pub monitor: MonitorForm,
}

/// Structure of a monitor action, which determines how failures are reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MonitorForm {
    /// The liveness checks were not created from a monitor action.
    #[default]
    None,
    /// The programs run serially: the first failure is reported.
    Serial,
    /// The programs run in parallel. After a failure, all programs are executed once more, and every failure is
    /// reported.
    Parallel,
}

/// A check of a container. Zeros in a draft mean defaults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Kind of check, with its settings.
    pub probe: Probe,
    /// Time between checks; 0 if the time depends on the last result.
    pub interval: Duration,
    /// Time limit of one check.
    pub timeout: Duration,
    /// Time from the start of the process to the first check.
    pub initial_delay: Duration,
    /// Consecutive successes after which the check passes.
    pub healthy_threshold: u32,
    /// Consecutive failures after which the check no longer passes; 0 for a startup check.
    pub unhealthy_threshold: u32,
    /// Log source of a program's output; if empty, the container's log source.
    #[serde(default)]
    pub log_source: String,
}

/// Kind of check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Probe {
    /// An HTTP request; the status decides.
    Http(HttpProbe),
    /// A TCP connection to this port.
    Tcp(u16),
    /// A program; its exit status decides.
    Exec(ExecProbe),
}

/// An HTTP request that is sent to the container as a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpProbe {
    /// Port of the container to which the request is sent.
    pub port: u16,
    /// Path with its query; in a draft, empty = `/`.
    pub path: String,
    /// Request headers, as name and value.
    pub headers: Vec<(String, String)>,
    /// Status codes that pass; 200 to 399 if empty.
    pub statuses: Vec<u16>,
}

impl HttpProbe {
    /// Returns true if the status passes. As with the kubelet, a redirect passes and is not followed.
    pub fn passes(&self, status: u16) -> bool {
        if self.statuses.is_empty() { (200..400).contains(&status) } else { self.statuses.contains(&status) }
    }
}

/// A program that is executed in the container as a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecProbe {
    /// Path or name of the program.
    pub path: String,
    /// Arguments, which are not secret.
    pub args: Vec<String>,
    /// Working directory; the container's own if empty.
    pub dir: String,
    /// User; the container's own if empty.
    pub user: String,
    /// True if the program gets the environment of the container's process.
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
    /// Returns true if checks decide that the container has started, as Diego's health monitoring does.
    pub fn decide_start(&self) -> bool {
        !self.startup.is_empty() || !self.liveness.is_empty()
    }

    /// Returns the startup, liveness and readiness checks.
    pub fn all(&self) -> impl Iterator<Item = &Check> {
        self.startup.iter().chain(&self.liveness).chain(&self.readiness)
    }

    /// Returns true if any check connects to the container's network.
    pub fn connect(&self) -> bool {
        self.all().any(|check| !matches!(check.probe, Probe::Exec(_)))
    }
}
