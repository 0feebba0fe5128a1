//! Parameters: from what was supplied, what was supplied earlier and the defaults to the values of one action.
//!
//! A value counts in this order: supplied now; supplied to an earlier action of the installation; from its source, which is
//! an output of an earlier action (rule 49); the default; none, which is delivered as the empty text (rules 13 to 16). Defaults are not remembered, so that a new version of a bundle can
//! bring new ones. A parameter that is `readOnly` keeps the value it has, and a warning tells so (rule 41).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::action::Action;
use crate::bundle::{Bundle, applies};
use crate::sourced::Sourced;
use crate::violation::{Violations, pointer};

/// What an earlier action left: the values of its claim, and which of them somebody had supplied.
#[derive(Clone, Debug, Default)]
pub struct Earlier {
    /// Values of the claim.
    pub values: Map<String, Value>,
    /// Names of those that were supplied.
    pub supplied: BTreeSet<String>,
    /// Outputs that earlier actions left for parameters, by parameter.
    pub sourced: BTreeMap<String, Sourced>,
    /// Parameters whose source is an output of an action that is still to come, before this one.
    pub awaited: BTreeSet<String>,
}

/// The values of an action. It does not print: some may be `writeOnly`.
#[derive(Clone)]
pub struct Resolved {
    /// Of each parameter that has one: supplied or defaulted.
    pub values: BTreeMap<String, Value>,
    /// Which of them were supplied, now or earlier.
    pub supplied: BTreeSet<String>,
    /// Which of them nobody may see.
    pub secret: BTreeSet<String>,
    /// What a person should know.
    pub warnings: Vec<String>,
}

impl std::fmt::Debug for Resolved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolved").field("names", &self.values.keys()).finish_non_exhaustive()
    }
}

/// Finds the values.
///
/// # Errors
/// Every value that does not fit, is missing, or is of no parameter. None of them is repeated.
pub fn resolve(
    bundle: &Bundle,
    action: &Action,
    given: &BTreeMap<String, Value>,
    earlier: &Earlier,
) -> Result<Resolved, Violations> {
    let mut wrong = Violations::default();
    let mut resolved =
        Resolved { values: BTreeMap::new(), supplied: BTreeSet::new(), secret: BTreeSet::new(), warnings: Vec::new() };
    for name in given.keys().filter(|name| !bundle.parameters.contains_key(*name)) {
        let known: Vec<&str> = bundle.parameters.keys().map(String::as_str).collect();
        let known = if known.is_empty() { "none".into() } else { known.join(", ") };
        wrong.add(pointer("/parameters", name), 13, format!("is no parameter of this bundle; it has {known}"));
    }
    for (name, parameter) in &bundle.parameters {
        let at = pointer("/parameters", name);
        let Some(definition) = bundle.definition(&parameter.definition) else { continue };
        let applicable = applies(&parameter.apply_to, action.name());
        let kept = earlier.values.get(name);
        let mut value = given.get(name);
        if value.is_some() && !applicable {
            wrong.add(&at, 30, format!("does not apply to {}", action.name()));
            continue;
        }
        if let (true, Some(kept), Some(now)) = (definition.read_only, kept, value)
            && kept != now
        {
            resolved
                .warnings
                .push(format!("{name} is readOnly and keeps the value that it has; what was given is ignored"));
            value = None;
        }
        let supplied_before = earlier.supplied.contains(name) || definition.read_only;
        let sourced = earlier.sourced.get(name).filter(|_| applicable);
        let (value, supplied) = match (value, kept.filter(|_| supplied_before)) {
            (Some(now), _) => (Some(now), true),
            (None, Some(kept)) => (Some(kept), true),
            (None, None) => match sourced {
                Some(sourced) => (Some(&sourced.value), false),
                None => (definition.default.as_ref().filter(|_| applicable), false),
            },
        };
        match value {
            Some(value) if applicable => {
                match (definition.validate(&at, value, 13), supplied, sourced) {
                    (Ok(()), ..) => {}
                    (Err(violations), true, _) => wrong.append(violations),
                    (Err(violations), false, Some(_)) => {
                        for violation in violations.iter() {
                            let message = format!("the output that it comes from does not fit: {}", violation.message);
                            wrong.add(&violation.path, 49, message);
                        }
                    }
                    // It must be used all the same (rule 15).
                    (Err(violations), false, None) => resolved.warnings.extend(
                        violations.iter().map(|one| format!("{name} has a default that does not fit: {}", one.message)),
                    ),
                }
            }
            None if earlier.awaited.contains(name) => {}
            None if parameter.required && applicable => {
                let why = if definition.write_only && !earlier.values.is_empty() {
                    "is required and has no value: it is writeOnly and therefore not kept from one action to the next"
                } else {
                    "is required and has no value"
                };
                wrong.add(&at, 14, why);
            }
            _ => {}
        }
        if let Some(value) = value {
            resolved.values.insert(name.clone(), value.clone());
            // A source that is secret makes its parameter so, whatever the definition says.
            if bundle.is_write_only(name) || earlier.sourced.get(name).is_some_and(|sourced| sourced.secret) {
                resolved.secret.insert(name.clone());
            }
            if supplied {
                resolved.supplied.insert(name.clone());
            }
        }
    }
    wrong.or(resolved)
}
