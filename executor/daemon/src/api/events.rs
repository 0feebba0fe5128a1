//! WatchEvents: streams the event log.

use std::sync::Arc;

use executor_core::ident::ContainerId;
use executor_core::validate::ViolationReason;
use executor_proto::v1;
use executor_transport::wire::conversation::{Answers, Conversation, Outlet};

use super::convert;
use crate::api_error::{ApiError, Kind};
use crate::node::Node;
use crate::store::event_log::Position;

/// Maximum number of events that a stream reads from the log at a time and buffers for its client. The log does not
/// wait for slow clients: a client that falls behind receives a gap.
const BATCH: usize = 16;

type EventSender = Outlet<v1::WatchEventsResponse>;

pub(super) fn watch(
    node: &Arc<Node>,
    request: &v1::WatchEventsRequest,
    conversation: &Conversation,
) -> Result<Answers<v1::WatchEventsResponse>, ApiError> {
    let only = match &*request.container_id {
        "" => None,
        id => Some(id.parse::<ContainerId>().map_err(|bad| {
            ApiError::invalid_field("container_id", ViolationReason::InvalidFormat.because(bad.to_string()))
        })?),
    };
    let newest = node.events.newest();
    let position = match request.after_cursor {
        _ if request.only_new && newest == 0 => Position::behind(0),
        _ if request.only_new => Position::behind(newest),
        cursor if cursor > newest => {
            return Err(ApiError::new(
                Kind::OutOfRange,
                format!(
                    "after_cursor is {cursor}, but the newest event is {newest}: the cursor may be from another executord"
                ),
            ));
        }
        cursor => Position::behind(cursor),
    };
    let (sender, answers) = conversation.answers();
    tokio::spawn(follow(Arc::clone(node), position, only, sender));
    Ok(answers)
}

async fn follow(node: Arc<Node>, mut position: Position, only: Option<ContainerId>, sender: EventSender) {
    let mut newest = node.events.subscribe();
    loop {
        newest.mark_unchanged();
        let batch = node.events.after(position, only.as_ref(), BATCH);
        position = batch.position;
        let full = batch.events.len() == BATCH;
        for (event, gap) in batch.events {
            let response = v1::WatchEventsResponse { event: Some(convert::event(&event)), gap };
            if sender.send(Ok(response)).await.is_err() {
                return;
            }
        }
        if full {
            continue;
        }
        tokio::select! {
            _ = newest.changed() => {}
            () = sender.closed() => return,
            () = node.until_stopping() => {
                let _ = sender.send(Err(ApiError::stopping().into())).await;
                return;
            }
        }
    }
}
