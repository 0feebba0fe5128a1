//! Where the content of a secret file comes from: `--file PATH=@FILE`, `PATH=@-`, `PATH=@env:VAR`.
//!
//! The content itself can never stand on the command line: `ps` shows it to every user of the machine, and
//! shells remember it. So nothing here repeats what follows the `=` when it is not a source. Content is read
//! into buffers that are wiped when they are dropped, also those a growing buffer leaves behind; it is bounded
//! before the daemon's own limit is known.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use zeroize::Zeroizing;

/// Most bytes of all files together. The daemon's limit is lower; this one only keeps `@/dev/zero` from
/// filling the memory.
pub(crate) const TOTAL_MAX: usize = 64 << 20;

/// Smallest buffer for what does not tell its size.
const FIRST_BUFFER: usize = 8 << 10;

/// One `--file` argument.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FileArgument {
    /// In the container.
    pub(crate) path: String,
    pub(crate) source: Source,
}

/// Where content comes from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Source {
    File(PathBuf),
    Stdin,
    Environment(String),
}

/// What is wrong with a `--file` argument, or with what it names.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SourceError {
    #[error(
        "--file {path}=...: the value itself cannot be given, because everyone on this machine can read a command line; \
         use --file {path}=@FILE, {path}=@- (standard input) or {path}=@env:VARIABLE"
    )]
    ValueGiven { path: String },
    #[error("--file takes PATH=@FILE, PATH=@- (standard input) or PATH=@env:VARIABLE")]
    Shape,
    #[error("--file {path}=@{what}: {what} names no {kind}")]
    Empty { path: String, what: &'static str, kind: &'static str },
    #[error("--file {second}=@-: standard input is already the content of {first}; it can be read once")]
    StdinTwice { first: String, second: String },
    #[error("--file {path}=@env:{variable}: the environment has no {variable}")]
    NoVariable { path: String, variable: String },
    #[error("--file {path}: cannot read {}", .source_name)]
    Read { path: String, source_name: String, source: io::Error },
    #[error(
        "--file {path}: {source_name} {size}; all files together may have at most {TOTAL_MAX} bytes here, \
         and executord allows less (1,000,000 by default)"
    )]
    TooLarge { path: String, source_name: String, size: String },
}

impl FileArgument {
    /// Splits `PATH=@SOURCE`. A `=` in PATH is possible, because every source begins with `@`.
    pub(crate) fn parse(text: &str) -> Result<Self, SourceError> {
        let Some((path, source)) = text.split_once("=@") else {
            return Err(match text.split_once('=') {
                Some((path, _)) if !path.is_empty() => SourceError::ValueGiven { path: path.to_owned() },
                _ => SourceError::Shape,
            });
        };
        if path.is_empty() {
            return Err(SourceError::Shape);
        }
        let empty = |what, kind| SourceError::Empty { path: path.to_owned(), what, kind };
        let source = match source.strip_prefix("env:") {
            Some("") => return Err(empty("env:", "variable")),
            Some(variable) => Source::Environment(variable.to_owned()),
            None if source == "-" => Source::Stdin,
            None if source.is_empty() => return Err(empty("", "file")),
            None => Source::File(source.into()),
        };
        Ok(Self { path: path.to_owned(), source })
    }
}

impl Source {
    fn name(&self) -> String {
        match self {
            Self::File(file) => file.display().to_string(),
            Self::Stdin => "standard input".into(),
            Self::Environment(variable) => format!("${variable}"),
        }
    }
}

/// A file's path in the container and its content.
pub(crate) type Content = (String, Zeroizing<Vec<u8>>);

/// Reads every source, in order.
///
/// `stdin` and `variable` are the caller's, so that this can be tested without touching the process's own.
pub(crate) fn read_all(
    arguments: Vec<FileArgument>,
    stdin: &mut dyn Read,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Vec<Content>, SourceError> {
    let mut first_stdin: Option<String> = None;
    for argument in arguments.iter().filter(|argument| argument.source == Source::Stdin) {
        if let Some(first) = first_stdin {
            return Err(SourceError::StdinTwice { first, second: argument.path.clone() });
        }
        first_stdin = Some(argument.path.clone());
    }
    let mut left = TOTAL_MAX;
    let mut contents = Vec::with_capacity(arguments.len());
    for FileArgument { path, source } in arguments {
        let content = read_one(&path, &source, left, stdin, variable)?;
        left -= content.len();
        contents.push((path, content));
    }
    Ok(contents)
}

fn read_one(
    path: &str,
    source: &Source,
    left: usize,
    stdin: &mut dyn Read,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Zeroizing<Vec<u8>>, SourceError> {
    let too_large = |size: Option<u64>| SourceError::TooLarge {
        path: path.to_owned(),
        source_name: source.name(),
        size: size.map_or_else(|| format!("has more than {left} bytes"), |size| format!("has {size} bytes")),
    };
    let failed =
        |error: io::Error| SourceError::Read { path: path.to_owned(), source_name: source.name(), source: error };
    match source {
        Source::Environment(name) => {
            let value = variable(name)
                .ok_or_else(|| SourceError::NoVariable { path: path.to_owned(), variable: name.clone() })?;
            let value = Zeroizing::new(value.into_encoded_bytes());
            if value.len() > left { Err(too_large(Some(value.len() as u64))) } else { Ok(value) }
        }
        Source::Stdin => bounded(stdin, 0, left).map_err(failed)?.ok_or_else(|| too_large(None)),
        Source::File(name) => {
            let mut file = File::open(name).map_err(failed)?;
            let metadata = file.metadata().map_err(failed)?;
            let known = metadata.is_file().then_some(metadata.len());
            if known.is_some_and(|size| size > left as u64) {
                return Err(too_large(known));
            }
            let expected = known.and_then(|size| usize::try_from(size).ok()).unwrap_or(0);
            bounded(&mut file, expected, left).map_err(failed)?.ok_or_else(|| too_large(None))
        }
    }
}

/// Reads to the end; `None` when there is more than `limit`. A buffer that became too small is wiped.
fn bounded(reader: &mut dyn Read, expected: usize, limit: usize) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    // One byte more than expected: the read that tells the end needs room, or the buffer would grow for it.
    let mut buffer = Zeroizing::new(vec![0; if expected == 0 { FIRST_BUFFER } else { expected + 1 }]);
    let mut filled = 0;
    loop {
        if filled == buffer.len() {
            let mut larger = Zeroizing::new(vec![0; buffer.len() * 2]);
            larger[..filled].copy_from_slice(&buffer);
            buffer = larger;
        }
        match reader.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if filled > limit {
            return Ok(None);
        }
    }
    buffer.truncate(filled);
    Ok(Some(buffer))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CANARY: &str = "canary-77c1";

    fn parsed(text: &str) -> FileArgument {
        FileArgument::parse(text).unwrap()
    }

    fn read(arguments: &[&str], stdin: &[u8]) -> Result<Vec<Content>, SourceError> {
        let variable = |name: &str| (name == "TOKEN").then(|| OsString::from(CANARY));
        read_all(arguments.iter().map(|text| parsed(text)).collect(), &mut { stdin }, &variable)
    }

    #[test]
    fn the_three_sources() {
        let table = [
            ("db/password=@/tmp/pw", "db/password", Source::File("/tmp/pw".into())),
            ("a=b=@c=@d", "a=b", Source::File("c=@d".into())),
            ("/abs/x=@-", "/abs/x", Source::Stdin),
            ("x=@./-", "x", Source::File("./-".into())),
            ("x=@env:TOKEN", "x", Source::Environment("TOKEN".into())),
        ];
        for (text, path, source) in table {
            assert_eq!(parsed(text), FileArgument { path: path.into(), source }, "{text}");
        }
    }

    /// What may be a secret appears in no message.
    #[test]
    fn a_value_is_refused_and_not_repeated() {
        for text in [format!("db/password={CANARY}"), format!("={CANARY}"), CANARY.to_owned(), format!("=@{CANARY}")] {
            let error = FileArgument::parse(&text).unwrap_err().to_string();
            assert!(!error.contains(CANARY), "{error}");
            assert!(error.contains("@env:"), "{error}");
        }
        let error = FileArgument::parse(&format!("db/password={CANARY}")).unwrap_err().to_string();
        assert!(error.contains("--file db/password=@FILE"), "{error}");
        for text in ["x=@", "x=@env:"] {
            assert!(matches!(FileArgument::parse(text), Err(SourceError::Empty { .. })), "{text}");
        }
    }

    #[test]
    fn contents_come_as_they_are() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"line\n\0\xff").unwrap();
        let arguments = [&format!("f=@{}", file.path().display()), "e=@env:TOKEN", "s=@-"];
        let long = vec![7u8; 3 * FIRST_BUFFER + 1];
        let contents = read(&arguments, &long).unwrap();
        assert_eq!(*contents[0].1, b"line\n\0\xff");
        assert_eq!(*contents[1].1, CANARY.as_bytes());
        assert_eq!(*contents[2].1, long);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let table: [(&[&str], &str); 4] = [
            (&["x=@/nonexistent/pw"], "--file x: cannot read /nonexistent/pw"),
            (&["x=@env:NOPE"], "the environment has no NOPE"),
            (&["a=@-", "b=@-"], "already the content of a"),
            (&["x=@/dev/zero"], "--file x: /dev/zero has more than 67108864 bytes"),
        ];
        for (arguments, expected) in table {
            let error = read(arguments, b"").unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    /// The bound holds for all files together, and a file that tells its size is refused unread.
    #[test]
    fn the_bound_is_over_all_files() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(TOTAL_MAX as u64).unwrap();
        let name = format!("big=@{}", file.path().display());
        let error = read(&["e=@env:TOKEN", &name], b"").unwrap_err().to_string();
        assert!(error.contains("--file big") && error.contains("has 67108864 bytes"), "{error}");
    }
}
