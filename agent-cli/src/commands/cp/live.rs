//! `cp` out of and into a running container.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use executor_cli_kit::destination::{self, at, place};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::output::Stream;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::text::plain;
use executor_cli_kit::view::json::to_document;
use executor_client::v1::PathStat;
use executor_client::v1::path_stat::Kind;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::archive::{self, Pieces, Tally};
use crate::ids;
use crate::view::json;

/// Maximum number of queued pieces.
const DEPTH: usize = 4;
/// Time limit for removing incomplete files.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(2);

/// Source of a copy out of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) id: String,
    /// Absolute path without a trailing slash; `None` for all outputs.
    pub(crate) path: Option<String>,
    /// The path in a running container, `/` for its root. Empty if no path was given.
    pub(crate) live: String,
    /// True if only the contents of the directory are copied, because the path ended in `/.`.
    pub(crate) contents: bool,
    /// True if a link at the end of the path is followed, because of --follow-link or because the path ended in a
    /// slash.
    pub(crate) follow: bool,
    /// Maximum size of the archive, in bytes.
    pub(crate) max_size: u64,
}

impl Source {
    /// Counts received bytes, because the container determines the size of the archive.
    ///
    /// # Errors
    /// Returns [`Failure::CopyTooLarge`] if the total exceeds the maximum size.
    fn count(&self, total: &mut u64, piece: &[u8]) -> Result<(), Failure> {
        *total += piece.len() as u64;
        let path = || format!("cp {}:{}", self.id, plain(&self.live));
        if *total > self.max_size { Err(Failure::CopyTooLarge { path: path(), max: self.max_size }) } else { Ok(()) }
    }
}

/// A local file or directory to copy into a container.
#[derive(Clone, Copy)]
pub(super) struct Local<'a> {
    /// Path on this machine; `-` is standard input.
    pub(super) path: &'a Path,
    /// True if a link is followed.
    pub(super) follow: bool,
}

/// Copies a file or directory out of a running container.
pub(super) async fn get(session: &Session, source: &Source, to: &Path) -> Result<u8, Failure> {
    let Source { id, live, contents, follow, .. } = source;
    let to_stdout = to.as_os_str() == "-";
    if to_stdout && std::io::stdout().is_terminal() {
        return Err(Failure::Usage(
            "standard output is a terminal; redirect the archive to a file, or pipe it to tar".into(),
        ));
    }
    let doing = format!("cp {id}:{}", plain(live));
    let mut archive = session.client.get_archive(id, live, *follow).await.doing(&doing)?;
    let mut total = 0;
    if to_stdout {
        while let Some(data) = archive.next().await.doing(&doing)? {
            source.count(&mut total, &data)?;
            session.output.bytes(Stream::Out, data).await;
        }
        return Ok(0);
    }
    let directory = archive.stat().kind() == Kind::Directory;
    let what = match (directory, *contents || live == "/") {
        (true, true) => destination::Source::Everything,
        (true, false) => destination::Source::Directory(live),
        (false, _) => destination::Source::File(live),
    };
    let place = place(what, to, at(to)?)?;
    let (sender, receiver) = mpsc::channel(DEPTH);
    let (alive, ended) = std::sync::mpsc::channel::<()>();
    let unpacking = tokio::task::spawn_blocking(move || {
        let _alive = alive;
        archive::unpack(Pieces::new(receiver), &place)
    });
    let mut feed = Feed { sender: Some(sender), ended };
    let received = async {
        while let Some(data) = archive.next().await.doing(&doing)? {
            source.count(&mut total, &data)?;
            if let Some(sender) = &feed.sender
                && sender.send(data).await.is_err()
            {
                break; // the thread failed; its result has the reason
            }
        }
        Ok(())
    };
    let received: Result<(), Failure> = received.await;
    feed.sender = None;
    let unpacked = unpacking.await.map_err(|error| Failure::System(std::io::Error::other(error)))?;
    if let Err(error) = received {
        // The unpacking fails because the archive is truncated, so return the error that caused the truncation.
        unpacked.iter().for_each(|tally| note(session, tally));
        return Err(error);
    }
    print_result(session, id, live, &unpacked?).await
}

/// Sends pieces to an unpacking thread. On drop, ends the thread's input and waits until the thread has removed its
/// unfinished file, because an interrupted program exits next.
struct Feed {
    sender: Option<mpsc::Sender<Vec<u8>>>,
    ended: std::sync::mpsc::Receiver<()>,
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.sender = None;
        let _ = self.ended.recv_timeout(CLEANUP_TIMEOUT); // nothing is sent: returns when the thread exits
    }
}

/// Prints a line for each entry that was not copied.
fn note(session: &Session, tally: &Tally) {
    for line in &tally.left_out {
        session.output.note(format!("not copied: {line}"));
    }
    if tally.more > 0 {
        session.output.note(format!("not copied: {} more", tally.more));
    }
}

/// Reports the numbers of copied and skipped entries. Returns the exit status.
async fn print_result(session: &Session, id: &str, path: &str, tally: &Tally) -> Result<u8, Failure> {
    if session.json {
        let copied = json::Archived { id: id.into(), path: path.into(), entries: tally.entries, bytes: tally.bytes };
        session.output.text(to_document(&json::Cp::Archive(copied))).await;
    }
    note(session, tally);
    match tally.left_out.len() + usize::try_from(tally.more).unwrap_or(usize::MAX) {
        0 => Ok(0),
        left_out => Err(Failure::LeftOut { left_out, copied: tally.entries }),
    }
}

/// Copies a file or directory into a running container.
pub(super) async fn put(session: &Session, from: Local<'_>, id: String, path: &str) -> Result<u8, Failure> {
    let standard_input = from.path.as_os_str() == "-";
    // Only this first call accepts a prefix of the id; later calls use the complete id.
    let (id, there) =
        ids::with(&session.client, id, |id| async move { Ok((id.clone(), stat(session, &id, path).await?)) }).await?;
    let doing = format!("cp {}:{}", plain(&id), plain(path));
    let (directory, name) = match standard_input {
        true => (path.to_owned(), None),
        false => target(from, path, there.as_ref())?,
    };
    let (sender, receiver) = mpsc::channel(DEPTH);
    let (source, follow) =
        (from.path.to_owned(), from.follow || from.path.as_os_str().as_encoded_bytes().ends_with(b"/"));
    let packing = tokio::task::spawn_blocking(move || match standard_input {
        true => archive::forward(std::io::stdin().lock(), &sender).map(|()| Tally::default()),
        false => archive::pack(&source, follow, name.as_deref(), sender),
    });
    let answer = session.client.put_archive(&id, &directory, ReceiverStream::new(receiver)).await;
    let answer = match answer.doing(&doing) {
        Err(failure) if standard_input => return Err(failure), // do not wait for more standard input
        answer => answer,
    };
    // An unreadable local file truncates the archive, so report the error of the file first.
    let packed = packing.await.map_err(|error| Failure::System(std::io::Error::other(error)))??;
    let answer = answer?;
    print_result(session, &id, path, &Tally { entries: answer.entries, bytes: answer.bytes, ..packed }).await
}

/// Returns the type and size of a path in a container; `None` if it does not exist.
async fn stat(session: &Session, id: &str, path: &str) -> Result<Option<PathStat>, Failure> {
    let doing = format!("cp {}:{}", plain(id), plain(path));
    session.client.stat(id, path).await.doing(&doing)
}

/// Returns the directory to unpack in, and the name of the copy in it, by the rules of cp. The name is `None` if only
/// the contents of the source are copied.
fn target(from: Local<'_>, path: &str, there: Option<&PathStat>) -> Result<(String, Option<PathBuf>), Failure> {
    let shown = plain(&from.path.display().to_string());
    let refused = |why: &str| Err(Failure::Usage(format!("cp {shown} to {}: {why}", plain(path))));
    let bytes = from.path.as_os_str().as_encoded_bytes();
    let follow = from.follow || bytes.ends_with(b"/");
    let meta = if follow { std::fs::metadata(from.path) } else { std::fs::symlink_metadata(from.path) };
    let meta = meta.map_err(|source| Failure::Unread { path: from.path.to_owned(), source })?;
    // `.` and `..` are not names for the copy: only their contents are copied.
    let contents = bytes.ends_with(b"/.") || from.path.file_name().is_none();
    let own = from.path.file_name().filter(|_| !bytes.ends_with(b"/.")).map(PathBuf::from);
    let trimmed = path.trim_end_matches('/');
    let named = || {
        let (parent, name) = trimmed.rsplit_once('/').unwrap_or(("", trimmed));
        (if parent.is_empty() { "/".to_owned() } else { parent.to_owned() }, Some(PathBuf::from(name)))
    };
    match (meta.is_dir(), there.map(PathStat::kind)) {
        (true, Some(Kind::Directory)) if contents => Ok((path.to_owned(), None)),
        (_, Some(Kind::Directory)) => Ok((path.to_owned(), own)),
        (true, Some(_)) => refused("the destination exists and is not a directory"),
        (true, None) => Ok(named()),
        (false, _) if path.ends_with('/') => refused("the destination is not an existing directory"),
        (false, _) => Ok(named()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cp_destination_in_container_follows_rules() {
        let home = tempfile::tempdir().unwrap();
        let (file, directory) = (home.path().join("f"), home.path().join("d"));
        std::fs::write(&file, "").unwrap();
        std::fs::create_dir(&directory).unwrap();
        let at = |kind: Kind| Some(PathStat { kind: kind.into(), ..PathStat::default() });
        let contents = directory.join(".");
        let named = |directory: &str, name: &str| Some((directory.to_owned(), Some(PathBuf::from(name))));
        let table = [
            (&file, "/x", at(Kind::Directory), named("/x", "f")),
            (&file, "/x", at(Kind::File), named("/", "x")),
            (&file, "/y/x", None, named("/y", "x")),
            (&file, "/x/", None, None),
            (&directory, "/x/", at(Kind::Directory), named("/x/", "d")),
            (&directory, "/y/x/", None, named("/y", "x")),
            (&directory, "/x", at(Kind::File), None),
            (&contents, "/x", at(Kind::Directory), Some(("/x".into(), None))),
            (&contents, "/x", None, named("/", "x")),
        ];
        for (path, to, there, expected) in table {
            let found = target(Local { path, follow: false }, to, there.as_ref());
            assert_eq!(found.ok(), expected, "{path:?} to {to} ({there:?})");
        }
    }
}
