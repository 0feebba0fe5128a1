//! Actions: the three that every bundle has, and those that a bundle declares itself.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::violation::Violations;

/// First action of an installation.
pub const INSTALL: &str = "install";
/// Later action, which changes the installation.
pub const UPGRADE: &str = "upgrade";
/// Last action of an installation.
pub const UNINSTALL: &str = "uninstall";
/// Actions that every bundle has.
pub const BUILT_IN: [&str; 3] = [INSTALL, UPGRADE, UNINSTALL];

/// Custom action, as a bundle declares it.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Custom {
    /// Short description for people.
    #[serde(default)]
    pub title: String,
    /// Short description for people.
    #[serde(default)]
    pub description: String,
    /// Changes the installation, which gets a new revision then (rule 8).
    #[serde(default)]
    pub modifies: bool,
    /// Needs neither an installation nor credentials, and is not recorded (rule 34).
    #[serde(default)]
    pub stateless: bool,
}

/// An action that a bundle can be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    name: String,
    modifies: bool,
    stateless: bool,
}

impl Action {
    /// Looks an action up (rule 6). The built-in ones are there whatever the bundle says (rule 9).
    ///
    /// # Errors
    /// The action is unknown; the violation lists the known ones.
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

    /// Returns the name, the value of `CNAB_ACTION`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns true if the installation gets a new revision.
    pub fn modifies(&self) -> bool {
        self.modifies
    }

    /// Returns true if the action is not recorded.
    pub fn is_stateless(&self) -> bool {
        self.stateless
    }
}
