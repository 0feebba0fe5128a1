//! Defines the three built-in actions of every bundle, and custom actions.
//!
//! Rules are numbered as in `docs/guides/cnab-rules.md`.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::violation::Violations;

/// Action that creates an installation.
pub const INSTALL: &str = "install";
/// Action that changes an existing installation.
pub const UPGRADE: &str = "upgrade";
/// Action that removes an installation.
pub const UNINSTALL: &str = "uninstall";
/// Actions that every bundle has.
pub const BUILT_IN: [&str; 3] = [INSTALL, UPGRADE, UNINSTALL];

/// Declaration of a custom action in a bundle.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Custom {
    /// Title for users.
    #[serde(default)]
    pub title: String,
    /// Description for users.
    #[serde(default)]
    pub description: String,
    /// True if the action changes the installation. Such an action creates a new revision (rule 8).
    #[serde(default)]
    pub modifies: bool,
    /// True if the action needs neither an installation nor credentials, and is not recorded (rule 34).
    #[serde(default)]
    pub stateless: bool,
}

/// A built-in or custom action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    name: String,
    modifies: bool,
    stateless: bool,
}

impl Action {
    /// Looks up an action (rule 6). The built-in actions always exist (rule 9).
    ///
    /// # Errors
    /// Returns a violation that lists the known actions if the action is unknown.
    pub fn new(declared: &BTreeMap<String, Custom>, name: &str) -> Result<Self, Violations> {
        let action = |modifies, stateless| Self { name: name.to_owned(), modifies, stateless };
        match declared.get(name) {
            _ if BUILT_IN.contains(&name) => Ok(action(true, false)),
            Some(custom) => Ok(action(custom.modifies, custom.stateless)),
            None => {
                let known: Vec<&str> = BUILT_IN.into_iter().chain(declared.keys().map(String::as_str)).collect();
                let message = format!("unknown action {name:?}; this bundle has {}", known.join(", "));
                Err(Violations::one("/actions", 6, message))
            }
        }
    }

    /// Returns the name of the action, which is the value of `CNAB_ACTION`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns true if the action creates a new revision of the installation.
    pub fn modifies(&self) -> bool {
        self.modifies
    }

    /// Returns true if the action is not recorded.
    pub fn is_stateless(&self) -> bool {
        self.stateless
    }
}
