//! The role and settings of a container's init: known when libcontainer clones it, or sent to the init of a warm
//! container.

use executor_core::plan::HostOptions;
use executor_core::users::ResolvedUser;
use serde::{Deserialize, Serialize};

/// Role and settings of an init in its container.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct InitSpec {
    /// User of the program; provides HOME if the request does not.
    pub user: ResolvedUser,
    /// Rows and columns of its terminal; 0 for the default. `None` without its own terminal.
    pub terminal: Option<(u16, u16)>,
    pub role: InitRole,
    /// Limits and AppArmor profile of the program.
    pub options: HostOptions,
    /// Variables of CDI devices, used if the request does not set them.
    pub device_environment: Vec<String>,
    /// True if the program enters its own Landlock domain.
    pub own_domain: bool,
}

/// Role of a container's init.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum InitRole {
    /// The program.
    Program,
    /// Stays; a child of it becomes the program.
    Parent,
    /// Stays and runs no program: other processes are started next to it.
    Reaper,
}
