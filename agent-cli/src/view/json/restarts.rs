//! A container's restart policy and its state.

use executor_cli_kit::view::json::time;
use executor_client::v1;
use serde::Serialize;

use super::ending::Exit;
use super::seconds;
use crate::view::human::word;

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct RestartPolicy {
    /// Mode: `on_failure` or `always`.
    mode: String,
    max_retries: u32,
    min_delay_seconds: Option<f64>,
    max_delay_seconds: Option<f64>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct RestartStatus {
    count: u64,
    started_at: Option<String>,
    /// Time of the next start, while a restart is pending.
    next_start_at: Option<String>,
    last_exit: Option<Exit>,
    last_reason: Option<String>,
    last_started_at: Option<String>,
    last_finished_at: Option<String>,
}

impl From<&v1::RestartPolicy> for RestartPolicy {
    fn from(policy: &v1::RestartPolicy) -> Self {
        Self {
            mode: word(policy.mode().as_str_name(), "MODE_"),
            max_retries: policy.max_retries,
            min_delay_seconds: seconds(policy.min_delay),
            max_delay_seconds: seconds(policy.max_delay),
        }
    }
}

impl From<&v1::RestartStatus> for RestartStatus {
    fn from(status: &v1::RestartStatus) -> Self {
        Self {
            count: status.count,
            started_at: time(status.started_at.as_ref()),
            next_start_at: time(status.next_start_at.as_ref()),
            last_exit: status.last_exit.and_then(Exit::from_exit),
            last_reason: Some(status.last_reason.clone()).filter(|reason| !reason.is_empty()),
            last_started_at: time(status.last_started_at.as_ref()),
            last_finished_at: time(status.last_finished_at.as_ref()),
        }
    }
}
