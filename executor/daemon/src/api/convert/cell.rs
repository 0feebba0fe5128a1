//! Converts the progress of a drain, and the health of the cell, to API messages.

use executor_proto::v1;

use super::{duration, timestamp};
use crate::model::cell::{CellState, Drain, DrainProgress};

/// Converts the progress of a drain to its API message.
pub(crate) fn drain(progress: &DrainProgress, drain: &Drain) -> v1::DrainResponse {
    let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    v1::DrainResponse {
        total: number(progress.total),
        stopping: number(progress.stopping),
        ended: number(progress.ended),
        killed: progress.killed.iter().map(ToString::to_string).collect(),
        left: progress.left.iter().map(ToString::to_string).collect(),
        deadline_at: Some(timestamp(drain.deadline_at)),
        done: drain.done,
    }
}

/// Converts the health of the cell to its API message. `unready` holds the reasons why the daemon itself cannot serve.
pub(crate) fn health(state: &CellState, unready: impl Iterator<Item = String>) -> v1::Health {
    let reasons: Vec<String> = unready.chain(state.unhealthy_reasons()).collect();
    v1::Health {
        healthy: reasons.is_empty(),
        reasons,
        draining: state.drain.is_some(),
        drained: state.drain.as_ref().is_some_and(|drain| drain.done),
        self_test_at: state.self_test.as_ref().map(|result| timestamp(result.at)),
        self_test_took: state.self_test.as_ref().map(|result| duration(result.took)),
    }
}
