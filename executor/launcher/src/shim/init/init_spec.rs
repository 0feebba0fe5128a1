//! What a container's init is to be: known when libcontainer clones it, or told to the init of a shell.

use executor_core::plan::HostOptions;
use executor_core::users::ResolvedUser;
use serde::{Deserialize, Serialize};

/// Part of an init in its container.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct InitSpec {
    /// User of the program: gives HOME where the request does not.
    pub user: ResolvedUser,
    /// Rows and columns of its terminal; 0 for the default. None without a terminal of its own.
    pub terminal: Option<(u16, u16)>,
    /// Role of the init.
    pub role: InitRole,
    /// Limits and AppArmor profile of the program.
    pub options: HostOptions,
    /// Variables of devices of CDI, for where the request does not set them.
    pub device_environment: Vec<String>,
    /// True if the program enters a Landlock domain of its own.
    pub own_domain: bool,
}

/// What a container's init becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum InitRole {
    /// The program.
    Program,
    /// It stays, and a child of it becomes the program.
    Parent,
    /// It stays and runs no program: others are started beside it.
    Reaper,
}
