//! Converts restart policies and restart records to API messages.

use executor_core::plan::{RestartMode, RestartPolicy};
use executor_core::record::RestartRecord;
use executor_proto::v1::{self, restart_policy::Mode};

use super::{duration, exit_status, timestamp};

pub(super) fn policy(policy: &RestartPolicy) -> v1::RestartPolicy {
    let (mode, max_retries) = match policy.mode {
        RestartMode::OnFailure(most) => (Mode::OnFailure, most.unwrap_or(0)),
        RestartMode::Always => (Mode::Always, 0),
    };
    v1::RestartPolicy {
        mode: mode.into(),
        max_retries,
        min_delay: Some(duration(policy.delay_min)),
        max_delay: Some(duration(policy.delay_max)),
    }
}

pub(super) fn status(restarts: &RestartRecord) -> v1::RestartStatus {
    let last = restarts.last.as_ref();
    v1::RestartStatus {
        count: restarts.count,
        started_at: restarts.started_at.map(timestamp),
        next_start_at: restarts.next_at.map(timestamp),
        last_exit: last.and_then(|last| last.exit).map(exit_status),
        last_reason: last.map(|last| last.reason.clone()).unwrap_or_default(),
        last_started_at: last.and_then(|last| last.started_at).map(timestamp),
        last_finished_at: last.map(|last| timestamp(last.finished_at)),
    }
}
