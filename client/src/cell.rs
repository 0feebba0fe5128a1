//! The cell as a whole: reservations of capacity.

use std::time::Duration;

use executor_proto::v1::cell_client::CellClient;
use executor_proto::v1::{ReleaseReservationRequest, Reservation, ReserveRequest, Resources};
use tonic::Code;
use tonic::transport::Channel;

use crate::connect::Client;
use crate::error::Error;
use crate::retry::is_lost;
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
            let answer = self.0.patiently(is_lost, |_| {
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
        let answer = self.0.patiently(is_lost, |_| {
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
