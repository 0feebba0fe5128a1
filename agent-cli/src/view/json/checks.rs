//! A container's health checks and their results.

use std::collections::BTreeMap;

use executor_cli_kit::view::json::time;
use executor_client::v1::{self, check::Kind};
use serde::Serialize;

use super::seconds;
use crate::view::human::word;

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Checks {
    startup: Vec<Check>,
    liveness: Vec<Check>,
    readiness: Vec<Check>,
    start_timeout_seconds: Option<f64>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Check {
    http: Option<HttpCheck>,
    tcp: Option<TcpCheck>,
    exec: Option<ExecCheck>,
    interval_seconds: Option<f64>,
    timeout_seconds: Option<f64>,
    initial_delay_seconds: Option<f64>,
    healthy_threshold: u32,
    unhealthy_threshold: u32,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct HttpCheck {
    port: u32,
    path: String,
    headers: BTreeMap<String, String>,
    statuses: Vec<u32>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct TcpCheck {
    port: u32,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ExecCheck {
    path: String,
    args: Vec<String>,
    dir: String,
    user: String,
    container_environment: bool,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct CheckStatus {
    purpose: String,
    index: u32,
    passing: bool,
    successes: u32,
    failures: u32,
    checked_at: Option<String>,
    last_failure: Option<String>,
    last_failure_at: Option<String>,
}

impl From<&v1::Checks> for Checks {
    fn from(checks: &v1::Checks) -> Self {
        let list = |of: &[v1::Check]| of.iter().map(Check::from).collect();
        Self {
            startup: list(&checks.startup),
            liveness: list(&checks.liveness),
            readiness: list(&checks.readiness),
            start_timeout_seconds: seconds(checks.start_timeout),
        }
    }
}

impl From<&v1::Check> for Check {
    fn from(check: &v1::Check) -> Self {
        let (mut http, mut tcp, mut exec) = (None, None, None);
        match &check.kind {
            None => {}
            Some(Kind::Http(of)) => {
                let header = |header: &v1::HttpHeader| (header.name.clone(), header.value.clone());
                http = Some(HttpCheck {
                    port: of.port,
                    path: of.path.clone(),
                    headers: of.headers.iter().map(header).collect(),
                    statuses: of.statuses.clone(),
                });
            }
            Some(Kind::Tcp(of)) => tcp = Some(TcpCheck { port: of.port }),
            Some(Kind::Exec(of)) => {
                let (path, args) = (of.path.clone(), of.args.clone());
                let container_environment = of.container_environment;
                exec =
                    Some(ExecCheck { path, args, dir: of.dir.clone(), user: of.user.clone(), container_environment });
            }
        }
        Self {
            http,
            tcp,
            exec,
            interval_seconds: seconds(check.interval),
            timeout_seconds: seconds(check.timeout),
            initial_delay_seconds: seconds(check.initial_delay),
            healthy_threshold: check.healthy_threshold,
            unhealthy_threshold: check.unhealthy_threshold,
        }
    }
}

impl From<&v1::CheckStatus> for CheckStatus {
    fn from(status: &v1::CheckStatus) -> Self {
        Self {
            purpose: word(status.purpose().as_str_name(), "CHECK_PURPOSE_"),
            index: status.index,
            passing: status.passing,
            successes: status.successes,
            failures: status.failures,
            checked_at: time(status.checked_at.as_ref()),
            last_failure: Some(status.last_failure.clone()).filter(|reason| !reason.is_empty()),
            last_failure_at: time(status.last_failure_at.as_ref()),
        }
    }
}
