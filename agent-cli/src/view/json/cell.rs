//! Documents about the cell: reservations, the progress of a drain, health, and the quarantine of containers.

use executor_cli_kit::view::json::time;
use executor_client::v1;
use serde::Serialize;

use super::seconds;
use crate::view::human::phase;

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

/// A progress line of `drain`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Drain {
    total: u32,
    stopping: u32,
    ended: u32,
    killed: Vec<String>,
    left: Vec<String>,
    deadline_at: Option<String>,
    done: bool,
}

impl From<&v1::DrainResponse> for Drain {
    fn from(progress: &v1::DrainResponse) -> Self {
        Self {
            total: progress.total,
            stopping: progress.stopping,
            ended: progress.ended,
            killed: progress.killed.clone(),
            left: progress.left.clone(),
            deadline_at: time(progress.deadline_at.as_ref()),
            done: progress.done,
        }
    }
}

/// Health of an executord, with the unhealthy reasons.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Health {
    healthy: bool,
    reasons: Vec<String>,
    draining: bool,
    drained: bool,
    self_test_at: Option<String>,
    self_test_took_seconds: Option<f64>,
}

impl From<&v1::Health> for Health {
    fn from(health: &v1::Health) -> Self {
        Self {
            healthy: health.healthy,
            reasons: health.reasons.clone(),
            draining: health.draining,
            drained: health.drained,
            self_test_at: time(health.self_test_at.as_ref()),
            self_test_took_seconds: seconds(health.self_test_took),
        }
    }
}

/// Quarantine of a container.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Quarantine {
    phase: String,
    since: Option<String>,
}

impl From<&v1::Quarantine> for Quarantine {
    fn from(quarantine: &v1::Quarantine) -> Self {
        Self { phase: phase(quarantine.phase), since: time(quarantine.since.as_ref()) }
    }
}
