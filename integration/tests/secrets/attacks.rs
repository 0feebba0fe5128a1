//! Attacks by a container on its secret files, on the host and on the host's resources. One table of attacks is run by
//! every kind of user that a container with the default profile can have. Each attack fails. The control of each attack
//! is the same attack without the guard. The control succeeds.

mod around;
mod attackers;
mod host;
mod limits;
mod next;
mod secrets;
