//! Provides executord with images: requests pulls from a registry, and uploads images from this machine's disk.

mod progress;
mod send;

use std::io::IsTerminal as _;

use executor_client::v1::{self, PullImageRequest};
use executor_client::{Pulled, Wiped};

use crate::failure::Failure;
use crate::session::Session;
use crate::status::ErrorContext as _;
use crate::text::plain;

use progress::Bars;
pub use progress::short_digest;
pub use send::{OnDisk, Pieces, upload};

/// A pull request that wipes its credentials on drop.
pub type Pull = Wiped<PullImageRequest>;

/// Pulls an image. If executord cannot read an image on this machine's disk, but the caller can, uploads the image
/// instead.
pub async fn fetch_or_send(session: &Session, request: &Pull, shown: bool) -> Result<v1::Image, Failure> {
    let failure = match fetch(session, request, shown).await {
        Err(failure) => failure,
        fetched => return fetched,
    };
    match send::upload_candidate(&failure, &request.reference) {
        Some(image) => send::send(session, image, &request.reference).await,
        None => Err(failure),
    }
}

/// Uploads the image before a run, if the image is on this machine's disk and executord cannot read it. Returns true if
/// the image was uploaded.
pub async fn send_first(session: &Session, reference: &str) -> Result<bool, Failure> {
    let request = Pull::new(PullImageRequest { reference: reference.to_owned(), ..PullImageRequest::default() });
    let Err(failure) = fetch(session, &request, false).await else { return Ok(false) };
    match send::upload_candidate(&failure, reference) {
        Some(image) => send::send(session, image, reference).await.map(|_| true),
        // The run itself reports any other error.
        None => Ok(false),
    }
}

async fn fetch(session: &Session, request: &Pull, shown: bool) -> Result<v1::Image, Failure> {
    let doing = format!("pull {}", plain(&request.reference));
    let mut pull = session.client.images().pull(request).await.doing(&doing)?;
    let mut bars = shown.then(|| Bars::new(std::io::stderr().is_terminal()));
    loop {
        match pull.next().await.doing(&doing)? {
            Pulled::Progress(progress) => {
                for line in bars.as_mut().map(|bars| bars.show(&progress)).unwrap_or_default() {
                    session.output.note(line);
                }
            }
            Pulled::Image(image) => return Ok(image),
        }
    }
}

/// Pulls the image before a run, if it is missing or `always` is set, so that the user sees the progress.
pub async fn fetch_first(session: &Session, request: PullImageRequest, always: bool) -> Result<(), Failure> {
    if session.json || !std::io::stderr().is_terminal() {
        return Ok(()); // executord pulls the image with the run
    }
    let request = Pull::new(request);
    if !always && session.client.images().inspect(&request.reference).await.is_ok() {
        return Ok(());
    }
    fetch(session, &request, true).await.map(drop)
}

/// Prints warnings about skipped parts of an image. With `--json`, the document contains them instead.
pub fn warn(session: &Session, image: &v1::Image) {
    if !session.json {
        for warning in &image.warnings {
            session.output.note(format!("warning: {}", plain(warning)));
        }
    }
}
