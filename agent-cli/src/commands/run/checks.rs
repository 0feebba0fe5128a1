//! Options of `run` for health checks of the container.

use std::time::Duration;

use clap::Args;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::request::to_proto;
use executor_cli_kit::units;
use executor_client::v1::{Check, Checks, ExecCheck, HttpCheck, HttpHeader, RunRequest, TcpCheck, check::Kind};

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Health")]
pub(crate) struct CheckArgs {
    /// Startup check: http:8080/health, tcp:5432, exec:COMMAND; can be repeated
    ///
    /// The container ends if the check does not pass within --health-start-period. An HTTP check passes with a status
    /// of 200 to 399, a TCP check if the port accepts a connection, and COMMAND, run by /bin/sh in the container, if it
    /// exits with 0.
    ///
    /// Append options to an HTTP or TCP check: `,interval=10s`, `,timeout=3s`, `,delay=5s` (before the first check),
    /// `,healthy=2` and `,unhealthy=5` (required consecutive successes and failures). An HTTP check also accepts
    /// `,status=204` and `,header=NAME:VALUE`, each as often as needed. `inspect` shows checks, so do not put secrets
    /// into them.
    #[arg(long, value_name = "CHECK", value_parser = check)]
    startup: Vec<Check>,
    /// Check that ends the container if it fails; without --startup it must also pass within --health-start-period
    #[arg(long, value_name = "CHECK", value_parser = check)]
    liveness: Vec<Check>,
    /// Check that must pass for the container to be ready; a failure does not end the container
    #[arg(long, value_name = "CHECK", value_parser = check)]
    readiness: Vec<Check>,
    /// Same as --readiness exec:COMMAND
    ///
    /// As in docker, a failure is shown, but does not end the container.
    #[arg(long, value_name = "COMMAND")]
    health_cmd: Option<String>,
    /// Give check programs the environment of the container's process, including secret variables; implies --keep-env
    #[arg(long)]
    health_env: bool,
    /// Interval of checks that set no interval [default: 30s while a check passes, 2s while it fails]
    #[arg(long, value_name = "DURATION", value_parser = units::grace)]
    health_interval: Option<Duration>,
    /// Timeout of checks that set no timeout [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = units::grace)]
    health_timeout: Option<Duration>,
    /// Consecutive failures after which a liveness or readiness check has failed, if it sets no number [default: 3]
    #[arg(long, value_name = "N")]
    health_retries: Option<u32>,
    /// Time limit for startup checks, or a monitor of --action, to pass, measured from the start of the process
    /// [default: 1m]
    #[arg(long, value_name = "DURATION", value_parser = units::grace)]
    health_start_period: Option<Duration>,
}

impl CheckArgs {
    /// Adds the health checks to a run request.
    pub(crate) fn apply(self, request: &mut RunRequest) -> Result<(), Failure> {
        let mut checks = Checks { startup: self.startup, liveness: self.liveness, ..Checks::default() };
        checks.readiness = self.readiness;
        checks.readiness.extend(self.health_cmd.as_deref().map(command));
        let has_monitor = request.monitor.is_some();
        let starts = has_monitor || !checks.startup.is_empty() || !checks.liveness.is_empty();
        let has_checks = !(checks.startup.is_empty() && checks.liveness.is_empty() && checks.readiness.is_empty());
        if !has_checks {
            let given = self.health_interval.is_some() || self.health_timeout.is_some();
            if given || self.health_retries.is_some() || (self.health_start_period.is_some() && !has_monitor) {
                let why = "--health-interval, --health-timeout and --health-retries need a check; --health-start-period needs a \
                     check or a monitor of --action";
                return Err(Failure::Usage(why.into()));
            }
        }
        if !has_checks && self.health_start_period.is_none() {
            return Ok(());
        }
        let interval = self.health_interval.map(to_proto).transpose()?;
        let timeout = self.health_timeout.map(to_proto).transpose()?;
        let lists = [&mut checks.startup, &mut checks.liveness, &mut checks.readiness];
        for check in lists.into_iter().flatten() {
            if let Some(Kind::Exec(exec)) = &mut check.kind {
                exec.container_environment = self.health_env;
            }
            check.interval = check.interval.or(interval);
            check.timeout = check.timeout.or(timeout);
        }
        for check in checks.liveness.iter_mut().chain(&mut checks.readiness) {
            if check.unhealthy_threshold == 0 {
                check.unhealthy_threshold = self.health_retries.unwrap_or(0);
            }
        }
        checks.start_timeout = self.health_start_period.filter(|_| starts).map(to_proto).transpose()?;
        request.keep_environment |= self.health_env;
        request.checks = Some(checks);
        Ok(())
    }
}

fn command(command: &str) -> Check {
    let exec = ExecCheck { path: "/bin/sh".into(), args: vec!["-c".into(), command.into()], ..ExecCheck::default() };
    Check { kind: Some(Kind::Exec(exec)), ..Check::default() }
}

/// Parses a health check: `http:PORT[/PATH][,OPTION=VALUE]`, `tcp:PORT[,OPTION=VALUE]` or `exec:COMMAND`.
fn check(text: &str) -> Result<Check, String> {
    let how = "a check is http:PORT/PATH, tcp:PORT or exec:COMMAND";
    let (kind, what) = text.split_once(':').ok_or(how)?;
    if kind == "exec" {
        return if what.is_empty() { Err(how.into()) } else { Ok(command(what)) };
    }
    let (what, options) = what.split_once(',').unwrap_or((what, ""));
    let (port, path) = what.find('/').map_or((what, ""), |at| what.split_at(at));
    let port: u16 = port.parse().map_err(|_| format!("{port:?} is not a port; {how}"))?;
    let mut http = HttpCheck { port: port.into(), path: path.into(), ..HttpCheck::default() };
    let mut check = Check::default();
    let is_http = match kind {
        "http" => true,
        "tcp" if path.is_empty() => false,
        _ => return Err(how.into()),
    };
    for option in options.split(',').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').ok_or_else(|| format!("{option:?} is not OPTION=VALUE"))?;
        let time = || units::grace(value).and_then(|time| to_proto(time).map_err(|failure| failure.to_string()));
        let count = || value.parse::<u32>().map_err(|_| format!("{name}={value} is not a number"));
        match name {
            "interval" => check.interval = Some(time()?),
            "timeout" => check.timeout = Some(time()?),
            "delay" => check.initial_delay = Some(time()?),
            "healthy" => check.healthy_threshold = count()?,
            "unhealthy" => check.unhealthy_threshold = count()?,
            "status" if is_http => http.statuses.push(count()?),
            "header" if is_http => {
                let (name, value) =
                    value.split_once(':').ok_or_else(|| format!("{option} is not header=NAME:VALUE"))?;
                http.headers.push(HttpHeader { name: name.trim().into(), value: value.trim().into() });
            }
            _ => {
                let known = "interval, timeout, delay, healthy, unhealthy; status and header of http";
                return Err(format!("unknown option {name:?}; use {known}"));
            }
        }
    }
    check.kind = Some(if is_http { Kind::Http(http) } else { Kind::Tcp(TcpCheck { port: port.into() }) });
    Ok(check)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: i64) -> Option<prost_types::Duration> {
        Some(prost_types::Duration { seconds, nanos: 0 })
    }

    #[test]
    fn check_options_are_parsed() {
        let http = check("http:8080/health?a=b,status=204,status=200,header=Host: example.com,interval=5s,unhealthy=2");
        let expected = HttpCheck {
            port: 8080,
            path: "/health?a=b".into(),
            statuses: vec![204, 200],
            headers: vec![HttpHeader { name: "Host".into(), value: "example.com".into() }],
        };
        let http = http.unwrap();
        assert_eq!((http.kind, http.interval, http.unhealthy_threshold), (Some(Kind::Http(expected)), seconds(5), 2));
        let tcp = check("tcp:5432,timeout=2,delay=1m,healthy=3").unwrap();
        assert_eq!((tcp.timeout, tcp.initial_delay, tcp.healthy_threshold), (seconds(2), seconds(60), 3));
        assert_eq!(tcp.kind, Some(Kind::Tcp(TcpCheck { port: 5432 })));
        let Some(Kind::Exec(exec)) = check("exec:pg_isready -t 1, or not").unwrap().kind else { panic!("not exec") };
        assert_eq!((&*exec.path, &*exec.args), ("/bin/sh", &["-c".to_owned(), "pg_isready -t 1, or not".into()][..]));
        let bad = [
            "",
            "http",
            "http:",
            "http:x/",
            "http:65536",
            "tcp:1/a",
            "udp:1",
            "exec:",
            "tcp:1,status=200",
            "tcp:1,x",
            "tcp:1,interval=x",
            "http:1,header=x",
            "http:1,status=ok",
            "tcp:1,nope=1",
        ];
        for text in bad {
            assert!(check(text).is_err(), "{text}");
        }
    }

    #[test]
    fn docker_health_flags_become_exec_check() {
        let args = CheckArgs {
            health_cmd: Some("true".into()),
            health_interval: Some(Duration::from_secs(5)),
            health_timeout: Some(Duration::from_secs(2)),
            health_retries: Some(4),
            health_start_period: Some(Duration::from_secs(9)),
            ..CheckArgs::default()
        };
        let mut request = RunRequest::default();
        args.clone().apply(&mut request).unwrap();
        let checks = request.checks.take().unwrap();
        let one = &checks.readiness[0];
        assert_eq!((one.interval, one.timeout, one.unhealthy_threshold), (seconds(5), seconds(2), 4));
        assert_eq!(checks.start_timeout, None, "no startup check, so no start timeout");
        let own = vec![check("tcp:1,interval=7s,unhealthy=1").unwrap()];
        let with_own = CheckArgs { startup: vec![check("tcp:2").unwrap()], liveness: own, ..args.clone() };
        with_own.apply(&mut request).unwrap();
        let checks = request.checks.take().unwrap();
        assert_eq!((checks.start_timeout, checks.startup[0].unhealthy_threshold), (seconds(9), 0));
        assert_eq!((checks.liveness[0].interval, checks.liveness[0].unhealthy_threshold), (seconds(7), 1));
        assert!(CheckArgs { health_cmd: None, ..args }.apply(&mut request).is_err());
        CheckArgs::default().apply(&mut request).unwrap();
        assert_eq!(request.checks, None);
    }
}
