//! Extensions: data in `custom`, of which a bundle may say that it cannot be run without them.

use serde_json::{Map, Value};

use crate::dependencies::{self, Dependencies};
use crate::docker;
use crate::parameter_sources;
use crate::violation::Violations;

/// Those that are understood here.
pub const SUPPORTED: [&str; 3] = [dependencies::EXTENSION, docker::EXTENSION, parameter_sources::EXTENSION];

/// What a person allows a bundle beyond a container of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowed {
    /// The Docker daemon of this machine.
    pub docker: bool,
}

/// Checks ahead of any action that every extension is supported that the bundle requires (rule 36). One that it does not
/// require may be unknown.
///
/// # Errors
/// Each that is not, by name.
pub fn check(custom: &Map<String, Value>, required: &[String], allowed: Allowed) -> Result<(), Violations> {
    let mut wrong = Violations::default();
    for (index, name) in required.iter().enumerate() {
        let path = format!("/requiredExtensions/{index}");
        match name.as_str() {
            dependencies::EXTENSION => {
                if let Err(dependencies::Unusable::Draft) = Dependencies::of(custom) {
                    let message = format!(
                        "the bundle requires {name:?}, and gives it in the form of an old draft, which is not supported"
                    );
                    wrong.add(path, 36, message);
                }
            }
            docker::EXTENSION if !allowed.docker => {
                let message = format!(
                    "the bundle requires {name:?}: the Docker daemon of this machine, which makes it root here; \
                     --allow-docker-host-access allows that"
                );
                wrong.add(path, 50, message);
            }
            known if SUPPORTED.contains(&known) => {}
            _ => {
                wrong.add(path, 36, format!("the bundle requires the extension {name:?}, which is not supported here"));
            }
        }
    }
    wrong.or(())
}
