//! `cp`: copies files out of and into a running container, and outputs out of a completed container.

mod archive;
mod live;
mod outputs;

use std::path::{Path, PathBuf};

use clap::Args;
use executor_cli_kit::failure::Failure;
use executor_cli_kit::session::Session;
use executor_cli_kit::status::ErrorContext as _;
use executor_cli_kit::text::plain;
use executor_cli_kit::units;
use executor_cli_kit::view::json::to_document;
use executor_client::Code;
use executor_client::v1::{Outputs, State};

use self::live::Source;
use crate::ids;
use crate::view::json;

pub(super) use outputs::{To, Wanted, check_destination, fetch};

#[derive(Debug, Args)]
pub(crate) struct CpArgs {
    /// If the source is a symbolic link, copy its target instead of the link
    #[arg(long, short = 'L')]
    pub(crate) follow_link: bool,
    /// Maximum number of bytes to copy out of a running container, including holes and archive headers
    #[arg(long, value_name = "SIZE", default_value = "16G", value_parser = units::size)]
    pub(crate) max_size: u64,
    /// ID:PATH or a local path; ID: for all outputs of a completed container, - for a tar archive on standard input
    #[arg(value_name = "SOURCE")]
    pub(crate) source: String,
    /// Local path or ID:PATH; - for standard output
    #[arg(value_name = "DEST")]
    pub(crate) destination: String,
}

/// A copy out of or into a container.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Copy {
    Out(Source, PathBuf),
    /// Local path, container id, and path in the container.
    In(PathBuf, String, String),
}

impl CpArgs {
    /// Determines which of the two paths is in a container: `ID:PATH`, if ID contains no `/` and does not begin with
    /// `.`.
    pub(crate) fn parse(&self) -> Result<Copy, Failure> {
        let Self { follow_link, source, destination, max_size } = self;
        let usage = |text: &str| {
            let (source, destination) = (plain(source), plain(destination));
            Err(Failure::Usage(format!("cp {source} {destination}: {text}")))
        };
        let inside = |text: &str| {
            let (id, path) = text.split_once(':').filter(|(id, _)| !id.is_empty() && !id.contains('/'))?;
            (!id.starts_with('.')).then(|| (id.to_owned(), path.to_owned()))
        };
        match (inside(source), inside(destination)) {
            (None, None) => usage("name the container and the path: ID:PATH, or ID: for all outputs"),
            (Some(_), Some(_)) => {
                usage("copying between containers is not supported; one path must be on this machine")
            }
            (Some((_, path)), None) if !path.is_empty() && !path.starts_with('/') => {
                usage("the path in the container must be absolute")
            }
            (None, Some((_, path))) if !path.starts_with('/') => usage("the path in the container must be absolute"),
            (None, Some((id, path))) => Ok(Copy::In(source.into(), id, path)),
            (Some((id, path)), None) => {
                let (path, contents) = match path.strip_suffix("/.") {
                    Some(directory) => (format!("{directory}/"), true),
                    None => (path, false),
                };
                let follow = *follow_link || path.ends_with('/');
                let live = if path.is_empty() { "" } else { "/" };
                let path = Some(path.trim_end_matches('/')).filter(|path| !path.is_empty()).map(str::to_owned);
                let live = path.clone().unwrap_or_else(|| live.to_owned());
                let max_size = *max_size;
                Ok(Copy::Out(Source { id, path, live, contents, follow, max_size }, destination.into()))
            }
        }
    }
}

pub(super) async fn cp(session: &Session, args: CpArgs) -> Result<u8, Failure> {
    match args.parse()? {
        Copy::In(from, id, path) => {
            let from = live::Local { path: &from, follow: args.follow_link };
            live::put(session, from, id, &path).await
        }
        Copy::Out(source, to) => {
            let (source, to) = (&source, &*to);
            ids::with(&session.client, source.id.clone(), |id| copy_out(session, Source { id, ..source.clone() }, to))
                .await
        }
    }
}

/// Copies outputs of a completed container, or files of a running container.
async fn copy_out(session: &Session, source: Source, to: &Path) -> Result<u8, Failure> {
    let live = (!source.live.is_empty()).then(|| source.clone());
    // Standard output accepts an archive of any path, but only a single output.
    if source.path.is_none() && to.as_os_str() == "-" && live.is_some() && is_running(session, &source.id).await? {
        return live::get(session, &source, to).await;
    }
    match (copy(session, source, to).await, live) {
        (Err(failure), Some(source)) if failure.code() == Some(Code::FailedPrecondition) => {
            match is_running(session, &source.id).await? {
                true => live::get(session, &source, to).await,
                false => Err(failure),
            }
        }
        (copied, _) => copied,
    }
}

async fn is_running(session: &Session, id: &str) -> Result<bool, Failure> {
    let doing = format!("cp {id}:");
    let container = session.client.get(id).await.doing(&doing)?;
    Ok(matches!(container.state(), State::Running | State::Stopping))
}

async fn copy(session: &Session, source: Source, destination: &Path) -> Result<u8, Failure> {
    let to_stdout = destination.as_os_str() == "-";
    if to_stdout && session.json {
        return Err(Failure::Usage("--json and `-` cannot be used together: both write to standard output".into()));
    }
    let wanted = match source.path {
        Some(path) => Wanted::Path(path),
        None if to_stdout => {
            return Err(Failure::Usage(format!(
                "cp {}: `-` accepts a single file only; use ID:PATH",
                plain(&source.id)
            )));
        }
        None => Wanted::Declared(declared(session, &source.id).await?),
    };
    let to = if to_stdout { To::Stdout } else { To::Path(destination) };
    let fetched = fetch(session, &source.id, &wanted, to).await?;
    if session.json {
        session
            .output
            .text(to_document(&json::Cp::from(json::Copied::new(&source.id, &fetched.files, &fetched.skipped))))
            .await;
    }
    fetched.warn(session);
    match fetched.skipped.len() {
        0 => Ok(0),
        skipped => Err(Failure::OutputsSkipped { skipped, copied: fetched.files.len() }),
    }
}

/// Returns the outputs that a container declared. If the container declared none, executord reports an error later.
async fn declared(session: &Session, id: &str) -> Result<Outputs, Failure> {
    let doing = format!("cp {id}:");
    let container = session.client.get(id).await.doing(&doing)?;
    Ok(container.spec.and_then(|spec| spec.outputs).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_and_destinations_of_cp() {
        let parse = |source: &str, destination: &str| {
            let (source, destination) = (source.into(), destination.into());
            CpArgs { follow_link: false, max_size: 7, source, destination }.parse()
        };
        for (text, path, live, contents, follow) in [
            ("web-1:/out/a", Some("/out/a"), "/out/a", false, false),
            ("web-1:/out/a:b", Some("/out/a:b"), "/out/a:b", false, false),
            ("web-1:/out//", Some("/out"), "/out", false, true),
            ("web-1:/out/.", Some("/out"), "/out", true, true),
            ("web-1:", None, "", false, false),
            ("web-1:/", None, "/", false, true),
            ("web-1:/.", None, "/", true, true),
        ] {
            let (id, path, live) = ("web-1".to_owned(), path.map(str::to_owned), live.to_owned());
            let expected = Copy::Out(Source { id, path, live, contents, follow, max_size: 7 }, ".".into());
            assert_eq!(parse(text, ".").unwrap(), expected, "{text}");
        }
        for source in ["a", "./a:b", "/a:b", "a/b:/c", "-"] {
            let expected = Copy::In(source.into(), "web-1".into(), "/x/".into());
            assert_eq!(parse(source, "web-1:/x/").unwrap(), expected, "{source}");
        }
        let bad = [
            ("web-1", "."),
            (":/out", "."),
            ("web-1:out", "."),
            ("", "."),
            ("a:/b", "c:/d"),
            ("a", "b:c"),
            ("a", "b:"),
        ];
        for (source, destination) in bad {
            assert!(matches!(parse(source, destination), Err(Failure::Usage(_))), "{source} {destination}");
        }
    }
}
