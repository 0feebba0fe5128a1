//! GetArchive and PutArchive: files out of a container that runs and into it.
//!
//! A process of the executor's own in the container reads or writes them (the launcher's `exec/archive.rs`). What goes
//! between it and the client goes through here in pieces, each when the one before was taken: who reads slowly holds up the
//! process, and a process that writes slowly holds up its client. Nothing of it is kept.

use std::sync::Arc;

use executor_core::protocol::{ArchiveDone, ArchiveStat};
use executor_core::shortage;
use executor_core::validate::validate_archive;
use executor_proto::v1;
use executor_proto::v1::get_archive_response::Part as Out;
use executor_proto::v1::path_stat::Kind as PathKind;
use executor_proto::v1::put_archive_request::Part as In;
use prost::Message as _;
use rustix::fs::FileType;
use rustix::io::Errno;
use tokio::task::JoinSet;
use tonic::{Status, Streaming};
use zeroize::{Zeroize as _, Zeroizing};

use super::FIRST_MESSAGE;
use crate::exec::{self, Begun, End, Ends, Exit, Session, Way};
use crate::node::Node;
use crate::problem::{Kind, Problem};
use crate::wire::conversation::{Answers, Conversation, Outlet, Requests};

/// Bytes of a piece of an archive.
const CHUNK: usize = 16 << 10;
/// Longest account of a path or of what was unpacked, and of a failure.
const TOLD_MAX: usize = 16 << 10;

type Sender = Outlet<v1::GetArchiveResponse>;

/// Copies out.
pub(super) async fn get(
    node: &Arc<Node>,
    request: v1::GetArchiveRequest,
    conversation: &Conversation,
) -> Result<Answers<v1::GetArchiveResponse>, Status> {
    let v1::GetArchiveRequest { id, path, follow_link, stat_only } = request;
    validate_archive("path", &path, &node.policy).map_err(Problem::invalid)?;
    let (session, ends) = begin(node, &id, &path, Way::Out { follow: follow_link, stat: stat_only }).await?;
    let (sender, answers) = conversation.answers();
    let node = Arc::clone(node);
    tokio::spawn(async move {
        let sent = tokio::select! {
            sent = send(&session, ends, &sender) => sent,
            () = sender.closed() => return, // the process goes with the session
            () = node.until_stopping() => Err(Problem::stopping()),
        };
        if let Err(problem) = sent {
            let _ = sender.send(Err(problem.into())).await;
        }
    });
    Ok(answers)
}

/// Begins, or tells why not.
async fn begin(node: &Arc<Node>, id: &str, path: &str, way: Way) -> Result<(Session, Ends), Problem> {
    match exec::archive(node, id, path, way).await? {
        Begun::Running(session, ends) => Ok((session, ends)),
        Begun::Failed(v1::ExecFailure { message, errno }) => Err(Problem::new(
            if [Errno::NOENT, Errno::NOTDIR].map(Errno::raw_os_error).contains(&errno) {
                Kind::NotFound
            } else {
                Kind::Precondition
            },
            format!("container {id}: {message}"),
        )),
    }
}

async fn send(session: &Session, ends: Ends, sender: &Sender) -> Result<(), Problem> {
    let Ends { stdout, stderr, .. } = ends;
    let failure = failure(stderr);
    let mut head = [0; 4];
    if fill(&stdout, &mut head).await {
        let mut told = vec![0; (u32::from_le_bytes(head) as usize).min(TOLD_MAX)];
        if fill(&stdout, &mut told).await {
            part(sender, Out::Stat(stat(&told)?)).await?;
        }
    }
    let mut buffer = Zeroizing::new(vec![0; CHUNK]);
    while let Ok(length @ 1..) = stdout.read(&mut buffer).await {
        let data = buffer[..length].to_vec();
        buffer[..length].zeroize(); // it may be long until the next
        part(sender, Out::Data(data)).await?;
    }
    succeeded(session.ended().await, failure).await
}

async fn part(sender: &Sender, part: Out) -> Result<(), Problem> {
    let sent = sender.send(Ok(v1::GetArchiveResponse { part: Some(part) })).await;
    sent.map_err(|_| Problem::new(Kind::Unavailable, "the client is gone"))
}

/// Reads until a buffer is full; `false` where it ends before.
async fn fill(end: &End, buffer: &mut [u8]) -> bool {
    let mut filled = 0;
    while filled < buffer.len() {
        match end.read(&mut buffer[filled..]).await {
            Ok(length @ 1..) => filled += length,
            _ => return false,
        }
    }
    true
}

/// Reads to the end, or so much as a process may tell.
async fn all(end: &End) -> Vec<u8> {
    let (mut told, mut length) = (vec![0; TOLD_MAX], 0);
    while let Ok(more @ 1..) = end.read(&mut told[length..]).await {
        length += more;
    }
    told.truncate(length);
    told
}

fn stat(told: &[u8]) -> Result<v1::PathStat, Problem> {
    let malformed = |error: prost::DecodeError| Problem::new(Kind::Internal, format!("what was copied: {error}"));
    let ArchiveStat { size, mode, link, mtime } = ArchiveStat::decode(told).map_err(malformed)?;
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

/// Copies in.
pub(super) async fn put(
    node: &Arc<Node>,
    requests: Streaming<v1::PutArchiveRequest>,
    conversation: &Conversation,
) -> Result<v1::PutArchiveResponse, Status> {
    let mut requests = conversation.requests(requests);
    let first = tokio::time::timeout(FIRST_MESSAGE, requests.next()).await;
    let first = first.map_err(|_| Problem::new(Kind::Invalid, "no message came within 10 s"))??;
    let Some(In::Start(v1::PutArchiveStart { id, path })) = first.and_then(|first| first.part) else {
        return Err(Problem::invalid_field("start", "is not set: the first message says where to unpack").into());
    };
    validate_archive("start.path", &path, &node.policy).map_err(Problem::invalid)?;
    let (session, Ends { input, stdout, stderr, .. }) = begin(node, &id, &path, Way::In).await?;
    tokio::select! {
        done = unpack(&session, requests, input, stdout, failure(stderr)) => done,
        () = node.until_stopping() => Err(Problem::stopping().into()),
    }
}

async fn unpack(
    session: &Session,
    mut requests: Requests<v1::PutArchiveRequest>,
    input: Option<Arc<End>>,
    stdout: Arc<End>,
    failure: JoinSet<String>,
) -> Result<v1::PutArchiveResponse, Status> {
    let exit = tokio::select! {
        given = give(&mut requests, input) => {
            given?;
            session.ended().await
        }
        // It gave up, whether its client goes on or not.
        exit = session.ended() => exit,
    };
    succeeded(exit, failure).await?;
    let ArchiveDone { entries, bytes } = ArchiveDone::decode(&*all(&stdout).await)
        .map_err(|error| Problem::new(Kind::Internal, format!("what was unpacked: {error}")))?;
    Ok(v1::PutArchiveResponse { entries, bytes })
}

/// Gives the process what the client sends, to its end or until the process takes no more.
async fn give(requests: &mut Requests<v1::PutArchiveRequest>, input: Option<Arc<End>>) -> Result<(), Status> {
    let Some(input) = input else {
        return Err(Problem::new(Kind::Internal, "a process came without its input").into());
    };
    while let Some(request) = requests.next().await? {
        match request.part {
            Some(In::Data(bytes)) => {
                let bytes = Zeroizing::new(bytes);
                if input.write_all(&bytes).await.is_err() {
                    return Ok(()); // it has ended, and tells why
                }
            }
            Some(In::Start(_)) => return Err(Problem::invalid_field("start", "is there twice").into()),
            None => return Err(Problem::invalid_field("part", "is not set").into()),
        }
    }
    Ok(())
}

/// Reads what the process tells of a failure, while it goes on.
fn failure(stderr: Option<Arc<End>>) -> JoinSet<String> {
    let mut reading = JoinSet::new();
    if let Some(stderr) = stderr {
        reading.spawn(async move { String::from_utf8_lossy(&all(&stderr).await).into_owned() });
    }
    reading
}

/// What the process told, where it did not succeed.
async fn succeeded(exit: Option<Exit>, mut failure: JoinSet<String>) -> Result<(), Problem> {
    let lost = || Problem::new(Kind::Unavailable, "the process that copied was lost, and what it did ended early");
    let exit = exit.ok_or_else(lost)?;
    if exit == Ok(0) {
        return Ok(());
    }
    let words = failure.join_next().await.and_then(Result::ok).filter(|words| !words.is_empty());
    let words = words.unwrap_or_else(|| match exit {
        Ok(code) => format!("the process that copied ended with {code}"),
        Err(signal) => {
            format!("the process that copied was killed (signal {signal}): its container ended, or has no memory left")
        }
    });
    let kind = if shortage::named(&words).is_some() { Kind::Exhausted } else { Kind::Precondition };
    Err(Problem::new(kind, words))
}
