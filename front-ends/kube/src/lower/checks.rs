//! Lowers probes to executord's checks, and lowers hooks (rules P13 and P31 to P39 of `docs/guides/kube-rules.md`).

use std::time::Duration;

use executor_client::v1::{Check, Checks, ExecCheck, HttpCheck, HttpHeader, TcpCheck, check};
use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Lowering, set_fields};
use crate::environment::Environment;
use crate::plan::{Hook, Role};

/// Maximum timeout of one check, in seconds.
const TIMEOUT_MAX: i32 = 60;
/// Maximum start timeout, in seconds.
const TIME_MAX: i64 = 3600;
/// Maximum value of a readiness probe's thresholds and of a liveness probe's `failureThreshold`.
const THRESHOLD_MAX: i32 = 100;

impl Lowering<'_> {
    /// Returns the checks of a container, and whether one of them executes a program.
    pub(super) fn checks(
        &mut self,
        path: &str,
        container: &Container,
        role: Role,
        environment: &Environment,
    ) -> (Option<Checks>, bool) {
        let probes = [
            ("startupProbe", &container.startup_probe),
            ("livenessProbe", &container.liveness_probe),
            ("readinessProbe", &container.readiness_probe),
        ];
        let mut checks = Checks::default();
        let (mut any, mut executes) = (false, false);
        for (field, probe) in probes {
            let Some(probe) = probe else { continue };
            let at = format!("{path}.{field}");
            if role == Role::Init {
                self.refuse(&at, "P23", "is not allowed for an init container, unless it is a sidecar");
                continue;
            }
            let Some(check) = self.check(&at, container, probe, field, environment) else { continue };
            executes |= matches!(check.kind, Some(check::Kind::Exec(_)));
            any = true;
            match field {
                "startupProbe" => checks.startup.push(Check { unhealthy_threshold: 0, ..check }),
                "livenessProbe" => checks.liveness.push(check),
                _ => checks.readiness.push(check),
            }
        }
        // The startup probe or, if unset, the liveness probe determines the start timeout.
        let evaluate = container.startup_probe.as_ref().or(container.liveness_probe.as_ref());
        if let (Some(probe), true) = (evaluate, any) {
            let (period, failures) =
                (probe.period_seconds.unwrap_or(10).max(1), probe.failure_threshold.unwrap_or(3).max(1));
            let delay = probe.initial_delay_seconds.unwrap_or(0).max(0);
            let timeout = probe.timeout_seconds.unwrap_or(1).max(1);
            let seconds = i64::from(delay) + i64::from(period) * i64::from(failures) + i64::from(timeout);
            if seconds > TIME_MAX {
                let field = if container.startup_probe.is_some() { "startupProbe" } else { "livenessProbe" };
                let message = format!("allows {seconds} s for the start; at most {TIME_MAX} s are allowed");
                self.refuse(&format!("{path}.{field}"), "P34", message);
            }
            checks.start_timeout = Some(time(seconds.min(TIME_MAX)));
        }
        (any.then_some(checks), executes)
    }

    fn check(
        &mut self,
        at: &str,
        container: &Container,
        probe: &Probe,
        field: &str,
        environment: &Environment,
    ) -> Option<Check> {
        let number = |name: &str, value: Option<i32>, default: i32, low: i32, high: i32, lowering: &mut Self| {
            // The value 0 means the default, as in the API server.
            let value = value.filter(|value| *value != 0 || low == 0).unwrap_or(default);
            if !(low..=high).contains(&value) {
                lowering.refuse(&format!("{at}.{name}"), "P34", format!("is {value}; it must be {low} to {high}"));
            }
            value.clamp(low, high)
        };
        let delay = number("initialDelaySeconds", probe.initial_delay_seconds, 0, 0, 3600, self);
        let period = number("periodSeconds", probe.period_seconds, 10, 1, 3600, self);
        let timeout = number("timeoutSeconds", probe.timeout_seconds, 1, 1, TIMEOUT_MAX, self);
        let most = if field == "startupProbe" { i32::MAX } else { THRESHOLD_MAX };
        let failures = number("failureThreshold", probe.failure_threshold, 3, 1, most, self);
        let most = if field == "readinessProbe" { THRESHOLD_MAX } else { 1 };
        let successes = number("successThreshold", probe.success_threshold, 1, 1, most, self);
        let own = format!("{at}.terminationGracePeriodSeconds");
        match probe.termination_grace_period_seconds {
            Some(_) if field == "readinessProbe" => {
                self.refuse(&own, "P36", "is not allowed for a readiness probe, which never stops a container");
            }
            Some(..=0) => self.refuse(&own, "P36", "must be at least 1"),
            Some(_) => self.warn(&own, "P36", "is ignored: the pod's own grace period applies"),
            None => {}
        }
        let kinds = [probe.exec.is_some(), probe.http_get.is_some(), probe.tcp_socket.is_some(), probe.grpc.is_some()];
        if kinds.iter().filter(|set| **set).count() != 1 {
            self.refuse(at, "P34", "must have exactly one of exec, httpGet, tcpSocket and grpc");
            return None;
        }
        let kind = if let Some(exec) = &probe.exec {
            let mut command =
                self.probe_command(&format!("{at}.exec.command"), exec.command.as_deref(), environment)?;
            let path = command.remove(0);
            check::Kind::Exec(ExecCheck { path, args: command, container_environment: true, ..ExecCheck::default() })
        } else if let Some(http) = &probe.http_get {
            if http.scheme.as_deref().is_some_and(|scheme| !matches!(scheme, "" | "HTTP")) {
                self.refuse(&format!("{at}.httpGet.scheme"), "P38", "must be HTTP: checks do not support TLS");
            }
            self.own_host(&format!("{at}.httpGet.host"), http.host.as_deref());
            let port = self.port(&format!("{at}.httpGet.port"), container, &http.port)?;
            let path = http.path.clone().unwrap_or_default();
            let path = if path.is_empty() || path.starts_with('/') { path } else { format!("/{path}") };
            let is_header =
                |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
            for (index, _) in http.http_headers.iter().flatten().enumerate().filter(|(_, one)| !is_header(&one.name)) {
                let message = "is not a valid header name: use A-Z, a-z, 0-9 and `-`";
                self.refuse(&format!("{at}.httpGet.httpHeaders[{index}].name"), "P38", message);
            }
            let headers = http.http_headers.iter().flatten();
            let headers = headers.map(|one| HttpHeader { name: one.name.clone(), value: one.value.clone() }).collect();
            check::Kind::Http(HttpCheck { port, path, headers, statuses: Vec::new() })
        } else if let Some(tcp) = &probe.tcp_socket {
            self.own_host(&format!("{at}.tcpSocket.host"), tcp.host.as_deref());
            check::Kind::Tcp(TcpCheck { port: self.port(&format!("{at}.tcpSocket.port"), container, &tcp.port)? })
        } else {
            self.refuse(&format!("{at}.grpc"), "P38", "is not supported: use exec with a program of the image");
            return None;
        };
        Some(Check {
            kind: Some(kind),
            interval: Some(time(i64::from(period))),
            timeout: Some(time(i64::from(timeout))),
            initial_delay: Some(time(i64::from(delay))),
            healthy_threshold: successes.unsigned_abs(),
            unhealthy_threshold: failures.unsigned_abs(),
        })
    }

    fn own_host(&mut self, at: &str, host: Option<&str>) {
        if host.is_some_and(|host| !host.is_empty() && host != "localhost" && host != "127.0.0.1") {
            self.refuse(at, "P38", "is not supported: checks connect to the pod itself");
        }
    }

    /// Returns the port number for a port that is given by number or by name.
    fn port(&mut self, at: &str, container: &Container, port: &IntOrString) -> Option<u32> {
        let number = match port {
            IntOrString::Int(number) => Some(*number),
            // A quoted number is treated as a port name. It matches no port, because port names must contain a letter.
            IntOrString::String(name) => {
                let named = container.ports.iter().flatten().find(|port| port.name.as_deref() == Some(name));
                named.map(|port| port.container_port)
            }
        };
        let port = number.and_then(|number| u32::try_from(number).ok()).filter(|port| (1..=65535).contains(port));
        if port.is_none() {
            self.refuse(at, "P38", "is neither 1 to 65535 nor the name of one of the container's ports");
        }
        port
    }

    /// Returns the command of a probe, expanded only with literal variables. Refuses a command that uses a secret
    /// (rules P13 and P39).
    fn probe_command(
        &mut self,
        at: &str,
        command: Option<&[String]>,
        environment: &Environment,
    ) -> Option<Vec<String>> {
        let plain = environment.plain();
        let mut words = Vec::new();
        for (index, word) in command.into_iter().flatten().enumerate() {
            if environment.expand(word).secret {
                let message = "would contain a value of a Secret, and checks are recorded: read the variable or a file in a shell";
                self.refuse(&format!("{at}[{index}]"), "P13", message);
            }
            words.push(plain.expand(word).text.to_string());
        }
        if words.first().is_none_or(String::is_empty) {
            self.refuse(at, "P34", "is empty");
            return None;
        }
        Some(words)
    }

    /// Lowers a hook. The command is not expanded, as in Kubernetes.
    pub(super) fn hook(&mut self, at: &str, handler: Option<&LifecycleHandler>) -> Option<Hook> {
        let handler = handler?;
        let kinds = set_fields(handler);
        if kinds.len() > 1 {
            self.refuse(at, "P32", format!("has {}; exactly one is allowed", kinds.join(" and ")));
            return None;
        }
        if let Some(exec) = &handler.exec {
            let command = exec.command.clone().unwrap_or_default();
            if command.first().is_none_or(String::is_empty) {
                self.refuse(&format!("{at}.exec.command"), "P32", "is empty");
                return None;
            }
            return Some(Hook::Exec(command));
        }
        if let Some(sleep) = &handler.sleep {
            let grace = self.grace_seconds();
            if !(0..=grace).contains(&sleep.seconds) {
                let message = format!("is {}; it must be 0 to the {grace} s of the grace period", sleep.seconds);
                self.refuse(&format!("{at}.sleep.seconds"), "P32", message);
            }
            return u64::try_from(sleep.seconds).ok().map(Duration::from_secs).map(Hook::Sleep);
        }
        let Some(field) = kinds.first() else {
            self.refuse(at, "P32", "is empty: it must have exec or sleep");
            return None;
        };
        self.refuse(&format!("{at}.{field}"), "P32", "is not supported as a hook: use exec or sleep");
        None
    }
}

pub(super) fn time(seconds: i64) -> prost_types::Duration {
    prost_types::Duration { seconds, nanos: 0 }
}
