//! `image`: pulls, imports, lists, shows and removes images.

use std::io::{IsTerminal as _, Read};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::images::{Pull, fetch_or_send, upload, warn};
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::text::plain;
use executor_cli_kit::units;
use executor_client::Error;
use executor_client::v1::{self, ImportHeader, PruneImagesRequest, PullImageRequest};

use crate::batch;
use crate::registry::{RegistryArgs, from_here};
use crate::view::images as view;

#[derive(Debug, Args)]
pub(crate) struct ImageArgs {
    #[command(subcommand)]
    pub(crate) command: ImageCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Pull an image
    ///
    /// Shows the progress on standard error, and prints the digest of the image. Ctrl-C cancels the pull. A later pull
    /// reuses the fetched data, which is kept for a day.
    Pull(PullArgs),
    #[command(flatten)]
    Direct(Direct),
}

/// Commands about images that need only their flags.
#[derive(Debug, Subcommand)]
pub(crate) enum Direct {
    /// Import an image from an archive
    ///
    /// The archive is from `docker save`, or is an OCI layout in a tar file.
    #[command(visible_alias = "load")]
    Import(ImportArgs),
    /// List images
    Ls(LsArgs),
    /// Show all details of an image
    Inspect(ImageNameArg),
    /// Remove images, or some of their names
    ///
    /// If an image has several names, removes only the given name. If the last name or a digest is given, removes the
    /// image with the layers that no other image uses.
    Rm(ImageRmArgs),
    /// Remove images that no container uses
    ///
    /// Without an option, only data that belongs to no image is removed.
    Prune(PruneArgs),
}

#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
    /// Print only the digest
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Required platform of the image (linux/amd64); rejected if this machine has another platform
    #[arg(long, value_name = "PLATFORM")]
    pub(crate) platform: Option<String>,
    /// Image, as with `run`
    #[arg(value_name = "IMAGE")]
    pub(crate) reference: String,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Format of the archive [default: detected from its files]
    #[arg(long, value_enum)]
    pub(crate) form: Option<FormArg>,
    /// Name of the image [default: the name in the archive]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// The file, as with `docker load`
    #[arg(long, short, value_name = "FILE", conflicts_with = "file")]
    pub(crate) input: Option<PathBuf>,
    /// File, or - for standard input; plain, or compressed with gzip [default: -]
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FormArg {
    /// Archive of `docker save` or `skopeo copy ... docker-archive:`
    DockerArchive,
    /// Archive of `skopeo copy ... oci-archive:` or `buildah push ... oci-archive:`
    OciArchive,
}

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Print only digests, one per line
    #[arg(long, short, conflicts_with = "json")]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ImageNameArg {
    /// Name of the image, its digest, or at least the first 8 digits of the digest
    #[arg(value_name = "IMAGE")]
    pub(crate) image: String,
}

#[derive(Debug, Args)]
pub(crate) struct ImageRmArgs {
    /// Names of images, digests, or at least the first 8 digits of a digest
    #[arg(required = true, value_name = "IMAGE")]
    pub(crate) images: Vec<String>,
    /// Remove the images with all of their names
    #[arg(long)]
    pub(crate) all_names: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PruneArgs {
    /// Remove images that were not used for at least this duration: 12h, 30days
    #[arg(long, value_name = "DURATION", value_parser = units::duration)]
    pub(crate) unused_for: Option<Duration>,
    /// Remove least recently used images until the remaining images fit into this size: 10GiB
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub(crate) budget: Option<u64>,
    /// Only show the images that would be removed
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// A request to executord, with its secrets read.
pub(crate) enum Prepared {
    Pull { request: Pull, quiet: bool },
    Direct(Direct),
}

impl ImageCommand {
    /// Reads the inputs of a command.
    pub(super) fn prepare(self) -> Result<Prepared, Failure> {
        let PullArgs { registry, quiet, platform, reference } = match self {
            Self::Pull(args) => args,
            Self::Direct(direct) => return Ok(Prepared::Direct(direct)),
        };
        let reference = from_here(reference);
        let credentials =
            registry.credentials(&reference, &mut std::io::stdin().lock(), &|name| std::env::var_os(name))?;
        let platform = platform.unwrap_or_default();
        let request = Pull::new(PullImageRequest { reference, credentials, platform });
        Ok(Prepared::Pull { request, quiet })
    }
}

pub(super) async fn image(session: &Session, prepared: Prepared) -> Result<u8, Failure> {
    match prepared {
        Prepared::Pull { request, quiet } => pull(session, &request, quiet).await,
        Prepared::Direct(Direct::Import(args)) => import(session, &args).await,
        Prepared::Direct(Direct::Ls(args)) => ls(session, &args).await,
        Prepared::Direct(Direct::Inspect(args)) => inspect(session, &args).await,
        Prepared::Direct(Direct::Rm(args)) => rm(session, &args).await,
        Prepared::Direct(Direct::Prune(args)) => prune(session, &args).await,
    }
}

async fn pull(session: &Session, request: &Pull, quiet: bool) -> Result<u8, Failure> {
    let image = fetch_or_send(session, request, !quiet && !session.json).await?;
    warn(session, &image);
    session.print(&view::Document::from(&image), || format!("{}\n", image.digest)).await;
    Ok(0)
}

async fn import(session: &Session, args: &ImportArgs) -> Result<u8, Failure> {
    let file = args.file.as_ref().or(args.input.as_ref()).filter(|file| file.as_os_str() != "-");
    let doing = format!("import {}", file.map_or("standard input".into(), |file| file.display().to_string()));
    let form = match args.form {
        None => v1::import_header::Form::Unspecified,
        Some(FormArg::DockerArchive) => v1::import_header::Form::DockerArchive,
        Some(FormArg::OciArchive) => v1::import_header::Form::OciArchive,
    };
    let reader: Box<dyn Read + Send> = match file {
        None if std::io::stdin().is_terminal() => {
            return Err(Failure::Usage(
                "import: standard input is a terminal; name a FILE, or pipe an archive to this command".into(),
            ));
        }
        None => Box::new(std::io::stdin()),
        Some(file) => Box::new(std::fs::File::open(file).map_err(|error| Failure::Usage(format!("{doing}: {error}")))?),
    };
    let mut reader = decompressed(reader).map_err(|error| Failure::Usage(format!("{doing}: {error}")))?;
    let reference = args.name.clone().unwrap_or_default();
    let header = ImportHeader { form: form.into(), reference, image: String::new() };
    let image = upload(session, &doing, header, move |to| std::io::copy(&mut reader, to).map(drop)).await?;
    warn(session, &image);
    session.print(&view::Document::from(&image), || format!("{}\n", image.digest)).await;
    Ok(0)
}

/// Decompresses an archive if it begins with gzip's magic number.
fn decompressed(mut reader: Box<dyn Read + Send>) -> std::io::Result<Box<dyn Read + Send>> {
    let mut head = Vec::new();
    reader.by_ref().take(2).read_to_end(&mut head)?;
    let is_gzip = head == [0x1f, 0x8b];
    let whole = std::io::Cursor::new(head).chain(reader);
    Ok(if is_gzip { Box::new(flate2::read::MultiGzDecoder::new(whole)) } else { Box::new(whole) })
}

async fn ls(session: &Session, args: &LsArgs) -> Result<u8, Failure> {
    let images = session.client.images().list().await.doing("image ls")?;
    if args.quiet {
        session.output.text(images.iter().map(|image| format!("{}\n", image.digest)).collect()).await;
        return Ok(0);
    }
    let documents: Vec<_> = images.iter().map(view::Document::from).collect();
    session.print(&documents, || view::table(&images, std::time::SystemTime::now(), session.style)).await;
    Ok(0)
}

async fn inspect(session: &Session, args: &ImageNameArg) -> Result<u8, Failure> {
    let doing = format!("image inspect {}", plain(&args.image));
    let answer = session.client.images().inspect(&args.image).await.doing(&doing)?;
    let image = answer.image.ok_or(Error::Incomplete("the image")).doing(&doing)?;
    let config = answer.config.unwrap_or_default();
    let document = view::Inspected::new(&image, &config, &answer.config_json);
    session.print(&document, || view::inspected(&image, &config, session.style)).await;
    Ok(0)
}

async fn rm(session: &Session, args: &ImageRmArgs) -> Result<u8, Failure> {
    let mut done = Vec::with_capacity(args.images.len());
    let mut failures = Vec::new();
    for image in &args.images {
        let shown = plain(image);
        let client = session.client.images();
        let removed = match args.all_names {
            true => client.remove_with_names(image).await.map(|()| true),
            false => client.remove(image).await,
        };
        let error = match removed.doing(&format!("remove {shown}")) {
            Ok(removed) => {
                if !session.json {
                    let what = if removed { "removed" } else { "name removed" };
                    session.output.text(format!("{shown}: {what}\n")).await;
                }
                done.push(view::Removed { image: image.clone(), removed: Some(removed), error: None });
                continue;
            }
            Err(failure) => failure,
        };
        done.push(view::Removed { image: image.clone(), removed: None, error: Some(error.describe()) });
        failures.push(error);
    }
    batch::finish(session, &done, failures).await
}

async fn prune(session: &Session, args: &PruneArgs) -> Result<u8, Failure> {
    let unused_for = args.unused_for.map(prost_types::Duration::try_from).transpose();
    let unused_for = unused_for.map_err(|_| Failure::Usage("--unused-for is too long".into()))?;
    let request = PruneImagesRequest { unused_for, bytes_budget: args.budget, dry_run: args.dry_run };
    let pruned = session.client.images().prune(request).await.doing("image prune")?;
    session.print(&view::Pruned::from(&pruned), || view::pruned(&pruned, args.dry_run)).await;
    Ok(0)
}
