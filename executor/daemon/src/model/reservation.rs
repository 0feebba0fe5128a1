//! A reservation of capacity, for the registry, the ledger and the API.

use executor_core::capacity::Amount;
use executor_core::ident::ContainerId;
use executor_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::access::rules::Requester;

/// Capacity that is reserved for a later container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// Id of the later container.
    pub id: ContainerId,
    /// Reserved capacity.
    pub amount: Amount,
    /// Time at which the reservation was created.
    pub created_at: Timestamp,
    /// Time at which the reservation expires.
    pub expires_at: Timestamp,
    /// Caller that created or last renewed the reservation. The reservation counts against this caller's quota. `None`
    /// for host root, which has no quota.
    #[serde(default)]
    pub owner: Option<Requester>,
}
