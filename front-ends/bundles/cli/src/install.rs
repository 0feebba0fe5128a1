//! Implements install, upgrade, rollback and uninstall. Dry runs are in [`explain`], queries in [`status`].

mod args;
mod explain;
mod status;

use std::time::Duration;

use executor_bundles::bundle::{self, Bundle};
use executor_bundles::installation::{
    Follows, Installation, Locked, Options, Phase, State, Store, StoreError, check_name,
};
use executor_bundles::manifest::{self, ManifestError};
use executor_bundles::range::version;
use executor_bundles::resolve::{self, Installed, Query, Step};
use executor_bundles::source::{Files, Source};
use executor_cli_kit::execute::block_on;
use executor_cli_kit::exit::OURS;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::global::Global;
use executor_cli_kit::interrupt::Interrupts;
use executor_cli_kit::report::{note, print_result};
use executor_cli_kit::text::plain;
use serde_json::json;

use self::args::options;
pub(crate) use self::args::{InstallArgs, NameArg, RollbackArgs, StoreArgs, UpgradeArgs};
use self::explain::warn;
use crate::common::{BundleError, catalog, files};
use crate::kube::{PlayError, Player};
use crate::registry::RegistryArgs;

/// Error of a command on installations.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InstallError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{name} is installed already (revision {revision}): upgrade it, uninstall it, or choose another name")]
    Installed { name: String, revision: u32 },
    #[error("{0} has no running revision: install it again, or uninstall it")]
    NotInstalled(String),
    #[error("{0} was not installed from a catalog: name the source of the bundle, or --catalog and --package")]
    FollowsNothing(String),
    #[error("{name} has no revision {number} to roll back to")]
    NoRevision { name: String, number: String },
    #[error(
        "{source_text} has changed since revision {number} (from {was} to {is}): a rollback to this revision is not possible"
    )]
    Changed { source_text: String, number: u32, was: String, is: String },
    #[error("the bundle cannot be installed")]
    Manifest(#[from] ManifestError),
    #[error("{name}: revision {revision} is not installed: {why}")]
    Failed { name: String, revision: u32, why: String },
    #[error("{name}: {what} cannot be removed")]
    Down { name: String, what: String, source: PlayError },
    #[error("cannot list the pods of {0}")]
    Pods(String, #[source] PlayError),
}

impl From<InstallError> for Failure {
    fn from(error: InstallError) -> Self {
        Self::wrap(error, OURS)
    }
}

/// Context of a command on installations: the global flags and the store of records.
pub(crate) struct Work<'a> {
    global: &'a Global,
    store: Store,
}

/// A bundle that is about to be installed.
struct Wanted {
    source: Source,
    files: Files,
    bundle: Bundle,
}

fn wanted(source: &str, registry: &RegistryArgs) -> Result<Wanted, Failure> {
    let (source_found, files) = files(source, registry)?;
    let format = bundle::format(&files);
    let refused = |faults| BundleError::Refused { what: source.to_owned(), faults };
    let bundle = bundle::read(&files, format).map_err(refused)?;
    Ok(Wanted { source: pinned(source_found, &files), files, bundle })
}

/// Replaces the tag of an image reference with the image's digest, so that the source is immutable.
fn pinned(source: Source, files: &Files) -> Source {
    match (source, &files.pin) {
        (Source::Image { reference }, Some(pin)) => {
            let name = reference.split('@').next().unwrap_or(&reference);
            let at = name.rfind('/').map_or(0, |at| at + 1);
            let name = name[at..].find(':').map_or(name, |colon| &name[..at + colon]);
            Source::Image { reference: format!("{name}@{pin}") }
        }
        (source, _) => source,
    }
}

impl<'a> Work<'a> {
    pub(crate) fn new(global: &'a Global, store: &StoreArgs) -> Result<Self, Failure> {
        if global.local {
            return Err(Failure::Usage(
                "--local is not supported here: the private executord would stop the pods when the command exits"
                    .to_owned(),
            ));
        }
        Ok(Self { global, store: store.store()? })
    }

    /// Runs `work` with a player in a single-threaded runtime.
    fn with_player(&self, work: impl AsyncFnOnce(&mut Player<'a>) -> Result<u8, Failure>) -> Result<u8, Failure> {
        block_on(async {
            let interrupts = Interrupts::install().map_err(Failure::System)?;
            work(&mut Player { global: self.global, interrupts }).await
        })
    }

    /// Finishes or undoes the work of a command that was killed.
    async fn repair(&self, player: &mut Player<'_>, locked: &Locked, it: &mut Installation) -> Result<(), Failure> {
        if it.phase == Phase::Settled {
            return Ok(());
        }
        for play in it.left_over() {
            let down = player.down(&play).await;
            down.map_err(|source| InstallError::Down { name: it.name.clone(), what: play, source })?;
        }
        if it.phase == Phase::Uninstalling {
            return Ok(());
        }
        note(&format!("{}: cleaned up after an interrupted command", it.name));
        it.repaired();
        Ok(self.store.write(locked, it).map_err(InstallError::from)?)
    }

    /// Installs a revision: records it, plays it, and makes it current when its pods are ready. If a step fails,
    /// removes the revision.
    async fn revise(
        &self,
        player: &mut Player<'_>,
        locked: &Locked,
        it: &mut Installation,
        wanted: &Wanted,
        wait: Duration,
    ) -> Result<u32, Failure> {
        let Wanted { source, files, bundle } = wanted;
        let next = it.revisions.last().map_or(1, |last| last.number + 1);
        let manifests = match manifest::play(bundle, &it.play(next), it.options.partial) {
            Ok(manifests) => manifests,
            Err(refused) => {
                if it.current().is_some() {
                    it.load_failed(&refused.to_string());
                    self.store.write(locked, it).map_err(InstallError::from)?;
                }
                return Err(InstallError::from(refused).into());
            }
        };
        let version = bundle.version.as_ref().map(ToString::to_string);
        let number = it.start(source.clone(), files.pinned(), bundle.format.to_string(), bundle.name.clone(), version);
        self.store.write(locked, it).map_err(InstallError::from)?;
        let play = it.play(number);
        if let Err(error) = player.play(&play, &manifests, &it.options, wait).await {
            let reason = match error {
                PlayError::Interrupted(_) => "Interrupted",
                _ if it.current().is_some() => "UpgradeFailed",
                _ => "InstallFailed",
            };
            let why = Failure::wrap(error, OURS).describe();
            it.fail(number, reason, &why);
            self.store.write(locked, it).map_err(InstallError::from)?;
            player.down(&play).await.map_err(|source| InstallError::Down {
                name: it.name.clone(),
                what: play,
                source,
            })?;
            it.settle();
            self.store.write(locked, it).map_err(InstallError::from)?;
            return Err(InstallError::Failed { name: it.name.clone(), revision: number, why }.into());
        }
        it.pivot(number);
        self.store.write(locked, it).map_err(InstallError::from)?;
        if let Phase::Pivoting { from } = it.phase {
            let play = it.play(from);
            player.down(&play).await.map_err(|source| InstallError::Down {
                name: it.name.clone(),
                what: play,
                source,
            })?;
            it.settle();
            self.store.write(locked, it).map_err(InstallError::from)?;
        }
        Ok(number)
    }

    /// Repairs an installation before other work on it. If the installation was being uninstalled, completes the
    /// removal and returns an error.
    async fn repair_to_use(
        &self,
        player: &mut Player<'_>,
        locked: &Locked,
        it: &mut Installation,
    ) -> Result<(), Failure> {
        self.repair(player, locked, it).await?;
        if it.phase == Phase::Uninstalling {
            self.store.remove(locked).map_err(InstallError::from)?;
            return Err(InstallError::NotInstalled(it.name.clone()).into());
        }
        Ok(())
    }

    /// Records the error if a bundle cannot be read or breaks rules (rule I5 of `docs/guides/bundles.md`). A malformed
    /// source argument names no bundle and is not recorded.
    fn unpacked<T>(&self, locked: &Locked, it: &mut Installation, read: Result<T, Failure>) -> Result<T, Failure> {
        if let Err(error) = &read
            && !matches!(error, Failure::Usage(_))
        {
            it.unpack_failed(&error.describe());
            self.store.write(locked, it).map_err(InstallError::from)?;
        }
        read
    }

    pub(crate) fn install(&self, args: &InstallArgs) -> Result<u8, Failure> {
        check_name(&args.name).map_err(Failure::Usage)?;
        let (source, follows, steps) = match (&args.source, &args.from.catalog, &args.from.package) {
            (Some(source), ..) => (source.clone(), None, Vec::new()),
            (None, Some(text), Some(package)) => {
                let (_opened, catalog) = catalog(text, false, &args.registry)?;
                let query = Query {
                    package: package.clone(),
                    channel: args.from.channel.clone(),
                    range: args.from.version.clone(),
                };
                let step = resolve::install(&catalog, &query).map_err(BundleError::from)?;
                let follows =
                    Follows { catalog: absolute(text), package: package.clone(), channel: step.channel.clone() };
                (image(&step)?, Some(follows), vec![step])
            }
            _ => return Err(Failure::Usage("name a SOURCE, or --catalog and --package".to_owned())),
        };
        warn(&steps);
        if args.dry_run {
            return self.explain(&args.name, &steps, &[source], &args.registry, args.run.partial);
        }
        let locked = self.store.lock(&args.name).map_err(InstallError::from)?;
        let wanted = wanted(&source, &args.registry)?;
        self.with_player(async |player| {
            let found = self.store.read(&args.name).map_err(InstallError::from)?;
            let mut it = found.unwrap_or_else(|| Installation::new(&args.name, Options::default()));
            self.repair(player, &locked, &mut it).await?;
            if it.phase == Phase::Uninstalling {
                self.store.remove(&locked).map_err(InstallError::from)?;
                it = Installation::new(&args.name, Options::default());
            }
            if let Some(current) = it.current() {
                return Err(InstallError::Installed { name: it.name.clone(), revision: current.number }.into());
            }
            it.follows = follows;
            it.options = options(&args.run, &Options::default());
            let number = self.revise(player, &locked, &mut it, &wanted, args.run.wait).await?;
            self.done(&it, &[number])
        })
    }

    pub(crate) fn upgrade(&self, args: &UpgradeArgs) -> Result<u8, Failure> {
        let locked = self.store.lock(&args.name).map_err(InstallError::from)?;
        let found = self.store.read(&args.name).map_err(InstallError::from)?;
        let mut it = found.ok_or_else(|| InstallError::from(StoreError::Missing(args.name.clone())))?;
        let current = it.current().ok_or_else(|| InstallError::NotInstalled(it.name.clone()))?.clone();
        let (sources, follows, steps) = match &args.source {
            Some(source) => (vec![source.clone()], None, Vec::new()),
            None => {
                let named = args.from.catalog.clone().zip(args.from.package.clone());
                let follows = match (named, &it.follows) {
                    (Some((catalog, package)), _) => {
                        Follows { catalog: absolute(&catalog), package, channel: String::new() }
                    }
                    (None, Some(follows)) => follows.clone(),
                    (None, None) => return Err(InstallError::FollowsNothing(it.name.clone()).into()),
                };
                let (_opened, catalog) = catalog(&follows.catalog, false, &args.registry)?;
                let channel =
                    args.from.channel.clone().or(Some(follows.channel.clone()).filter(|channel| !channel.is_empty()));
                let query = Query { package: follows.package.clone(), channel, range: args.from.version.clone() };
                let installed = Installed {
                    name: current.bundle.clone().unwrap_or_default(),
                    version: version(current.version.as_deref().unwrap_or("0.0.0"))
                        .map_err(|error| Failure::Usage(error.to_string()))?,
                };
                let steps = resolve::path(&catalog, &query, &installed, args.force).map_err(BundleError::from)?;
                let channel = steps.last().map(|step| step.channel.clone()).unwrap_or_default();
                let sources = steps.iter().map(image).collect::<Result<Vec<_>, _>>()?;
                (sources, Some(Follows { channel, ..follows }), steps)
            }
        };
        warn(&steps);
        if args.dry_run {
            return self.explain(&args.name, &steps, &sources, &args.registry, args.run.partial || it.options.partial);
        }
        // Read all bundles on the upgrade path before running any of them.
        let all = sources.iter().map(|source| wanted(source, &args.registry)).collect::<Result<Vec<_>, _>>();
        let all = self.unpacked(&locked, &mut it, all)?;
        self.with_player(async |player| {
            self.repair_to_use(player, &locked, &mut it).await?;
            it.follows = follows;
            it.options = options(&args.run, &it.options);
            let mut numbers = Vec::new();
            for wanted in &all {
                numbers.push(self.revise(player, &locked, &mut it, wanted, args.run.wait).await?);
            }
            self.done(&it, &numbers)
        })
    }

    /// Runs `rollback`: installs the bundle of an earlier revision as a new revision. The bundle's content must be
    /// unchanged.
    pub(crate) fn rollback(&self, args: &RollbackArgs) -> Result<u8, Failure> {
        let locked = self.store.lock(&args.name).map_err(InstallError::from)?;
        let found = self.store.read(&args.name).map_err(InstallError::from)?;
        let mut it = found.ok_or_else(|| InstallError::from(StoreError::Missing(args.name.clone())))?;
        let ran = |it: &Installation, number: u32| it.revision(number).is_some_and(|it| it.state == State::Superseded);
        let number = match args.to {
            Some(number) => Some(number).filter(|number| ran(&it, *number)),
            None => it.revisions.iter().rev().map(|revision| revision.number).find(|number| ran(&it, *number)),
        };
        let earlier = number.and_then(|number| it.revision(number)).cloned();
        let earlier = earlier.ok_or_else(|| InstallError::NoRevision {
            name: it.name.clone(),
            number: args.to.map_or_else(|| "before the current one".to_owned(), |number| number.to_string()),
        })?;
        let text = earlier.source.text();
        let read = wanted(&text, &args.registry).and_then(|wanted| match wanted.files.pinned() {
            is if is == earlier.pin => Ok(wanted),
            is => {
                let (number, was) = (earlier.number, earlier.pin.clone());
                Err(InstallError::Changed { source_text: text.clone(), number, was, is }.into())
            }
        });
        let wanted = self.unpacked(&locked, &mut it, read)?;
        self.with_player(async |player| {
            self.repair_to_use(player, &locked, &mut it).await?;
            let number = self.revise(player, &locked, &mut it, &wanted, args.wait).await?;
            self.done(&it, &[number])
        })
    }

    /// Runs `uninstall`. The phase is recorded first, so that the next command can finish the removal after a kill.
    pub(crate) fn uninstall(&self, args: &NameArg) -> Result<u8, Failure> {
        let locked = self.store.lock(&args.name).map_err(InstallError::from)?;
        let found = self.store.read(&args.name).map_err(InstallError::from)?;
        let mut it = found.ok_or_else(|| InstallError::from(StoreError::Missing(args.name.clone())))?;
        self.with_player(async |player| {
            it.uninstall();
            self.store.write(&locked, &it).map_err(InstallError::from)?;
            self.repair(player, &locked, &mut it).await?;
            self.store.remove(&locked).map_err(InstallError::from)?;
            print_result(self.global, &json!({"name": it.name, "uninstalled": true}), || {
                format!("{} is uninstalled\n", it.name)
            })?;
            Ok(0)
        })
    }

    /// Prints the revisions that a command created.
    fn done(&self, it: &Installation, numbers: &[u32]) -> Result<u8, Failure> {
        let revisions: Vec<_> = numbers.iter().filter_map(|number| it.revision(*number)).collect();
        print_result(self.global, it, || {
            let mut text = String::new();
            for revision in revisions {
                let what = revision.bundle.clone().unwrap_or_else(|| revision.source.text());
                text += &format!("{}: revision {} is {} ({})\n", it.name, revision.number, plain(&what), revision.pin);
            }
            text
        })?;
        Ok(0)
    }
}

/// Returns the image source of a resolved bundle.
fn image(step: &Step) -> Result<String, Failure> {
    match &*step.to.image {
        "" => Err(Failure::Usage(format!(
            "{} has no image: bundles whose objects are in the catalog cannot be installed",
            step.to.name
        ))),
        image => Ok(format!("docker://{image}")),
    }
}

/// Makes the path in a catalog argument absolute, so that it is valid in any working directory.
fn absolute(text: &str) -> String {
    Source::parse(text).map_or_else(|_| text.to_owned(), |source| source.text())
}
