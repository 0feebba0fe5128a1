//! Attacks by a container on its secret files, on the host and on the host's resources: one table, run by every kind of
//! user that a process of a container with the default profile can have. Each attack fails; and each has a control, the
//! same attack without the guard, which succeeds.

mod around;
mod attackers;
mod host;
mod limits;
mod next;
mod secrets;
