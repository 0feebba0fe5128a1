//! `agent-cli bundle`: inspects bundles, and manages installations of them.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use executor_bundles::bundle::{self, Bundle, Format};
use executor_bundles::fault::Faults;
use executor_bundles::source::{Files, Source};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::generate::GenerateArgs;
use executor_cli_kit::global::Global;
use executor_cli_kit::program::{self, Program};
use executor_cli_kit::report::print_result;
use executor_cli_kit::request::forbid_dumps;
use executor_cli_kit::text::plain;
use executor_cli_kit::view::style::{Role, Style};
use executor_cli_kit::view::table::Table;
use serde_json::json;

use crate::common::{BundleError, files};
use crate::events::{EventsArgs, events};
use crate::install::{InstallArgs, NameArg, RollbackArgs, StoreArgs, UpgradeArgs, Work};
use crate::kube;
use crate::registry::RegistryArgs;

/// Check, show and install bundles of operators (registry+v1) and of Kubernetes objects (plain+v0)
///
/// SOURCE is a directory, a tar archive (optionally compressed with gzip), an image of a registry (docker://REFERENCE),
/// in an OCI layout or in an archive (oci:PATH or oci:PATH:NAME, or the path alone), or a git commit
/// (git:REPOSITORY@COMMIT[#DIRECTORY]).
#[derive(Debug, Parser)]
#[command(
    name = "agent-cli-bundle",
    bin_name = "agent-cli bundle",
    version,
    subcommand_required = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(flatten)]
    store: StoreArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check a bundle; show all errors and warnings
    Validate(SourceArgs),
    /// Show the contents of a bundle, which parts run here, and which need an API server
    Inspect(SourceArgs),
    /// Write the files of a bundle into a directory
    Unpack(UnpackArgs),
    /// Install a bundle under a name: from a source, or resolved from a catalog
    ///
    /// The bundle's Deployments, ConfigMaps and Secrets run as pods. A bundle that needs an API server is refused,
    /// unless --partial skips those parts.
    Install(Box<InstallArgs>),
    /// Upgrade an installation along its catalog's graph, or to a source
    ///
    /// The new revision's pods are created while the old pods run. When the new pods are ready, the new revision
    /// becomes current and the old pods are removed; otherwise the old revision stays.
    Upgrade(Box<UpgradeArgs>),
    /// Return to an earlier revision, as a new revision
    Rollback(RollbackArgs),
    /// Show an installation: conditions and revisions
    Status(NameArg),
    /// Show past events of installations, and new events with --follow
    Events(EventsArgs),
    /// List installations
    List,
    /// Remove an installation and everything that it runs
    Uninstall(NameArg),
    /// Write the manual or shell completions
    Generate(GenerateArgs),
}

#[derive(Debug, Args)]
pub(crate) struct SourceArgs {
    /// The bundle
    #[arg(value_name = "SOURCE")]
    pub(crate) source: String,
    /// Format: registry+v1 or plain+v0 [default: detected]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<Format>,
    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
}

#[derive(Debug, Args)]
struct UnpackArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// Directory to create; it must not exist
    #[arg(value_name = "DIR")]
    to: PathBuf,
    /// Also write files that hold Secrets, which are skipped otherwise
    #[arg(long)]
    with_secrets: bool,
}

/// Runs the program under the name `agent-cli-bundle`.
pub(crate) fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|first| first == kube::BOUND) {
        return kube::run_bound(args);
    }
    program::main::<Cli>()
}

fn with<'a>(global: &'a Global, store: &StoreArgs) -> Result<Work<'a>, Failure> {
    Work::new(global, store)
}

impl Program for Cli {
    const STATUSES: &'static [(&'static str, &'static str)] = &[
        ("0", "done; validate: the bundle is valid"),
        ("1", "the bundle or its catalog is refused"),
        ("125", "an error of agent-cli or executord, or bad usage"),
        ("141", "the output was closed by its reader (| head)"),
    ];

    fn global(&mut self) -> &mut Global {
        &mut self.global
    }

    fn execute(self) -> Result<u8, Failure> {
        let Self { global, store, command } = self;
        // Bundles may hold Secrets.
        forbid_dumps();
        match command {
            Command::Validate(args) => validate(&global, &args),
            Command::Inspect(args) => inspect(&global, &args),
            Command::Unpack(args) => unpack(&global, &args),
            Command::Install(args) => with(&global, &store)?.install(&args),
            Command::Upgrade(args) => with(&global, &store)?.upgrade(&args),
            Command::Rollback(args) => with(&global, &store)?.rollback(&args),
            Command::Status(args) => with(&global, &store)?.status(&args),
            Command::Events(args) => events(&global, &store, &args),
            Command::List => with(&global, &store)?.list(),
            Command::Uninstall(args) => with(&global, &store)?.uninstall(&args),
            Command::Generate(args) => args.generate(Self::documented()).map(|()| 0),
        }
    }
}

/// Reads and validates a bundle.
pub(crate) fn validated(args: &SourceArgs) -> Result<(Source, Files, Bundle), BundleError> {
    let (source, files) = files(&args.source, &args.registry)?;
    let format = args.format.unwrap_or_else(|| bundle::format(&files));
    let refused = |faults| BundleError::Refused { what: args.source.clone(), faults };
    let bundle = bundle::read(&files, format).map_err(refused)?;
    Ok((source, files, bundle))
}

fn validate(global: &Global, args: &SourceArgs) -> Result<u8, Failure> {
    let refused = |faults: &Faults| json!({"valid": false, "faults": faults.found, "more": faults.beyond});
    let (_, files, bundle) = match validated(args) {
        Ok(it) => it,
        Err(error) => {
            if let (true, BundleError::Refused { faults, .. }) = (global.json, &error) {
                print_result(global, &refused(faults), String::new)?;
            }
            return Err(error.into());
        }
    };
    let document = json!({"valid": true, "format": bundle.format, "name": bundle.name, "pin": files.pinned(), "warnings": bundle.warnings});
    print_result(global, &document, || {
        let mut text = format!(
            "valid: {} with {} objects\n",
            bundle.format,
            bundle.objects.len() + usize::from(bundle.csv.is_some())
        );
        for warning in &bundle.warnings {
            text += &format!("warning: {}\n", plain(&warning.to_string()));
        }
        text
    })?;
    Ok(0)
}

fn inspect(global: &Global, args: &SourceArgs) -> Result<u8, Failure> {
    let (source, files, bundle) = validated(args)?;
    let version = bundle.version.as_ref().map(ToString::to_string);
    let objects: Vec<_> =
        bundle.objects.iter().map(|it| json!({"kind": it.kind, "name": it.name, "file": it.file})).collect();
    let deployments: Vec<&str> = bundle.csv.iter().flat_map(|csv| &csv.deployments).map(|it| &*it.name).collect();
    let not_provided = bundle.not_provided();
    let document = json!({
        "source": source, "pin": files.pinned(), "digest": files.digest(), "format": bundle.format, "name": bundle.name, "version": version,
        "package": bundle.package, "channels": bundle.channels, "defaultChannel": bundle.default_channel, "dependencies": bundle.dependencies,
        "displayName": bundle.csv.as_ref().map(|csv| &csv.display_name), "deployments": deployments,
        "installModes": bundle.csv.as_ref().map(|csv| &csv.install_modes), "relatedImages": bundle.csv.as_ref().map(|csv| &csv.related_images),
        "serviceAccounts": bundle.csv.as_ref().map(|csv| &csv.service_accounts), "objects": objects, "notProvided": not_provided,
        "warnings": bundle.warnings,
    });
    print_result(global, &document, || {
        let mut table = Table::bare(0);
        let mut pair = |name: &str, value: String| {
            if !value.is_empty() {
                table.pair(name, value);
            }
        };
        pair("source", source.text());
        pair("pinned by", files.pinned());
        pair("format", bundle.format.to_string());
        pair("name", bundle.name.clone().unwrap_or_default());
        pair("version", version.clone().unwrap_or_default());
        pair("package", bundle.package.clone().unwrap_or_default());
        pair("channels", bundle.channels.join(", "));
        pair("deployments", deployments.join(", "));
        pair("dependencies", bundle.dependencies.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
        let style = Style::detect();
        let mut text = table.render(style);
        if !objects.is_empty() {
            let mut table = Table::with_heading(0, &["KIND", "NAME", "FILE"]);
            for it in &bundle.objects {
                table.row([it.kind.clone(), it.name.clone(), it.file.clone()].map(|text| (text, Role::Plain)));
            }
            text += &format!("\n{}", table.render(style));
        }
        if !not_provided.is_empty() {
            let mut table = Table::with_heading(0, &["NOT PROVIDED", "WHY"]);
            for it in &not_provided {
                table.row([(it.what.clone(), Role::Attention), (it.why.to_owned(), Role::Plain)]);
            }
            text += &format!("\n{}", table.render(style));
        }
        text
    })?;
    Ok(0)
}

/// Writes the files of a bundle into a temporary directory next to the requested directory, and then renames the
/// temporary directory, so that the result is complete or absent.
fn unpack(global: &Global, args: &UnpackArgs) -> Result<u8, Failure> {
    let (_, files, bundle) = validated(&args.source)?;
    let to = &args.to;
    let failed = |source| Failure::Generate { path: to.clone(), source };
    if to.symlink_metadata().is_ok() {
        return Err(Failure::Usage(format!("{} already exists", to.display())));
    }
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(std::path::Path::new("."));
    let dir = tempfile::Builder::new().prefix(".unpack-").tempdir_in(parent).map_err(failed)?;
    let secret = |path: &str| bundle.objects.iter().any(|object| object.kind == "Secret" && object.file == path);
    let (mut written, mut left_out) = (Vec::new(), Vec::new());
    for (path, content) in &files.files {
        if !args.with_secrets && secret(path) {
            left_out.push(path.clone());
            continue;
        }
        let at = dir.path().join(path);
        std::fs::create_dir_all(at.parent().unwrap_or(parent))
            .and_then(|()| std::fs::write(&at, content))
            .map_err(failed)?;
        written.push(path.clone());
    }
    std::fs::rename(dir.path(), to).map_err(failed)?;
    let _ = dir.keep(); // the directory was renamed
    let document = json!({"pin": files.pinned(), "directory": to, "written": written, "leftOut": left_out});
    print_result(global, &document, || {
        let mut text = format!("{} files of {} in {}\n", written.len(), files.pinned(), to.display());
        for path in &left_out {
            text += &format!("skipped, because it holds a Secret: {}\n", plain(path));
        }
        text
    })?;
    Ok(0)
}
