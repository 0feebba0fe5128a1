//! Plans the steps of an action: one step for the bundle and one for each dependency, in the order that the bundle
//! defines.
//!
//! All errors are reported here, before anything is started or written. The only exceptions are parameter values that
//! are outputs of earlier steps. The installation is locked until the action is complete.
//!
//! Rules are numbered as in `docs/guides/cnab-rules.md`.

mod prepared;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};

use executor_cli_kit::failure::Failure;
use executor_cnab::action::{Action, INSTALL, UNINSTALL, UPGRADE};
use executor_cnab::bundle::Bundle;
use executor_cnab::claim::Status;
use executor_cnab::dependencies::{Dependencies, EXTENSION};
use executor_cnab::docker::Docker;
use executor_cnab::invocation::{Platform, choose};
use executor_cnab::relocation::Relocation;
use executor_cnab::store::{Locked, Record, Store};
use executor_cnab::{credentials, extension, names};

use crate::args::ActionArgs;
use crate::error::CnabError;
use crate::input::{self, Given, Loaded, wrong};
use crate::request::Options;
use crate::secrets;

pub(crate) use prepared::{Prepared, Step};

/// Steps to run, with the store of claims and the options of the containers.
pub(crate) struct Plan {
    pub(crate) store: Store,
    pub(crate) steps: Vec<Prepared>,
    pub(crate) options: Options,
}

/// The user's choices for the image.
#[derive(Debug, Default)]
pub(crate) struct ImageChoice {
    /// Image to run instead of the bundle's image.
    pub(crate) replacement: Option<String>,
    /// True if the image is run even if its digest cannot be verified.
    pub(crate) ignore_digest: bool,
    /// Path of the thick bundle that contains the images.
    pub(crate) thick: Option<PathBuf>,
    /// References and digests of the other images in the thick bundle.
    pub(crate) companions: Vec<(String, Option<String>)>,
}

/// State of an installation according to its claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The installation does not exist, or was uninstalled.
    Absent,
    /// The last change of the installation succeeded.
    Present,
    /// The last change failed, or its result is unknown. Any action is permitted, because it may repair the
    /// installation (rule 2).
    Undefined,
}

/// Returns the last claim that changed the installation.
pub(crate) fn last_change(history: &[Record]) -> Option<&Record> {
    let modifies = |record: &&Record| {
        let custom = record.claim.bundle.pointer("/actions").and_then(|actions| actions.get(&record.claim.action));
        let custom = custom.map(|action| action.get("modifies").and_then(serde_json::Value::as_bool).unwrap_or(false));
        custom.unwrap_or(true)
    };
    history.iter().rev().find(modifies)
}

/// Returns the state of an installation.
pub(crate) fn state(history: &[Record]) -> State {
    match last_change(history) {
        None => State::Absent,
        Some(record) => match (record.last().map(|result| result.status), &*record.claim.action) {
            (Some(Status::Succeeded), UNINSTALL) => State::Absent,
            (Some(Status::Succeeded), _) => State::Present,
            _ => State::Undefined,
        },
    }
}

/// Returns the given directory of claims, or the default directory.
pub(crate) fn claims_dir(given: Option<PathBuf>) -> Result<PathBuf, Failure> {
    if let Some(given) = given {
        return Ok(given);
    }
    match std::env::var_os("HOME").filter(|home| !home.is_empty()) {
        Some(home) => Ok(PathBuf::from(home).join(".cnab")),
        None => Err(Failure::Usage("HOME is not set: name the directory of claims with --claims-dir".into())),
    }
}

impl Plan {
    /// Reads all inputs and builds the steps.
    pub(crate) fn build(
        args: &ActionArgs,
        action: &str,
        claims_dir: &Path,
        stdin: &mut dyn Read,
        variable: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Self, Failure> {
        let builder = PlanBuilder {
            args,
            action,
            store: Store::new(claims_dir),
            given: input::parameters(&args.params, stdin, variable)?,
            sources: input::credential_sets(&args.creds, claims_dir)?,
            images: input::pairs(&args.images, "--image-override", '#')?,
        };
        let options = Options {
            user: args.user.clone(),
            network: args.network.clone(),
            egress: args.egress,
            limits: args.limits.clone(),
            grace: args.grace,
        };
        let steps = builder.steps()?;
        Ok(Self { store: builder.store, steps, options })
    }
}

struct PlanBuilder<'a> {
    args: &'a ActionArgs,
    action: &'a str,
    store: Store,
    given: Given,
    sources: BTreeMap<String, credentials::Source>,
    images: BTreeMap<String, String>,
}

impl PlanBuilder<'_> {
    fn steps(&self) -> Result<Vec<Prepared>, Failure> {
        let name = &self.args.name;
        names::installation(name).map_err(wrong("the name cannot be used"))?;
        let history = self.store.history(name).map_err(CnabError::from)?;
        let loaded = match (&self.args.bundle, self.known(&history)?) {
            (Some(path), _) => input::bundle(path)?,
            (None, Some(known)) => known,
            // Report the missing installation, not the missing bundle.
            (None, None) if matches!(self.action, UPGRADE | UNINSTALL) => {
                return Err(CnabError::NotInstalled(name.clone()).into());
            }
            (None, None) => {
                return Err(Failure::Usage(format!(
                    "there is no installation {name}, so its bundle is unknown: use --bundle FILE"
                )));
            }
        };
        // Rule 36: check the extensions first.
        extension::check(&loaded.bundle.custom, &loaded.bundle.required_extensions, self.allowed())
            .map_err(wrong("the bundle cannot be run here"))?;
        let dependencies = Dependencies::from_custom(&loaded.bundle.custom).unwrap_or_default();
        let files = input::pairs(&self.args.dependencies, "--dependency", '=')?;
        let named = self.given.keys().chain(self.images.keys()).filter(|name| !name.is_empty()).chain(files.keys());
        if let Some(unknown) = named.into_iter().find(|name| dependencies.requirement(name).is_none()) {
            return Err(Failure::Usage(format!("{unknown} is not a dependency of this bundle")));
        }
        let required = loaded.bundle.required_extensions.iter().any(|name| name == EXTENSION);
        let (before, after) = dependencies.order(self.action);
        let mut skipped = Vec::new();
        let mut steps = Vec::new();
        let dependency = |dependency: &str, skipped: &mut Vec<String>| -> Result<Option<Prepared>, Failure> {
            let installation = format!("{name}-{dependency}");
            let history = self.store.history(&installation).map_err(CnabError::from)?;
            let loaded = match files.get(dependency) {
                Some(path) => Some(input::bundle(Path::new(path))?),
                None => self.known(&history)?,
            };
            let there = state(&history);
            let Some(loaded) = loaded else {
                if required && self.action != UNINSTALL {
                    return Err(Failure::Usage(format!(
                        "the bundle requires {dependency} ({}): name its bundle with --dependency {dependency}=FILE",
                        dependencies.requirement(dependency).map_or("", |it| it.bundle.as_str())
                    )));
                }
                skipped.push(format!("the dependency {dependency} is skipped: no --dependency names its bundle"));
                return Ok(None);
            };
            if (self.action == INSTALL && there == State::Present)
                || (self.action == UNINSTALL && there == State::Absent)
            {
                skipped.push(format!(
                    "the dependency {dependency} is already {}",
                    if there == State::Present { "installed" } else { "uninstalled" }
                ));
                return Ok(None);
            }
            let criteria = dependencies.requirement(dependency).map(|it| it.version.clone()).unwrap_or_default();
            if !criteria.matches(&loaded.bundle.version) {
                return Err(Failure::Usage(format!(
                    "--dependency {dependency}: version {} is not one of the accepted versions ({}{})",
                    loaded.bundle.version,
                    if criteria.ranges.is_empty() { "any".into() } else { criteria.ranges.join(" or ") },
                    if criteria.prereleases { "" } else { ", no prerelease" }
                )));
            }
            extension::check(&loaded.bundle.custom, &loaded.bundle.required_extensions, self.allowed())
                .map_err(wrong(format!("the dependency {dependency} cannot be run here")))?;
            self.step(&installation, dependency, loaded, &history, &[]).map(Some)
        };
        for one in before {
            steps.extend(dependency(one, &mut skipped)?);
        }
        let afterwards = after.into_iter().map(|one| dependency(one, &mut skipped)).collect::<Result<Vec<_>, _>>()?;
        let mut main = self.step(name, "", loaded, &history, &steps)?;
        main.warnings.extend(skipped);
        steps.push(main);
        steps.extend(afterwards.into_iter().flatten());
        Ok(steps)
    }

    /// Returns the bundle of the last claim, with its original bytes if they were stored.
    fn known(&self, history: &[Record]) -> Result<Option<Loaded>, CnabError> {
        let Some(record) = history.last() else { return Ok(None) };
        let kept = match record.claim.bundle_digest() {
            Some(digest) => self.store.bundle(digest)?,
            None => None,
        };
        let bundle = match kept {
            Some(bytes) => Bundle::parse(&bytes),
            None => Bundle::from_claim(&record.claim.bundle),
        };
        let bundle =
            bundle.map_err(wrong(format!("the bundle of claim {} is not a valid CNAB bundle", record.claim.id)))?;
        Ok(Some(Loaded { bundle, thick: None }))
    }

    /// Reads the inputs of an action, and validates everything that does not depend on earlier steps.
    fn step(
        &self,
        installation: &str,
        dependency: &str,
        loaded: Loaded,
        history: &[Record],
        ahead: &[Prepared],
    ) -> Result<Prepared, Failure> {
        let Loaded { bundle, thick } = loaded;
        let action = Action::new(&bundle.actions, self.action).map_err(wrong("there is no such action"))?;
        let lock = if action.is_stateless() { None } else { Some(self.lock(installation)?) };
        let given = input::values(&bundle, self.given.get(dependency))?;
        let wanted = credentials::wanted(&bundle, &action, &self.sources);
        credentials::check(&bundle, &action, |name| wanted.iter().any(|(wanted, _)| *wanted == name))
            .map_err(wrong("credentials are missing"))?;
        let relocation = match self.args.relocation_mapping.as_deref().filter(|_| dependency.is_empty()) {
            Some(path) => {
                let bytes = input::read(path, executor_cnab::bundle::BUNDLE_MAX as u64)?;
                let map = Relocation::parse(&bytes, &bundle);
                Some(map.map_err(wrong(format!("{} is not a relocation map of this bundle", path.display())))?)
            }
            None => None,
        };
        let image = choose(&bundle, Platform::here()).map_err(wrong("the bundle has no image for this machine"))?;
        let companions = bundle.images.values().filter(|other| thick.is_some() && other.image != image.image);
        let companions = companions.map(|image| (image.image.clone(), image.content_digest.clone())).collect();
        let docker = Docker::new(&bundle.custom, &bundle.required_extensions).unwrap_or_default();
        let docker = docker.filter(|_| self.args.allow_docker_host_access);
        let mut prepared = Prepared {
            installation: installation.to_owned(),
            given,
            credentials: BTreeMap::new(),
            relocation,
            image: ImageChoice {
                replacement: self.images.get(dependency).cloned(),
                ignore_digest: self.args.insecure_ignore_digest,
                thick,
                companions,
            },
            reset: self.args.reset_params,
            docker,
            omit_unset_files: self.args.omit_unset_files,
            warnings: Vec::new(),
            bundle,
            action,
            _lock: lock,
        };
        prepared.evaluate(&self.store, history, ahead)?;
        // Read credentials last, because the source may be a program that prompts the user.
        prepared.credentials = secrets::read(&credentials::wanted(&prepared.bundle, &prepared.action, &self.sources))?;
        Ok(prepared)
    }

    fn allowed(&self) -> extension::Allowed {
        extension::Allowed { docker: self.args.allow_docker_host_access }
    }

    fn lock(&self, installation: &str) -> Result<Locked, CnabError> {
        self.store.lock(installation)?.ok_or_else(|| CnabError::Busy(installation.into()))
    }
}
