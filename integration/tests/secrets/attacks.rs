//! Attacks by a container on its secret files, on the host and on the host's resources. One table of attacks is run by
//! every kind of user that a container with the default profile can have. Each attack fails. As a control, each attack
//! is repeated without the guard that stops it, and succeeds.

mod around;
mod attackers;
mod host;
mod limits;
mod next;
mod secrets;
