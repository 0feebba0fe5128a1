//! Converts the checks of a request for validation.

use std::time::Duration;

use executor_core::plan::{Check, Checks, ExecProbe, HttpProbe, MonitorForm, Probe};
use executor_core::validate::Violation;
use executor_core::validate::ViolationReason::{OutOfRange, Required};
use executor_proto::v1::{self, check::Kind};

use super::duration;

/// Returns the checks, with zeros for unset values. Values that cannot be converted become violations.
pub(super) fn from_request(checks: &v1::Checks, violations: &mut Vec<Violation>) -> Checks {
    let mut list = |name: &str, of: &[v1::Check]| {
        let one = |(index, check)| one(&format!("checks.{name}[{index}]"), check, violations);
        of.iter().enumerate().map(one).collect()
    };
    let (startup, liveness) = (list("startup", &checks.startup), list("liveness", &checks.liveness));
    let readiness = list("readiness", &checks.readiness);
    let start_timeout = span("checks.start_timeout", checks.start_timeout.as_ref(), violations);
    Checks { startup, liveness, readiness, start_timeout, monitor: MonitorForm::None }
}

fn one(field: &str, check: &v1::Check, violations: &mut Vec<Violation>) -> Check {
    let probe = match &check.kind {
        None => {
            violations.push(Violation::new(field, Required.because("has no probe; set one of http, tcp and exec")));
            Probe::Tcp(1)
        }
        Some(Kind::Tcp(tcp)) => Probe::Tcp(number(&format!("{field}.tcp.port"), tcp.port, 1, violations)),
        Some(Kind::Http(http)) => {
            let status = |(index, status): (usize, &u32)| {
                number(&format!("{field}.http.statuses[{index}]"), *status, 200 + index as u16, violations)
            };
            let statuses = http.statuses.iter().enumerate().map(status).collect();
            Probe::Http(HttpProbe {
                port: number(&format!("{field}.http.port"), http.port, 1, violations),
                path: http.path.clone(),
                headers: http.headers.iter().map(|header| (header.name.clone(), header.value.clone())).collect(),
                statuses,
            })
        }
        Some(Kind::Exec(exec)) => Probe::Exec(ExecProbe {
            path: exec.path.clone(),
            args: exec.args.clone(),
            dir: exec.dir.clone(),
            user: exec.user.clone(),
            container_environment: exec.container_environment,
        }),
    };
    let mut time =
        |name: &str, time: Option<&prost_types::Duration>| span(&format!("{field}.{name}"), time, violations);
    Check {
        probe,
        interval: time("interval", check.interval.as_ref()),
        timeout: time("timeout", check.timeout.as_ref()),
        initial_delay: time("initial_delay", check.initial_delay.as_ref()),
        healthy_threshold: check.healthy_threshold,
        unhealthy_threshold: check.unhealthy_threshold,
        log_source: String::new(),
    }
}

/// Returns a duration; 0 if unset. Reports a violation and returns 0 if the duration cannot be converted.
fn span(field: &str, time: Option<&prost_types::Duration>, violations: &mut Vec<Violation>) -> Duration {
    match duration(field, time) {
        Ok(time) => time.unwrap_or_default(),
        Err(violation) => {
            violations.push(violation);
            Duration::ZERO
        }
    }
}

/// Returns a 16-bit number. Reports a larger number as a violation and returns `placeholder`, which validation accepts.
fn number(field: &str, number: u32, placeholder: u16, violations: &mut Vec<Violation>) -> u16 {
    u16::try_from(number).unwrap_or_else(|_| {
        violations.push(Violation::new(field, OutOfRange.because(format!("is {number}; at most 65535 is allowed"))));
        placeholder
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_check_fields_are_reported_once() {
        let check = |kind| v1::Check { kind, ..v1::Check::default() };
        let http = v1::HttpCheck { port: 65_536, statuses: vec![200, 70_000], ..v1::HttpCheck::default() };
        let negative = Some(prost_types::Duration { seconds: -1, nanos: 0 });
        let asked = v1::Checks {
            startup: vec![check(None)],
            liveness: vec![check(Some(Kind::Tcp(v1::TcpCheck { port: 1 << 20 }))), check(Some(Kind::Http(http)))],
            readiness: vec![v1::Check { timeout: negative, ..check(Some(Kind::Tcp(v1::TcpCheck { port: 1 }))) }],
            start_timeout: negative,
        };
        let mut violations = Vec::new();
        from_request(&asked, &mut violations);
        let fields: Vec<&str> = violations.iter().map(|violation| &*violation.field).collect();
        let expected = [
            "checks.startup[0]",
            "checks.liveness[0].tcp.port",
            "checks.liveness[1].http.statuses[1]",
            "checks.liveness[1].http.port",
            "checks.readiness[0].timeout",
            "checks.start_timeout",
        ];
        assert_eq!(fields, expected);
    }
}
