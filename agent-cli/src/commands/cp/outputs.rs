//! Fetches outputs of a completed container as a stream of files.
//!
//! If the connection is lost, all outputs are fetched again, which is safe because outputs do not change.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use executor_cli_kit::destination::{Partial, Place, Source, Tree, at, below, place};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::output::Stream;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::{self, ErrorContext as _};
use executor_cli_kit::text::plain;
use executor_cli_kit::view::quantity;
use executor_client::v1::{OutputFile, Outputs, SkippedOutput};
use executor_client::{Error, Output};
use tokio::time::Instant;

/// Delay before the first progress message.
const PROGRESS_DELAY: Duration = Duration::from_secs(2);
/// Interval of progress messages after the first.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

const NO_FILE: &str = "the output is a directory: only a single file can be written to standard output";

/// Outputs that `cp` or `run` requests.
#[derive(Debug)]
pub(crate) enum Wanted {
    Path(String),
    Declared(Outputs),
}

impl Wanted {
    /// Returns the path of a file relative to the requested outputs. Returns an empty path for the requested file
    /// itself, and `None` for a file that was not requested.
    fn relative(&self, file: &OutputFile) -> Option<PathBuf> {
        match self {
            Self::Path(path) if *path == file.path => Some(PathBuf::new()),
            Self::Path(directory) => below(directory, &file.path),
            Self::Declared(outputs) if !outputs.directory.is_empty() => below(&outputs.directory, &file.path),
            Self::Declared(outputs) if outputs.files.contains(&file.path) => {
                below(file.path.rsplit_once('/')?.0, &file.path)
            }
            Self::Declared(_) => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum To<'a> {
    Stdout,
    Path(&'a Path),
}

/// Outputs that were fetched, and outputs that were skipped.
#[derive(Debug, Default)]
pub(crate) struct Fetched {
    /// Files with their paths on this machine.
    pub(crate) files: Vec<(OutputFile, PathBuf)>,
    pub(crate) skipped: Vec<SkippedOutput>,
}

impl Fetched {
    /// Prints a line for each entry that was not captured.
    pub(crate) fn warn(&self, session: &Session) {
        for entry in &self.skipped {
            session.output.note(match &*entry.path {
                "" => format!("not captured: {}", plain(&entry.reason)),
                path => format!("not captured: {}: {}", plain(path), plain(&entry.reason)),
            });
        }
    }
}

/// Fetches outputs, across restarts of executord.
pub(crate) async fn fetch(session: &Session, id: &str, wanted: &Wanted, to: To<'_>) -> Result<Fetched, Failure> {
    let path = match wanted {
        Wanted::Path(path) => path.clone(),
        Wanted::Declared(outputs) => {
            distinct_names(outputs)?;
            String::new()
        }
    };
    let doing = format!("cp {id}:{}", plain(&path));
    let mut attempts = session.client.attempts();
    let mut progress = Progress { next: Instant::now() + PROGRESS_DELAY, talk: std::io::stderr().is_terminal() };
    loop {
        let mut sink = Sink { session, wanted, to, tree: None, current: None, left: 0, fetched: Fetched::default() };
        let error = match receive(session, (id, &path), &mut sink, &mut progress).await? {
            Ok(()) => return sink.end(),
            Err(error) => error,
        };
        // Data already written to standard output must not be repeated.
        let repeatable = matches!(to, To::Path(_)) || (sink.current.is_none() && sink.fetched.files.is_empty());
        if !repeatable {
            return Err(status::failure(&doing, error));
        }
        attempts.again(error).await.doing(&doing)?;
    }
}

/// Receives a single stream. An inner error is an error of the RPC, which may be repeated.
async fn receive(
    session: &Session,
    (id, path): (&str, &str),
    sink: &mut Sink<'_>,
    progress: &mut Progress,
) -> Result<Result<(), Error>, Failure> {
    let mut outputs = match session.client.outputs(id, path).await {
        Ok(outputs) => outputs,
        Err(error) => return Ok(Err(error)),
    };
    loop {
        match outputs.next().await {
            Err(error) => return Ok(Err(error)),
            Ok(None) => return Ok(Ok(())),
            Ok(Some(Output::File(file))) => sink.start(file)?,
            Ok(Some(Output::Data(data))) => sink.data(data).await?,
            Ok(Some(Output::Skipped(entry))) => {
                sink.finish()?;
                sink.fetched.skipped.push(entry);
            }
        }
        progress.print_fetched(session, &sink.fetched);
    }
}

/// Checks that the names of declared files are distinct, because the files keep their names.
fn distinct_names(outputs: &Outputs) -> Result<(), Failure> {
    let mut seen = std::collections::HashSet::new();
    match outputs.files.iter().filter_map(|path| path.rsplit('/').next()).find(|name| !seen.insert(*name)) {
        None => Ok(()),
        Some(name) => Err(Failure::Usage(format!(
            "two outputs are called {}: fetch them one by one, with --keep and `agent-cli cp ID:PATH DEST`",
            plain(name)
        ))),
    }
}

/// Checks outputs and destination before a run, so that an error is reported before the container is created.
pub(crate) fn check_destination(outputs: &Outputs, destination: &Path) -> Result<(), Failure> {
    distinct_names(outputs)?;
    place(Source::Everything, destination, at(destination)?)?;
    Ok(())
}

/// Receiver of a stream of outputs, which writes the files of the stream.
struct Sink<'a> {
    session: &'a Session,
    wanted: &'a Wanted,
    to: To<'a>,
    /// Destination, and true if the source is a file. Set at the first file, whose path shows whether the source is a
    /// file or a directory.
    tree: Option<(Tree, Place, bool)>,
    current: Option<(OutputFile, Option<Partial>)>,
    /// Number of bytes of the current file that have not been received.
    left: u64,
    fetched: Fetched,
}

impl Sink<'_> {
    fn start(&mut self, file: OutputFile) -> Result<(), Failure> {
        self.finish()?;
        let partial = match self.to {
            To::Path(destination) => Some(self.partial(destination, &file)?),
            To::Stdout if matches!(self.wanted, Wanted::Path(path) if *path == file.path) => None,
            To::Stdout => {
                return Err(Failure::Usage(NO_FILE.into()));
            }
        };
        self.left = file.size;
        self.current = Some((file, partial));
        Ok(())
    }

    /// Creates the unfinished file to which an output is written.
    fn partial(&mut self, destination: &Path, file: &OutputFile) -> Result<Partial, Failure> {
        let unasked = || Failure::Unasked { path: plain(&file.path) };
        let alone = matches!(self.wanted, Wanted::Path(path) if *path == file.path);
        let relative = self.wanted.relative(file).ok_or_else(unasked)?;
        let (tree, place, one_file) = self.tree(destination, alone)?;
        if *one_file != alone {
            return Err(unasked());
        }
        let path = match &place.name {
            Some(name) if relative.as_os_str().is_empty() => PathBuf::from(name),
            Some(name) => Path::new(name).join(relative),
            None => relative,
        };
        Ok(tree.file(&path, file.mode)?)
    }

    fn tree(&mut self, destination: &Path, alone: bool) -> Result<&(Tree, Place, bool), Failure> {
        if self.tree.is_none() {
            let source = match self.wanted {
                Wanted::Path(path) if alone => Source::File(path),
                Wanted::Path(path) => Source::Directory(path),
                Wanted::Declared(_) => Source::Everything,
            };
            let place = place(source, destination, at(destination)?)?;
            self.tree = Some((Tree::open(&place)?, place, alone));
        }
        self.tree.as_ref().ok_or(Failure::Unasked { path: String::new() })
    }

    async fn data(&mut self, data: Vec<u8>) -> Result<(), Failure> {
        let Some((file, partial)) = &mut self.current else {
            return Err(Failure::Unasked { path: String::new() });
        };
        self.left =
            self.left.checked_sub(data.len() as u64).ok_or_else(|| Failure::OutputSize { path: plain(&file.path) })?;
        match partial {
            Some(partial) => partial.write(&data)?,
            None => self.session.output.bytes(Stream::Out, data).await,
        }
        Ok(())
    }

    /// Finishes the file that is being written, if there is one.
    fn finish(&mut self) -> Result<(), Failure> {
        let Some((file, partial)) = self.current.take() else { return Ok(()) };
        if self.left > 0 {
            return Err(Failure::OutputSize { path: plain(&file.path) });
        }
        let shown = match partial {
            Some(partial) => {
                let shown = partial.shown().to_owned();
                partial.finish()?;
                shown
            }
            None => "-".into(),
        };
        self.fetched.files.push((file, shown));
        Ok(())
    }

    /// Finishes the stream. Creates the directory even if it has no files.
    fn end(mut self) -> Result<Fetched, Failure> {
        self.finish()?;
        let itself = |entry: &SkippedOutput| matches!(self.wanted, Wanted::Path(path) if *path == entry.path);
        if self.tree.is_none() && self.fetched.files.is_empty() && !self.fetched.skipped.iter().any(itself) {
            let To::Path(destination) = self.to else { return Err(Failure::Usage(NO_FILE.into())) };
            let (tree, place, _) = self.tree(destination, false)?;
            tree.directory(place.name.as_ref().map_or(Path::new(""), Path::new))?;
        }
        Ok(self.fetched)
    }
}

/// Prints progress messages while outputs are fetched.
struct Progress {
    next: Instant,
    talk: bool,
}

impl Progress {
    fn print_fetched(&mut self, session: &Session, fetched: &Fetched) {
        if !self.talk || Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + PROGRESS_INTERVAL;
        let bytes: u64 = fetched.files.iter().map(|(file, _)| file.size).sum();
        session.output.note(format!("fetching: {} files, {} so far", fetched.files.len(), quantity::bytes(bytes)));
    }
}
