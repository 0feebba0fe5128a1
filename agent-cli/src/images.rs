//! Images on their way to executord: fetched from a registry, or sent from this machine's disk.

mod send;

use std::io::IsTerminal as _;
use std::ops::Deref;

use executor_proto::v1::images_client::ImagesClient;
use executor_proto::v1::pull_image_response::News;
use executor_proto::v1::{self, InspectImageRequest, PullImageRequest};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::failure::Failure;
use crate::registry::wipe;
use crate::session::Session;
use crate::text::plain;
use crate::view::images::Bars;

pub use send::{OnDisk, Pieces, upload};

/// A request for an image that wipes its credentials when it is dropped.
pub struct Pull(pub Box<PullImageRequest>);

impl Deref for Pull {
    type Target = PullImageRequest;

    fn deref(&self) -> &PullImageRequest {
        &self.0
    }
}

impl Drop for Pull {
    fn drop(&mut self) {
        self.0.credentials.iter_mut().for_each(wipe);
    }
}

/// Returns the service of images.
pub fn client(session: &Session) -> ImagesClient<Channel> {
    ImagesClient::new(session.client.channel()).max_decoding_message_size(usize::MAX)
}

/// The image of an answer.
pub fn expected(image: Option<v1::Image>, doing: &str) -> Result<v1::Image, Failure> {
    image.ok_or_else(|| Failure::Refused {
        code: Code::Internal,
        message: format!("{doing}: executord's answer lacks the image"),
    })
}

/// Fetches an image; one of this machine's disk that executord cannot read, and the caller can, is sent.
pub async fn fetch_or_send(session: &Session, request: &PullImageRequest, shown: bool) -> Result<v1::Image, Failure> {
    let failure = match fetch(session, request, shown).await {
        Err(failure) => failure,
        fetched => return fetched,
    };
    match send::instead_of(&failure, &request.reference) {
        Some(image) => send::send(session, image, &request.reference).await,
        None => Err(failure),
    }
}

/// Sends the image of a run before it, where it lies on this machine's disk and executord cannot read it; tells whether it did.
pub async fn send_first(session: &Session, reference: &str) -> Result<bool, Failure> {
    let request = PullImageRequest { reference: reference.to_owned(), ..PullImageRequest::default() };
    let Err(failure) = fetch(session, &request, false).await else { return Ok(false) };
    match send::instead_of(&failure, reference) {
        Some(image) => send::send(session, image, reference).await.map(|_| true),
        // Whatever else it is, the run itself meets it, too.
        None => Ok(false),
    }
}

async fn fetch(session: &Session, request: &PullImageRequest, shown: bool) -> Result<v1::Image, Failure> {
    let doing = format!("pull {}", plain(&request.reference));
    let failed = |status: &Status| session.client.failure(&doing, status);
    let answer = client(session).pull(request.clone()).await.map_err(|status| failed(&status))?;
    let mut news = answer.into_inner();
    let mut bars = shown.then(|| Bars::new(std::io::stderr().is_terminal()));
    while let Some(message) = news.message().await.map_err(|status| failed(&status))? {
        match message.news {
            Some(News::Progress(progress)) => {
                for line in bars.as_mut().map(|bars| bars.show(&progress)).unwrap_or_default() {
                    session.output.note(line);
                }
            }
            Some(News::Image(image)) => {
                return Ok(image);
            }
            None => {} // of a newer executord
        }
    }
    expected(None, &doing)
}

/// Fetches the image of a run before it, where it is not there or wanted anew: for a person, who sees how far it is.
pub async fn fetch_first(session: &Session, request: PullImageRequest, always: bool) -> Result<(), Failure> {
    if session.json || !std::io::stderr().is_terminal() {
        return Ok(()); // executord does it with the run
    }
    let request = Pull(Box::new(request));
    let known = InspectImageRequest { image: request.reference.clone() };
    if !always && client(session).inspect(known).await.is_ok() {
        return Ok(());
    }
    fetch(session, &request, true).await.map(drop)
}

/// Tells what was left out of an image; a document has it itself.
pub fn warn(session: &Session, image: &v1::Image) {
    if !session.json {
        for warning in &image.warnings {
            session.output.note(format!("warning: {}", plain(warning)));
        }
    }
}
