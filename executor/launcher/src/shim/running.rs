//! Handles commands for a running container: connections, checks, limits, egress, transfers, usage, and the heartbeat.

pub(crate) mod checks;
pub(crate) mod control;
pub(crate) mod disclosure;
pub(crate) mod egress;
pub(crate) mod heartbeat;
pub(crate) mod layer_size;
pub(crate) mod limits;
pub(crate) mod transfers;
pub(crate) mod usage;
