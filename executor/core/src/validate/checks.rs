//! Validates the health checks of a container: their number, times and strings.

use std::collections::BTreeSet;
use std::time::Duration;

use super::ViolationReason::{
    Conflict, Duplicate, InvalidCharacter, InvalidFormat, OutOfRange, Required, Reserved, TooLong, TooMany,
};
use super::{ExecDraft, Policy, Report, Violation, shorten, validate_exec};
use crate::plan::{
    Check, Checks, ExecProbe, HEALTHY_DEFAULT, HttpProbe, Probe, START_TIMEOUT_DEFAULT, TIMEOUT_DEFAULT,
    UNHEALTHY_DEFAULT,
};

/// Maximum number of checks for one purpose.
const CHECKS_MAX: usize = 4;
/// Maximum interval, initial delay and start timeout.
const SPAN_MAX: Duration = Duration::from_secs(3600);
/// Minimum time between checks, as in Diego.
const INTERVAL_MIN: Duration = Duration::from_millis(500);
/// Minimum time between executed programs, each of which needs a fork of the launcher.
const EXEC_INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Maximum time limit of one check.
const TIMEOUT_MAX: Duration = Duration::from_secs(60);
/// Minimum time limit of one check.
const TIMEOUT_MIN: Duration = Duration::from_millis(10);
/// Maximum number of consecutive results in a threshold.
const THRESHOLD_MAX: u32 = 100;
/// Maximum length of an HTTP request path, in bytes.
const HTTP_PATH_MAX: usize = 1024;
/// Maximum number of headers, and of statuses.
const HTTP_LIST_MAX: usize = 16;
/// Maximum length of a header name, in bytes.
const HEADER_NAME_MAX: usize = 64;
/// Maximum length of a header value, in bytes.
const HEADER_VALUE_MAX: usize = 512;
/// Maximum number of a program's arguments.
const ARGS_MAX: usize = 64;
/// Maximum total size of a program's path, directory, user and arguments, in bytes. Every record of the container
/// contains these strings.
const EXEC_BYTES_MAX: usize = 8 << 10;
/// Headers that control the connection, which are reserved for the executor.
const CONNECTION_HEADERS: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Validates the requested checks, and fills in defaults. Returns `None` if there are no checks.
pub(super) fn check(checks: &Checks, policy: &Policy, report: &mut Report) -> Option<Checks> {
    let start_timeout = or(checks.start_timeout, START_TIMEOUT_DEFAULT);
    let starts = !checks.startup.is_empty() || !checks.liveness.is_empty();
    if !starts && !checks.start_timeout.is_zero() && checks.start_timeout != START_TIMEOUT_DEFAULT {
        report.add("checks.start_timeout", Conflict.because("needs a startup or a liveness check"));
    }
    check_duration("checks.start_timeout", checks.start_timeout, Duration::ZERO, SPAN_MAX, report);
    let mut list = |name: &str, of: &[Check], is_startup: bool| {
        if of.len() > CHECKS_MAX {
            let why = format!("has {} entries; at most {CHECKS_MAX} are allowed", of.len());
            report.add(format!("checks.{name}"), TooMany.because(why));
            return Vec::new();
        }
        let one = |(index, check): (usize, &Check)| {
            let field = format!("checks.{name}[{index}]");
            let filled = one(&field, check, is_startup, policy, report);
            let decides_start = is_startup || (name == "liveness" && checks.startup.is_empty());
            if decides_start && filled.initial_delay.saturating_add(filled.timeout) > start_timeout {
                let why = "initial_delay and timeout together are longer than start_timeout";
                report.add(field, Conflict.because(why));
            }
            filled
        };
        of.iter().enumerate().map(one).collect()
    };
    let startup = list("startup", &checks.startup, true);
    let liveness = list("liveness", &checks.liveness, false);
    let readiness = list("readiness", &checks.readiness, false);
    let any = starts || !checks.readiness.is_empty();
    any.then_some(Checks { startup, liveness, readiness, start_timeout, monitor: checks.monitor })
}

/// Checks that programs request the environment of the container's process only if the environment is kept.
pub(super) fn environment(checks: Option<&Checks>, is_kept: bool, report: &mut Report) {
    let Some(checks) = checks.filter(|_| !is_kept) else { return };
    let lists = [("startup", &checks.startup), ("liveness", &checks.liveness), ("readiness", &checks.readiness)];
    for (name, list) in lists {
        for (index, check) in list.iter().enumerate() {
            if matches!(&check.probe, Probe::Exec(probe) if probe.container_environment) {
                let field = format!("checks.{name}[{index}].exec.container_environment");
                report.add(field, Conflict.because("requires keep_environment"));
            }
        }
    }
}

fn or(asked: Duration, default: Duration) -> Duration {
    if asked.is_zero() { default } else { asked }
}

fn one(field: &str, check: &Check, is_startup: bool, policy: &Policy, report: &mut Report) -> Check {
    let of = |name: &str| format!("{field}.{name}");
    let shortest = if matches!(check.probe, Probe::Exec(_)) { EXEC_INTERVAL_MIN } else { INTERVAL_MIN };
    check_duration(&of("interval"), check.interval, shortest, SPAN_MAX, report);
    check_duration(&of("timeout"), check.timeout, TIMEOUT_MIN, TIMEOUT_MAX, report);
    check_duration(&of("initial_delay"), check.initial_delay, Duration::ZERO, SPAN_MAX, report);
    for (name, count) in
        [("healthy_threshold", check.healthy_threshold), ("unhealthy_threshold", check.unhealthy_threshold)]
    {
        if count > THRESHOLD_MAX {
            report.add(of(name), OutOfRange.because(format!("is {count}; at most {THRESHOLD_MAX} is allowed")));
        }
    }
    if is_startup && check.unhealthy_threshold != 0 {
        let why = "cannot be set for a startup check, which may fail until checks.start_timeout";
        report.add(of("unhealthy_threshold"), Conflict.because(why));
    }
    if let Some(fault) = super::log_source_fault(&check.log_source) {
        report.add(of("log_source"), fault);
    }
    let count = |asked: u32, default: u32| if asked == 0 { default } else { asked };
    Check {
        probe: match &check.probe {
            Probe::Http(asked) => Probe::Http(http(&of("http"), asked, report)),
            Probe::Tcp(number) => {
                port(&of("tcp.port"), *number, report);
                Probe::Tcp(*number)
            }
            Probe::Exec(asked) => {
                exec(&of("exec"), asked, policy, report);
                Probe::Exec(asked.clone())
            }
        },
        interval: check.interval,
        timeout: or(check.timeout, TIMEOUT_DEFAULT),
        initial_delay: check.initial_delay,
        healthy_threshold: count(check.healthy_threshold, HEALTHY_DEFAULT),
        unhealthy_threshold: if is_startup { 0 } else { count(check.unhealthy_threshold, UNHEALTHY_DEFAULT) },
        log_source: check.log_source.clone(),
    }
}

/// Checks that a duration is within its limits, unless the duration is 0 (unset).
fn check_duration(field: &str, asked: Duration, least: Duration, most: Duration, report: &mut Report) {
    if !asked.is_zero() && !(least..=most).contains(&asked) {
        let why = match least.is_zero() {
            true => format!("is {asked:?}; at most {most:?} is allowed"),
            false => format!("is {asked:?}; {least:?} to {most:?} is allowed"),
        };
        report.add(field, OutOfRange.because(why));
    }
}

fn port(field: &str, port: u16, report: &mut Report) {
    if port == 0 {
        report.add(field, OutOfRange.because("is 0; 1 to 65535 is allowed"));
    }
}

fn http(field: &str, asked: &HttpProbe, report: &mut Report) -> HttpProbe {
    let of = |name: &str| format!("{field}.{name}");
    port(&of("port"), asked.port, report);
    // Characters of a URI's path and query (RFC 3986).
    let in_path = |b: u8| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/?%".contains(&b);
    if asked.path.len() > HTTP_PATH_MAX {
        let why = format!("is {} bytes; the maximum is {HTTP_PATH_MAX}", asked.path.len());
        report.add(of("path"), TooLong.because(why));
    } else if !(asked.path.is_empty() || asked.path.starts_with('/') && asked.path.bytes().all(in_path)) {
        let why = format!(
            "{:?} is not valid: it must begin with `/` and percent-encode (%XX) characters that a URI cannot contain",
            shorten(&asked.path)
        );
        report.add(of("path"), InvalidFormat.because(why));
    }
    if asked.headers.len() > HTTP_LIST_MAX {
        let why = format!("has {} entries; at most {HTTP_LIST_MAX} are allowed", asked.headers.len());
        report.add(of("headers"), TooMany.because(why));
    } else {
        headers(field, &asked.headers, report);
    }
    if asked.statuses.len() > HTTP_LIST_MAX {
        let why = format!("has {} entries; at most {HTTP_LIST_MAX} are allowed", asked.statuses.len());
        report.add(of("statuses"), TooMany.because(why));
    } else {
        let mut seen = BTreeSet::new();
        for (index, status) in asked.statuses.iter().enumerate() {
            let field = of(&format!("statuses[{index}]"));
            if !(200..600).contains(status) {
                report.add(field, OutOfRange.because(format!("is {status}; 200 to 599 is allowed")));
            } else if !seen.insert(status) {
                report.add(field, Duplicate.because("is given twice"));
            }
        }
    }
    HttpProbe { path: if asked.path.is_empty() { "/".into() } else { asked.path.clone() }, ..asked.clone() }
}

fn headers(field: &str, headers: &[(String, String)], report: &mut Report) {
    let mut seen = BTreeSet::new();
    for (index, (name, value)) in headers.iter().enumerate() {
        let of = |part: &str| format!("{field}.headers[{index}].{part}");
        // A token of RFC 9110.
        let in_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        let lower = name.to_ascii_lowercase();
        if name.is_empty() || name.len() > HEADER_NAME_MAX || !name.bytes().all(in_token) {
            let why = format!("{:?} is not a header name of 1 to {HEADER_NAME_MAX} characters", shorten(name));
            report.add(of("name"), InvalidFormat.because(why));
        } else if CONNECTION_HEADERS.contains(&&*lower) {
            report.add(of("name"), Reserved.because(format!("{name:?} is reserved: it controls the connection")));
        } else if !seen.insert(lower) {
            report.add(of("name"), Duplicate.because(format!("{name:?} is given twice")));
        }
        if value.len() > HEADER_VALUE_MAX {
            let why = format!("is {} bytes; the maximum is {HEADER_VALUE_MAX}", value.len());
            report.add(of("value"), TooLong.because(why));
        } else if !value.bytes().all(|b| b == b' ' || b.is_ascii_graphic()) {
            report.add(of("value"), InvalidCharacter.because("has a character that is not visible ASCII"));
        }
    }
}

fn exec(field: &str, asked: &ExecProbe, policy: &Policy, report: &mut Report) {
    let ExecProbe { path, args, dir, user, container_environment: _ } = asked;
    let bytes = [path, dir, user].into_iter().chain(args).map(String::len).sum::<usize>();
    if args.len() > ARGS_MAX {
        report.add(
            format!("{field}.args"),
            TooMany.because(format!("has {} entries; at most {ARGS_MAX} are allowed", args.len())),
        );
        return;
    }
    if bytes > EXEC_BYTES_MAX {
        report.add(field, TooLong.because(format!("is {bytes} bytes; the maximum is {EXEC_BYTES_MAX}")));
        return;
    }
    if path.is_empty() {
        report.add(format!("{field}.path"), Required.because("is not set"));
        return;
    }
    let args = args.iter().map(String::as_str).collect();
    let draft = ExecDraft { path, args, dir, user, ..ExecDraft::default() };
    for violation in validate_exec(&draft, policy).err().unwrap_or_default() {
        let name = violation.field.strip_prefix("start").unwrap_or(&violation.field);
        report.0.push(Violation { field: format!("{field}{name}"), ..violation });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::{Draft, recheck, validate};

    fn tcp(port: u16) -> Check {
        Check {
            probe: Probe::Tcp(port),
            interval: Duration::ZERO,
            timeout: Duration::ZERO,
            initial_delay: Duration::ZERO,
            healthy_threshold: 0,
            unhealthy_threshold: 0,
            log_source: String::new(),
        }
    }

    fn with(probe: Probe) -> Check {
        Check { probe, ..tcp(1) }
    }

    fn draft(checks: Checks) -> Draft<'static> {
        Draft { id: "a", path: "/a", memory_bytes: 64 << 20, checks: Some(checks), ..Draft::default() }
    }

    fn fields(checks: Checks) -> Vec<String> {
        let reported = validate(&draft(checks), &Policy::default());
        reported.err().unwrap_or_default().into_iter().map(|violation| violation.field).collect()
    }

    #[test]
    fn defaults_are_filled_in() {
        let asked = Checks {
            liveness: vec![tcp(80)],
            startup: vec![with(Probe::Http(HttpProbe { port: 8080, ..HttpProbe::default() }))],
            ..Checks::default()
        };
        let plan = validate(&draft(asked), &Policy::default()).unwrap();
        recheck(&plan, &Policy::default()).unwrap();
        let checks = plan.checks.unwrap();
        assert_eq!(
            (checks.start_timeout, checks.liveness[0].timeout),
            (Duration::from_secs(60), Duration::from_secs(1))
        );
        assert_eq!((checks.liveness[0].healthy_threshold, checks.liveness[0].unhealthy_threshold), (1, 3));
        assert_eq!(checks.startup[0].unhealthy_threshold, 0);
        assert!(
            matches!(&checks.startup[0].probe, Probe::Http(http) if http.path == "/" && http.passes(302) && !http.passes(404))
        );
        assert_eq!([true, false].map(|passing| checks.liveness[0].interval_after(passing).as_secs()), [30, 2]);
        assert_eq!(validate(&draft(Checks::default()), &Policy::default()).unwrap().checks, None);
    }

    #[test]
    fn every_violation_under_its_own_name() {
        let ms = Duration::from_millis;
        let text = |length: usize| "x".repeat(length);
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let http = HttpProbe {
            port: 0,
            path: "nope".into(),
            headers: vec![
                header("", "v"),
                header("Connection", "close"),
                header("A", "\r\nB: c"),
                header("a", &text(513)),
            ],
            statuses: vec![199, 200, 200, 600],
        };
        let exec = ExecProbe {
            path: "a\0".into(),
            dir: "x".into(),
            user: "a/b".into(),
            args: vec!["\0".into()],
            container_environment: false,
        };
        let slow = Check { interval: ms(499), timeout: ms(60_001), initial_delay: SPAN_MAX + ms(1), ..tcp(1) };
        let counts = Check { healthy_threshold: 101, unhealthy_threshold: 101, ..tcp(0) };
        let asked = Checks {
            startup: vec![Check { unhealthy_threshold: 1, ..tcp(1) }],
            liveness: vec![with(Probe::Http(http)), with(Probe::Exec(exec)), slow, counts],
            readiness: vec![tcp(1); 5],
            start_timeout: SPAN_MAX + ms(1),
            ..Checks::default()
        };
        let expected = [
            "checks.start_timeout",
            "checks.startup[0].unhealthy_threshold",
            "checks.liveness[0].http.port",
            "checks.liveness[0].http.path",
            "checks.liveness[0].http.headers[0].name",
            "checks.liveness[0].http.headers[1].name",
            "checks.liveness[0].http.headers[2].value",
            "checks.liveness[0].http.headers[3].name",
            "checks.liveness[0].http.headers[3].value",
            "checks.liveness[0].http.statuses[0]",
            "checks.liveness[0].http.statuses[2]",
            "checks.liveness[0].http.statuses[3]",
            "checks.liveness[1].exec.path",
            "checks.liveness[1].exec.dir",
            "checks.liveness[1].exec.args[0]",
            "checks.liveness[1].exec.user",
            "checks.liveness[2].interval",
            "checks.liveness[2].timeout",
            "checks.liveness[2].initial_delay",
            "checks.liveness[3].healthy_threshold",
            "checks.liveness[3].unhealthy_threshold",
            "checks.liveness[3].tcp.port",
            "checks.readiness",
        ];
        assert_eq!(fields(asked), expected);
    }

    #[test]
    fn conflicting_check_options_fail() {
        let second = Duration::from_secs(1);
        let late = Check { initial_delay: second * 60, ..tcp(1) };
        let of = |list: &str| {
            let mut checks = Checks::default();
            match list {
                "startup" => checks.startup.push(late.clone()),
                "liveness" => checks.liveness.push(late.clone()),
                _ => checks.readiness.push(late.clone()),
            }
            fields(checks)
        };
        assert_eq!(of("startup"), ["checks.startup[0]"]);
        assert_eq!(of("liveness"), ["checks.liveness[0]"]);
        assert!(of("readiness").is_empty());
        let alone = Checks { readiness: vec![tcp(1)], start_timeout: second, ..Checks::default() };
        assert_eq!(fields(alone), ["checks.start_timeout"]);
        let brief = Check {
            interval: second / 2,
            ..with(Probe::Exec(ExecProbe { path: "/a".into(), ..ExecProbe::default() }))
        };
        assert_eq!(fields(Checks { liveness: vec![brief], ..Checks::default() }), ["checks.liveness[0].interval"]);
    }

    #[test]
    fn exec_check_requires_allow_exec() {
        let exec = || with(Probe::Exec(ExecProbe { path: "/a".into(), ..ExecProbe::default() }));
        let asked = || draft(Checks { readiness: vec![exec()], ..Checks::default() });
        assert!(validate(&asked(), &Policy::default()).is_ok());
        let reported = validate(&asked(), &Policy { allow_exec: false, ..Policy::default() }).unwrap_err();
        assert_eq!(reported[0].field, "checks.readiness[0].exec");
    }
}
