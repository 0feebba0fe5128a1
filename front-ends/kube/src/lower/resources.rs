//! Lowers limits and requests (rules P49 to P52 of `docs/guides/kube-rules.md`).

use std::collections::BTreeMap;

use executor_client::v1::Limits;
use executor_core::quantity::Quantity;
use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Written;

use super::Lowering;
use crate::weight::cpu_weight;

/// Amounts by resource name.
pub(super) type Amounts = BTreeMap<String, Quantity>;

impl Lowering<'_> {
    /// Returns the limits and requests of a container. Requests default to the limits.
    pub(super) fn amounts(&mut self, path: &str, resources: Option<&ResourceRequirements>) -> (Amounts, Amounts) {
        let Some(resources) = resources else { return Default::default() };
        if resources.claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
            self.refuse(&format!("{path}.resources.claims"), "P52", "is not supported");
        }
        let limits = self.quantities(&format!("{path}.resources.limits"), resources.limits.as_ref());
        let mut requests = self.quantities(&format!("{path}.resources.requests"), resources.requests.as_ref());
        for (name, limit) in &limits {
            let request = *requests.entry(name.clone()).or_insert(*limit);
            if request > *limit {
                let message = format!("`{name}` exceeds its limit");
                self.refuse(&format!("{path}.resources.requests"), "P50", message);
            }
        }
        (limits, requests)
    }

    fn quantities(&mut self, path: &str, written: Option<&BTreeMap<String, Written>>) -> Amounts {
        let mut amounts = Amounts::new();
        for (name, Written(text)) in written.into_iter().flatten() {
            let below = format!("{path}['{name}']");
            match Quantity::parse(text) {
                Some(quantity) if !quantity.is_negative() => {
                    amounts.insert(name.clone(), quantity);
                }
                _ => self.refuse(&below, "P50", "is not a quantity such as 500m, 1.5 or 128Mi"),
            }
            if !matches!(&**name, "cpu" | "memory" | "ephemeral-storage") {
                let message = "is not a supported resource; use cpu, memory or ephemeral-storage";
                self.refuse(&below, "P52", message);
            }
        }
        amounts
    }

    /// Converts the limits and requests of a container to limits for executord.
    pub(super) fn limits(&mut self, path: &str, limits: &Amounts, requests: &Amounts) -> Limits {
        let units = |amounts: &Amounts, name: &str| amounts.get(name).map_or(0, |amount| amount.units());
        let memory = units(limits, "memory");
        if memory == 0 && units(requests, "memory") > 0 {
            let message = "there is no limit: executord's own default applies";
            self.warn(&format!("{path}.resources.requests.memory"), "P50", message);
        }
        Limits {
            memory_bytes: memory,
            // Use at least 10 millicores: the kernel's minimum quota is 1 ms per 100 ms.
            cpu_millis: limits.get("cpu").map_or(0, |cpu| if cpu.millis() == 0 { 0 } else { cpu.millis().max(10) }),
            cpu_weight: requests.get("cpu").map_or(0, |cpu| cpu_weight(*cpu)),
            disk_bytes: units(limits, "ephemeral-storage"),
            memory_reservation_bytes: if memory > 0 { units(requests, "memory").min(memory) } else { 0 },
            ..Limits::default()
        }
    }

    /// Returns the OOM score adjustment (rule P51). `None` for Guaranteed pods, whose value would be lower than the
    /// value of host processes.
    pub(super) fn oom_score(&mut self, requests: &Amounts) -> Option<i32> {
        match self.qos {
            Qos::BestEffort => return Some(1000),
            Qos::Guaranteed => return None,
            Qos::Burstable => {}
        }
        let request = u128::from(requests.get("memory").map_or(0, |memory| memory.units()));
        let capacity = u128::from(self.options.memory_bytes.max(1));
        let score = 1000i64.saturating_sub(i64::try_from(request * 1000 / capacity).unwrap_or(1000));
        Some(i32::try_from(score.clamp(3, 999)).unwrap_or(999))
    }
}

/// Quality-of-service class of a pod, computed from its main and init containers (rule P51).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Qos {
    /// No container has limits or requests.
    BestEffort,
    /// Some limits or requests are set.
    Burstable,
    /// Each container has CPU and memory limits that equal its requests.
    Guaranteed,
}

pub(super) fn qos(spec: &PodSpec) -> Qos {
    let (mut best_effort, mut guaranteed) = (true, true);
    for container in spec.init_containers.iter().flatten().chain(&spec.containers) {
        let amount = |which: fn(&ResourceRequirements) -> Option<&BTreeMap<String, Written>>, name: &str| {
            let amounts = container.resources.as_ref().and_then(which)?;
            amounts.get(name).and_then(|one| Quantity::parse(&one.0))
        };
        for name in ["cpu", "memory"] {
            let none = Quantity::from_units(0);
            let limit = amount(|resources| resources.limits.as_ref(), name).filter(|limit| *limit > none);
            let request = amount(|resources| resources.requests.as_ref(), name);
            best_effort &= limit.is_none() && request.is_none_or(|request| request == none);
            guaranteed &= limit.is_some() && request.is_none_or(|request| Some(request) == limit);
        }
    }
    match (best_effort, guaranteed) {
        (true, _) => Qos::BestEffort,
        (false, true) => Qos::Guaranteed,
        (false, false) => Qos::Burstable,
    }
}
