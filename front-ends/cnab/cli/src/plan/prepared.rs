//! Prepares an action whose inputs were read and validated. The action is lowered (converted to the input of a
//! container) just before it runs, because its parameters can be outputs of earlier steps or of an action that an
//! earlier agent-cli left unfinished.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use executor_cli_kit::failure::Failure;
use executor_cnab::action::Action;
use executor_cnab::bundle::{Bundle, applies};
use executor_cnab::claim::{Claim, New};
use executor_cnab::docker::Docker;
use executor_cnab::invocation::{Invocation, Lowering, Platform, lower};
use executor_cnab::parameter_sources::{ParameterSources, Source};
use executor_cnab::parameters::{Earlier, Resolved, resolve};
use executor_cnab::relocation::Relocation;
use executor_cnab::secret::Secret;
use executor_cnab::sourced::{Sourced, value};
use executor_cnab::store::{Locked, Record, Store};
use serde_json::Value;

use super::{ImageChoice, State, state};
use crate::error::CnabError;
use crate::input::wrong;

/// An action on one installation, not lowered yet.
pub(crate) struct Prepared {
    pub(crate) installation: String,
    pub(crate) bundle: Bundle,
    pub(crate) action: Action,
    pub(super) given: BTreeMap<String, Value>,
    pub(super) credentials: BTreeMap<String, Secret>,
    pub(super) relocation: Option<Relocation>,
    pub(super) image: ImageChoice,
    /// Access to this machine's Docker daemon, if the bundle requires it and the user allows it.
    pub(super) docker: Option<Docker>,
    /// True if the parameter values of earlier actions are ignored.
    pub(super) reset: bool,
    pub(super) omit_unset_files: bool,
    pub(super) warnings: Vec<String>,
    pub(super) _lock: Option<Locked>,
}

/// An action with its claim and invocation, ready to run.
pub(crate) struct Step {
    pub(crate) bundle: Bundle,
    pub(crate) action: Action,
    pub(crate) claim: Claim,
    pub(crate) invocation: Invocation,
    pub(crate) image: ImageChoice,
    pub(crate) docker: Option<Docker>,
    pub(crate) warnings: Vec<String>,
    _lock: Option<Locked>,
}

impl Prepared {
    /// Reports all errors that do not depend on the results of earlier steps.
    pub(super) fn evaluate(&self, store: &Store, history: &[Record], ahead: &[Self]) -> Result<(), Failure> {
        let awaited = self.awaited(history, ahead);
        let values = self.resolve(store, history, awaited)?;
        self.lower(history, &values).map(drop)
    }

    /// Lowers the action with the final values, after the earlier steps.
    pub(crate) fn ready(self, store: &Store) -> Result<Step, Failure> {
        let history = if self.action.is_stateless() {
            Vec::new()
        } else {
            store.history(&self.installation).map_err(CnabError::from)?
        };
        let values = self.resolve(store, &history, BTreeSet::new())?;
        let (claim, invocation) = self.lower(&history, &values)?;
        let mut warnings = values.warnings;
        warnings.extend(self.warnings);
        if invocation.content_digest.is_none() {
            warnings.push("the bundle's image has no contentDigest: its content is not verified".into());
        }
        let Self { bundle, action, image, docker, _lock, .. } = self;
        Ok(Step { bundle, action, claim, invocation, image, docker, warnings, _lock })
    }

    fn lower(&self, history: &[Record], values: &Resolved) -> Result<(Claim, Invocation), Failure> {
        let new = New {
            installation: &self.installation,
            action: &self.action,
            bundle: &self.bundle,
            values,
            bundle_reference: None,
            last: history.last().map(|record| &record.claim),
        };
        let claim = Claim::new(&new, SystemTime::now()).map_err(CnabError::from)?;
        let lowering = Lowering {
            bundle: &self.bundle,
            action: &self.action,
            claim: &claim,
            values,
            credentials: &self.credentials,
            relocation: self.relocation.as_ref(),
            omit_unset_files: self.omit_unset_files,
            platform: Platform::here(),
        };
        let invocation = lower(&lowering).map_err(wrong("the action cannot be run"))?;
        Ok((claim, invocation))
    }

    fn resolve(&self, store: &Store, history: &[Record], awaited: BTreeSet<String>) -> Result<Resolved, Failure> {
        let is_new = state(history) == State::Absent || self.action.is_stateless();
        let last = history.last().filter(|_| !is_new && !self.reset);
        let earlier = last.map_or_else(Earlier::default, |record| record.claim.earlier());
        let sourced = self.sourced(store, if is_new { &[] } else { history }, &awaited)?;
        let earlier = Earlier { sourced, awaited, ..earlier };
        let values = resolve(&self.bundle, &self.action, &self.given, &earlier);
        Ok(values.map_err(wrong("the parameters are not valid"))?)
    }

    /// Returns the parameters of this action whose values may come from outputs, with their sources. Supplied
    /// parameters are excluded.
    fn sources<'a>(&'a self, all: &'a ParameterSources) -> impl Iterator<Item = (&'a str, &'a [Source])> {
        all.iter().filter(|(name, _)| {
            let parameter = self.bundle.parameters.get(*name);
            parameter.is_some_and(|it| applies(&it.apply_to, self.action.name())) && !self.given.contains_key(*name)
        })
    }

    /// Returns the parameter values that come from outputs of earlier actions.
    fn sourced(
        &self,
        store: &Store,
        history: &[Record],
        awaited: &BTreeSet<String>,
    ) -> Result<BTreeMap<String, Sourced>, Failure> {
        let sources = ParameterSources::from_custom(&self.bundle.custom).unwrap_or_default();
        let mut found = BTreeMap::new();
        for (parameter, sources) in self.sources(&sources).filter(|(name, _)| !awaited.contains(*name)) {
            for source in sources {
                let dependency: Vec<Record>;
                let (history, output) = match source {
                    Source::Output(output) => (history, output),
                    Source::DependencyOutput { dependency: name, output } => {
                        let name = format!("{}-{name}", self.installation);
                        dependency = store.history(&name).map_err(CnabError::from)?;
                        if state(&dependency) == State::Absent {
                            continue;
                        }
                        (dependency.as_slice(), output)
                    }
                };
                if let Some((claim, content)) = store.last_output(history, output).map_err(CnabError::from)? {
                    let sourced = value(&self.bundle, parameter, &claim.bundle, output, &content);
                    found.insert(parameter.to_owned(), sourced.map_err(wrong("the parameters are not valid"))?);
                    break;
                }
            }
        }
        Ok(found)
    }

    /// Returns the parameters whose source is an output that does not exist yet.
    fn awaited(&self, history: &[Record], ahead: &[Self]) -> BTreeSet<String> {
        let unfinished = history.iter().any(Record::is_unfinished);
        let to_come = |source: &Source| match source {
            Source::Output(_) => unfinished,
            Source::DependencyOutput { dependency, output } => {
                let name = format!("{}-{dependency}", self.installation);
                ahead.iter().any(|step| step.installation == name && step.bundle.outputs.contains_key(output))
            }
        };
        let sources = ParameterSources::from_custom(&self.bundle.custom).unwrap_or_default();
        let awaited = self.sources(&sources).filter(|(_, sources)| sources.iter().any(to_come));
        awaited.map(|(name, _)| name.to_owned()).collect()
    }
}
