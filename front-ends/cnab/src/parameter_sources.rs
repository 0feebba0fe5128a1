//! Parses the extension `io.cnab.parameter-sources`, which uses outputs of earlier actions as parameter values (CNAB
//! 810, rule 49 of `docs/guides/cnab-rules.md`).
//!
//! If no value was supplied, such an output replaces the default. The specification defines outputs of the installation
//! itself (`output`). Outputs of a dependency (`dependencies.output`), which Porter writes, are also supported. Unknown
//! types of sources are ignored.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::violation::{Violations, pointer};

/// Name of the extension in `custom`.
pub const EXTENSION: &str = "io.cnab.parameter-sources";
pub(crate) const AT: &str = "/custom/io.cnab.parameter-sources";
/// Type of a source that is an output of the installation itself.
const OUTPUT: &str = "output";
/// Type of a source that is an output of a dependency.
const DEPENDENCY_OUTPUT: &str = "dependencies.output";

/// Source of a parameter's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The last content of the output with this name.
    Output(String),
    /// The last content of an output of a dependency.
    DependencyOutput {
        dependency: String,
        /// Name of the output in the dependency's bundle.
        output: String,
    },
}

/// Sources by parameter. The sources of a parameter are in the order in which they are tried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParameterSources {
    sources: BTreeMap<String, Vec<Source>>,
}

#[derive(Deserialize)]
struct Written {
    #[serde(default)]
    priority: Option<Vec<String>>,
    #[serde(default)]
    sources: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

#[derive(Deserialize)]
struct OfDependency {
    dependency: String,
    name: String,
}

impl ParameterSources {
    /// Parses the extension; empty if the bundle does not have it.
    ///
    /// # Errors
    /// Returns an error if the extension is malformed.
    pub fn from_custom(custom: &Map<String, Value>) -> Result<Self, Violations> {
        let mut wrong = Violations::default();
        let mut sources = BTreeMap::new();
        let entries = match custom.get(EXTENSION) {
            None | Some(Value::Null) => return Ok(Self::default()),
            Some(Value::Object(entries)) => entries,
            Some(_) => return Err(Violations::one(AT, 49, "is not an object that maps parameters to sources")),
        };
        for (parameter, value) in entries {
            match one(&pointer(AT, parameter), value) {
                Ok(found) => drop(sources.insert(parameter.clone(), found)),
                Err(violations) => wrong.append(violations),
            }
        }
        wrong.or(Self { sources })
    }

    /// Returns the parameters with their sources.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[Source])> {
        self.sources.iter().map(|(name, sources)| (name.as_str(), sources.as_slice()))
    }

    pub fn for_parameter(&self, name: &str) -> &[Source] {
        self.sources.get(name).map_or(&[], Vec::as_slice)
    }
}

fn one(at: &str, value: &Value) -> Result<Vec<Source>, Violations> {
    let form = |at: &str, needs: &str| {
        Violations::one(at, 49, format!("is not a valid parameter source; it must have {needs}"))
    };
    let written: Written = object(value).ok_or_else(|| form(at, "`priority` (a list) and `sources` (an object)"))?;
    let order: Vec<&str> = match &written.priority {
        Some(priority) if !priority.is_empty() => priority.iter().map(String::as_str).collect(),
        _ => vec![OUTPUT, DEPENDENCY_OUTPUT],
    };
    let mut found: Vec<Source> = Vec::new();
    for kind in order {
        let Some(source) = written.sources.get(kind) else { continue };
        let at = pointer(&format!("{at}/sources"), kind);
        let source = match kind {
            OUTPUT => {
                let Named { name } = object(source).ok_or_else(|| form(&at, "the `name` of an output"))?;
                Source::Output(name)
            }
            DEPENDENCY_OUTPUT => {
                let OfDependency { dependency, name } =
                    object(source).ok_or_else(|| form(&at, "a `dependency`, and the `name` of its output"))?;
                Source::DependencyOutput { dependency, output: name }
            }
            _ => continue,
        };
        if !found.contains(&source) {
            found.push(source);
        }
    }
    Ok(found)
}

/// Deserializes an object. Refuses a list, which serde would accept as the object's fields in order.
fn object<T: serde::de::DeserializeOwned>(value: &Value) -> Option<T> {
    value.is_object().then(|| T::deserialize(value).ok()).flatten()
}
