//! Checks the fields that choose a node or an order among pods (rule P63 of `docs/guides/kube-rules.md`). There is only
//! one node, so these fields have no effect. The fields are still validated as by an API server, so that errors in the
//! file are reported.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    NodeAffinity, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, Toleration, TopologySpreadConstraint,
    WeightedPodAffinityTerm,
};

use super::Lowering;
use crate::names::{is_label, is_label_value, is_qualified, is_subdomain};
use crate::object::check_labels;
use crate::workload::selector_faults;

/// Message for an invalid affinity weight.
const NOT_WEIGHT: &str = "must be 1 to 100";
/// Message for an invalid label key.
const NOT_KEY: &str = "is not a valid label key";

impl Lowering<'_> {
    /// Checks the pod's fields for the placement on nodes, the node name and the order among pods.
    pub(super) fn placement(&mut self) {
        let spec = self.spec;
        let labels = spec.node_selector.iter().flatten().map(|(key, value)| (key.as_str(), value.as_str()));
        check_labels(&self.workload.origin, &self.workload.path("spec.nodeSelector"), labels, self.report);
        for (field, name) in [
            ("nodeName", &spec.node_name),
            ("priorityClassName", &spec.priority_class_name),
            ("serviceAccountName", &spec.service_account_name),
        ] {
            if name.as_ref().is_some_and(|name| !name.is_empty() && !is_subdomain(name)) {
                let message = "is not a DNS subdomain: use at most 253 characters of a-z, 0-9, `-` and `.`";
                self.refuse(&format!("spec.{field}"), "P6", message);
            }
        }
        if spec.subdomain.as_ref().is_some_and(|name| !name.is_empty() && !is_label(name)) {
            self.refuse("spec.subdomain", "P40", "is not a DNS label: use at most 63 characters of a-z, 0-9 and `-`");
        }
        if !matches!(spec.preemption_policy.as_deref(), None | Some("PreemptLowerPriority" | "Never")) {
            self.refuse("spec.preemptionPolicy", "P63", "must be PreemptLowerPriority or Never");
        }
        for (index, gate) in spec.readiness_gates.iter().flatten().enumerate() {
            if !is_qualified(&gate.condition_type) {
                self.refuse(&format!("spec.readinessGates[{index}].conditionType"), "P30", NOT_KEY);
            }
        }
        for (index, toleration) in spec.tolerations.iter().flatten().enumerate() {
            self.toleration(&format!("spec.tolerations[{index}]"), toleration);
        }
        self.spread(spec.topology_spread_constraints.as_deref().unwrap_or_default());
        let Some(affinity) = &spec.affinity else { return };
        if let Some(node) = &affinity.node_affinity {
            self.node_affinity("spec.affinity.nodeAffinity", node);
        }
        let pod = affinity.pod_affinity.as_ref().map(|it| {
            (
                &it.required_during_scheduling_ignored_during_execution,
                &it.preferred_during_scheduling_ignored_during_execution,
            )
        });
        let anti = affinity.pod_anti_affinity.as_ref().map(|it| {
            (
                &it.required_during_scheduling_ignored_during_execution,
                &it.preferred_during_scheduling_ignored_during_execution,
            )
        });
        for (field, terms) in [("podAffinity", pod), ("podAntiAffinity", anti)] {
            let Some((required, preferred)) = terms else { continue };
            self.pod_affinity(
                &format!("spec.affinity.{field}"),
                required.as_deref().unwrap_or_default(),
                preferred.as_deref().unwrap_or_default(),
            );
        }
    }

    fn toleration(&mut self, at: &str, toleration: &Toleration) {
        let key = toleration.key.as_deref().unwrap_or_default();
        let value = toleration.value.as_deref().unwrap_or_default();
        let operator = toleration.operator.as_deref().unwrap_or_default();
        let effect = toleration.effect.as_deref().unwrap_or_default();
        if !key.is_empty() && !is_qualified(key) {
            self.refuse(&format!("{at}.key"), "P63", NOT_KEY);
        }
        let operator_at = format!("{at}.operator");
        match operator {
            "Exists" if !value.is_empty() => {
                self.refuse(&format!("{at}.value"), "P63", "is not allowed with the operator Exists");
            }
            "Exists" => {}
            "" | "Equal" | "Lt" | "Gt" if key.is_empty() => {
                self.refuse(&operator_at, "P63", "must be Exists if there is no key");
            }
            "" | "Equal" if !is_label_value(value) => {
                self.refuse(&format!("{at}.value"), "P63", "is not a valid label value");
            }
            "Lt" | "Gt" if value.parse::<i64>().is_err() => {
                self.refuse(&format!("{at}.value"), "P63", "must be a whole number for the operators Lt and Gt");
            }
            "" | "Equal" | "Lt" | "Gt" => {}
            _ => self.refuse(&operator_at, "P63", "must be Exists, Equal, Lt or Gt"),
        }
        let effect_at = format!("{at}.effect");
        if !matches!(effect, "" | "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
            self.refuse(&effect_at, "P63", "must be NoSchedule, PreferNoSchedule or NoExecute");
        } else if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
            self.refuse(&effect_at, "P63", "must be NoExecute with tolerationSeconds");
        }
    }

    fn spread(&mut self, constraints: &[TopologySpreadConstraint]) {
        let mut seen = BTreeSet::new();
        for (index, constraint) in constraints.iter().enumerate() {
            let at = format!("spec.topologySpreadConstraints[{index}]");
            if constraint.max_skew < 1 {
                self.refuse(
                    &format!("{at}.maxSkew"),
                    "P63",
                    format!("is {}; it must be at least 1", constraint.max_skew),
                );
            }
            if !is_qualified(&constraint.topology_key) {
                self.refuse(&format!("{at}.topologyKey"), "P63", NOT_KEY);
            }
            if !matches!(&*constraint.when_unsatisfiable, "DoNotSchedule" | "ScheduleAnyway") {
                self.refuse(&format!("{at}.whenUnsatisfiable"), "P63", "must be DoNotSchedule or ScheduleAnyway");
            }
            if !seen.insert((&constraint.topology_key, &constraint.when_unsatisfiable)) {
                self.refuse(&at, "P63", "has the same topologyKey and whenUnsatisfiable as another constraint");
            }
            match constraint.min_domains {
                Some(..=0) => self.refuse(&format!("{at}.minDomains"), "P63", "must be at least 1"),
                Some(_) if constraint.when_unsatisfiable != "DoNotSchedule" => {
                    self.refuse(
                        &format!("{at}.minDomains"),
                        "P63",
                        "is only allowed with whenUnsatisfiable: DoNotSchedule",
                    );
                }
                _ => {}
            }
            for (field, policy) in [
                ("nodeAffinityPolicy", &constraint.node_affinity_policy),
                ("nodeTaintsPolicy", &constraint.node_taints_policy),
            ] {
                if !matches!(policy.as_deref(), None | Some("Honor" | "Ignore")) {
                    self.refuse(&format!("{at}.{field}"), "P63", "must be Honor or Ignore");
                }
            }
            for (path, fault) in constraint.label_selector.iter().flat_map(selector_faults) {
                self.refuse(&format!("{at}.labelSelector.{path}"), "P63", fault);
            }
        }
    }

    fn node_affinity(&mut self, at: &str, affinity: &NodeAffinity) {
        if let Some(required) = &affinity.required_during_scheduling_ignored_during_execution {
            let at = format!("{at}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms");
            if required.node_selector_terms.is_empty() {
                self.refuse(&at, "P63", "is empty; it must have at least one term");
            }
            for (index, term) in required.node_selector_terms.iter().enumerate() {
                self.node_term(&format!("{at}[{index}]"), term);
            }
        }
        let preferred = affinity.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        for (index, term) in preferred.enumerate() {
            let at = format!("{at}.preferredDuringSchedulingIgnoredDuringExecution[{index}]");
            if !(1..=100).contains(&term.weight) {
                self.refuse(&format!("{at}.weight"), "P63", NOT_WEIGHT);
            }
            self.node_term(&format!("{at}.preference"), &term.preference);
        }
    }

    fn node_term(&mut self, at: &str, term: &NodeSelectorTerm) {
        for (index, rule) in term.match_expressions.iter().flatten().enumerate() {
            let at = format!("{at}.matchExpressions[{index}]");
            if !is_qualified(&rule.key) {
                self.refuse(&format!("{at}.key"), "P63", NOT_KEY);
            }
            if let Some(fault) = node_rule(rule) {
                self.refuse(&at, "P63", fault);
            }
        }
        for (index, rule) in term.match_fields.iter().flatten().enumerate() {
            let values = rule.values.as_deref().unwrap_or_default();
            if rule.key != "metadata.name" || !matches!(&*rule.operator, "In" | "NotIn") || values.len() != 1 {
                let message = "must have the key metadata.name, the operator In or NotIn, and one value";
                self.refuse(&format!("{at}.matchFields[{index}]"), "P63", message);
            }
        }
    }

    fn pod_affinity(&mut self, at: &str, required: &[PodAffinityTerm], preferred: &[WeightedPodAffinityTerm]) {
        for (index, term) in required.iter().enumerate() {
            self.pod_term(&format!("{at}.requiredDuringSchedulingIgnoredDuringExecution[{index}]"), term);
        }
        for (index, term) in preferred.iter().enumerate() {
            let at = format!("{at}.preferredDuringSchedulingIgnoredDuringExecution[{index}]");
            if !(1..=100).contains(&term.weight) {
                self.refuse(&format!("{at}.weight"), "P63", NOT_WEIGHT);
            }
            self.pod_term(&format!("{at}.podAffinityTerm"), &term.pod_affinity_term);
        }
    }

    fn pod_term(&mut self, at: &str, term: &PodAffinityTerm) {
        if !is_qualified(&term.topology_key) {
            self.refuse(&format!("{at}.topologyKey"), "P63", NOT_KEY);
        }
        for (index, _) in term.namespaces.iter().flatten().enumerate().filter(|(_, name)| !is_label(name)) {
            self.refuse(&format!("{at}.namespaces[{index}]"), "P63", "is not a DNS label");
        }
        for (field, selector) in
            [("labelSelector", &term.label_selector), ("namespaceSelector", &term.namespace_selector)]
        {
            for (path, fault) in selector.iter().flat_map(selector_faults) {
                self.refuse(&format!("{at}.{field}.{path}"), "P63", fault);
            }
        }
    }
}

/// Returns a message if a requirement on node labels is invalid.
fn node_rule(rule: &NodeSelectorRequirement) -> Option<&'static str> {
    match (&*rule.operator, rule.values.as_ref().map_or(0, Vec::len)) {
        ("In" | "NotIn", 0) => Some("must have values for the operators In and NotIn"),
        ("Exists" | "DoesNotExist", 1..) => Some("must not have values for the operators Exists and DoesNotExist"),
        ("Gt" | "Lt", count) if count != 1 => Some("must have one value for the operators Gt and Lt"),
        ("In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt", _) => None,
        _ => Some("must have the operator In, NotIn, Exists, DoesNotExist, Gt or Lt"),
    }
}
