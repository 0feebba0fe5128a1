//! The cell: reservations.

use executor_client::v1;
use serde::Serialize;

use super::time;

/// The document of `reserve`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Reservation {
    id: String,
    resources: Resources,
    created_at: Option<String>,
    expires_at: Option<String>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Resources {
    memory_bytes: u64,
    pids: u64,
    disk_bytes: u64,
}

/// Result of `release` for one reservation.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Released {
    pub(crate) id: String,
    pub(crate) released: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl From<&v1::Reservation> for Reservation {
    fn from(reservation: &v1::Reservation) -> Self {
        let v1::Resources { memory_bytes, pids, disk_bytes } = reservation.resources.unwrap_or_default();
        Self {
            id: reservation.id.clone(),
            resources: Resources { memory_bytes, pids, disk_bytes },
            created_at: time(reservation.created_at.as_ref()),
            expires_at: time(reservation.expires_at.as_ref()),
        }
    }
}
