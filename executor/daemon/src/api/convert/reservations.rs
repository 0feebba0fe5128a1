//! Converts reservations to API messages.

use executor_proto::v1;

use super::timestamp;
use crate::model::reservation::Reservation;

pub(crate) fn reservation(reservation: &Reservation) -> v1::Reservation {
    let amount = reservation.amount;
    v1::Reservation {
        id: reservation.id.to_string(),
        resources: Some(v1::Resources {
            memory_bytes: amount.memory_bytes,
            pids: amount.pids,
            disk_bytes: amount.disk_bytes,
        }),
        created_at: Some(timestamp(reservation.created_at)),
        expires_at: Some(timestamp(reservation.expires_at)),
    }
}

/// Returns the API message of the container that a reservation is for.
pub(crate) fn reserved_container(reservation: &Reservation) -> v1::Container {
    let amount = reservation.amount;
    let limits = v1::Limits {
        memory_bytes: amount.memory_bytes,
        pids: amount.pids,
        disk_bytes: amount.disk_bytes,
        ..v1::Limits::default()
    };
    v1::Container {
        id: reservation.id.to_string(),
        state: v1::State::Reserved.into(),
        spec: Some(v1::ContainerSpec { limits: Some(limits), ..v1::ContainerSpec::default() }),
        created_at: Some(timestamp(reservation.created_at)),
        reservation_expires_at: Some(timestamp(reservation.expires_at)),
        ..v1::Container::default()
    }
}
