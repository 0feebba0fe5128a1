//! Matches labels with selectors (Kubernetes' LabelSelector). The selectors of a convention determine the templates
//! that the convention decorates.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::labels::{is_key, is_value};
use crate::violation::shown;

/// Maximum number of requirements per selector, and of values per requirement.
const REQUIREMENTS_MAX: usize = 64;

/// A label selector. All requirements must be fulfilled; an empty selector matches all labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Selector {
    /// Labels that must have exactly these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Requirement>,
}

/// Requirement on one label.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Requirement {
    pub key: String,
    pub operator: Operator,
    /// Values for the operators `In` and `NotIn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// Comparison of a label with values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Operator {
    /// The label exists with one of the values.
    In,
    /// The label does not exist, or has none of the values.
    NotIn,
    Exists,
    DoesNotExist,
}

impl Selector {
    /// Returns true if the labels fulfil every requirement.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|requirement| requirement.matches(labels))
    }

    /// Returns all errors in the selector, each with its field.
    pub(crate) fn faults(&self) -> Vec<(String, String)> {
        let mut faults = Vec::new();
        let count = self.match_labels.len() + self.match_expressions.len();
        if count > REQUIREMENTS_MAX {
            faults.push((String::new(), format!("has {count} requirements; at most {REQUIREMENTS_MAX} are allowed")));
        }
        for (key, value) in self.match_labels.iter().take(REQUIREMENTS_MAX) {
            let field = format!("matchLabels.{key}");
            if !is_key(key) {
                faults.push((field.clone(), format!("{} is not a valid label key", shown(key))));
            }
            if !is_value(value) {
                faults.push((field, format!("{} is not a valid label value", shown(value))));
            }
        }
        for (index, requirement) in self.match_expressions.iter().take(REQUIREMENTS_MAX).enumerate() {
            let field = format!("matchExpressions[{index}]");
            if !is_key(&requirement.key) {
                faults.push((format!("{field}.key"), format!("{} is not a valid label key", shown(&requirement.key))));
            }
            let field = format!("{field}.values");
            match (requirement.operator, requirement.values.len()) {
                (Operator::In | Operator::NotIn, 0) => {
                    faults
                        .push((field.clone(), format!("is empty; the operator {} needs values", requirement.operator)));
                }
                (Operator::Exists | Operator::DoesNotExist, 1..) => {
                    faults.push((field.clone(), format!("must be empty for the operator {}", requirement.operator)));
                }
                (_, count) if count > REQUIREMENTS_MAX => {
                    faults.push((field.clone(), format!("has {count} values; at most {REQUIREMENTS_MAX} are allowed")));
                }
                _ => {}
            }
            let wrong = requirement.values.iter().take(REQUIREMENTS_MAX).filter(|value| !is_value(value));
            faults.extend(wrong.map(|value| (field.clone(), format!("{} is not a valid label value", shown(value)))));
        }
        faults
    }
}

impl Requirement {
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        match self.operator {
            Operator::In => value.is_some_and(|value| self.values.contains(value)),
            Operator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::In => "In",
            Self::NotIn => "NotIn",
            Self::Exists => "Exists",
            Self::DoesNotExist => "DoesNotExist",
        })
    }
}

impl fmt::Display for Selector {
    /// Writes a selector as kubectl does: `app=web,tier in (a,b),!old`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let equal = self.match_labels.iter().map(|(key, value)| format!("{key}={value}"));
        let others = self.match_expressions.iter().map(|Requirement { key, operator, values }| match operator {
            Operator::In => format!("{key} in ({})", values.join(",")),
            Operator::NotIn => format!("{key} notin ({})", values.join(",")),
            Operator::Exists => key.clone(),
            Operator::DoesNotExist => format!("!{key}"),
        });
        f.write_str(&equal.chain(others).collect::<Vec<_>>().join(","))
    }
}
