//! Options of `run` for restarts.

use std::time::Duration;

use clap::Args;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::request::to_proto;
use executor_cli_kit::units;
use executor_client::v1::{RestartPolicy, RunRequest, restart_policy::Mode};

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Health")]
pub(crate) struct RestartArgs {
    /// Restart the program after its exit: no, on-failure, on-failure:N (at most N times), always
    ///
    /// The first restart is immediate; later ones wait 10s, doubled after each further exit, up to 5m. A run of 10m
    /// resets the delay. A failure is an exit status other than 0, a signal, a program that cannot be executed, or a
    /// failed --liveness check. `stop` and `rm -f` end the restarts. The container's file system, network and secret
    /// files are kept.
    #[arg(long, value_name = "POLICY", value_parser = policy)]
    restart: Option<RestartPolicy>,
    /// Delay after the second consecutive exit [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = units::grace, requires = "restart")]
    restart_delay: Option<Duration>,
    /// Maximum delay; a run of twice the maximum resets the delay [default: 5m]
    #[arg(long, value_name = "DURATION", value_parser = units::grace, requires = "restart")]
    restart_delay_max: Option<Duration>,
}

impl RestartArgs {
    /// Adds the restart policy to a run request.
    pub(crate) fn apply(self, request: &mut RunRequest) -> Result<(), Failure> {
        let Some(policy) = self.restart.or_else(|| request.restart_policy.take()) else { return Ok(()) };
        if policy.mode() == Mode::No {
            request.restart_policy = None;
            return match self.restart_delay.or(self.restart_delay_max) {
                Some(_) => Err(Failure::Usage(
                    "--restart-delay and --restart-delay-max need a restart policy, such as --restart always".into(),
                )),
                None => Ok(()),
            };
        }
        let delay = |flag: Option<Duration>, given| flag.map(to_proto).transpose().map(|flag| flag.or(given));
        request.restart_policy = Some(RestartPolicy {
            min_delay: delay(self.restart_delay, policy.min_delay)?,
            max_delay: delay(self.restart_delay_max, policy.max_delay)?,
            ..policy
        });
        Ok(())
    }
}

/// Parses a restart policy: `no`, `on-failure[:N]` or `always`.
fn policy(text: &str) -> Result<RestartPolicy, String> {
    let (name, retries) = text.split_once(':').map_or((text, None), |(name, retries)| (name, Some(retries)));
    let (mode, max_retries) = match (name, retries) {
        ("no", None) => (Mode::No, 0),
        ("always", None) => (Mode::Always, 0),
        ("on-failure", None) => (Mode::OnFailure, 0),
        ("on-failure", Some(retries)) => {
            let many = retries.parse().ok().filter(|many| *many > 0);
            (
                Mode::OnFailure,
                many.ok_or_else(|| {
                    format!("{retries:?} is not a number of restarts; use a form such as on-failure:3")
                })?,
            )
        }
        ("unless-stopped", _) => {
            return Err(
                "unless-stopped is not supported: a container that was stopped is never restarted; use always".into()
            );
        }
        _ => return Err(format!("{text:?} is not a restart policy; use no, on-failure, on-failure:N or always")),
    };
    Ok(RestartPolicy { mode: mode.into(), max_retries, ..RestartPolicy::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_as_docker_writes_them() {
        let of = |text| policy(text).map(|policy| (policy.mode(), policy.max_retries));
        assert_eq!(of("no"), Ok((Mode::No, 0)));
        assert_eq!(of("always"), Ok((Mode::Always, 0)));
        assert_eq!(of("on-failure"), Ok((Mode::OnFailure, 0)));
        assert_eq!(of("on-failure:3"), Ok((Mode::OnFailure, 3)));
        assert!(of("unless-stopped").unwrap_err().contains("use always"));
        for bad in ["", "on-failure:", "on-failure:0", "on-failure:x", "always:3", "no:1", "never"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn restart_delays_need_policy_and_override_file() {
        let args = |restart, restart_delay| RestartArgs { restart, restart_delay, restart_delay_max: None };
        let second = Some(Duration::from_secs(1));
        let mut request = RunRequest::default();
        args(policy("always").ok(), second).apply(&mut request).unwrap();
        let seconds = |request: &RunRequest| request.restart_policy?.min_delay.map(|delay| delay.seconds);
        assert_eq!(seconds(&request), Some(1));
        args(policy("on-failure").ok(), None).apply(&mut request).unwrap();
        assert_eq!((request.restart_policy.unwrap().mode(), seconds(&request)), (Mode::OnFailure, None));
        RestartArgs::default().apply(&mut request).unwrap();
        assert!(request.restart_policy.is_some());
        assert!(args(policy("no").ok(), second).apply(&mut request).is_err());
    }
}
