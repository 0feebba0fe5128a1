//! Sources of secrets: `--file PATH=@FILE`, `PATH=@-`, `PATH=@env:VAR`, and the same for every flag that takes one.
//!
//! The value itself can never stand on the command line: `ps` shows it to every user of the machine, and shells
//! remember it. Therefore no message repeats what follows the `=` when it is not a source. Content is read into buffers
//! that are wiped when they are dropped, also those a growing buffer leaves behind; its size is bounded before the
//! daemon's own limit is known.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

use executor_client::v1;
use zeroize::Zeroizing;

use crate::failure::Failure;

/// Most bytes of all secrets together. The daemon's limit is lower; this one only keeps `@/dev/zero` from
/// filling the memory.
pub const TOTAL_MAX: usize = 64 << 20;

/// Smallest buffer for what does not tell its size.
const FIRST_BUFFER: usize = 8 << 10;

/// The flags that take a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flag {
    File,
    PublicFile,
    SecretEnv,
    SecretArg,
    RegistryPassword,
    VcapServices,
    Param,
}

impl Flag {
    /// Returns the flag as it is written on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "--file",
            Self::PublicFile => "--public-file",
            Self::SecretEnv => "--secret-env",
            Self::SecretArg => "--secret-arg",
            Self::RegistryPassword => "--registry-password",
            Self::VcapServices => "--vcap-services",
            Self::Param => "--param",
        }
    }

    /// Returns the placeholder for the part before the `=`.
    fn key(self) -> &'static str {
        match self {
            Self::File | Self::PublicFile => "PATH",
            Self::SecretEnv | Self::Param => "NAME",
            Self::SecretArg => "INDEX",
            Self::RegistryPassword => "SOURCE",
            Self::VcapServices => "",
        }
    }
}

impl std::fmt::Display for Flag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// An argument of such a flag.
#[derive(Debug, PartialEq, Eq)]
pub struct Argument {
    pub flag: Flag,
    /// Target of the content: a path in the container, a variable's name, an argument's index.
    pub key: String,
    pub source: Source,
    /// Access to a file in the container.
    pub access: Access,
}

/// Permissions of a file in the container, as far as they are given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    pub mode: Option<u32>,
    pub group: Option<String>,
}

impl Access {
    /// Takes `,mode=0640` and `,group=app` off the end of a source.
    fn split<'a>(flag: Flag, key: &str, mut source: &'a str) -> Result<(Self, &'a str), SourceError> {
        let mut access = Self::default();
        while let Some((rest, option)) = source.rsplit_once(',') {
            match option.split_once('=') {
                Some(("mode", text)) => {
                    let mode = mode(text);
                    let bad = || SourceError::Mode { flag, key: key.to_owned(), text: text.to_owned() };
                    access.mode = Some(mode.map_err(|_| bad())?);
                }
                Some(("group", name)) => access.group = Some(name.to_owned()),
                _ => break,
            }
            source = rest;
        }
        Ok((access, source))
    }
}

/// Permission bits in octal digits.
pub fn mode(text: &str) -> Result<u32, String> {
    let digits = (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    let mode = digits.then(|| u32::from_str_radix(text, 8).ok()).flatten().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| format!("{text:?} is not 0 to 0777 in octal digits"))
}

/// Source of a content.
#[derive(Debug, PartialEq, Eq)]
pub enum Source {
    File(PathBuf),
    Stdin,
    Environment(String),
}

/// Errors of such an argument, and of reading its source.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error(
        "{flag} {key}=...: the value itself cannot be given, because everyone on this machine can read a command line; \
         use {flag} {key}=@FILE, {key}=@- (standard input) or {key}=@env:VARIABLE"
    )]
    ValueGiven { flag: Flag, key: String },
    #[error("{flag} takes {0}=@FILE, {0}=@- (standard input) or {0}=@env:VARIABLE", .flag.key())]
    Shape { flag: Flag },
    #[error(
        "{flag}: the value itself cannot be given, because everyone on this machine can read a command line; \
         use {flag} @FILE, @- (standard input) or @env:VARIABLE"
    )]
    Bare { flag: Flag },
    #[error("{flag} {key}: the mode {text:?} is not 0 to 0777 in octal digits")]
    Mode { flag: Flag, key: String, text: String },
    #[error("{flag} {key}=@{what}: {what} names no {kind}")]
    Empty { flag: Flag, key: String, what: &'static str, kind: &'static str },
    #[error("{second}=@-: standard input is already the content of {first}; it can be read once")]
    StdinTwice { first: String, second: String },
    #[error("{flag} {key}=@env:{variable}: the environment has no {variable}")]
    NoVariable { flag: Flag, key: String, variable: String },
    #[error("{flag} {key}: cannot read {}", .source_name)]
    Read { flag: Flag, key: String, source_name: String, source: io::Error },
    #[error(
        "{flag} {key}: {source_name} {size}; all secrets together may have at most {TOTAL_MAX} bytes here, \
         and executord allows less (1,048,576 by default)"
    )]
    TooLarge { flag: Flag, key: String, source_name: String, size: String },
    #[error("{flag} {key}: {source_name} {why}; only a file can hold that")]
    NoText { flag: Flag, key: String, source_name: String, why: &'static str },
}

impl From<SourceError> for Failure {
    fn from(error: SourceError) -> Self {
        Self::wrap(error, crate::exit::OURS)
    }
}

impl Argument {
    /// A source alone, of a flag that stands for one thing.
    pub fn bare(flag: Flag, text: &str) -> Result<Self, SourceError> {
        Self::parse(flag, &format!("password={text}")).map_err(|error| match error {
            SourceError::ValueGiven { flag, .. } | SourceError::Shape { flag } => SourceError::Bare { flag },
            other => other,
        })
    }

    /// Splits `KEY=@SOURCE`. A `=` in KEY is possible, because every source begins with `@`.
    pub fn parse(flag: Flag, text: &str) -> Result<Self, SourceError> {
        let Some((key, source)) = text.split_once("=@") else {
            return Err(match text.split_once('=') {
                Some((key, _)) if !key.is_empty() => SourceError::ValueGiven { flag, key: key.to_owned() },
                _ => SourceError::Shape { flag },
            });
        };
        if key.is_empty() {
            return Err(SourceError::Shape { flag });
        }
        let empty = |what, kind| SourceError::Empty { flag, key: key.to_owned(), what, kind };
        let (access, source) = match flag {
            Flag::File | Flag::PublicFile => Access::split(flag, key, source)?,
            _ => (Access::default(), source),
        };
        let source = match source.strip_prefix("env:") {
            Some("") => return Err(empty("env:", "variable")),
            Some(variable) => Source::Environment(variable.to_owned()),
            None if source == "-" => Source::Stdin,
            None if source.is_empty() => return Err(empty("", "file")),
            None => Source::File(source.into()),
        };
        Ok(Self { flag, key: key.to_owned(), source, access })
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

/// Content that was read from a source.
pub struct Content {
    /// Flag that named the source.
    pub flag: Flag,
    /// Target of the content, as in [`Argument`].
    pub key: String,
    source: Source,
    access: Access,
    /// The bytes as they came.
    pub bytes: Zeroizing<Vec<u8>>,
}

impl Content {
    /// Converts the content to a file of a request.
    pub fn into_file(mut self) -> v1::File {
        v1::File {
            path: self.key,
            content: std::mem::take(&mut *self.bytes),
            public: self.flag == Flag::PublicFile,
            mode: self.access.mode,
            group: self.access.group,
        }
    }

    /// Converts the content to text for a variable or an argument. One newline at the end of a file or of standard
    /// input is left out: editors and `echo` add it, and it is not part of the secret.
    pub fn into_text(mut self) -> Result<Zeroizing<String>, SourceError> {
        if !matches!(self.source, Source::Environment(_)) && self.bytes.last() == Some(&b'\n') {
            self.bytes.pop();
        }
        self.into_verbatim()
    }

    /// Converts the content to text without changing it.
    pub fn into_verbatim(mut self) -> Result<Zeroizing<String>, SourceError> {
        let source_name = self.source.name();
        let (flag, key) = (self.flag, self.key);
        let no_text = |why| SourceError::NoText { flag, key, source_name, why };
        if self.bytes.contains(&0) {
            return Err(no_text("holds a NUL"));
        }
        match String::from_utf8(std::mem::take(&mut *self.bytes)) {
            Ok(text) => Ok(Zeroizing::new(text)),
            Err(error) => {
                drop(Zeroizing::new(error.into_bytes()));
                Err(no_text("is not UTF-8"))
            }
        }
    }
}

/// Reads every source, in order.
///
/// `stdin` and `variable` are the caller's, so that this can be tested without touching the process's own.
pub fn read_all(
    arguments: Vec<Argument>,
    stdin: &mut dyn Read,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Vec<Content>, SourceError> {
    let mut first_stdin: Option<String> = None;
    for argument in arguments.iter().filter(|argument| argument.source == Source::Stdin) {
        let this = format!("{} {}", argument.flag, argument.key);
        if let Some(first) = first_stdin {
            return Err(SourceError::StdinTwice { first, second: this });
        }
        first_stdin = Some(this);
    }
    let mut left = TOTAL_MAX;
    let mut contents = Vec::with_capacity(arguments.len());
    for argument in arguments {
        let bytes = read_one(&argument, left, stdin, variable)?;
        left -= bytes.len();
        let Argument { flag, key, source, access } = argument;
        contents.push(Content { flag, key, source, access, bytes });
    }
    Ok(contents)
}

fn read_one(
    argument: &Argument,
    left: usize,
    stdin: &mut dyn Read,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Zeroizing<Vec<u8>>, SourceError> {
    let Argument { flag, key, source, access: _ } = argument;
    let flag = *flag;
    let too_large = |size: Option<u64>| SourceError::TooLarge {
        flag,
        key: key.clone(),
        source_name: source.name(),
        size: size.map_or_else(|| format!("has more than {left} bytes"), |size| format!("has {size} bytes")),
    };
    let failed =
        |error: io::Error| SourceError::Read { flag, key: key.clone(), source_name: source.name(), source: error };
    match source {
        Source::Environment(name) => {
            let value = variable(name).ok_or_else(|| SourceError::NoVariable {
                flag,
                key: key.clone(),
                variable: name.clone(),
            })?;
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
pub fn bounded(reader: &mut dyn Read, expected: usize, limit: usize) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
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

    fn parsed(text: &str) -> Argument {
        Argument::parse(Flag::File, text).unwrap()
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
            let access = Access::default();
            assert_eq!(parsed(text), Argument { flag: Flag::File, key: path.into(), source, access }, "{text}");
        }
    }

    #[test]
    fn mode_and_group_of_a_file_stand_behind_its_source() {
        let table = [
            ("x=@/tmp/pw,mode=0640,group=app", "/tmp/pw", Some(0o640), Some("app")),
            ("x=@/tmp/pw,group=70", "/tmp/pw", None, Some("70")),
            ("x=@/tmp/a,b,mode=444", "/tmp/a,b", Some(0o444), None),
            ("x=@/tmp/a,b=c", "/tmp/a,b=c", None, None),
            ("x=@/tmp/pw,mode=0", "/tmp/pw", Some(0), None),
        ];
        for (text, file, mode, group) in table {
            let Argument { source, access, .. } = parsed(text);
            assert_eq!(source, Source::File(file.into()), "{text}");
            assert_eq!(access, Access { mode, group: group.map(str::to_owned) }, "{text}");
        }
        assert_eq!(parsed("x=@env:TOKEN,mode=0400").source, Source::Environment("TOKEN".into()));
        for bad in ["", "9", "1000", "4755", "rw", "0o600", "-1"] {
            let error = Argument::parse(Flag::File, &format!("x=@/tmp/pw,mode={bad}")).unwrap_err().to_string();
            assert!(error.contains("--file x") && error.contains("0777"), "{error}");
        }
        // A variable's source is a file's name and nothing else.
        let argument = Argument::parse(Flag::SecretEnv, "PW=@/tmp/pw,mode=0640").unwrap();
        assert_eq!(argument.source, Source::File("/tmp/pw,mode=0640".into()));
    }

    /// No message contains what may be a secret.
    #[test]
    fn a_value_is_refused_and_not_repeated() {
        for text in [format!("db/password={CANARY}"), format!("={CANARY}"), CANARY.to_owned(), format!("=@{CANARY}")] {
            let error = Argument::parse(Flag::File, &text).unwrap_err().to_string();
            assert!(!error.contains(CANARY), "{error}");
            assert!(error.contains("@env:"), "{error}");
        }
        let error = Argument::parse(Flag::File, &format!("db/password={CANARY}")).unwrap_err().to_string();
        assert!(error.contains("--file db/password=@FILE"), "{error}");
        for text in ["x=@", "x=@env:"] {
            assert!(matches!(Argument::parse(Flag::File, text), Err(SourceError::Empty { .. })), "{text}");
        }
    }

    #[test]
    fn contents_come_as_they_are() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"line\n\0\xff").unwrap();
        let arguments = [&format!("f=@{}", file.path().display()), "e=@env:TOKEN", "s=@-"];
        let long = vec![7u8; 3 * FIRST_BUFFER + 1];
        let contents = read(&arguments, &long).unwrap();
        assert_eq!(*contents[0].bytes, b"line\n\0\xff");
        assert_eq!(*contents[1].bytes, CANARY.as_bytes());
        assert_eq!(*contents[2].bytes, long);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let table: [(&[&str], &str); 4] = [
            (&["x=@/nonexistent/pw"], "--file x: cannot read /nonexistent/pw"),
            (&["x=@env:NOPE"], "the environment has no NOPE"),
            (&["a=@-", "b=@-"], "--file b=@-: standard input is already the content of --file a"),
            (&["x=@/dev/zero"], "--file x: /dev/zero has more than 67108864 bytes"),
        ];
        for (arguments, expected) in table {
            let error = read(arguments, b"").err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    /// The bound holds for all files together, and a file that tells its size is refused unread.
    #[test]
    fn the_bound_is_over_all_files() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(TOTAL_MAX as u64).unwrap();
        let name = format!("big=@{}", file.path().display());
        let error = read(&["e=@env:TOKEN", &name], b"").err().unwrap().to_string();
        assert!(error.contains("--file big") && error.contains("has 67108864 bytes"), "{error}");
    }

    /// A password file nearly always ends with a newline that is no part of the password; a variable is as it is.
    #[test]
    fn text_loses_one_newline_of_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = |content: &[u8], source: &str| {
            std::fs::write(file.path(), content).unwrap();
            let source = source.replace("FILE", &file.path().display().to_string());
            let argument = Argument::parse(Flag::SecretEnv, &format!("PW=@{source}")).unwrap();
            let variable = |name: &str| (name == "TOKEN").then(|| OsString::from("canary\n"));
            let [content] =
                <[_; 1]>::try_from(read_all(vec![argument], &mut &content[..], &variable).unwrap()).ok().unwrap();
            content.into_text().map(|text| text.to_string()).map_err(|error| error.to_string())
        };
        for source in ["FILE", "-"] {
            for (content, expected) in
                [(&b"pw"[..], "pw"), (b"pw\n", "pw"), (b"pw\n\n", "pw\n"), (b"", ""), (b"\n", "")]
            {
                assert_eq!(text(content, source).unwrap(), expected, "{source} {content:?}");
            }
        }
        assert_eq!(text(b"", "env:TOKEN").unwrap(), "canary\n");
        assert!(text(b"canary\0", "-").unwrap_err().contains("--secret-env PW: standard input holds a NUL"));
        let error = text(b"canary\xff", "FILE").unwrap_err();
        assert!(error.contains("is not UTF-8") && !error.contains("canary"), "{error}");
    }
}
