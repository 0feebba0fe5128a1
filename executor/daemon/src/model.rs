//! Model of the node and its containers: status, events, results, quarantine, reservations.

pub mod cell;
pub mod container;
pub mod events;
pub mod identity;
pub mod network_checks;
pub mod quarantine;
pub mod reservation;
pub mod sources;
pub mod status;
