//! Defines the role and settings of a container's init. The settings are known when libcontainer clones init, or are
//! sent to the init of a warm container.

use executor_core::plan::HostOptions;
use executor_core::users::ResolvedUser;
use serde::{Deserialize, Serialize};

/// Role and settings of an init in its container.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct InitSpec {
    /// User of the program. The user's home directory is the default of HOME.
    pub user: ResolvedUser,
    /// Rows and columns of the program's own terminal. 0 means the default. `None` if the program has no terminal of
    /// its own.
    pub terminal: Option<(u16, u16)>,
    pub role: InitRole,
    /// Limits and AppArmor profile of the program.
    pub options: HostOptions,
    /// Environment variables of CDI devices. Variables of the request take precedence.
    pub device_environment: Vec<String>,
    /// True if the program enters its own Landlock domain.
    pub own_domain: bool,
}

/// Role of a container's init.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum InitRole {
    /// Executes the program.
    Program,
    /// Stays as the first process. A child executes the program.
    Parent,
    /// Stays as the first process and executes no program. Other processes are started next to it.
    Reaper,
}
