//! Validates label selectors (rule P61 of `docs/guides/kube-rules.md`).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::Workload;
use crate::located::shown;
use crate::names::{is_label_value, is_qualified};
use crate::report::Report;

/// Checks that the template's labels match the selector (rule P61).
pub(super) fn selected(mut workload: Workload, selector: &LabelSelector, report: &mut Report) -> Workload {
    let labels = workload.template.metadata.as_ref().and_then(|metadata| metadata.labels.clone()).unwrap_or_default();
    let labels_required = selector.match_labels.clone().unwrap_or_default();
    let expressions = selector.match_expressions.clone().unwrap_or_default();
    if labels_required.is_empty() && expressions.is_empty() {
        report.refuse(&workload.origin, "spec.selector", "P61", "is missing, or selects nothing");
    }
    for (path, fault) in selector_faults(selector) {
        report.refuse(&workload.origin, format!("spec.selector.{path}"), "P61", fault);
    }
    let matches = labels_required.iter().all(|(key, value)| labels.get(key) == Some(value))
        && expressions.iter().all(|rule| {
            let has = labels.get(&rule.key);
            let values = rule.values.as_deref().unwrap_or_default();
            match &*rule.operator {
                "In" => has.is_some_and(|value| values.contains(value)),
                "NotIn" => has.is_none_or(|value| !values.contains(value)),
                "Exists" => has.is_some(),
                "DoesNotExist" => has.is_none(),
                _ => false,
            }
        });
    if !matches {
        report.refuse(&workload.origin, "spec.selector", "P61", "does not match the labels of spec.template");
    }
    workload.match_labels = labels_required;
    workload
}

/// Returns the errors in a label selector, each with its path in the selector.
pub(crate) fn selector_faults(selector: &LabelSelector) -> Vec<(String, &'static str)> {
    let mut faults = Vec::new();
    for (key, value) in selector.match_labels.iter().flatten() {
        if !is_qualified(key) || !is_label_value(value) {
            faults.push((format!("matchLabels['{}']", shown(key)), "is not a valid label"));
        }
    }
    for (index, rule) in selector.match_expressions.iter().flatten().enumerate() {
        let path = format!("matchExpressions[{index}]");
        let values = rule.values.as_deref().unwrap_or_default();
        if !is_qualified(&rule.key) {
            faults.push((format!("{path}.key"), "is not a valid label key"));
        }
        if values.iter().any(|value| !is_label_value(value)) {
            faults.push((format!("{path}.values"), "has an entry that is not a valid label value"));
        }
        let fault = match (&*rule.operator, !values.is_empty()) {
            ("In" | "NotIn", false) => "must have values for the operators In and NotIn",
            ("Exists" | "DoesNotExist", true) => "must not have values for the operators Exists and DoesNotExist",
            ("In" | "NotIn" | "Exists" | "DoesNotExist", _) => continue,
            _ => "must have the operator In, NotIn, Exists or DoesNotExist",
        };
        faults.push((path, fault));
    }
    faults
}
