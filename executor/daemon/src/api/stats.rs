//! Stats and WatchStats: return the counters of containers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use executor_core::ident::ContainerId;
use executor_core::validate::Violation;
use executor_core::validate::ViolationReason::{InvalidFormat, OutOfRange, TooMany};
use executor_proto::v1;
use executor_transport::wire::conversation::{Answers, Conversation, Outlet};
use tokio::time::Instant;

use super::convert;
use crate::api_error::ApiError;
use crate::model::status::ContainerStatus;
use crate::node::Node;
use crate::operations::stats::{self, ContainerSelection, UsageReading};
use crate::requests::draft;

/// Maximum number of ids in a request, and of containers on a page.
const MOST: usize = 1000;
/// Maximum number of containers in a message of a stream.
const IN_MESSAGE: usize = 100;
/// Minimum and default interval between two readings.
const INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Maximum interval between two readings.
const INTERVAL_MAX: Duration = Duration::from_secs(3600);

type StatsSender = Outlet<v1::WatchStatsResponse>;

pub(super) async fn get(node: &Arc<Node>, request: v1::StatsRequest) -> Result<v1::StatsResponse, ApiError> {
    let mut violations = too_many(&request.ids);
    let after = match &*request.page_token {
        "" => None,
        token => {
            let id = token.parse::<ContainerId>().ok();
            if id.is_none() {
                let why = InvalidFormat.because("unknown page token: use the next_page_token of an earlier page");
                violations.push(Violation::new("page_token", why));
            }
            id
        }
    };
    let most = if request.page_size == 0 { MOST } else { request.page_size as usize };
    if most > MOST {
        violations
            .push(Violation::new("page_size", OutOfRange.because(format!("is {most}; at most {MOST} is allowed"))));
    }
    if !violations.is_empty() {
        return Err(ApiError::invalid(violations));
    }
    let chosen = ContainerSelection::new(node, &request.ids)?;
    let (page, more) = chosen.page(node, after.as_ref(), most, |facts| has(facts, &request.labels));
    let next_page_token = page.last().filter(|_| more).map(|last| last.id().to_string()).unwrap_or_default();
    Ok(v1::StatsResponse { containers: messages(&stats::read(node, page).await), next_page_token })
}

pub(super) fn watch(
    node: &Arc<Node>,
    request: v1::WatchStatsRequest,
    conversation: &Conversation,
) -> Result<Answers<v1::WatchStatsResponse>, ApiError> {
    let mut violations = too_many(&request.ids);
    let interval = match draft::duration("interval", request.interval.as_ref()) {
        Ok(interval) => interval.unwrap_or(INTERVAL_MIN),
        Err(violation) => {
            violations.push(violation);
            INTERVAL_MIN
        }
    };
    if !(INTERVAL_MIN..=INTERVAL_MAX).contains(&interval) {
        let why = format!("is {interval:?}; {INTERVAL_MIN:?} to {INTERVAL_MAX:?} is allowed");
        violations.push(Violation::new("interval", OutOfRange.because(why)));
    }
    if !violations.is_empty() {
        return Err(ApiError::invalid(violations));
    }
    let chosen = ContainerSelection::new(node, &request.ids)?;
    let (sender, answers) = conversation.answers();
    tokio::spawn(follow(Arc::clone(node), chosen, request.labels, interval, sender));
    Ok(answers)
}

async fn follow(
    node: Arc<Node>,
    chosen: ContainerSelection,
    labels: HashMap<String, String>,
    interval: Duration,
    sender: StatsSender,
) {
    let mut due = Instant::now();
    loop {
        // Evaluate this before the reading, so that the last reading includes the final counters.
        let is_last = chosen.is_over();
        // Read page by page, so that a slow client occupies the same memory for any number of containers.
        let mut after = None;
        loop {
            let (handles, more) = chosen.page(&node, after.as_ref(), IN_MESSAGE, |facts| has(facts, &labels));
            after = handles.last().map(|last| last.id().clone());
            let readings = tokio::select! {
                readings = stats::read(&node, handles) => readings,
                () = sender.closed() => return,
            };
            let containers = messages(&readings);
            drop(readings);
            if sender.send(Ok(v1::WatchStatsResponse { containers, end_of_reading: !more })).await.is_err() {
                return;
            }
            if !more {
                break;
            }
        }
        if is_last {
            return;
        }
        // Missed intervals are skipped.
        due = (due + interval).max(Instant::now());
        tokio::select! {
            () = tokio::time::sleep_until(due) => {}
            () = chosen.over() => {}
            () = sender.closed() => return,
            () = node.until_stopping() => {
                let _ = sender.send(Err(ApiError::stopping().into())).await;
                return;
            }
        }
    }
}

fn too_many(ids: &[String]) -> Vec<Violation> {
    let why = || TooMany.because(format!("has {} entries; at most {MOST} are allowed", ids.len()));
    (ids.len() > MOST).then(|| Violation::new("ids", why())).into_iter().collect()
}

fn has(facts: &ContainerStatus, labels: &HashMap<String, String>) -> bool {
    labels.iter().all(|(name, value)| facts.plan.labels.get(name) == Some(value))
}

fn messages(readings: &[UsageReading]) -> Vec<v1::ContainerStats> {
    readings.iter().map(|(facts, usage)| convert::stats(facts, usage.as_ref())).collect()
}
