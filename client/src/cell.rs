//! Calls about the cell as a whole: reserving capacity, draining, and setting the health.

use std::time::Duration;

use executor_proto::v1::cell_client::CellClient;
use executor_proto::v1::{
    DrainRequest, DrainResponse, Health, ReleaseReservationRequest, Reservation, ReserveRequest, Resources,
    SetHealthyRequest, UndrainRequest,
};
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Code, Streaming};

use crate::connect::Client;
use crate::error::Error;
use crate::retry::{Patience, is_away, is_lost};
use crate::run::duration;

/// Client for calls about the cell as a whole.
#[derive(Clone, Debug)]
pub struct Cell(Client);

impl Client {
    /// Returns the client for calls about the cell as a whole.
    pub fn cell(&self) -> Cell {
        Cell(self.clone())
    }
}

impl Cell {
    fn rpc(&self) -> CellClient<Channel> {
        CellClient::new(self.0.channel())
    }

    /// Reserves an id and capacity for a container that will run later. The reservation expires after `ttl`, or after
    /// executord's default of 60 s. Returns the reservation, and true if this call created it. Repeating the call
    /// restarts the time to live.
    ///
    /// # Errors
    /// Returns an error if there is not enough capacity or the id is in use. Returns [`Error::Lost`] if `id` is empty
    /// and the connection broke; the reservation may exist in this case.
    pub async fn reserve(
        &self,
        id: &str,
        resources: Resources,
        ttl: Option<Duration>,
    ) -> Result<(Reservation, bool), Error> {
        let request =
            ReserveRequest { id: id.to_owned(), resources: Some(resources), ttl: ttl.map(duration).transpose()? };
        let answer = if id.is_empty() {
            // Without an id, a repeated call would make another reservation.
            self.0.answer(self.rpc().reserve(request).await)?
        } else {
            let answer = self.0.retry(is_lost, |_| {
                let (mut rpc, request) = (self.rpc(), request.clone());
                async move { rpc.reserve(request).await }
            });
            answer.await?
        };
        Ok((answer.reservation.ok_or(Error::Incomplete("the reservation"))?, answer.created))
    }

    /// Releases a reservation before it expires.
    ///
    /// # Errors
    /// Returns an error if there is no such reservation.
    pub async fn release(&self, id: &str) -> Result<(), Error> {
        let mut attempts = 0u32;
        let answer = self.0.retry(is_lost, |_| {
            attempts += 1;
            let (mut rpc, request) = (self.rpc(), ReleaseReservationRequest { id: id.to_owned() });
            async move { rpc.release_reservation(request).await }
        });
        match answer.await {
            // An earlier attempt released the reservation, but its response was lost.
            Err(error) if attempts > 1 && error.code() == Some(Code::NotFound) => Ok(()),
            answer => answer.map(drop),
        }
    }
}

/// Progress of a drain, streamed across restarts of executord.
pub struct Drain {
    cell: Cell,
    request: DrainRequest,
    patience: Patience,
    stream: Option<Streaming<DrainResponse>>,
}

impl Cell {
    /// Drains the cell: executord accepts no new containers and stops the existing containers; at the deadline
    /// executord kills the remaining containers. The drain begins with the first call of [`Drain::next`], and continues
    /// even if no client follows it.
    ///
    /// # Errors
    /// Returns an error if the deadline is too long for the interface.
    pub fn drain(&self, deadline: Option<Duration>, parallel: u32, reason: &str) -> Result<Drain, Error> {
        let request =
            DrainRequest { deadline: deadline.map(duration).transpose()?, parallel, reason: reason.to_owned() };
        Ok(Drain { cell: self.clone(), request, patience: self.0.patience(), stream: None })
    }

    /// Ends the drain: executord accepts new containers again.
    ///
    /// # Errors
    /// Returns an error if executord is unavailable.
    pub async fn undrain(&self) -> Result<(), Error> {
        let answer = self.0.retry(is_lost, |_| {
            let mut rpc = self.rpc();
            async move { rpc.undrain(UndrainRequest {}).await }
        });
        answer.await.map(drop)
    }

    /// Marks the cell as unhealthy for this reason; `None` clears the mark. Returns the resulting health.
    ///
    /// # Errors
    /// Returns an error if the reason is too long.
    pub async fn set_unhealthy(&self, reason: Option<&str>) -> Result<Health, Error> {
        let request = SetHealthyRequest { healthy: reason.is_none(), reason: reason.unwrap_or_default().to_owned() };
        let answer = self.0.retry(is_lost, |_| {
            let (mut rpc, request) = (self.rpc(), request.clone());
            async move { rpc.set_healthy(request).await }
        });
        answer.await?.health.ok_or(Error::Incomplete("the health"))
    }
}

impl Drain {
    /// Returns the next progress message, or `None` after the last message.
    ///
    /// # Errors
    /// Returns [`Code::Aborted`] if [`Cell::undrain`] cancels the drain. Returns an error if executord stays
    /// unavailable longer than [`crate::Client::with_patience`] allows.
    pub async fn next(&mut self) -> Result<Option<DrainResponse>, Error> {
        loop {
            let begun = Instant::now();
            let broken = match self.message().await {
                Ok(message) => {
                    self.patience.reset();
                    return Ok(message);
                }
                Err(status) => status,
            };
            self.stream = None;
            self.cell.0.await_return(&mut self.patience, begun, &broken, is_away).await?;
        }
    }

    async fn message(&mut self) -> Result<Option<DrainResponse>, tonic::Status> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => none.insert(self.cell.rpc().drain(self.request.clone()).await?.into_inner()),
        };
        stream.message().await
    }
}
