//! Changes that a container's task receives while the container runs: shim reports, check results, changes of secret
//! sources. A change of the reported status is logged and becomes an event. Data that the next daemon needs is stored
//! in the ledger.

use std::sync::Arc;

use executor_core::checks::HealthChange;
use executor_core::lifecycle::{self, State};
use executor_core::plan::Checks;
use executor_core::protocol::{CheckOutput, EndUnhealthy, NoteHealth, ShimCall};
use executor_core::record::{RestartRecord, StepRecord};

use super::{Actor, DURABLE_TIMEOUT};
use crate::actor::checks::{CheckReport, FailedOutput};
use crate::actor::following::Following;
use crate::model::container::link::ShimLink;
use crate::model::container::{Presence, records};
use crate::model::events::EventKind;
use crate::model::identity::IdentityRecord;
use crate::model::sources::{SourceChange, SourceUpdate, any_stale};

impl Actor {
    /// Applies a report of a state before `completed`. The container's record may already hold a later state. The state
    /// is taken from the reports, so that a process that ran only for a moment is still reported as running.
    pub(super) fn reached(&mut self, reported: State) {
        let (steps, restarts) = (self.facts.steps.clone(), self.facts.restarts.clone());
        let (generation, egress) = (self.facts.files_generation, self.facts.egress_generation);
        let (limits, paused) = (self.facts.limits_generation, self.facts.paused);
        // A missing record is not an error: the container has exited, and an exit record follows.
        if let Err(error) = records::progress(&self.node.config.paths, &mut self.facts) {
            let (id, error) = (self.handle.id(), executor_core::errors::chain(&error));
            tracing::error!(container = %id, error, "cannot read the container's record");
        }
        self.advance(reported);
        self.steps_changed(&steps, restarts.as_ref());
        if generation > 0 && self.facts.files_generation > generation {
            self.files_updated();
        }
        if self.facts.egress_generation > egress {
            self.egress_updated();
        }
        if self.facts.limits_generation > limits {
            self.limits_updated();
        }
        if self.facts.paused != paused && self.facts.state == State::Running {
            self.paused();
        }
    }

    /// Advances to the state in the shim's record. If the daemon was killed, the ledger may lack the last state.
    pub(super) fn catch_up(&mut self, recorded: State) {
        if recorded <= self.facts.state || recorded == State::Completed {
            return;
        }
        let passed = lifecycle::advance(self.facts.state, recorded, self.facts.started_at.is_some());
        self.facts.state = recorded;
        self.leave_quarantine_on_phase_change(recorded);
        let facts = Arc::new(self.facts.clone());
        self.handle.publish(Presence::Present(Arc::clone(&facts)));
        passed.for_each(|state| self.report(state));
        self.node.ledger.put(facts);
    }

    /// Reports that the container was paused or resumed.
    fn paused(&self) {
        let (id, paused) = (self.handle.id(), self.facts.paused);
        tracing::info!(container = %id, paused);
        let kind = if paused { EventKind::Paused } else { EventKind::Resumed };
        self.node.events.append(id, kind, None, crate::now());
        self.node.ledger.put(Arc::new(self.facts.clone()));
    }

    /// Reports that limits were replaced, by this daemon or another one.
    fn limits_updated(&self) {
        let (id, generation) = (self.handle.id(), self.facts.limits_generation);
        tracing::info!(container = %id, limits_generation = generation);
        self.node.registry.hold(&self.facts);
        self.node.metrics.limits_updated();
        self.node.events.append(id, EventKind::LimitsUpdated(generation), None, crate::now());
        self.node.ledger.put(Arc::new(self.facts.clone()));
    }

    /// Reports that the egress rules were replaced, by this daemon or another one.
    fn egress_updated(&self) {
        let (id, generation) = (self.handle.id(), self.facts.egress_generation);
        tracing::info!(container = %id, egress_generation = generation);
        self.node.metrics.egress_updated();
        self.node.events.append(id, EventKind::EgressUpdated(generation), None, crate::now());
        self.node.ledger.put(Arc::new(self.facts.clone()));
    }

    /// Reports restarts, and steps of an action tree that have started or completed since `before`.
    pub(super) fn steps_changed(&self, before: &[StepRecord], restarts: Option<&RestartRecord>) {
        if self.facts.steps != before || self.facts.restarts.as_ref() != restarts {
            let (id, events) = (self.handle.id(), &self.node.events);
            let count = |restarts: Option<&RestartRecord>| restarts.map_or(0, |restarts| restarts.count);
            self.node.metrics.restarted(count(self.facts.restarts.as_ref()).saturating_sub(count(restarts)));
            events.append_restart(id, restarts, self.facts.restarts.as_ref());
            events.append_steps(id, before, &self.facts.steps);
            self.node.ledger.put(Arc::new(self.facts.clone()));
        }
    }

    /// Applies check results, and stops a container that is unhealthy.
    pub(super) fn checked(&mut self, link: &Arc<ShimLink>, report: CheckReport) {
        let CheckReport { health, change, keep, outputs } = report;
        let run = self.facts.run().map_or(0, |(run, _)| run);
        let decides = self.facts.plan.checks.as_ref().is_some_and(Checks::decide_start);
        let before = self.facts.health.replace(Arc::new(health.clone()));
        let begins = decides && before.is_none();
        let becomes_healthy = decides && health.started && before.is_none_or(|before| !before.started);
        for healthy in [begins.then_some(false), becomes_healthy.then_some(true)].into_iter().flatten() {
            let link = Arc::clone(link);
            // `NoteHealth` makes the shim log the health. Older shims do not support it and log nothing.
            tokio::spawn(async move { drop(link.call(ShimCall::NoteHealth(NoteHealth { healthy, run })).await) });
        }
        let facts = Arc::new(self.facts.clone());
        self.handle.publish(Presence::Present(Arc::clone(&facts)));
        let id = self.handle.id();
        let kind = match &change {
            None => None,
            Some(HealthChange::Ready) => Some(EventKind::Ready),
            Some(HealthChange::NotReady) => Some(EventKind::NotReady),
            Some(HealthChange::End(_)) => Some(EventKind::Unhealthy),
        };
        if let Some(kind) = kind {
            tracing::info!(container = %id, health = ?kind);
            self.node.events.append(id, kind, None, crate::now());
        }
        if keep {
            self.node.ledger.put(facts);
        }
        if let Some(HealthChange::End(reason)) = change {
            let (link, id) = (Arc::clone(link), id.clone());
            // The spawned task waits for the response. If the connection is lost first, checks restart on the next
            // connection.
            tokio::spawn(async move {
                let outputs = outputs.into_iter();
                let outputs = outputs
                    .map(|FailedOutput { log_source, text, .. }| CheckOutput { log_source, text: text.to_string() })
                    .collect();
                let end = EndUnhealthy { reason, outputs, run };
                if let Err(Some(problem)) = link.call(ShimCall::EndUnhealthy(end)).await {
                    tracing::error!(container = %id, "the unhealthy container was not stopped: {problem}");
                }
            });
        }
    }

    /// Applies a change of the secret sources.
    pub(super) fn sources_changed(&mut self, SourceUpdate { change, done }: SourceUpdate) {
        let before = std::mem::take(&mut self.facts.sources);
        self.facts.sources.clone_from(&before);
        let is_asked = matches!(change, SourceChange::Replaced { .. });
        let identity = self.facts.identity.clone();
        change.apply(&mut self.facts.sources, &mut self.facts.identity);
        let id = self.handle.id();
        let facts = Arc::new(self.facts.clone());
        self.handle.publish(Presence::Present(Arc::clone(&facts)));
        let kind = match (any_stale(&before), any_stale(&facts.sources)) {
            (false, true) => Some(EventKind::SecretsStale),
            (true, false) => Some(EventKind::SecretsFresh),
            _ => None,
        };
        if let Some(kind) = kind {
            let why = facts.sources.iter().find_map(|source| source.stale.as_ref()).map(|stale| &*stale.why);
            tracing::info!(container = %id, secrets = ?kind, why);
            self.node.events.append(id, kind, None, crate::now());
        }
        self.identity_changed(identity.as_ref());
        if !is_asked {
            self.node.ledger.put(facts);
            let _ = done.send(()); // fails if `report_sources` has stopped waiting
            return;
        }
        // Write durably: otherwise, if this daemon is killed now, the next daemon restores an older source over a
        // caller's update.
        let written = self.node.ledger.put_durably(facts);
        tokio::spawn(async move {
            let _ = tokio::time::timeout(DURABLE_TIMEOUT, written).await;
            let _ = done.send(());
        });
        if self.facts.state == State::Running {
            self.following = Following::start(&self.node, &self.handle, &self.facts);
        }
    }

    /// Reports that the certificate was replaced, or that the first renewal since the last replacement failed.
    fn identity_changed(&self, before: Option<&IdentityRecord>) {
        let (Some(before), Some(after)) = (before, self.facts.identity.as_ref()) else { return };
        let kind = match (before.stale.is_some(), after.stale.is_some()) {
            _ if before.serial != after.serial => EventKind::IdentityReplaced,
            (false, true) => EventKind::IdentityNotReplaced,
            _ => return,
        };
        let id = self.handle.id();
        tracing::info!(container = %id, identity = ?kind, serial = after.serial, until = ?after.not_after);
        self.node.events.append(id, kind, None, crate::now());
    }

    /// Reports that the secret files were replaced, by this daemon or another one.
    fn files_updated(&self) {
        let (id, generation) = (self.handle.id(), self.facts.files_generation);
        tracing::info!(container = %id, files_generation = generation);
        self.node.metrics.rotated();
        self.node.events.append(id, EventKind::FilesUpdated(generation), None, crate::now());
        self.node.ledger.put(Arc::new(self.facts.clone()));
    }
}
