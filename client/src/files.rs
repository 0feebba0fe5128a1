//! Files of containers: outputs of a completed container, and copies from and to a running container.

use executor_proto::v1::get_archive_response::Part as Got;
use executor_proto::v1::get_outputs_response::Part;
use executor_proto::v1::put_archive_request::Part as Put;
use executor_proto::v1::{
    GetArchiveRequest, GetArchiveResponse, GetOutputsRequest, GetOutputsResponse, OutputFile, PathStat,
    PutArchiveRequest, PutArchiveResponse, PutArchiveStart, SkippedOutput,
};
use tokio_stream::{Stream, StreamExt as _};
use tonic::Streaming;

use crate::connect::Client;
use crate::error::Error;

/// Part of an [`OutputStream`].
#[derive(Clone, Debug)]
pub enum Output {
    /// Start of a file. Its content follows.
    File(OutputFile),
    /// Piece of the file's content.
    Data(Vec<u8>),
    /// File or directory that was not captured, with the reason.
    Skipped(SkippedOutput),
}

/// Stream of the files that were captured from a container, and of the paths that were skipped.
pub struct OutputStream {
    client: Client,
    stream: Streaming<GetOutputsResponse>,
}

/// Stream of a tar archive with a file or directory of a running container.
pub struct Archive {
    client: Client,
    stream: Streaming<GetArchiveResponse>,
    stat: PathStat,
}

impl Client {
    /// Fetches outputs of a completed container: a file, everything below a directory, or all outputs if `path` is
    /// empty. Outputs do not change, so all of them can be fetched again after a broken connection.
    ///
    /// # Errors
    /// Returns an error if the container is not completed or declared no such output.
    pub async fn outputs(&self, id: &str, path: &str) -> Result<OutputStream, Error> {
        let request = GetOutputsRequest { id: id.to_owned(), path: path.to_owned() };
        let stream = self.answer(self.rpc().get_outputs(request).await)?;
        Ok(OutputStream { client: self.clone(), stream })
    }

    /// Copies a file or directory out of a running container, with the permissions of the container's user.
    ///
    /// # Errors
    /// Returns an error if the container is not running or the path does not exist.
    pub async fn get_archive(&self, id: &str, path: &str, follow_link: bool) -> Result<Archive, Error> {
        self.archive(GetArchiveRequest { id: id.to_owned(), path: path.to_owned(), follow_link, stat_only: false })
            .await
    }

    /// Gets kind, size and mode of a path in a running container, following links; `None` if the path does not exist.
    ///
    /// # Errors
    /// Returns an error if the container is not running.
    pub async fn stat(&self, id: &str, path: &str) -> Result<Option<PathStat>, Error> {
        let request =
            GetArchiveRequest { id: id.to_owned(), path: path.to_owned(), follow_link: true, stat_only: true };
        match self.archive(request).await {
            Ok(archive) => Ok(Some(archive.stat)),
            Err(Error::Refused(refusal)) if refusal.is_not_found("path") => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn archive(&self, request: GetArchiveRequest) -> Result<Archive, Error> {
        let mut stream = self.answer(self.rpc().get_archive(request).await)?;
        let first = stream.message().await.map_err(|status| self.error(&status))?;
        match first.and_then(|first| first.part) {
            Some(Got::Stat(stat)) => Ok(Archive { client: self.clone(), stream, stat }),
            _ => Err(Error::Incomplete("the kind of the path")),
        }
    }

    /// Unpacks a tar archive into a directory of a running container, as the container's user. `pieces` are the
    /// archive's bytes.
    ///
    /// # Errors
    /// Returns an error if the container is not running or an entry of the archive cannot be written. No part of this
    /// entry remains.
    pub async fn put_archive(
        &self,
        id: &str,
        directory: &str,
        pieces: impl Stream<Item = Vec<u8>> + Send + 'static,
    ) -> Result<PutArchiveResponse, Error> {
        let start = Put::Start(PutArchiveStart { id: id.to_owned(), path: directory.to_owned() });
        let parts = tokio_stream::once(start).chain(pieces.map(Put::Data));
        let requests = parts.map(|part| PutArchiveRequest { part: Some(part) });
        self.answer(self.rpc().put_archive(requests).await)
    }
}

impl OutputStream {
    /// Returns the next part, or `None` at the end of the stream.
    ///
    /// # Errors
    /// Returns an error if the connection broke.
    pub async fn next(&mut self) -> Result<Option<Output>, Error> {
        loop {
            let message = self.stream.message().await.map_err(|status| self.client.error(&status))?;
            let Some(message) = message else { return Ok(None) };
            return Ok(Some(match message.part {
                Some(Part::File(file)) => Output::File(file),
                Some(Part::Data(data)) => Output::Data(data),
                Some(Part::Skipped(entry)) => Output::Skipped(entry),
                None => continue, // from a newer executord
            }));
        }
    }
}

impl Archive {
    /// Returns kind, size and mode of the path from which the archive was made.
    pub fn stat(&self) -> &PathStat {
        &self.stat
    }

    /// Returns the next piece of the archive, or `None` at the end of the archive.
    ///
    /// # Errors
    /// Returns an error if the connection broke or an entry could not be read.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        loop {
            let message = self.stream.message().await.map_err(|status| self.client.error(&status))?;
            match message.map(|message| message.part) {
                None => return Ok(None),
                Some(Some(Got::Data(data))) => return Ok(Some(data)),
                Some(_) => {} // from a newer executord
            }
        }
    }
}
