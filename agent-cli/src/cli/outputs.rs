//! Flags about outputs: what `run` declares and fetches, and `cp`.

use std::path::PathBuf;

use clap::Args;

use crate::failure::Failure;
use crate::units;

/// What a run leaves behind.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Outputs")]
pub(crate) struct OutputArgs {
    /// File that is captured when the process has ended; may be repeated
    ///
    /// Captured before the secrets are wiped, however the process ends. Symbolic links, secret files and what is no
    /// regular file never are; each is told. Needs --output-to, --keep or --detach, because outputs go with their
    /// container.
    #[arg(long, value_name = "PATH", conflicts_with = "output_dir")]
    pub(crate) output: Vec<String>,
    /// Directory that is captured with all below it
    #[arg(long, value_name = "DIR")]
    pub(crate) output_dir: Option<String>,
    /// Most bytes of all outputs: 10M, 1GiB [default: executord's outputs_bytes_max, 64 MiB]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub(crate) output_max: Option<u64>,
    /// Fetch the outputs into this directory at the end; it is made when it is not there
    ///
    /// Files of --output come under their own names, what is below --output-dir as it lies there. When it cannot be
    /// fetched, the container is kept.
    #[arg(long, value_name = "DEST")]
    pub(crate) output_to: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct CpArgs {
    /// Copy what a symbolic link at the end of the source leads to, and not the link
    #[arg(long, short = 'L')]
    pub(crate) follow_link: bool,
    /// ID:PATH or a local path; ID: for all outputs of an ended container, - for a tar archive on standard input
    #[arg(value_name = "SOURCE")]
    pub(crate) source: String,
    /// Local path or ID:PATH; - for standard output
    #[arg(value_name = "DEST")]
    pub(crate) destination: String,
}

/// What `cp` copies.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Copy {
    /// Out of a container.
    Out(CpSource, PathBuf),
    /// Into the container of this id, at this path.
    In(PathBuf, String, String),
}

/// What is copied out of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CpSource {
    /// The container.
    pub(crate) id: String,
    /// Absolute, without a slash at its end; all where there is none.
    pub(crate) path: Option<String>,
    /// The same as a path of a container that runs: `/` is its root. Empty where none was given.
    pub(crate) live: String,
    /// Of a directory what is in it: the path ended in `/.`.
    pub(crate) contents: bool,
    /// A link at its end is followed: it was asked for, or the path ended in a slash.
    pub(crate) follow: bool,
}

impl CpArgs {
    /// Reads which of the two is in a container: `ID:PATH` is, and what begins with `.` or `/` is not.
    pub(crate) fn parse(&self) -> Result<Copy, Failure> {
        let Self { follow_link, source, destination } = self;
        let usage = |text: &str| {
            let (source, destination) = (crate::text::plain(source), crate::text::plain(destination));
            Err(Failure::Usage(format!("cp {source} {destination}: {text}")))
        };
        let inside = |text: &str| {
            let (id, path) = text.split_once(':').filter(|(id, _)| !id.is_empty() && !id.contains('/'))?;
            (!id.starts_with('.')).then(|| (id.to_owned(), path.to_owned()))
        };
        match (inside(source), inside(destination)) {
            (None, None) => usage("name the container and the path: ID:PATH, or ID: for all outputs"),
            (Some(_), Some(_)) => usage("copies from or to this machine, not between containers"),
            (Some((_, path)), None) if !path.is_empty() && !path.starts_with('/') => {
                usage("the path in the container is absolute")
            }
            (None, Some((_, path))) if !path.starts_with('/') => usage("the path in the container is absolute"),
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
                Ok(Copy::Out(CpSource { id, path, live, contents, follow }, destination.into()))
            }
        }
    }
}

impl OutputArgs {
    /// The list of the interface; none where nothing is declared.
    pub(crate) fn declared(&mut self) -> Option<executor_proto::v1::Outputs> {
        let (files, directory) = (std::mem::take(&mut self.output), self.output_dir.take());
        (!files.is_empty() || directory.is_some()).then(|| executor_proto::v1::Outputs {
            files,
            directory: directory.unwrap_or_default(),
            bytes_max: self.output_max.unwrap_or(0),
        })
    }

    /// What the definitions cannot say.
    pub(crate) fn check(&self, detach: bool, keep: bool) -> Result<(), Failure> {
        let usage = |text: &str| Err(Failure::Usage(text.to_owned()));
        let declared = !self.output.is_empty() || self.output_dir.is_some();
        match (&self.output_to, declared) {
            (Some(_), false) => usage("--output-to needs --output or --output-dir, which say what is fetched"),
            (Some(to), true) if to.as_os_str() == "-" => {
                usage("--output-to is a directory; --keep and `agent-cli cp ID:PATH -` write a file to standard output")
            }
            (Some(_), true) if detach => {
                usage("--output-to and --detach exclude one another: `agent-cli cp` fetches outputs later")
            }
            (None, true) if !detach && !keep => usage(
                "--output and --output-dir need --output-to DEST (or --keep, or --detach): outputs are deleted with \
                 their container",
            ),
            (None, false) if self.output_max.is_some() => usage("--output-max needs --output or --output-dir"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_and_destinations_of_cp() {
        let parse = |source: &str, destination: &str| {
            CpArgs { follow_link: false, source: source.into(), destination: destination.into() }.parse()
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
            let expected = Copy::Out(CpSource { id, path, live, contents, follow }, ".".into());
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

    #[test]
    fn outputs_are_not_declared_to_be_lost() {
        let args = |output: &[&str], to: Option<&str>| OutputArgs {
            output: output.iter().map(|path| (*path).into()).collect(),
            output_to: to.map(PathBuf::from),
            ..OutputArgs::default()
        };
        for (args, detach, keep, fine) in [
            (args(&[], None), false, false, true),
            (args(&["/a"], Some("x")), false, false, true),
            (args(&["/a"], Some("x")), false, true, true),
            (args(&["/a"], None), true, false, true),
            (args(&["/a"], None), false, true, true),
            (args(&["/a"], None), false, false, false),
            (args(&[], Some("x")), false, false, false),
            (args(&["/a"], Some("x")), true, false, false),
            (args(&["/a"], Some("-")), false, false, false),
            (OutputArgs { output_max: Some(1), ..OutputArgs::default() }, false, false, false),
        ] {
            assert_eq!(args.check(detach, keep).is_ok(), fine, "{args:?} {detach} {keep}");
        }
    }
}
