//! Features for schedulers: groups, the signal of Stop, counters, termination messages, the environment of a process,
//! logs from an entry number.

mod environment;
mod groups;
mod logs;
mod message;
mod residue;
mod stats;
mod stop;
