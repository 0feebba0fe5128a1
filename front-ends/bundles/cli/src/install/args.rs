//! Arguments of the commands on installations.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use executor_bundles::installation::{Options, Store};
use executor_bundles::range::Range;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::units;

use crate::registry::RegistryArgs;

/// Location of the records.
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

/// Selection of a bundle from a catalog.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "From a catalog")]
pub(crate) struct CatalogArgs {
    /// Catalog to resolve the bundle from
    #[arg(long, value_name = "CATALOG", requires = "package", conflicts_with = "source")]
    pub(super) catalog: Option<String>,
    /// Package of the catalog
    #[arg(long, value_name = "PACKAGE", requires = "catalog")]
    pub(super) package: Option<String>,
    /// Channel of the package [default: the package's own; upgrade: the channel of the installation]
    #[arg(long, value_name = "CHANNEL", conflicts_with = "source")]
    pub(super) channel: Option<String>,
    /// Accepted versions: 1.2.3, '>=1.2.0 <2.0.0', 1.x
    #[arg(long, value_name = "RANGE", conflicts_with = "source", value_parser = range)]
    pub(super) version: Option<Range>,
}

fn range(text: &str) -> Result<Range, String> {
    Range::parse(text).map_err(|error| format!("the range {error}"))
}

/// Options of the play.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunArgs {
    /// Install the parts that run here, and skip parts that need an API server (custom resources, RBAC, webhooks)
    #[arg(long)]
    pub(super) partial: bool,
    /// Network of the pods, as for `kube play`
    #[arg(long, value_name = "NETWORK")]
    pub(super) network: Option<String>,
    /// Allow connections from the pods' network to other networks, if executord's configuration permits it
    #[arg(long)]
    pub(super) egress: bool,
    /// Root file system to use instead of an image, as for `kube play`; may be repeated
    #[arg(long = "image-override", value_name = "IMAGE=ROOTFS")]
    pub(super) images: Vec<String>,
    /// Maximum time to wait until the pods are ready; after a timeout the previous revision stays
    #[arg(long, value_name = "DURATION", value_parser = units::duration, default_value = "5m")]
    pub(super) wait: Duration,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct InstallArgs {
    /// Name of the installation
    #[arg(value_name = "NAME")]
    pub(super) name: String,
    /// The bundle, if it is not from a catalog
    #[arg(value_name = "SOURCE", required_unless_present = "catalog")]
    pub(super) source: Option<String>,
    #[command(flatten)]
    pub(super) from: CatalogArgs,
    #[command(flatten)]
    pub(super) run: RunArgs,
    #[command(flatten)]
    pub(super) registry: RegistryArgs,
    /// Show the bundles to install and why they were chosen, without installing them
    #[arg(long)]
    pub(super) dry_run: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct UpgradeArgs {
    /// Name of the installation
    #[arg(value_name = "NAME")]
    pub(super) name: String,
    /// The new bundle, if the installation follows no catalog
    #[arg(value_name = "SOURCE")]
    pub(super) source: Option<String>,
    #[command(flatten)]
    pub(super) from: CatalogArgs,
    #[command(flatten)]
    pub(super) run: RunArgs,
    #[command(flatten)]
    pub(super) registry: RegistryArgs,
    /// Ignore the edges of the upgrade graph
    #[arg(long)]
    pub(super) force: bool,
    /// Show the bundles to install and why they were chosen, without installing them
    #[arg(long)]
    pub(super) dry_run: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct RollbackArgs {
    /// Name of the installation
    #[arg(value_name = "NAME")]
    pub(super) name: String,
    /// Revision to return to [default: the last revision that ran before the current one]
    #[arg(long, value_name = "N")]
    pub(super) to: Option<u32>,
    /// Maximum time to wait until the pods are ready; after a timeout the current revision stays
    #[arg(long, value_name = "DURATION", value_parser = units::duration, default_value = "5m")]
    pub(super) wait: Duration,
    #[command(flatten)]
    pub(super) registry: RegistryArgs,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct NameArg {
    /// Name of the installation
    #[arg(value_name = "NAME")]
    pub(super) name: String,
}

/// Returns the options of a play: each option is from `args` if set there, otherwise from `before`.
pub(super) fn options(args: &RunArgs, before: &Options) -> Options {
    Options {
        partial: args.partial || before.partial,
        network: args.network.clone().or_else(|| before.network.clone()),
        egress: args.egress || before.egress,
        image_overrides: if args.images.is_empty() { before.image_overrides.clone() } else { args.images.clone() },
    }
}
