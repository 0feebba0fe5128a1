//! Events of containers, across restarts of executord.
//!
//! Every RPC sends a cursor, even if only new events are requested, so no event is lost if the connection breaks.

use executor_proto::v1::{WatchEventsRequest, WatchEventsResponse};
use tokio::time::Instant;
use tonic::{Status, Streaming};

use crate::connect::Client;
use crate::error::Error;
use crate::retry::{Patience, is_away};

/// An endless stream of events.
pub struct Events {
    client: Client,
    after: u64,
    container_id: String,
    patience: Patience,
    stream: Option<Streaming<WatchEventsResponse>>,
}

impl Client {
    /// Watches events after a cursor, or only new events if `after` is `None`. Cursor 0 selects all stored events. An
    /// empty id selects all containers.
    ///
    /// # Errors
    /// Returns an error if executord is unavailable.
    pub async fn events(&self, after: Option<u64>, container_id: &str) -> Result<Events, Error> {
        let after = match after {
            Some(cursor) => cursor,
            None => self.info().await?.cursor,
        };
        let container_id = container_id.to_owned();
        Ok(Events { client: self.clone(), after, container_id, patience: self.patience(), stream: None })
    }
}

impl Events {
    /// Returns the next event. If `gap` is true, earlier events are missing. This method is cancel safe.
    ///
    /// # Errors
    /// Returns an error if executord rejects the cursor or is unavailable for too long.
    pub async fn next(&mut self) -> Result<WatchEventsResponse, Error> {
        loop {
            let begun = Instant::now();
            let broken = match self.event().await {
                Ok(Some(response)) => {
                    self.patience.reset();
                    self.after = response.event.as_ref().map_or(self.after, |event| event.cursor.max(self.after));
                    return Ok(response);
                }
                // executord ends this stream only when it shuts down.
                Ok(None) => Status::unavailable("executord closed the event stream"),
                Err(status) => status,
            };
            self.stream = None;
            self.client.await_return(&mut self.patience, begun, &broken, is_away).await?;
        }
    }

    /// Returns the cursor of the last returned event, or the start cursor before the first event. [`Client::events`]
    /// can continue from this cursor.
    pub fn cursor(&self) -> u64 {
        self.after
    }

    async fn event(&mut self) -> Result<Option<WatchEventsResponse>, Status> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => {
                let (after_cursor, container_id) = (self.after, self.container_id.clone());
                let request = WatchEventsRequest { after_cursor, only_new: false, container_id };
                none.insert(self.client.rpc().watch_events(request).await?.into_inner())
            }
        };
        stream.message().await
    }
}
