//! Compares a plan with the existing pods and containers, and decides the change of each pod. This module does not
//! apply the changes.

use std::collections::BTreeMap;

use executor_client::v1::{Container, State};
use executor_kube::plan::{Member, Plan, PodPlan};
use executor_kube::workload::Update;

use crate::error::KubeError;
use crate::known::{KnownPod, created_at, failed, role};
use crate::memory::Memory;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Create,
    /// Remove the pod and create it again. Holds the reason.
    Replace(String),
    /// Create the pod's missing containers, after a play was interrupted.
    Complete,
    /// Replace files of secrets in place. Holds the names of the containers.
    Rotate(Vec<String>),
    /// Keep the pod. The digests of its secrets are not stored, so send its requests again; executord compares them
    /// with the original requests.
    Compare,
    /// Keep the pod although it has changed: it is replaced only after the user has removed it (OnDelete).
    Deferred,
    /// Keep the pod.
    Unchanged,
    /// Remove the pod, because no file contains it.
    Remove,
}

impl Change {
    /// Returns the change in one word.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Replace(_) => "replace",
            Self::Complete => "complete",
            Self::Rotate(_) => "rotate",
            Self::Compare => "compare",
            Self::Deferred => "left",
            Self::Unchanged => "unchanged",
            Self::Remove => "remove",
        }
    }

    /// Returns the reason for the change; empty if there is none.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Replace(reason) => reason.clone(),
            Self::Complete => "some containers of the pod are missing".into(),
            Self::Rotate(names) => format!("replaces secret files of {}", names.join(", ")),
            Self::Compare => "the pod's secrets are compared during play".into(),
            Self::Deferred => "the pod has changed, but is replaced only after you remove it (OnDelete)".into(),
            Self::Remove => "no file contains the pod".into(),
            Self::Create | Self::Unchanged => String::new(),
        }
    }

    /// Returns true if applying the change surely alters the pod. [`Self::Compare`] alters the pod only if its secrets
    /// differ.
    pub(crate) fn alters_pod(&self) -> bool {
        !matches!(self, Self::Unchanged | Self::Deferred | Self::Compare)
    }
}

/// Decides the change of each pod of the plan.
pub(crate) fn decide(
    plan: &Plan,
    play: &str,
    known: &BTreeMap<String, KnownPod>,
    memory: &Memory,
    replace: bool,
) -> Result<Vec<Change>, KubeError> {
    plan.pods.iter().map(|pod| one(pod, play, known.get(&pod.id), memory, replace)).collect()
}

fn one(
    plan: &PodPlan,
    play: &str,
    known: Option<&KnownPod>,
    memory: &Memory,
    replace: bool,
) -> Result<Change, KubeError> {
    let Some(known) = known else { return Ok(Change::Create) };
    if known.play() != play {
        return Err(KubeError::Other(plan.id.clone(), known.play().to_owned()));
    }
    if replace {
        return Ok(Change::Replace("--replace was given".into()));
    }
    if known.digest() != plan.digest {
        return Ok(match plan.update {
            Update::OnDelete => Change::Deferred,
            Update::Rolling | Update::Recreate => Change::Replace("the pod template has changed".into()),
        });
    }
    let broken = |container: &&Container| role(container) == "init" && failed(container);
    if known.members.iter().any(|container| broken(&container)) {
        return Ok(Change::Replace("an init container failed".into()));
    }
    let ended = !known.is_alive() && known.phase() != "Succeeded";
    if ended || (plan.job.is_some() && known.phase() == "Failed") {
        return Ok(Change::Replace("the pod has exited".into()));
    }
    let (mut rotated, mut ask) = (Vec::new(), false);
    for member in &plan.members {
        let Some(container) = known.member(&member.request.id) else {
            return Ok(if known.is_alive() { Change::Complete } else { Change::Replace("the pod has exited".into()) });
        };
        match memory.compare(&created_at(container), member) {
            Some(changed) if changed.environment => {
                let message = format!("secret variables or arguments of {} have changed", member.name);
                return Ok(Change::Replace(message));
            }
            Some(changed) if changed.files && container.state() != State::Completed => {
                rotated.push(member.name.clone());
            }
            Some(_) => {}
            // Without an entry it is also unknown whether the postStart hook has run.
            None => ask |= has_secrets(member) || member.post_start.is_some(),
        }
    }
    Ok(match (ask, rotated.is_empty()) {
        (true, _) => Change::Compare,
        (false, true) => Change::Unchanged,
        (false, false) => Change::Rotate(rotated),
    })
}

/// Returns true if a container has secrets, whose values are not part of the pod's digest.
pub(crate) fn has_secrets(member: &Member) -> bool {
    has_secret_variables(member) || !member.rotating_files().is_empty()
}

/// Returns true if a container has secrets that only a new container can receive.
pub(crate) fn has_secret_variables(member: &Member) -> bool {
    let run = member.request.action.as_ref().and_then(|action| action.run.as_ref());
    run.is_some_and(|run| !run.secret_environment.is_empty() || !run.secret_arguments.is_empty())
}
