//! Finds and reads the registrations file.
//!
//! The first of these files is used:
//!
//! 1. the file that a flag or the variable `EXECUTOR_CONVENTIONS` names,
//! 2. the user's file, `$XDG_CONFIG_HOME/executor/conventions.toml` (by default below `~/.config`),
//! 3. the system's file, `/etc/executor/conventions.toml`.
//!
//! If no file exists, there are no conventions.

use std::env;
use std::io;
use std::path::{Path, PathBuf};

use crate::files::read_bounded;
use crate::registration::Registrations;
use crate::violation::Violations;

/// Environment variable with the path of the file.
pub const VARIABLE: &str = "EXECUTOR_CONVENTIONS";
/// Path of the system's file.
pub const SYSTEM: &str = "/etc/executor/conventions.toml";
/// Path of the user's file below the configuration directory.
const USER: &str = "executor/conventions.toml";
/// Maximum size of the file, in bytes.
const FILE_MAX: u64 = 4 << 20;

/// Registrations and the file that they were read from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configuration {
    /// Path of the file; `None` if there is no file.
    pub path: Option<PathBuf>,
    pub registrations: Registrations,
}

/// Reads the registrations file, which is found as described in the module documentation.
///
/// # Errors
/// Returns an error if the named file does not exist or the file cannot be read. If the file is invalid, returns all
/// violations.
pub fn load(named: Option<&Path>) -> Result<Configuration, Violations> {
    let variable = env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    let named = named.map(Path::to_owned).or(variable);
    let (path, required) = match named {
        Some(path) => (path, true),
        None => match user_file().filter(|path| path.exists()) {
            Some(path) => (path, false),
            None => (SYSTEM.into(), false),
        },
    };
    let bytes = match read_bounded(&path, FILE_MAX) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound && !required => return Ok(Configuration::default()),
        Err(error) => return Err(Violations::one(None, path.display().to_string(), 7, error.to_string())),
    };
    let named = |violations: &Violations| {
        let mut all = Violations::default();
        for violation in violations.iter() {
            let mut violation = violation.clone();
            let joint = if violation.field.is_empty() { "" } else { ": " };
            violation.field = format!("{}{joint}{}", path.display(), violation.field);
            all.push(violation);
        }
        all
    };
    let not_utf8 = |_| Violations::one(None, path.display().to_string(), 7, "the file is not UTF-8");
    let text = String::from_utf8(bytes).map_err(not_utf8)?;
    let base = path.parent().unwrap_or(Path::new("/"));
    let registrations = Registrations::parse(&text, base).map_err(|violations| named(&violations))?;
    Ok(Configuration { path: Some(path), registrations })
}

fn user_file() -> Option<PathBuf> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let configurations = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")))?;
    Some(configurations.join(USER))
}
