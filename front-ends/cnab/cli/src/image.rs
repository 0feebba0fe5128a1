//! Selects the image to run, and compares its digest with the bundle (rule 27 of `docs/guides/cnab-rules.md`).
//!
//! A registry reference is pinned to the bundle's digest, so that executord verifies the digest. An image in a layout
//! or an archive is imported first. The digest that executord reports is compared with the bundle, and the image is run
//! by that digest. Images of a thick bundle are sent to executord. A root file system without a digest, such as a
//! directory, is run only if the user allows this.

use executor_cli_kit::failure::Failure;
use executor_cli_kit::images::{self, Pieces};
use executor_cli_kit::session::Session;
use executor_cli_kit::status;
use executor_client::v1::{Image, ImportHeader, PullImageRequest, PullPolicy, import_header};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::Path;

use executor_cnab::archive::{self, ArchiveError};
use executor_cnab::invocation::Invocation;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::error::CnabError;
use crate::plan::ImageChoice;
use crate::request::ImageSource;

/// Size of the messages in which an archive is sent, in bytes.
const PIECE: usize = 256 << 10;
/// Maximum number of buffered messages.
const PIECES: usize = 8;
/// Prefixes of references to images on a disk.
const ON_DISK: [&str; 3] = ["oci:", "oci-archive:", "docker-archive:"];

/// Returns the image reference and the pull policy for the request.
pub(crate) async fn reference(
    session: &Session,
    invocation: &Invocation,
    choice: &ImageChoice,
) -> Result<ImageSource, Failure> {
    let digest = invocation.content_digest.as_deref().filter(|_| !choice.ignore_digest);
    match (&choice.replacement, &choice.thick, digest) {
        (Some(reference), _, None) => use_replacement(session, reference).await,
        (Some(reference), _, Some(digest)) => use_verified_replacement(session, invocation, reference, digest).await,
        (None, Some(archive), digest) => import_thick_bundle(session, invocation, choice, archive, digest).await,
        (None, None, digest) => Ok(pull_if_missing(pinned(&invocation.image, digest)?)),
    }
}

/// Returns the reference of an image that executord pulls if it is missing.
fn pull_if_missing(reference: String) -> ImageSource {
    ImageSource { reference, policy: PullPolicy::IfMissing }
}

/// Returns the reference of an image that executord has already imported.
fn already_imported(reference: String) -> ImageSource {
    ImageSource { reference, policy: PullPolicy::Never }
}

/// Returns true for a reference to an image on a disk.
fn is_on_disk(reference: &str) -> bool {
    ON_DISK.iter().any(|scheme| reference.starts_with(scheme))
}

/// Returns the user's replacement image without verification.
async fn use_replacement(session: &Session, reference: &str) -> Result<ImageSource, Failure> {
    let sent = is_on_disk(reference) && images::send_first(session, reference).await?;
    Ok(if sent { already_imported(reference.to_owned()) } else { pull_if_missing(reference.to_owned()) })
}

/// Returns the user's replacement image if its digest is the expected digest.
async fn use_verified_replacement(
    session: &Session,
    invocation: &Invocation,
    reference: &str,
    digest: &str,
) -> Result<ImageSource, Failure> {
    if let Some(image) = reference.strip_prefix("docker://") {
        return Ok(pull_if_missing(pinned(image, Some(digest))?));
    }
    if !is_on_disk(reference) {
        return Err(CnabError::Image(format!(
            "{reference} cannot be verified against the bundle's contentDigest; --insecure-ignore-digest runs the \
             image anyway"
        ))
        .into());
    }
    verified(&pull(session, reference).await?, reference, digest)?;
    Ok(already_imported(pinned(&invocation.image, Some(digest))?))
}

/// Sends the images of a thick bundle to executord: the invocation image, and the images that the run tool may use.
async fn import_thick_bundle(
    session: &Session,
    invocation: &Invocation,
    choice: &ImageChoice,
    archive: &Path,
    digest: Option<&str>,
) -> Result<ImageSource, Failure> {
    let own = (&*invocation.image, invocation.content_digest.as_deref());
    let image = import(session, archive, own, true).await?;
    if let Some(digest) = digest {
        verified(&image, &invocation.image, digest)?;
    }
    for (reference, digest) in &choice.companions {
        let digest = digest.as_deref();
        let image = import(session, archive, (reference, digest), false).await?;
        if let Some(digest) = digest.filter(|_| !choice.ignore_digest) {
            verified(&image, reference, digest)?;
        }
    }
    Ok(already_imported(pinned(&invocation.image, digest)?))
}

/// Returns a registry reference with the required digest.
fn pinned(reference: &str, digest: Option<&str>) -> Result<String, CnabError> {
    match (digest, reference.split_once('@')) {
        (None, _) => Ok(format!("docker://{reference}")),
        (Some(digest), None) => Ok(format!("docker://{reference}@{digest}")),
        (Some(digest), Some((_, given))) if given == digest => Ok(format!("docker://{reference}")),
        (Some(digest), Some(_)) => Err(CnabError::Image(format!(
            "the digest of {reference} differs from the contentDigest of the bundle's image ({digest})"
        ))),
    }
}

/// Checks that the image's manifest, or the index that lists it, has the bundle's contentDigest.
fn verified(image: &Image, reference: &str, digest: &str) -> Result<(), CnabError> {
    if image.digest == digest || image.index_digest == digest {
        return Ok(());
    }
    Err(CnabError::Image(format!(
        "{reference} has the digest {}; the bundle's contentDigest is {digest}",
        image.digest
    )))
}

/// Makes executord read an image from the local disk, or sends the image to executord.
async fn pull(session: &Session, reference: &str) -> Result<Image, Failure> {
    let request =
        images::Pull::new(PullImageRequest { reference: reference.to_owned(), ..PullImageRequest::default() });
    images::fetch_or_send(session, &request, false).await
}

/// Sends an image of a thick bundle to executord. If `allow_sole_image` is true and the archive has only one image,
/// that image is accepted under any name.
async fn import(
    session: &Session,
    archive: &Path,
    (reference, digest): (&str, Option<&str>),
    allow_sole_image: bool,
) -> Result<Image, Failure> {
    let doing = format!("import {reference} from {}", archive.display());
    let (sender, receiver) = mpsc::channel(PIECES);
    let header = ImportHeader {
        form: import_header::Form::OciArchive.into(),
        reference: format!("docker://{reference}"),
        image: String::new(),
    };
    let (path, image, digest) = (archive.to_owned(), reference.to_owned(), digest.map(str::to_owned));
    let sent = tokio::task::spawn_blocking(move || {
        let file = File::open(&path).map_err(ArchiveError::Read)?;
        let to = BufWriter::with_capacity(PIECE, Pieces(sender));
        let selector = archive::ImageSelector { digest: digest.as_deref(), reference: &image, allow_sole_image };
        let mut to = archive::layout(BufReader::new(file), to, selector)?;
        to.flush().map_err(ArchiveError::Write)
    });
    let answer = session.client.images().import(header, ReceiverStream::new(receiver)).await;
    let sent = sent.await.unwrap_or_else(|error| Err(ArchiveError::Read(io::Error::other(error))));
    match (sent, answer) {
        // executord's error explains why it stopped reading.
        (Err(ArchiveError::Write(_)) | Ok(()), Err(error)) => Err(status::failure(&doing, error)),
        (Err(source), _) => Err(CnabError::Archive { path: archive.to_owned(), source }.into()),
        (Ok(()), Ok(image)) => Ok(image),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_27_reference_is_pinned_to_digest() {
        assert_eq!(pinned("a/b:1", None).unwrap(), "docker://a/b:1");
        assert_eq!(pinned("a/b:1", Some("sha256:1")).unwrap(), "docker://a/b:1@sha256:1");
        assert_eq!(pinned("a/b@sha256:1", Some("sha256:1")).unwrap(), "docker://a/b@sha256:1");
        assert!(pinned("a/b@sha256:2", Some("sha256:1")).unwrap_err().to_string().contains("differs from"));
        let image = Image { digest: "sha256:1".into(), index_digest: "sha256:2".into(), ..Image::default() };
        assert!(verified(&image, "x", "sha256:1").is_ok() && verified(&image, "x", "sha256:2").is_ok());
        assert!(verified(&image, "x", "sha256:3").unwrap_err().to_string().contains("contentDigest"));
    }
}
