//! The container's init: its settings, its creation by libcontainer, and its last steps before the program.

pub(crate) mod activation;
pub(crate) mod create;
pub(crate) mod init_spec;
pub(crate) mod last_steps;
pub(crate) mod warm_files;
