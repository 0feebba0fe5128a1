//! Checks extensions. An extension is data in `custom`; a bundle may declare it as required.
//!
//! Rules are numbered as in `docs/guides/cnab-rules.md`.

use serde_json::{Map, Value};

use crate::dependencies::{self, Dependencies};
use crate::docker;
use crate::parameter_sources;
use crate::violation::Violations;

/// Names of the supported extensions.
pub const SUPPORTED: [&str; 3] = [dependencies::EXTENSION, docker::EXTENSION, parameter_sources::EXTENSION];

/// Permissions of a bundle beyond its own container.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowed {
    /// True if the bundle may use this machine's Docker daemon.
    pub docker: bool,
}

/// Checks that every extension that the bundle requires is supported (rule 36). Extensions that are not required may be
/// unknown. The caller runs this check before any action.
///
/// # Errors
/// Returns a violation for each unsupported extension.
pub fn check(custom: &Map<String, Value>, required: &[String], allowed: Allowed) -> Result<(), Violations> {
    let mut wrong = Violations::default();
    for (index, name) in required.iter().enumerate() {
        let path = format!("/requiredExtensions/{index}");
        match name.as_str() {
            dependencies::EXTENSION => {
                if let Err(dependencies::Unusable::Draft) = Dependencies::from_custom(custom) {
                    let message =
                        format!("the bundle requires {name:?} in the form of an old draft, which is not supported");
                    wrong.add(path, 36, message);
                }
            }
            docker::EXTENSION if !allowed.docker => {
                let message = format!(
                    "the bundle requires {name:?}, access to the Docker daemon of this machine, which gives the \
                     bundle root access; allow it with --allow-docker-host-access"
                );
                wrong.add(path, 50, message);
            }
            known if SUPPORTED.contains(&known) => {}
            _ => {
                wrong.add(path, 36, format!("the bundle requires the extension {name:?}, which is not supported"));
            }
        }
    }
    wrong.or(())
}
