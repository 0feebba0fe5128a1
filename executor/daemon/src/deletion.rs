//! Deletes containers: on a caller's word, or because they have been kept long enough.

use std::sync::Arc;

use executor_core::lifecycle::State;
use executor_core::protocol::{ShimCall, Stop};

use crate::container::{Handle, Known};
use crate::events::What;
use crate::node::Node;
use crate::problem::{Kind, Problem};

/// Deletes a container with its logs and its record. With `force` one that lives is killed first.
///
/// # Errors
/// It lives, and `force` is not given; there is no launcher; the launcher could not remove it.
pub async fn delete(node: &Arc<Node>, handle: Arc<Handle>, force: bool) -> Result<(), Problem> {
    // A task of its own: once begun it is not left half done because a caller went away.
    let task = tokio::spawn(delete_whole(Arc::clone(node), handle, force));
    let done = async { task.await.map_err(|error| Problem::new(Kind::Internal, error.to_string()))? };
    tokio::select! {
        done = done => done,
        () = node.until_stopping() => Err(Problem::stopping()),
    }
}

async fn delete_whole(node: Arc<Node>, handle: Arc<Handle>, force: bool) -> Result<(), Problem> {
    let id = handle.id();
    let state = handle.state().ok_or_else(|| Problem::no_container(id.as_str()))?;
    if state != State::Completed {
        if !force {
            return Err(Problem::new(
                Kind::Precondition,
                format!("container {id} is {}: stop it first, or delete it with force", state.name()),
            ));
        }
        // Before anything is killed for nothing.
        node.launcher.session()?;
        if let Some(link) = handle.shim() {
            // A shim that is gone has no process any more.
            match link.call(ShimCall::Stop(Stop { grace_ms: 0 })).await {
                Ok(()) | Err(None) => {}
                Err(Some(problem)) => return Err(problem),
            }
        }
        handle.completed().await?;
    }
    let _alone = handle.deleting.lock().await;
    let facts = handle.facts().ok_or_else(|| Problem::no_container(id.as_str()))?;
    node.launcher.remove(id).await?;
    node.registry.remove(id);
    node.ledger.forget(id);
    handle.publish(Known::Deleted(facts));
    tracing::info!(container = %id, "deleted");
    node.events.append(id, What::Deleted, None, crate::now());
    Ok(())
}
