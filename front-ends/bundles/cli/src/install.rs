//! Installations: install, upgrade, rollback, uninstall, status, list.

use std::path::PathBuf;
use std::time::Duration;

use agent_cli::exit::OURS;
use agent_cli::failure::Failure;
use agent_cli::global::Global;
use agent_cli::interrupt::Interrupts;
use agent_cli::text::plain;
use agent_cli::units;
use agent_cli::view::style::{Role, Style};
use agent_cli::view::table::Table;
use clap::Args;
use executor_bundles::bundle::{self, Bundle};
use executor_bundles::installation::{
    Condition, ConditionKind, Follows, Installation, Locked, Options, Phase, State, Store, StoreError, check_name,
};
use executor_bundles::manifest::{self, ManifestError};
use executor_bundles::range::{Range, version};
use executor_bundles::resolve::{self, Candidate, Deprecation, Edge, Installed, Query, Step, Verdict};
use executor_bundles::source::{Files, Source};
use serde_json::json;

use crate::common::{BundleError, NOTES, catalog, files, print};
use crate::kube::{PlayError, Player};
use crate::registry::RegistryArgs;

/// Reason why an installation is not as it was asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InstallError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{name} is installed already (revision {revision}): upgrade it, uninstall it, or choose another name")]
    Installed { name: String, revision: u32 },
    #[error("{0} has no revision that runs: install it again, or uninstall it")]
    NotInstalled(String),
    #[error("{0} does not follow a catalog: name the source of the bundle, or --catalog and --package")]
    FollowsNothing(String),
    #[error("{name} has no revision {number} to go back to")]
    NoRevision { name: String, number: String },
    #[error("{source_text} has changed since revision {number} (it was {was}, it is {is}): it cannot be gone back to")]
    Changed { source_text: String, number: u32, was: String, is: String },
    #[error("the bundle cannot be installed")]
    Manifest(#[from] ManifestError),
    #[error("{name}: revision {revision} is not installed: {why}")]
    Failed { name: String, revision: u32, why: String },
    #[error("{name}: {what} cannot be taken down")]
    Down { name: String, what: String, source: PlayError },
    #[error("cannot tell the pods of {0}")]
    Pods(String, #[source] PlayError),
}

impl From<InstallError> for Failure {
    fn from(error: InstallError) -> Self {
        Self::wrap(error, OURS)
    }
}

/// Place of the records.
#[derive(Clone, Debug, Args)]
pub(crate) struct StoreArgs {
    /// Directory of the records of installations [default: ~/.executor/bundles]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) installations_dir: Option<PathBuf>,
}

impl StoreArgs {
    pub(crate) fn store(&self) -> Result<Store, Failure> {
        if let Some(directory) = &self.installations_dir {
            return Ok(Store::new(directory));
        }
        match std::env::var_os("HOME").filter(|home| !home.is_empty()) {
            Some(home) => Ok(Store::new(PathBuf::from(home).join(".executor/bundles"))),
            None => Err(Failure::Usage("HOME is not set: name --installations-dir".to_owned())),
        }
    }
}

/// A bundle out of a catalog.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "From a catalog")]
pub(crate) struct CatalogArgs {
    /// Catalog to resolve the bundle from
    #[arg(long, value_name = "CATALOG", requires = "package", conflicts_with = "source")]
    catalog: Option<String>,
    /// Package of the catalog
    #[arg(long, value_name = "PACKAGE", requires = "catalog")]
    package: Option<String>,
    /// Channel of the package [default: the package's own; upgrade: the one that is followed]
    #[arg(long, value_name = "CHANNEL", conflicts_with = "source")]
    channel: Option<String>,
    /// Versions that are wanted: 1.2.3, '>=1.2.0 <2.0.0', 1.x
    #[arg(long, value_name = "RANGE", conflicts_with = "source", value_parser = range)]
    version: Option<Range>,
}

fn range(text: &str) -> Result<Range, String> {
    Range::parse(text).map_err(|error| format!("the range {error}"))
}

/// How it is run.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunArgs {
    /// Install what runs here, and leave out what needs an API server (custom resources, RBAC, webhooks)
    #[arg(long)]
    partial: bool,
    /// Network of the pods, as for `kube play`
    #[arg(long, value_name = "NETWORK")]
    network: Option<String>,
    /// Connections to beyond the pods' network may be opened, where executord's configuration allows it
    #[arg(long)]
    egress: bool,
    /// Root file system to take instead of an image, as for `kube play`; may be repeated
    #[arg(long = "image-override", value_name = "IMAGE=ROOTFS")]
    images: Vec<String>,
    /// Wait at most this long until the pods are ready; then the revision before stays
    #[arg(long, value_name = "DURATION", value_parser = units::duration, default_value = "5m")]
    wait: Duration,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct InstallArgs {
    /// Name of the installation
    #[arg(value_name = "NAME")]
    name: String,
    /// The bundle, where it is not of a catalog
    #[arg(value_name = "SOURCE", required_unless_present = "catalog")]
    source: Option<String>,
    #[command(flatten)]
    from: CatalogArgs,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    registry: RegistryArgs,
    /// Tell each step and its reasons, and do nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct UpgradeArgs {
    /// Name of the installation
    #[arg(value_name = "NAME")]
    name: String,
    /// The new bundle, where the installation follows no catalog
    #[arg(value_name = "SOURCE")]
    source: Option<String>,
    #[command(flatten)]
    from: CatalogArgs,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    registry: RegistryArgs,
    /// Pass the edges of the upgrade graph
    #[arg(long)]
    force: bool,
    /// Tell each step and its reasons, and do nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct RollbackArgs {
    /// Name of the installation
    #[arg(value_name = "NAME")]
    name: String,
    /// Revision to go back to [default: the last one that ran before]
    #[arg(long, value_name = "N")]
    to: Option<u32>,
    /// Wait at most this long until the pods are ready; then the present revision stays
    #[arg(long, value_name = "DURATION", value_parser = units::duration, default_value = "5m")]
    wait: Duration,
    #[command(flatten)]
    registry: RegistryArgs,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct NameArg {
    /// Name of the installation
    #[arg(value_name = "NAME")]
    name: String,
}

/// A command with what it needs.
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

/// A source that means the same for ever: an image by its digest.
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
            return Err(Failure::Usage("--local ends with the command, and installations do not".to_owned()));
        }
        Ok(Self { global, store: store.store()? })
    }

    /// Carries out work that plays, in a runtime of one thread: the plays end with it.
    fn with_player(&self, work: impl AsyncFnOnce(&mut Player<'a>) -> Result<u8, Failure>) -> Result<u8, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::System)?;
        runtime.block_on(async {
            let interrupts = Interrupts::install().map_err(Failure::System)?;
            work(&mut Player { global: self.global, interrupts }).await
        })
    }

    /// Finishes or undoes what a kill cut off.
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
        eprintln!("agent-cli: {}: what was cut off is cleared away", it.name);
        it.repaired();
        Ok(self.store.write(locked, it).map_err(InstallError::from)?)
    }

    /// Installs a revision: written down, played, and current when its pods are ready; otherwise it goes again.
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
        let manifests = manifest::play(bundle, &it.play(next), it.options.partial).map_err(InstallError::from)?;
        let version = bundle.version.as_ref().map(ToString::to_string);
        let number = it.begin(source.clone(), files.pinned(), bundle.format.to_string(), bundle.name.clone(), version);
        self.store.write(locked, it).map_err(InstallError::from)?;
        let play = it.play(number);
        if let Err(error) = player.play(&play, &manifests, &it.options, wait).await {
            let reason = if matches!(error, PlayError::Interrupted(_)) { "Interrupted" } else { "InstallFailed" };
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

    /// Repairs an installation that must be there afterwards: one that was being uninstalled is gone.
    async fn repair_to_use(
        &self,
        player: &mut Player<'_>,
        locked: &Locked,
        it: &mut Installation,
    ) -> Result<(), Failure> {
        self.repair(player, locked, it).await?;
        if it.phase == Phase::Uninstalling {
            self.store.forget(locked).map_err(InstallError::from)?;
            return Err(InstallError::NotInstalled(it.name.clone()).into());
        }
        Ok(())
    }

    /// `install`.
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
                self.store.forget(&locked).map_err(InstallError::from)?;
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

    /// `upgrade`.
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
        // Every bundle of the way is read before anything runs.
        let all = sources.iter().map(|source| wanted(source, &args.registry)).collect::<Result<Vec<_>, _>>()?;
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

    /// `rollback`: a new revision with the bundle of an earlier one, which must be what it was.
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
            number: args.to.map_or_else(|| "before".to_owned(), |number| number.to_string()),
        })?;
        let text = earlier.source.text();
        let wanted = wanted(&text, &args.registry)?;
        let is = wanted.files.pinned();
        if is != earlier.pin {
            return Err(
                InstallError::Changed { source_text: text, number: earlier.number, was: earlier.pin, is }.into()
            );
        }
        self.with_player(async |player| {
            self.repair_to_use(player, &locked, &mut it).await?;
            let number = self.revise(player, &locked, &mut it, &wanted, args.wait).await?;
            self.done(&it, &[number])
        })
    }

    /// `uninstall`: written down first, so that a kill does not keep half of it.
    pub(crate) fn uninstall(&self, args: &NameArg) -> Result<u8, Failure> {
        let locked = self.store.lock(&args.name).map_err(InstallError::from)?;
        let found = self.store.read(&args.name).map_err(InstallError::from)?;
        let mut it = found.ok_or_else(|| InstallError::from(StoreError::Missing(args.name.clone())))?;
        self.with_player(async |player| {
            it.uninstall();
            self.store.write(&locked, &it).map_err(InstallError::from)?;
            self.repair(player, &locked, &mut it).await?;
            self.store.forget(&locked).map_err(InstallError::from)?;
            print(self.global, &json!({"name": it.name, "uninstalled": true}), || {
                format!("{} is uninstalled\n", it.name)
            })?;
            Ok(0)
        })
    }

    /// What was done.
    fn done(&self, it: &Installation, numbers: &[u32]) -> Result<u8, Failure> {
        let revisions: Vec<_> = numbers.iter().filter_map(|number| it.revision(*number)).collect();
        print(self.global, it, || {
            let mut text = String::new();
            for revision in revisions {
                let what = revision.bundle.clone().unwrap_or_else(|| revision.source.text());
                text += &format!("{}: revision {} is {} ({})\n", it.name, revision.number, plain(&what), revision.pin);
            }
            text
        })?;
        Ok(0)
    }

    /// `--dry-run`.
    fn explain(
        &self,
        name: &str,
        steps: &[Step],
        sources: &[String],
        registry: &RegistryArgs,
        partial: bool,
    ) -> Result<u8, Failure> {
        let mut bundles = Vec::new();
        for source in sources {
            let wanted = wanted(source, registry)?;
            let played = manifest::play(&wanted.bundle, name, partial).err().map(|error| error.to_string());
            bundles.push((wanted, played));
        }
        let described: Vec<_> = bundles.iter().map(|(wanted, refused)| json!({
            "source": wanted.source, "pin": wanted.files.pinned(), "format": wanted.bundle.format, "name": wanted.bundle.name,
            "notProvided": wanted.bundle.not_provided(), "refused": refused,
        })).collect();
        print(self.global, &json!({"steps": steps, "bundles": described}), || {
            let style = Style::detect();
            let mut text = String::new();
            for step in steps {
                let from = step.from.as_ref().map_or_else(String::new, |from| format!("{from} -> "));
                text += &format!("{from}{} (channel {})\n", step.to.name, step.channel);
                let mut table = Table::with_heading(2, &["BUNDLE", "VERSION", "EDGE", "DECISION"]);
                for candidate in &step.candidates {
                    let (decision, role) = decision(candidate);
                    table.row([
                        (candidate.name.clone(), Role::Plain),
                        (candidate.version.clone(), Role::Plain),
                        (candidate.edge.map_or("", edge).to_owned(), Role::Plain),
                        (decision, role),
                    ]);
                }
                text += &table.render(style);
            }
            for (wanted, refused) in &bundles {
                text += &format!("would install {} ({})\n", wanted.source.text(), wanted.files.pinned());
                for it in wanted.bundle.not_provided() {
                    text += &format!("  not provided: {}: {}\n", plain(&it.what), it.why);
                }
                if let Some(refused) = refused {
                    text += &format!("  refused: {}\n", plain(refused.lines().next().unwrap_or_default()));
                }
            }
            text
        })?;
        Ok(0)
    }

    /// `status`: the record, and the pods that there are.
    pub(crate) fn status(&self, args: &NameArg) -> Result<u8, Failure> {
        let found = self.store.read(&args.name).map_err(InstallError::from)?;
        let mut it = found.ok_or_else(|| InstallError::from(StoreError::Missing(args.name.clone())))?;
        self.with_player(async |player| {
            let mut pods = Vec::new();
            if let Some(current) = it.current().map(|revision| revision.number) {
                let play = it.play(current);
                pods = player.pods(&play).await.map_err(|error| InstallError::Pods(play, error))?;
                let unready: Vec<&str> =
                    pods.iter().filter(|pod| !is_ready(pod)).filter_map(|pod| pod["name"].as_str()).collect();
                let (healthy, reason, message) = match (pods.is_empty(), &unready[..]) {
                    (true, _) => (false, "Unhealthy", "there is no pod".to_owned()),
                    (_, []) => (true, "Healthy", "its pods are ready".to_owned()),
                    (_, unready) => (false, "Unhealthy", format!("not ready: {}", unready.join(", "))),
                };
                let told = it.events.len();
                it.condition(ConditionKind::Healthy, healthy, reason, &message, current);
                it.events.truncate(told); // what is only shown is no event
            }
            let document = json!({"installation": it, "pods": pods, "unfinished": it.phase != Phase::Settled});
            print(self.global, &document, || status_text(&it))?;
            Ok(0)
        })
    }

    /// `list`.
    pub(crate) fn list(&self) -> Result<u8, Failure> {
        let mut all = Vec::new();
        for name in self.store.names().map_err(InstallError::from)? {
            all.extend(self.store.read(&name).map_err(InstallError::from)?);
        }
        print(self.global, &all, || {
            let mut table = Table::with_heading(0, &["NAME", "REVISION", "BUNDLE", "VERSION", "INSTALLED", "FOLLOWS"]);
            for it in &all {
                let current = it.current();
                let text = |text: Option<String>| (text.unwrap_or_default(), Role::Plain);
                let installed = it.conditions.iter().find(|it| it.kind == ConditionKind::Installed);
                let role = if installed.is_some_and(|it| it.status == "True") { Role::Good } else { Role::Bad };
                table.row([
                    (it.name.clone(), Role::Plain),
                    text(current.map(|it| it.number.to_string())),
                    text(current.map(|it| it.bundle.clone().unwrap_or_else(|| it.source.text()))),
                    text(current.and_then(|it| it.version.clone())),
                    (installed.map_or_else(String::new, |it| it.reason.clone()), role),
                    text(it.follows.as_ref().map(|it| format!("{}/{}", it.package, it.channel))),
                ]);
            }
            table.render(Style::detect())
        })?;
        Ok(0)
    }
}

/// Returns whether the program says of a pod that it is ready, or done.
fn is_ready(pod: &serde_json::Value) -> bool {
    pod["ready"]
        .as_bool()
        .unwrap_or_else(|| matches!(pod["status"].as_str(), Some("Ready" | "Running" | "Succeeded" | "Completed")))
}

fn status_text(it: &Installation) -> String {
    let style = Style::detect();
    let mut text = format!("{}\n", style.paint(Role::Heading, &it.name));
    if it.phase != Phase::Settled {
        text += "a command was cut off: the next one clears away\n";
    }
    let mut table = Table::with_heading(2, &["CONDITION", "STATUS", "REASON", "MESSAGE"]);
    for Condition { kind, status, reason, message, .. } in &it.conditions {
        let role = if status == "True" { Role::Good } else { Role::Bad };
        table.row([
            (format!("{kind:?}"), Role::Plain),
            (status.clone(), role),
            (reason.clone(), Role::Plain),
            (message.clone(), Role::Plain),
        ]);
    }
    text += &table.render(style);
    let mut table = Table::with_heading(2, &["REVISION", "STATE", "BUNDLE", "VERSION", "PIN"]);
    for revision in it.revisions.iter().rev() {
        table.row([
            (revision.number.to_string(), Role::Plain),
            (format!("{:?}", revision.state).to_lowercase(), Role::Plain),
            (revision.bundle.clone().unwrap_or_else(|| revision.source.text()), Role::Plain),
            (revision.version.clone().unwrap_or_default(), Role::Plain),
            (revision.pin.clone(), Role::Faint),
        ]);
    }
    text + &table.render(style)
}

fn edge(edge: Edge) -> &'static str {
    match edge {
        Edge::Replaces => "replaces",
        Edge::Skips => "skips",
        Edge::SkipRange => "skipRange",
        Edge::SameVersion => "same version",
        Edge::Forced => "forced",
    }
}

fn decision(candidate: &Candidate) -> (String, Role) {
    let deprecated =
        candidate.deprecated.as_ref().map_or_else(String::new, |message| format!(", deprecated: {message}"));
    let (text, role) = match &candidate.verdict {
        Verdict::Chosen => ("chosen".to_owned(), Role::Good),
        Verdict::Lower => ("another is better".to_owned(), Role::Faint),
        Verdict::NotInRange => ("not in the wanted range".to_owned(), Role::Faint),
        Verdict::NoEdge => ("nothing leads to it".to_owned(), Role::Faint),
        Verdict::Installed => ("installed".to_owned(), Role::Plain),
        Verdict::Requires { requires } => {
            let needs: Vec<String> = requires.iter().map(ToString::to_string).collect();
            (format!("needs {}", needs.join(", ")), Role::Attention)
        }
    };
    (text + &deprecated, role)
}

/// Tells what of the last step is deprecated.
fn warn(steps: &[Step]) {
    for Deprecation { of, name, message } in steps.last().map_or(&[][..], |step| &step.deprecations) {
        eprintln!("{NOTES}: {of} {} is deprecated: {}", plain(name), plain(message));
    }
}

/// Source of a resolved bundle's image.
fn image(step: &Step) -> Result<String, Failure> {
    match &*step.to.image {
        "" => Err(Failure::Usage(format!(
            "{} has no image: its objects are in the catalog, from which nothing is installed",
            step.to.name
        ))),
        image => Ok(format!("docker://{image}")),
    }
}

/// A catalog's text that means the same in another directory.
fn absolute(text: &str) -> String {
    Source::parse(text).map_or_else(|_| text.to_owned(), |source| source.text())
}

/// Options of a play: what is given, else what there was.
fn options(args: &RunArgs, before: &Options) -> Options {
    Options {
        partial: args.partial || before.partial,
        network: args.network.clone().or_else(|| before.network.clone()),
        egress: args.egress || before.egress,
        image_overrides: if args.images.is_empty() { before.image_overrides.clone() } else { args.images.clone() },
    }
}
