//! Converts a container's checks and their results to API messages.

use executor_core::checks::{CheckState, Health, Purpose};
use executor_core::plan::{Check, Checks, Probe};
use executor_proto::v1::{self, check::Kind};

use super::{duration, timestamp};

pub(super) fn checks(checks: &Checks) -> v1::Checks {
    let list = |of: &[Check]| of.iter().map(check).collect();
    let decides_start = !checks.startup.is_empty() || !checks.liveness.is_empty();
    v1::Checks {
        startup: list(&checks.startup),
        liveness: list(&checks.liveness),
        readiness: list(&checks.readiness),
        start_timeout: decides_start.then(|| duration(checks.start_timeout)),
    }
}

fn check(check: &Check) -> v1::Check {
    let kind = match &check.probe {
        Probe::Tcp(port) => Kind::Tcp(v1::TcpCheck { port: (*port).into() }),
        Probe::Http(http) => Kind::Http(v1::HttpCheck {
            port: http.port.into(),
            path: http.path.clone(),
            headers: http
                .headers
                .iter()
                .map(|(name, value)| v1::HttpHeader { name: name.clone(), value: value.clone() })
                .collect(),
            statuses: http.statuses.iter().map(|status| (*status).into()).collect(),
        }),
        Probe::Exec(exec) => Kind::Exec(v1::ExecCheck {
            path: exec.path.clone(),
            args: exec.args.clone(),
            dir: exec.dir.clone(),
            user: exec.user.clone(),
            container_environment: exec.container_environment,
        }),
    };
    v1::Check {
        kind: Some(kind),
        interval: (!check.interval.is_zero()).then(|| duration(check.interval)),
        timeout: Some(duration(check.timeout)),
        initial_delay: Some(duration(check.initial_delay)),
        healthy_threshold: check.healthy_threshold,
        unhealthy_threshold: check.unhealthy_threshold,
    }
}

/// Converts the results of a container's checks to API messages.
pub(super) fn statuses(health: Option<&Health>) -> Vec<v1::CheckStatus> {
    let Some(health) = health else { return Vec::new() };
    let purposes = [
        (Purpose::Startup, v1::CheckPurpose::Startup),
        (Purpose::Liveness, v1::CheckPurpose::Liveness),
        (Purpose::Readiness, v1::CheckPurpose::Readiness),
    ];
    let of = |(purpose, name): (Purpose, v1::CheckPurpose)| {
        let states = health.states(purpose).iter().zip(0..);
        states.map(move |(state, index)| status(name, index, state))
    };
    purposes.into_iter().flat_map(of).collect()
}

fn status(purpose: v1::CheckPurpose, index: u32, state: &CheckState) -> v1::CheckStatus {
    let failure = state.last_failure.as_ref();
    v1::CheckStatus {
        purpose: purpose.into(),
        index,
        passing: state.passing,
        successes: state.successes,
        failures: state.failures,
        checked_at: state.checked_at.map(timestamp),
        last_failure: failure.map(|failure| failure.reason.clone()).unwrap_or_default(),
        last_failure_at: failure.map(|failure| timestamp(failure.at)),
    }
}
