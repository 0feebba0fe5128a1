//! `system df`: shows the disk usage of images and completed containers.

use clap::Subcommand;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_client::ListFilter;

use crate::view::disk::DiskOverview;

#[derive(Debug, Subcommand)]
pub(crate) enum SystemCommand {
    /// Show the disk usage of images and completed containers
    ///
    /// The size of an image is the size of its blobs in a registry; unpacked layers need more space, and the line about
    /// the image store shows the actual usage. RECLAIMABLE is the size that `image prune --unused-for` (images) or
    /// `container prune` (containers) can free.
    Df,
}

pub(super) async fn system(session: &Session, command: SystemCommand) -> Result<u8, Failure> {
    let SystemCommand::Df = command;
    let doing = "system df";
    let images = session.client.images().list().await.doing(doing)?;
    let containers = session.client.list(&ListFilter::default()).await.doing(doing)?;
    let info = session.client.info().await.doing(doing)?;
    let store = session.client.images().store_usage().await.doing(doing)?;
    let usage = DiskOverview::new(&images, &containers, &info, &store);
    session.print(&usage, || usage.table(session.style)).await;
    Ok(0)
}
