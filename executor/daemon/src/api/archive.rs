//! GetArchive and PutArchive: copy files out of a running container and into it.
//!
//! An executor process in the container reads or writes the files (the launcher's `exec/archive.rs`). This module
//! relays the archive in chunks, without buffering: a slow client delays the process, and a slow process delays the
//! client.

use std::sync::Arc;

use executor_core::protocol::{ArchiveDone, ArchiveStat};
use executor_core::validate::validate_archive;
use executor_proto::v1;
use executor_proto::v1::get_archive_response::Part as Out;
use executor_proto::v1::path_stat::Kind as PathKind;
use executor_proto::v1::put_archive_request::Part as In;
use executor_transport::wire::conversation::{Answers, Conversation, Outlet, Requests};
use prost::Message as _;
use rustix::fs::FileType;
use rustix::io::Errno;
use tokio::task::JoinSet;
use tonic::{Status, Streaming};
use zeroize::{Zeroize as _, Zeroizing};

use super::first_message;
use crate::api_error::{ApiError, Kind};
use crate::node::Node;
use crate::operations::copy::{REPORT_MAX, check_exit, failure, fill, read_report};
use crate::operations::exec::{self, CopyDirection, ExecOutcome, ExecSession, Stdio, StdioFd};

/// Chunk size of an archive, in bytes.
const CHUNK: usize = 16 << 10;

type ArchiveSender = Outlet<v1::GetArchiveResponse>;

/// Serves GetArchive: copies files out of a container.
pub(super) async fn get(
    node: &Arc<Node>,
    request: v1::GetArchiveRequest,
    conversation: &Conversation,
) -> Result<Answers<v1::GetArchiveResponse>, Status> {
    let v1::GetArchiveRequest { id, path, follow_link, stat_only } = request;
    validate_archive("path", &path, &node.config.policy).map_err(ApiError::invalid)?;
    let direction = CopyDirection::Out { follow: follow_link, stat: stat_only };
    let (session, stdio) = start(node, &id, ("path", &path), direction).await?;
    let (sender, answers) = conversation.answers();
    let node = Arc::clone(node);
    tokio::spawn(async move {
        let sent = tokio::select! {
            sent = send(&session, stdio, &sender) => sent,
            () = sender.closed() => return, // dropping the session kills the process
            () = node.until_stopping() => Err(ApiError::stopping()),
        };
        if let Err(problem) = sent {
            let _ = sender.send(Err(problem.into())).await;
        }
    });
    Ok(answers)
}

/// Starts the copy process. A missing path is reported as a violation of the path's field, which distinguishes a
/// missing path from a missing container.
async fn start(
    node: &Arc<Node>,
    id: &str,
    (field, path): (&str, &str),
    direction: CopyDirection,
) -> Result<(ExecSession, Stdio), ApiError> {
    match exec::archive(node, id, path, "", direction).await? {
        ExecOutcome::Running(session, stdio) => Ok((session, stdio)),
        ExecOutcome::Failed(v1::ExecFailure { message, errno }) => {
            let message = format!("container {id}: {message}");
            match [Errno::NOENT, Errno::NOTDIR].map(Errno::raw_os_error).contains(&errno) {
                true => Err(ApiError::not_found(field, message)),
                false => Err(ApiError::new(Kind::Precondition, message)),
            }
        }
    }
}

async fn send(session: &ExecSession, stdio: Stdio, sender: &ArchiveSender) -> Result<(), ApiError> {
    let Stdio { stdout, stderr, .. } = stdio;
    let failure = failure(stderr);
    let mut head = [0; 4];
    if fill(&stdout, &mut head).await {
        let mut reported = vec![0; (u32::from_le_bytes(head) as usize).min(REPORT_MAX)];
        if fill(&stdout, &mut reported).await {
            part(sender, Out::Stat(stat(&reported)?)).await?;
        }
    }
    let mut buffer = Zeroizing::new(vec![0; CHUNK]);
    while let Ok(length @ 1..) = stdout.read(&mut buffer).await {
        let data = buffer[..length].to_vec();
        buffer[..length].zeroize(); // the next read may take long
        part(sender, Out::Data(data)).await?;
    }
    check_exit(session.ended().await, failure).await
}

async fn part(sender: &ArchiveSender, part: Out) -> Result<(), ApiError> {
    let sent = sender.send(Ok(v1::GetArchiveResponse { part: Some(part) })).await;
    sent.map_err(|_| ApiError::new(Kind::Unavailable, "the client stopped reading the response"))
}

fn stat(reported: &[u8]) -> Result<v1::PathStat, ApiError> {
    let malformed = |error: prost::DecodeError| {
        ApiError::new(Kind::Internal, format!("malformed status from the copy process: {error}"))
    };
    let ArchiveStat { size, mode, link, mtime } = ArchiveStat::decode(reported).map_err(malformed)?;
    let kind = match FileType::from_raw_mode(mode) {
        FileType::RegularFile => PathKind::File,
        FileType::Directory => PathKind::Directory,
        FileType::Symlink => PathKind::Symlink,
        _ => PathKind::Other,
    };
    Ok(v1::PathStat {
        kind: kind.into(),
        size,
        mode: mode & 0o7777,
        link_target: String::from_utf8_lossy(&link).into_owned(),
        modified_at: Some(prost_types::Timestamp { seconds: mtime, nanos: 0 }),
    })
}

/// Serves PutArchive: copies files into a container.
pub(super) async fn put(
    node: &Arc<Node>,
    requests: Streaming<v1::PutArchiveRequest>,
    conversation: &Conversation,
) -> Result<v1::PutArchiveResponse, Status> {
    let mut requests = conversation.requests(requests);
    let first = first_message(&mut requests).await?;
    let Some(In::Start(v1::PutArchiveStart { id, path })) = first.and_then(|first| first.part) else {
        return Err(ApiError::invalid_field("start", "is not set: it must be in the first message").into());
    };
    validate_archive("start.path", &path, &node.config.policy).map_err(ApiError::invalid)?;
    let (session, Stdio { input, stdout, stderr, .. }) =
        start(node, &id, ("start.path", &path), CopyDirection::In { download: false }).await?;
    tokio::select! {
        done = unpack(&session, requests, input, stdout, failure(stderr)) => done,
        () = node.until_stopping() => Err(ApiError::stopping().into()),
    }
}

async fn unpack(
    session: &ExecSession,
    mut requests: Requests<v1::PutArchiveRequest>,
    input: Option<Arc<StdioFd>>,
    stdout: Arc<StdioFd>,
    failure: JoinSet<String>,
) -> Result<v1::PutArchiveResponse, Status> {
    let exit = tokio::select! {
        given = give(&mut requests, input) => {
            given?;
            session.ended().await
        }
        // The process may exit before the client finishes.
        exit = session.ended() => exit,
    };
    check_exit(exit, failure).await?;
    let ArchiveDone { entries, bytes } = ArchiveDone::decode(&*read_report(&stdout).await)
        .map_err(|error| ApiError::new(Kind::Internal, format!("malformed summary from the copy process: {error}")))?;
    Ok(v1::PutArchiveResponse { entries, bytes })
}

/// Passes the client's data to the process, until the data ends or the process stops reading.
async fn give(requests: &mut Requests<v1::PutArchiveRequest>, input: Option<Arc<StdioFd>>) -> Result<(), Status> {
    let Some(input) = input else {
        return Err(ApiError::new(Kind::Internal, "the process's input descriptor is missing").into());
    };
    while let Some(request) = requests.next().await? {
        match request.part {
            Some(In::Data(bytes)) => {
                let bytes = Zeroizing::new(bytes);
                if input.write_all(&bytes).await.is_err() {
                    return Ok(()); // the process has exited, and reports the reason
                }
            }
            Some(In::Start(_)) => {
                return Err(ApiError::invalid_field(
                    "start",
                    "is set a second time; only the first message may have it",
                )
                .into());
            }
            None => return Err(ApiError::invalid_field("part", "is not set").into()),
        }
    }
    Ok(())
}
