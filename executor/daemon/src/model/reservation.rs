//! A reservation of capacity, as the registry, the ledger and the interface know it.

use executor_core::capacity::Amount;
use executor_core::ident::ContainerId;
use executor_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::access::rules::Requester;

/// Capacity that is held for a container that is run later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// Id of the later container.
    pub id: ContainerId,
    /// Capacity.
    pub amount: Amount,
    /// Time at which it was first made.
    pub created_at: Timestamp,
    /// Time at which it expires.
    pub expires_at: Timestamp,
    /// Caller that made it or renewed it last, in whose share it counts; `None` for root of the host, which has no share.
    #[serde(default)]
    pub owner: Option<Requester>,
}
