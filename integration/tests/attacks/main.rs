//! A container that turns against its secret files, the host and the host's resources: one table of attacks, gone through
//! by everybody that a process of a container with the default profile can be. Each fails; and each has a control, the
//! same attack where the guard is taken away, which goes through.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails; its helpers do not count as tests to the lint

mod around;
mod attackers;
mod host;
mod limits;
mod secrets;
