//! `agent-cli catalog`: checks and shows file-based catalogs. The command needs no running executord.

use clap::{Args, Parser, Subcommand, ValueEnum};
use executor_bundles::catalog::diff::diff;
use executor_bundles::catalog::{Catalog, Package, mermaid};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::generate::GenerateArgs;
use executor_cli_kit::global::Global;
use executor_cli_kit::output::print;
use executor_cli_kit::program::Program;
use executor_cli_kit::report::print_result;
use executor_cli_kit::text::plain;
use executor_cli_kit::view::style::{Role, Style};
use executor_cli_kit::view::table::Table;
use serde::Serialize;
use serde_json::{Value, json};

use crate::common::{catalog, objects};
use crate::registry::RegistryArgs;

pub(crate) const PROGRAM: &str = "agent-cli-catalog";

/// Check and show file-based catalogs of operators (OLM)
///
/// CATALOG is a file or a directory of YAML or JSON (with .indexignore), a tar archive of such files (optionally
/// compressed with gzip), an image of a registry (docker://REFERENCE), in an OCI layout or in an archive (oci:PATH or
/// oci:PATH:NAME, or the path alone), or a git commit (git:REPOSITORY@COMMIT[#DIRECTORY]).
#[derive(Debug, Parser)]
#[command(
    name = PROGRAM,
    bin_name = "agent-cli catalog",
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check a catalog; show all errors
    Validate(CatalogArg),
    /// List the packages of a catalog
    List(CatalogArg),
    /// Show a package: channels, heads, upgrade edges, deprecations
    Show(ShowArgs),
    /// Write the objects of a catalog in canonical order and form
    Render(RenderArgs),
    /// Compare two catalogs
    Diff(DiffArgs),
    /// Draw the upgrade graph as a Mermaid diagram
    Mermaid(MermaidArgs),
    /// Write the manual or shell completions
    Generate(GenerateArgs),
}

#[derive(Debug, Args)]
struct CatalogArg {
    /// File, directory, archive, image or git commit; see `agent-cli catalog --help`
    #[arg(value_name = "CATALOG")]
    catalog: String,
    #[command(flatten)]
    registry: RegistryArgs,
}

#[derive(Debug, Args)]
struct ShowArgs {
    #[command(flatten)]
    catalog: CatalogArg,
    /// Name of the package
    #[arg(value_name = "PACKAGE")]
    package: String,
    /// Show only this channel
    #[arg(long, value_name = "CHANNEL")]
    channel: Option<String>,
}

#[derive(Debug, Args)]
struct RenderArgs {
    #[command(flatten)]
    catalog: CatalogArg,
    /// Output form
    #[arg(long, short, value_enum, default_value_t = Form::Yaml)]
    output: Form,
    /// Write only this package
    #[arg(long, value_name = "PACKAGE")]
    package: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Form {
    Json,
    Yaml,
}

#[derive(Debug, Args)]
struct DiffArgs {
    /// The old catalog
    #[arg(value_name = "OLD")]
    old: String,
    /// The new catalog
    #[arg(value_name = "NEW")]
    new: String,
    #[command(flatten)]
    registry: RegistryArgs,
}

#[derive(Debug, Args)]
struct MermaidArgs {
    #[command(flatten)]
    catalog: CatalogArg,
    /// Draw only this package
    #[arg(long, value_name = "PACKAGE")]
    package: Option<String>,
}

impl Program for Cli {
    const STATUSES: &'static [(&'static str, &'static str)] = &[
        ("0", "done; validate: the catalog is valid; diff: there is no difference"),
        ("1", "the catalog is refused; diff: there are differences"),
        ("125", "an error, or bad usage"),
        ("141", "the output was closed by its reader (| head)"),
    ];

    fn global(&mut self) -> &mut Global {
        &mut self.global
    }

    fn execute(self) -> Result<u8, Failure> {
        let Self { global, command } = self;
        match command {
            Command::Validate(args) => validate(&global, &args),
            Command::List(args) => list(&global, &args),
            Command::Show(args) => show(&global, &args),
            Command::Render(args) => render(&global, &args),
            Command::Diff(args) => differences(&global, &args),
            Command::Mermaid(args) => {
                let (_, catalog) = catalog(&args.catalog.catalog, false, &args.catalog.registry)?;
                if let Some(name) = &args.package {
                    package(&catalog, name)?;
                }
                print(mermaid::draw(&catalog, args.package.as_deref())).map(|()| 0)
            }
            Command::Generate(args) => args.generate(Self::documented()).map(|()| 0),
        }
    }
}

fn validate(global: &Global, args: &CatalogArg) -> Result<u8, Failure> {
    let refused = |faults: &executor_bundles::fault::Faults| json!({"valid": false, "faults": faults.found, "more": faults.beyond});
    let (opened, catalog) = match catalog(&args.catalog, false, &args.registry) {
        Ok(it) => it,
        Err(error) => {
            if let (true, crate::common::BundleError::Refused { faults, .. }) = (global.json, &error) {
                print_result(global, &refused(faults), String::new)?;
            }
            return Err(error.into());
        }
    };
    let bundles: usize = catalog.packages.values().map(|package| package.bundles.len()).sum();
    let channels: usize = catalog.packages.values().map(|package| package.channels.len()).sum();
    let document = json!({
        "valid": true, "packages": catalog.packages.len(), "channels": channels, "bundles": bundles,
        "schemas": catalog.schemas, "bytes": opened.objects.bytes, "warnings": catalog.warnings,
    });
    print_result(global, &document, || {
        let mut text = format!("valid: {} packages, {channels} channels, {bundles} bundles\n", catalog.packages.len());
        for warning in &catalog.warnings {
            text += &format!("warning: {}\n", plain(warning));
        }
        text
    })?;
    Ok(0)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Listed<'a> {
    name: &'a str,
    default_channel: &'a str,
    head: &'a str,
    version: Option<String>,
    channels: usize,
    bundles: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    deprecated: Option<&'a str>,
}

impl<'a> Listed<'a> {
    fn new(package: &'a Package) -> Self {
        let head = package.channels.get(&package.default_channel).map_or("", |channel| &channel.head);
        Self {
            name: &package.name,
            default_channel: &package.default_channel,
            head,
            version: package.bundles.get(head).map(executor_bundles::catalog::Bundle::version_text),
            channels: package.channels.len(),
            bundles: package.bundles.len(),
            deprecated: package.deprecation.as_deref(),
        }
    }
}

fn list(global: &Global, args: &CatalogArg) -> Result<u8, Failure> {
    let (_, catalog) = catalog(&args.catalog, false, &args.registry)?;
    let packages: Vec<_> = catalog.packages.values().map(Listed::new).collect();
    print_result(global, &packages, || {
        let mut table =
            Table::with_heading(0, &["PACKAGE", "DEFAULT CHANNEL", "HEAD", "CHANNELS", "BUNDLES", "DEPRECATED"]);
        for it in &packages {
            let cells = [
                it.name.to_owned(),
                it.default_channel.to_owned(),
                it.head.to_owned(),
                it.channels.to_string(),
                it.bundles.to_string(),
            ];
            let cells = cells.map(|text| (text, Role::Plain)).into_iter();
            table.row(cells.chain([(it.deprecated.unwrap_or_default().to_owned(), Role::Attention)]));
        }
        table.render(Style::detect())
    })?;
    Ok(0)
}

fn package<'a>(catalog: &'a Catalog, name: &str) -> Result<&'a Package, Failure> {
    catalog.packages.get(name).ok_or_else(|| Failure::Usage(format!("the catalog has no package {name:?}")))
}

fn show(global: &Global, args: &ShowArgs) -> Result<u8, Failure> {
    let (_, catalog) = catalog(&args.catalog.catalog, false, &args.catalog.registry)?;
    let package = package(&catalog, &args.package)?;
    let channels: Vec<_> = package
        .channels
        .values()
        .filter(|channel| args.channel.as_ref().is_none_or(|name| channel.name == *name))
        .collect();
    if let (Some(name), true) = (&args.channel, channels.is_empty()) {
        return Err(Failure::Usage(format!("package {:?} has no channel {name:?}", package.name)));
    }
    let entries = |channel: &executor_bundles::catalog::Channel| -> Vec<Value> {
        let mut sorted: Vec<_> =
            channel.entries.values().filter_map(|entry| Some((entry, package.bundles.get(&entry.name)?))).collect();
        sorted.sort_by(|one, other| other.1.precedes(one.1));
        let entry = |(entry, bundle): &(&executor_bundles::catalog::Entry, &executor_bundles::catalog::Bundle)| {
            json!({
                "name": entry.name, "version": bundle.version_text(), "image": bundle.image, "head": channel.head == entry.name,
                "replaces": entry.replaces, "skips": entry.skips, "skipRange": entry.skip_range.as_ref().map(ToString::to_string),
                "requires": bundle.requires, "deprecated": bundle.deprecation,
            })
        };
        sorted.iter().map(entry).collect()
    };
    let document = json!({
        "name": package.name, "description": package.description, "defaultChannel": package.default_channel, "deprecated": package.deprecation,
        "channels": channels.iter().map(|channel| json!({
            "name": channel.name, "head": channel.head, "deprecated": channel.deprecation, "entries": entries(channel),
        })).collect::<Vec<_>>(),
    });
    print_result(global, &document, || {
        let style = Style::detect();
        let mut text = format!("{}\n", style.paint(Role::Heading, &plain(&package.name)));
        if let Some(message) = &package.deprecation {
            text += &format!("deprecated: {}\n", plain(message));
        }
        for channel in &channels {
            let default = if channel.name == package.default_channel { " (default)" } else { "" };
            text += &format!("\nchannel {}{default}\n", plain(&channel.name));
            if let Some(message) = &channel.deprecation {
                text += &format!("  deprecated: {}\n", plain(message));
            }
            let mut table =
                Table::with_heading(2, &["BUNDLE", "VERSION", "REPLACES", "SKIPS", "SKIP RANGE", "DEPRECATED"]);
            for entry in entries(channel) {
                let cell = |name: &str| match &entry[name] {
                    Value::String(text) => text.clone(),
                    Value::Array(list) => list.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
                    _ => String::new(),
                };
                let role = if entry["head"] == true { Role::Good } else { Role::Plain };
                table.row([
                    (cell("name"), role),
                    (cell("version"), Role::Plain),
                    (cell("replaces"), Role::Plain),
                    (cell("skips"), Role::Plain),
                    (cell("skipRange"), Role::Plain),
                    (cell("deprecated"), Role::Attention),
                ]);
            }
            text += &table.render(style);
        }
        text
    })?;
    Ok(0)
}

/// Writes the objects one by one, so that a large catalog need not fit into memory.
fn render(global: &Global, args: &RenderArgs) -> Result<u8, Failure> {
    let opened = objects(&args.catalog.catalog, false, &args.catalog.registry)?;
    let mut found = false;
    for object in opened.objects.in_order() {
        if args.package.as_ref().is_some_and(|name| object.blob.meta().1 != name) {
            continue;
        }
        found = true;
        let content = opened
            .objects
            .content(&object.place)
            .map_err(|error| Failure::wrap(error, executor_cli_kit::exit::OURS))?;
        let text = match args.output {
            _ if global.json => executor_cli_kit::view::json::to_document(&content),
            Form::Json => serde_json::to_string_pretty(&content).unwrap_or_default() + "\n",
            Form::Yaml => format!("---\n{}", executor_bundles::yaml::write(&content)),
        };
        print(text)?;
    }
    match &args.package {
        Some(name) if !found => Err(Failure::Usage(format!("the catalog has no package {name:?}"))),
        _ => Ok(0),
    }
}

fn differences(global: &Global, args: &DiffArgs) -> Result<u8, Failure> {
    let (old, new) = (catalog(&args.old, true, &args.registry)?, catalog(&args.new, true, &args.registry)?);
    let changes = diff((&old.0.objects, &old.1), (&new.0.objects, &new.1));
    print_result(global, &changes, || {
        let mut table = Table::bare(0);
        for change in &changes {
            let role = match change.how {
                "added" => Role::Good,
                "removed" => Role::Bad,
                _ => Role::Attention,
            };
            table.row([
                (change.how.to_owned(), role),
                (change.package.clone(), Role::Plain),
                (change.what.to_owned(), Role::Plain),
                (change.name.clone(), Role::Plain),
                (change.detail.clone(), Role::Faint),
            ]);
        }
        table.render(Style::detect())
    })?;
    Ok(u8::from(!changes.is_empty()))
}
