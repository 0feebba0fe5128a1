//! Sets up the container's init: settings, creation by libcontainer, and the last steps before the program.

pub(crate) mod activation;
pub(crate) mod create;
pub(crate) mod init_spec;
pub(crate) mod last_steps;
pub(crate) mod warm_files;
