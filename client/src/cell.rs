//! The cell as a whole: reservations of capacity, drain, health.

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

/// The cell of an executord.
#[derive(Clone, Debug)]
pub struct Cell(Client);

impl Client {
    /// The cell as a whole.
    pub fn cell(&self) -> Cell {
        Cell(self.clone())
    }
}

impl Cell {
    fn rpc(&self) -> CellClient<Channel> {
        CellClient::new(self.0.channel())
    }

    /// Reserves an id and capacity for a container that is run later, for `ttl` or executord's default of 60 s. Returns the
    /// reservation, and true if it is new. Asking again begins its time anew.
    ///
    /// # Errors
    /// There is not enough capacity; the id is used already. [`Error::Lost`] without an id: whether there is a reservation is
    /// unknown.
    pub async fn reserve(
        &self,
        id: &str,
        resources: Resources,
        ttl: Option<Duration>,
    ) -> Result<(Reservation, bool), Error> {
        let request =
            ReserveRequest { id: id.to_owned(), resources: Some(resources), ttl: ttl.map(duration).transpose()? };
        let answer = if id.is_empty() {
            // Sent again it would be another reservation.
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

    /// Ends a reservation before its time.
    ///
    /// # Errors
    /// There is no such reservation.
    pub async fn release(&self, id: &str) -> Result<(), Error> {
        let mut attempts = 0u32;
        let answer = self.0.retry(is_lost, |_| {
            attempts += 1;
            let (mut rpc, request) = (self.rpc(), ReleaseReservationRequest { id: id.to_owned() });
            async move { rpc.release_reservation(request).await }
        });
        match answer.await {
            // The attempt whose answer was lost has released it.
            Err(error) if attempts > 1 && error.code() == Some(Code::NotFound) => Ok(()),
            answer => answer.map(drop),
        }
    }
}

/// Progress of a drain as it comes, over restarts of executord.
pub struct Drain {
    cell: Cell,
    request: DrainRequest,
    patience: Patience,
    stream: Option<Streaming<DrainResponse>>,
}

impl Cell {
    /// Takes no new containers, and stops all that there are until the deadline, at which the rest is killed. Begins with the first
    /// call of [`Drain::next`], and goes on when nobody follows it.
    ///
    /// # Errors
    /// The deadline is too long for the interface.
    pub fn drain(&self, deadline: Option<Duration>, parallel: u32, reason: &str) -> Result<Drain, Error> {
        let request =
            DrainRequest { deadline: deadline.map(duration).transpose()?, parallel, reason: reason.to_owned() };
        Ok(Drain { cell: self.clone(), request, patience: self.0.patience(), stream: None })
    }

    /// Takes new containers again.
    ///
    /// # Errors
    /// Executord is away.
    pub async fn undrain(&self) -> Result<(), Error> {
        let answer = self.0.retry(is_lost, |_| {
            let mut rpc = self.rpc();
            async move { rpc.undrain(UndrainRequest {}).await }
        });
        answer.await.map(drop)
    }

    /// Says that the cell is not healthy, for this reason, or takes that back. Returns the health that results.
    ///
    /// # Errors
    /// The reason is too long.
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
    /// The next message of progress; `None` after the last one.
    ///
    /// # Errors
    /// [`Code::Aborted`]: the drain was ended by [`Cell::undrain`]. Executord is away for too long.
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
