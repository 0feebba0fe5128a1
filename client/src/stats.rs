//! Resource counters of containers, across restarts of executord.

use executor_proto::v1::{ContainerStats, StatsRequest, WatchStatsRequest};
use tokio::time::Instant;
use tonic::Streaming;

use crate::connect::Client;
use crate::error::Error;
use crate::retry::{Patience, is_away, is_lost};

/// Stream of readings of containers' resource counters.
pub struct Stats {
    client: Client,
    request: WatchStatsRequest,
    patience: Patience,
    stream: Option<Streaming<executor_proto::v1::WatchStatsResponse>>,
}

impl Client {
    /// Reads the counters of all requested containers.
    ///
    /// # Errors
    /// Returns an error if there is no such container.
    pub async fn stats(&self, request: StatsRequest) -> Result<Vec<ContainerStats>, Error> {
        let (mut request, mut all) = (request, Vec::new());
        loop {
            let page = self.retry(is_lost, |mut rpc| {
                let request = request.clone();
                async move { rpc.stats(request).await }
            });
            let page = page.await?;
            all.extend(page.containers);
            if page.next_page_token.is_empty() {
                return Ok(all);
            }
            request.page_token = page.next_page_token;
        }
    }

    /// Reads the counters of containers repeatedly, until all named containers have exited.
    pub fn watch_stats(&self, request: WatchStatsRequest) -> Stats {
        Stats { client: self.clone(), request, patience: self.patience(), stream: None }
    }
}

impl Stats {
    /// Returns the next reading, or `None` when all named containers have exited. If a restart of executord interrupts
    /// a reading, the reading is repeated.
    ///
    /// # Errors
    /// Returns an error if there is no such container or executord is unavailable for too long.
    pub async fn next(&mut self) -> Result<Option<Vec<ContainerStats>>, Error> {
        loop {
            let begun = Instant::now();
            let broken = match self.reading().await {
                Ok(reading) => {
                    self.patience.reset();
                    return Ok(reading);
                }
                Err(status) => status,
            };
            self.stream = None;
            self.client.await_return(&mut self.patience, begun, &broken, is_away).await?;
        }
    }

    async fn reading(&mut self) -> Result<Option<Vec<ContainerStats>>, tonic::Status> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => none.insert(self.client.rpc().watch_stats(self.request.clone()).await?.into_inner()),
        };
        let mut reading = Vec::new();
        while let Some(part) = stream.message().await? {
            reading.extend(part.containers);
            if part.end_of_reading {
                return Ok(Some(reading));
            }
        }
        Ok(None)
    }
}
