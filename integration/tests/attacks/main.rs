//! Attacks by a container on its secret files, on the host and on the host's resources: one table, run by every kind of
//! user that a process of a container with the default profile can be. Each attack fails; and each has a control, the
//! same attack without the guard, which succeeds.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails; its helpers do not count as tests to the lint

mod around;
mod attackers;
mod host;
mod limits;
mod next;
mod secrets;
