//! Features for schedulers: supplementary groups, the signal of Stop, counters, termination messages, the environment
//! of a process, and logs from an entry number.

mod environment;
mod groups;
mod logs;
mod message;
mod residue;
mod stats;
mod stop;
