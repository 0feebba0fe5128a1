//! What a scheduler needs of a run: groups, a signal of Stop, counters, a message about the end, the environment of a process, a
//! log from a number on.

mod environment;
mod groups;
mod logs;
mod message;
mod residue;
mod stats;
mod stop;
