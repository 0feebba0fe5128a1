//! Actions: the three that every bundle has, and those that a bundle declares itself.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::violation::Violations;

/// The first action of an installation.
pub const INSTALL: &str = "install";
/// A later one.
pub const UPGRADE: &str = "upgrade";
/// The last one.
pub const UNINSTALL: &str = "uninstall";
/// All of those.
pub const BUILT_IN: [&str; 3] = [INSTALL, UPGRADE, UNINSTALL];

/// What a bundle says of an action of its own.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Custom {
    /// For a person.
    #[serde(default)]
    pub title: String,
    /// For a person.
    #[serde(default)]
    pub description: String,
    /// It changes the installation, which gets a new revision then (rule 8).
    #[serde(default)]
    pub modifies: bool,
    /// It needs neither an installation nor credentials, and nothing of it is recorded (rule 34).
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
    /// There is no such action; the violation names those that there are.
    pub fn of(declared: &BTreeMap<String, Custom>, name: &str) -> Result<Self, Violations> {
        let action = |modifies, stateless| Self { name: name.to_owned(), modifies, stateless };
        match declared.get(name) {
            _ if BUILT_IN.contains(&name) => Ok(action(true, false)),
            Some(custom) => Ok(action(custom.modifies, custom.stateless)),
            None => {
                let known: Vec<&str> = BUILT_IN.into_iter().chain(declared.keys().map(String::as_str)).collect();
                let message = format!("{name:?} is no action of this bundle; it has {}", known.join(", "));
                Err(Violations::one("/actions", 6, message))
            }
        }
    }

    /// Its name: what `CNAB_ACTION` says.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the installation gets a new revision.
    pub fn modifies(&self) -> bool {
        self.modifies
    }

    /// Whether nothing of it is recorded.
    pub fn is_stateless(&self) -> bool {
        self.stateless
    }
}
