//! Uploads output of a container to a URL. A file is sent unchanged, with its length; a directory is sent as a tar
//! archive, in pieces.

use std::fs::File;
use std::io::{self, Read as _};

use executor_core::protocol::ArchiveStat;
use executor_http::{Destinations, HttpRequest, RequestBody};
use executor_tar::{Limits, Reader, TarError};
use hyper::Method;
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use prost::Message as _;
use tokio::sync::mpsc;

use crate::job::{Failure, FailureKind, Report, Send};
use crate::pass::{Pieces, TeeReader};
use crate::remote::{self, Url, client, lists, plain, refused, reported};

/// Maximum size of the status record of a path, in bytes.
const STAT_MAX: usize = 16 << 10;
/// Size of a piece, in bytes.
const PIECE: usize = 64 << 10;
/// Maximum number of pieces that are queued for the connection.
const PIECES_MAX: usize = 4;
/// Mask of the file type in `st_mode`.
const TYPE_MASK: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;

pub(crate) fn send(send: &Send, url: &Url, mut pipe: File) -> Result<Report, Failure> {
    let stat = stat(&mut pipe)?;
    let most = send.rules.bytes_max;
    let file = match stat.mode & TYPE_MASK {
        REGULAR => true,
        DIRECTORY => false,
        _ => return Err(Failure::last("the path is neither a file nor a directory")),
    };
    if file && stat.size > most {
        return Err(Failure::last(format!("the file is {} bytes; the maximum is {most}", stat.size)));
    }
    let kind = if file { "application/octet-stream" } else { "application/x-tar" };
    let (pieces, queued) = mpsc::channel(PIECES_MAX);
    let (body, taken) = RequestBody::stream(queued, file.then_some(stat.size));
    let reading = std::thread::Builder::new().name("files".into()).spawn(move || {
        let read = if file { content(pipe, &pieces, stat.size) } else { archive(pipe, &pieces, most) };
        if let Err(error) = &read {
            // Abort the request, so that the server does not treat the upload as complete.
            let _ = pieces.blocking_send(Err(io::Error::other(error.to_string())));
        }
        read
    });
    let reading = reading.map_err(|error| Failure::last(format!("cannot start a thread: {error}")))?;
    let answer = remote::run(async {
        let lists = lists(&send.rules);
        let mut headers = vec![(CONTENT_TYPE, HeaderValue::from_static(kind))];
        headers.extend(url.authorization.clone().map(|value| (AUTHORIZATION, value)));
        let request = HttpRequest {
            method: Method::POST,
            origin: &url.origin,
            path: &url.path,
            headers,
            body,
            destinations: Destinations::Listed(&lists),
        };
        let answer = client(&send.rules).send(request, &taken).await.map_err(|error| reported(&url.origin, error))?;
        if answer.status.is_success() { Ok(()) } else { Err(refused(&url.origin, answer.status)) }
    });
    // The body was dropped with the request, so the thread cannot block.
    match (answer, reading.join()) {
        (Ok(()), Ok(Ok(()))) => Ok(Report::Sent { bytes: taken.bytes() }),
        // A server may respond before it has read the whole body. In this case, the server's response is reported.
        (Err(failure), Ok(Err(error))) if is_broken(&error) => Err(failure),
        (_, Ok(Err(error))) => Err(Failure { why: plain(&error.to_string()).to_owned(), kind: FailureKind::Pipe }),
        (Err(failure), _) => Err(failure),
        (Ok(()), Err(_)) => Err(Failure::last("the thread that reads the files panicked")),
    }
}

/// Returns true if the connection stopped accepting data.
fn is_broken(error: &TarError) -> bool {
    matches!(error, TarError::Read(error) if error.kind() == io::ErrorKind::BrokenPipe)
}

/// Reads the status record of the path.
fn stat(pipe: &mut File) -> Result<ArchiveStat, Failure> {
    // If the pipe ends early, the process in the container reports the reason.
    let ended = |error: io::Error| Failure { why: plain(&error.to_string()).to_owned(), kind: FailureKind::Pipe };
    let mut head = [0; 4];
    pipe.read_exact(&mut head).map_err(ended)?;
    let mut reported = vec![0; (u32::from_le_bytes(head) as usize).min(STAT_MAX)];
    pipe.read_exact(&mut reported).map_err(ended)?;
    ArchiveStat::decode(&*reported).map_err(|_| Failure::last("the status of the path is malformed"))
}

/// Sends the content of the only file in the archive.
fn content(pipe: File, pieces: &Pieces, size: u64) -> Result<(), TarError> {
    let mut reader = Reader::new(TeeReader::new(pipe, None, u64::MAX), Limits::default().without_total());
    let entry = reader.next_entry()?.filter(|entry| entry.is_plain_file() && entry.size == size);
    entry.ok_or_else(|| TarError::Read(io::Error::other("the file changed while it was read")))?;
    let mut buffer = vec![0; PIECE];
    while let Some((_, length)) = reader.content(&mut buffer)? {
        let piece = Bytes::copy_from_slice(&buffer[..length]);
        pieces.blocking_send(Ok(piece)).map_err(|_| TarError::Read(io::ErrorKind::BrokenPipe.into()))?;
    }
    // Read to the end, so that the process in the container gets no EPIPE.
    while reader.next_entry()?.is_some() {}
    Ok(())
}

/// Forwards an archive, and checks that it is complete.
fn archive(pipe: File, pieces: &Pieces, most: u64) -> Result<(), TarError> {
    let mut tee = TeeReader::new(pipe, Some(pieces.clone()), most);
    let mut reader = Reader::new(&mut tee, Limits::default().without_total());
    let mut buffer = vec![0; PIECE];
    while reader.next_entry()?.is_some() {
        while reader.content(&mut buffer)?.is_some() {}
    }
    drop(reader);
    tee.rest().map_err(TarError::Read)
}
