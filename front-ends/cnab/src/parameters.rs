//! Determines the parameter values of an action from supplied values, earlier values and defaults.
//!
//! The value of a parameter is the first of these (rules 13 to 16 of `docs/guides/cnab-rules.md`):
//!
//! 1. the value supplied to this action,
//! 2. the value supplied to an earlier action of the installation,
//! 3. the parameter's source, an output of an earlier action (rule 49),
//! 4. the default.
//!
//! If there is no value, an empty string is passed. Defaults are not stored, so that a new version of a bundle can
//! change them. A `readOnly` parameter keeps its value; a new value is ignored with a warning (rule 41).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::action::Action;
use crate::bundle::{Bundle, Parameter, applies};
use crate::definition::Definition;
use crate::sourced::Sourced;
use crate::violation::{Violations, pointer};

/// Parameter values from earlier actions.
#[derive(Clone, Debug, Default)]
pub struct Earlier {
    /// Values in the last claim.
    pub values: Map<String, Value>,
    /// Names of the parameters in the last claim whose values were supplied by the user.
    pub supplied: BTreeSet<String>,
    /// Values from outputs of earlier actions, by parameter.
    pub sourced: BTreeMap<String, Sourced>,
    /// Parameters whose source is an output of another action that will run before this action.
    pub awaited: BTreeSet<String>,
}

/// The parameter values of an action. Its `Debug` output omits the values, which may be `writeOnly`.
#[derive(Clone)]
pub struct Resolved {
    /// Values by parameter; parameters without a value are missing.
    pub values: BTreeMap<String, Value>,
    /// Names of parameters that were supplied, now or earlier.
    pub supplied: BTreeSet<String>,
    /// Names of secret parameters.
    pub secret: BTreeSet<String>,
    pub warnings: Vec<String>,
}

impl std::fmt::Debug for Resolved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolved").field("names", &self.values.keys()).finish_non_exhaustive()
    }
}

/// Determines the parameter values of an action.
///
/// # Errors
/// Returns a violation for each value that does not match its definition, is missing, or belongs to no parameter.
/// Violations do not contain values.
pub fn resolve(
    bundle: &Bundle,
    action: &Action,
    given: &BTreeMap<String, Value>,
    earlier: &Earlier,
) -> Result<Resolved, Violations> {
    let mut wrong = Violations::default();
    let mut resolved =
        Resolved { values: BTreeMap::new(), supplied: BTreeSet::new(), secret: BTreeSet::new(), warnings: Vec::new() };
    refuse_unknown(bundle, given, &mut wrong);
    for (name, parameter) in &bundle.parameters {
        let at = pointer("/parameters", name);
        let Some(definition) = bundle.definition(&parameter.definition) else { continue };
        let candidate =
            Candidate { name, at, parameter, definition, applicable: applies(&parameter.apply_to, action.name()) };
        let value = given.get(name);
        if value.is_some() && !candidate.applicable {
            wrong.add(&candidate.at, 30, format!("does not apply to {}", action.name()));
            continue;
        }
        let (value, origin) = candidate.choose(value, earlier, &mut resolved.warnings);
        match value {
            Some(value) if candidate.applicable => {
                candidate.validate(value, origin, &mut wrong, &mut resolved.warnings);
            }
            Some(_) => {}
            None => candidate.require(earlier, &mut wrong),
        }
        if let Some(value) = value {
            resolved.values.insert(name.clone(), value.clone());
            // If the source is secret, the parameter is secret, regardless of its definition.
            if bundle.is_write_only(name) || earlier.sourced.get(name).is_some_and(|sourced| sourced.secret) {
                resolved.secret.insert(name.clone());
            }
            if origin == Origin::Supplied {
                resolved.supplied.insert(name.clone());
            }
        }
    }
    wrong.or(resolved)
}

fn refuse_unknown(bundle: &Bundle, given: &BTreeMap<String, Value>, wrong: &mut Violations) {
    for name in given.keys().filter(|name| !bundle.parameters.contains_key(*name)) {
        let known: Vec<&str> = bundle.parameters.keys().map(String::as_str).collect();
        let known = if known.is_empty() { "none".into() } else { known.join(", ") };
        wrong.add(pointer("/parameters", name), 13, format!("is not a parameter of this bundle; it has {known}"));
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// Supplied to this action or to an earlier action.
    Supplied,
    /// Output of an earlier action.
    Output,
    /// Default of the definition, if there is one.
    Default,
}

/// A parameter whose value is being determined.
struct Candidate<'a> {
    name: &'a str,
    /// JSON pointer to the parameter.
    at: String,
    parameter: &'a Parameter,
    definition: &'a Definition,
    applicable: bool,
}

impl Candidate<'_> {
    /// Returns the effective value, if there is one. Warns if a new value of a `readOnly` parameter is ignored (rule
    /// 41).
    fn choose<'v>(
        &'v self,
        given: Option<&'v Value>,
        earlier: &'v Earlier,
        warnings: &mut Vec<String>,
    ) -> (Option<&'v Value>, Origin) {
        let mut given = given;
        let kept = earlier.values.get(self.name);
        if let (true, Some(kept), Some(now)) = (self.definition.read_only, kept, given)
            && kept != now
        {
            warnings.push(format!("{} is readOnly and keeps its value; the new value is ignored", self.name));
            given = None;
        }
        let supplied_before = earlier.supplied.contains(self.name) || self.definition.read_only;
        if let Some(supplied) = given.or(kept.filter(|_| supplied_before)) {
            return (Some(supplied), Origin::Supplied);
        }
        match earlier.sourced.get(self.name).filter(|_| self.applicable) {
            Some(sourced) => (Some(&sourced.value), Origin::Output),
            None => (self.definition.default.as_ref().filter(|_| self.applicable), Origin::Default),
        }
    }

    /// Checks that a value matches the definition. A default is used even if it does not match (rules 15 and 21).
    fn validate(&self, value: &Value, origin: Origin, wrong: &mut Violations, warnings: &mut Vec<String>) {
        let Err(violations) = self.definition.validate(&self.at, value, 13) else { return };
        match origin {
            Origin::Supplied => wrong.append(violations),
            Origin::Output => {
                for violation in violations.iter() {
                    let message = format!("the value comes from an output and does not match: {}", violation.message);
                    wrong.add(&violation.path, 49, message);
                }
            }
            Origin::Default => warnings.extend(
                violations.iter().map(|one| format!("{}: the default does not match: {}", self.name, one.message)),
            ),
        }
    }

    /// Refuses a required parameter that has no value, if no earlier step will provide the value (rule 14).
    fn require(&self, earlier: &Earlier, wrong: &mut Violations) {
        if earlier.awaited.contains(self.name) || !self.parameter.required || !self.applicable {
            return;
        }
        let why = if self.definition.write_only && !earlier.values.is_empty() {
            "is required and has no value: writeOnly values are not kept between actions"
        } else {
            "is required and has no value"
        };
        wrong.add(&self.at, 14, why);
    }
}
