//! Self-test: periodically creates, starts, stops, wipes and removes a container.
//!
//! The container is a pod without members. Such a pod needs no image and no root file system, and passes every policy.
//! The container uses the same launcher, shim, namespaces, cgroup, init process, exit record and removal as any other
//! container. The container has no secret files and executes no program. Its id is reserved, and clients cannot see
//! the container. The container produces no events. A full node is tested, too, because the container uses no capacity.

use std::sync::Arc;
use std::time::Duration;

use executor_core::ident::SELF_TEST_ID;
use executor_proto::v1;
use tokio::time::{Instant, timeout};

use crate::api_error::{ApiError, Kind};
use crate::model::cell::SelfTestResult;
use crate::node::Node;
use crate::operations::delete;
use crate::operations::members;
use crate::run::pods;

/// Maximum delay before a failed test is repeated.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(60);

/// Runs the self-test periodically until the daemon stops.
pub(crate) async fn run_self_test(node: Arc<Node>) {
    let settings = node.config.self_test;
    if settings.interval.is_zero() {
        return;
    }
    let mut pause = settings.interval;
    loop {
        tokio::time::sleep(pause).await;
        if *node.stopping.borrow() || node.cell.state().drain.is_some() {
            continue; // a stopping or draining node creates no containers
        }
        let begun = Instant::now();
        let failure = test(&node, settings.timeout).await.err();
        match &failure {
            None => tracing::debug!(took_ms = begun.elapsed().as_millis(), "the self-test has passed"),
            Some(why) => tracing::error!("the self-test has failed: {why}"),
        }
        let was_failing = node.cell.state().self_test.is_some_and(|result| result.failure.is_some());
        if was_failing && failure.is_none() {
            tracing::info!("the self-test passes again");
        }
        pause = if failure.is_some() { settings.interval.min(RETRY_DELAY_MAX) } else { settings.interval };
        let result = SelfTestResult { at: crate::now(), took: begun.elapsed(), failure };
        node.cell.change(|state| state.self_test = Some(result), drop);
    }
}

/// Creates a container and runs it through its lifecycle.
async fn test(node: &Arc<Node>, limit: Duration) -> Result<(), String> {
    let deadline = Instant::now() + limit;
    let mut step = "cannot remove the container of an earlier test";
    let life = async {
        remove(node).await?;
        step = "cannot create a container";
        let request = v1::CreatePodRequest { id: SELF_TEST_ID.to_owned(), ..v1::CreatePodRequest::default() };
        let (handle, _) = pods::create_for_self_test(node, request).await?;
        handle.started().await?;
        step = "cannot stop the container";
        members::stop(&handle, Some(Duration::ZERO)).await?;
        let facts = handle.completed().await?;
        let failure = facts.end.as_ref().and_then(|end| end.failure.as_ref());
        if let Some(failure) = failure {
            return Err(ApiError::new(Kind::Internal, failure.message.clone()));
        }
        step = "cannot remove the container";
        handle.until_removed().await;
        remove(node).await
    };
    let ended = tokio::time::timeout_at(deadline, life).await;
    match ended {
        Ok(Ok(())) => Ok(()),
        Ok(Err(problem)) => Err(format!("{step}: {problem}")),
        Err(_) => Err(format!("{step}: the test took longer than {} s", limit.as_secs())),
    }
}

/// Removes the container of the self-test, in any state.
async fn remove(node: &Arc<Node>) -> Result<(), ApiError> {
    let Some(handle) = node.registry.get(&executor_core::ident::self_test()) else { return Ok(()) };
    let patience = node.config.self_test.timeout;
    let deleted = timeout(patience, delete::delete(node, handle, true)).await;
    match deleted.unwrap_or_else(|_| {
        Err(ApiError::new(Kind::Unavailable, format!("the container did not exit within {} s", patience.as_secs())))
    }) {
        Err(problem) if problem.kind != Kind::NotFound => Err(problem),
        _ => Ok(()),
    }
}
