//! Downloads blobs: verifies them incrementally, limits them to the declared size, and resumes after interruptions.

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use executor_core::backoff::Backoff;
use executor_core::image::Digest;
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::CONTENT_RANGE;

use super::Registry;
use crate::blocking::blocking;
use crate::error::ImageError;
use crate::hash::Hasher;
use crate::store::ingest::Partial;
use executor_http::{Answer, BodyError};

/// Number of bytes per write and hash step.
const BATCH: usize = 256 << 10;
/// Number of attempts without progress after which the error is returned.
const ATTEMPTS: u32 = 3;
/// Maximum number of attempts to fetch a blob, with or without progress.
const ATTEMPTS_TOTAL_MAX: u32 = 50;
/// Pauses between attempts to fetch a blob.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(300), Duration::from_secs(10));

/// Digest and size of a blob, as declared in its manifest.
#[derive(Clone, Debug)]
pub(crate) struct BlobRequest {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    /// Description for error messages, such as `layer sha256:... of docker://...`.
    pub(crate) what: String,
}

/// A file to which a blob is written, with its current length.
struct Writing {
    file: File,
    hasher: Hasher,
    written: u64,
    path: PathBuf,
}

impl Writing {
    fn start(partial: &Partial, wanted: &BlobRequest) -> Result<Self, ImageError> {
        let file = partial.open()?;
        let path = partial.path().to_owned();
        let mut writing = Self { file, hasher: Hasher::new(wanted.digest.algorithm()), written: 0, path };
        writing.resume(wanted.size)?;
        Ok(writing)
    }

    /// Hashes the bytes that the file already has, so that the download continues after these bytes.
    fn resume(&mut self, size: u64) -> Result<(), ImageError> {
        let io = |error| ImageError::io("read", &self.path, error);
        if self.file.metadata().map_err(io)?.len() > size {
            return self.restart();
        }
        let mut buffer = vec![0; BATCH];
        loop {
            match std::io::Read::read(&mut self.file, &mut buffer).map_err(io)? {
                0 => return Ok(()),
                n => {
                    self.hasher.update(&buffer[..n]);
                    self.written += n as u64;
                }
            }
        }
    }

    fn restart(&mut self) -> Result<(), ImageError> {
        let algorithm = match self.hasher {
            Hasher::Sha256(_) => executor_core::image::Algorithm::Sha256,
            Hasher::Sha512(_) => executor_core::image::Algorithm::Sha512,
        };
        let io = |error| ImageError::io("write", &self.path, error);
        self.file.set_len(0).map_err(io)?;
        self.file.seek(SeekFrom::Start(0)).map_err(io)?;
        (self.hasher, self.written) = (Hasher::new(algorithm), 0);
        Ok(())
    }

    fn write(&mut self, pieces: &[Bytes]) -> Result<(), ImageError> {
        for piece in pieces {
            self.file.write_all(piece).map_err(|error| ImageError::io("write", &self.path, error))?;
            self.hasher.update(piece);
            self.written += piece.len() as u64;
        }
        Ok(())
    }
}

impl Registry {
    /// Fetches a blob into a file of the store and rewinds the file. Bytes from an earlier attempt are not fetched
    /// again. `progress` is called with the number of received bytes.
    pub(crate) async fn blob(
        &self,
        request: &BlobRequest,
        partial: &Arc<Partial>,
        progress: impl Fn(u64),
    ) -> Result<File, ImageError> {
        let (begun, asked) = (Arc::clone(partial), request.clone());
        let mut writing = blocking(move || Writing::start(&begun, &asked)).await?;
        let mut resumed = writing.written > 0;
        loop {
            progress(writing.written);
            writing = self
                .fetch_rest(request, writing, &progress)
                .await
                .inspect_err(|error| keep_or_remove(partial, error))?;
            let (algorithm, done) = (request.digest.algorithm(), &mut writing);
            let got = std::mem::replace(&mut done.hasher, Hasher::new(algorithm)).finish();
            if got == request.digest {
                let io = |error| ImageError::io("read", partial.path(), error);
                done.file.seek(SeekFrom::Start(0)).map_err(io)?;
                return Ok(writing.file);
            }
            if !resumed {
                partial.remove();
                let (what, declared) = (request.what.clone(), request.digest.clone());
                return Err(ImageError::WrongDigest { what, declared, got });
            }
            // Bytes of an earlier attempt may have caused the wrong digest, so try once from the start.
            resumed = false;
            writing.restart()?;
        }
    }

    /// Fetches until the file has the blob's size.
    async fn fetch_rest(
        &self,
        wanted: &BlobRequest,
        mut writing: Writing,
        progress: &impl Fn(u64),
    ) -> Result<Writing, ImageError> {
        let (mut attempts, mut in_all, mut backoff) = (0, 0, BACKOFF);
        while writing.written < wanted.size {
            let before = writing.written;
            let failure;
            (writing, failure) = self.fetch_part(wanted, writing, progress).await?;
            let Some(failure) = failure else { continue };
            if writing.written > before {
                attempts = 0;
                backoff.reset();
            }
            (attempts, in_all) = (attempts + 1, in_all + 1);
            if !failure.is_transient() || attempts >= ATTEMPTS || in_all >= ATTEMPTS_TOTAL_MAX {
                return Err(failure);
            }
            tokio::time::sleep(backoff.pause()).await;
        }
        Ok(writing)
    }

    /// Makes one request for the missing part. Returns the file, and an error if the file is still incomplete. Disk
    /// errors abort the download.
    async fn fetch_part(
        &self,
        wanted: &BlobRequest,
        mut writing: Writing,
        progress: &impl Fn(u64),
    ) -> Result<(Writing, Option<ImageError>), ImageError> {
        let from = (writing.written > 0).then_some(writing.written);
        let path = self.blob_path(&wanted.digest.to_string());
        let (mut answer, origin) = match self.get(&path, "*/*", from, &wanted.what).await {
            Ok(both) => both,
            Err(error) => return Ok((writing, Some(error))),
        };
        if from.is_some() && !continues(&answer, writing.written) {
            let whole = answer.status == StatusCode::OK;
            writing = blocking(move || writing.restart().map(|()| writing)).await?;
            if !whole {
                return Ok((writing, Some(self.broken(wanted, &origin))));
            }
        } else if from.is_none() && answer.status != StatusCode::OK {
            return Ok((writing, Some(self.broken(wanted, &origin))));
        }
        loop {
            let (mut pieces, mut bytes) = (Vec::new(), 0);
            let end = loop {
                match answer.body.next().await {
                    Ok(Some(piece)) => {
                        bytes += piece.len();
                        pieces.push(piece);
                        if writing.written + bytes as u64 > wanted.size {
                            break Some(ImageError::Longer { what: wanted.what.clone(), declared: wanted.size });
                        }
                        if bytes >= BATCH {
                            break None;
                        }
                    }
                    Ok(None) | Err(BodyError::Ended) => {
                        let (what, got) = (wanted.what.clone(), writing.written + bytes as u64);
                        break Some(ImageError::Truncated { what, declared: wanted.size, got });
                    }
                    Err(BodyError::Slow { bytes, within }) => {
                        break Some(self.slow(&wanted.what, &origin, bytes, within));
                    }
                }
            };
            if matches!(end, Some(ImageError::Longer { .. })) {
                return Ok((writing, end));
            }
            writing = blocking(move || writing.write(&pieces).map(|()| writing)).await?;
            progress(writing.written);
            match end {
                Some(ImageError::Truncated { got, declared, .. }) if got == declared => return Ok((writing, None)),
                Some(end) => return Ok((writing, Some(end))),
                None => {}
            }
        }
    }

    fn broken(&self, wanted: &BlobRequest, origin: &executor_http::Origin) -> ImageError {
        let why = "the response has a different byte range than requested".to_owned();
        ImageError::Connection { what: wanted.what.clone(), origin: origin.to_string(), why }
    }
}

/// Returns true if a response continues at offset `at`, the end of the file.
fn continues(answer: &Answer, at: u64) -> bool {
    let range = answer.headers.get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    let begins = range.and_then(|range| range.strip_prefix("bytes ")).and_then(|range| range.split('-').next());
    answer.status == StatusCode::PARTIAL_CONTENT && begins.and_then(|begin| begin.parse().ok()) == Some(at)
}

/// Removes a partial blob if it is too long or the disk is full; otherwise keeps it for resuming.
fn keep_or_remove(partial: &Partial, error: &ImageError) {
    if matches!(error, ImageError::Longer { .. } | ImageError::NoSpace { .. }) {
        partial.remove();
    }
}
