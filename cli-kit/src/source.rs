//! Parses sources of secrets: `--file PATH=@FILE`, `PATH=@-`, `PATH=@env:VAR`, and the same for all flags that accept a
//! source. Inputs of containers can also be references, which executord resolves: `PATH=PROVIDER:PATH#KEY@VERSION`.
//!
//! Secret values are not accepted on the command line: `ps` shows command lines to every user of the machine, and
//! shells store them in their history. Therefore error messages do not repeat the text after `=` if it is not a source.
//! Content is read into buffers that are wiped on drop, including outgrown buffers. The size of the content is limited
//! here, because the daemon's own limit is not known yet.

mod read;

use std::io;
use std::path::PathBuf;

use executor_client::v1::SecretReference;

use crate::failure::Failure;

pub use read::{Content, bounded, read_all};

/// Maximum total size of all secrets, in bytes. The daemon's limit is lower; this limit only prevents `@/dev/zero` from
/// filling the memory.
pub const TOTAL_MAX: usize = 64 << 20;

/// Flags that accept a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flag {
    File,
    PublicFile,
    SecretEnv,
    SecretArg,
    ProviderToken,
    RegistryPassword,
    VcapServices,
    Param,
}

impl Flag {
    /// Returns the flag as written on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "--file",
            Self::PublicFile => "--public-file",
            Self::SecretEnv => "--secret-env",
            Self::SecretArg => "--secret-arg",
            Self::ProviderToken => "--provider-token",
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
            Self::ProviderToken => "PROVIDER[/ROLE]",
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

/// A parsed argument of a flag that accepts a source.
#[derive(Debug, PartialEq, Eq)]
pub struct Argument {
    pub flag: Flag,
    /// Target of the content: a path in the container, a variable's name, an argument's index, or a provider.
    pub key: String,
    pub source: Source,
    pub access: Access,
}

/// Permissions of a file in the container; unset fields are defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    pub mode: Option<u32>,
    pub group: Option<String>,
}

impl Access {
    /// Splits `,mode=0640` and `,group=app` off the end of a source. Returns the permissions and the remaining source.
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

/// Parses permission bits in octal.
pub fn mode(text: &str) -> Result<u32, String> {
    let digits = (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    let mode = digits.then(|| u32::from_str_radix(text, 8).ok()).flatten().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| format!("invalid mode {text:?}; use octal digits, 0 to 0777"))
}

#[derive(Debug, PartialEq, Eq)]
pub enum Source {
    File(PathBuf),
    Stdin,
    Environment(String),
    /// A reference, which executord resolves.
    Reference(SecretReference),
}

/// Errors from parsing an argument and reading its source.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error(
        "{flag} {key}=...: the value itself cannot be given, because everyone on this machine can read a command line; \
         use {flag} {key}=@FILE, {key}=@- (standard input), {key}=@env:VARIABLE, or a reference, {key}=PROVIDER:PATH#KEY"
    )]
    ValueGiven { flag: Flag, key: String },
    #[error("{flag} takes {0}=@FILE, {0}=@- (standard input) or {0}=@env:VARIABLE", .flag.key())]
    Shape { flag: Flag },
    #[error(
        "{flag}: the value itself cannot be given, because everyone on this machine can read a command line; \
         use {flag} @FILE, @- (standard input) or @env:VARIABLE"
    )]
    Bare { flag: Flag },
    #[error("{flag} {key}: invalid mode {text:?}; use octal digits, 0 to 0777")]
    Mode { flag: Flag, key: String, text: String },
    #[error("{flag} {key}=@{what}: names no {kind}")]
    Empty { flag: Flag, key: String, what: &'static str, kind: &'static str },
    #[error("{second}=@-: standard input is already the content of {first}; use @FILE or @env:VARIABLE")]
    StdinTwice { first: String, second: String },
    #[error("{flag} {key}=@env:{variable}: the environment has no {variable}")]
    NoVariable { flag: Flag, key: String, variable: String },
    #[error("{flag} {key}: cannot read {}", .source_name)]
    Read { flag: Flag, key: String, source_name: String, source: io::Error },
    #[error(
        "{flag} {key}: {source_name} {size}; {left} of the {TOTAL_MAX} bytes for all secrets of a command are left, \
         and executord accepts at most 1,048,576 bytes by default"
    )]
    TooLarge { flag: Flag, key: String, source_name: String, size: String, left: usize },
    #[error("{flag} {key}: {source_name} {why}; only a file may contain such bytes")]
    NoText { flag: Flag, key: String, source_name: String, why: &'static str },
}

impl From<SourceError> for Failure {
    fn from(error: SourceError) -> Self {
        Self::wrap(error, crate::exit::OURS)
    }
}

impl Argument {
    /// Parses a source without a key, for flags with a single target.
    pub fn bare(flag: Flag, text: &str) -> Result<Self, SourceError> {
        Self::parse(flag, &format!("password={text}")).map_err(|error| match error {
            SourceError::ValueGiven { flag, .. } | SourceError::Shape { flag } => SourceError::Bare { flag },
            other => other,
        })
    }

    /// Splits `KEY=PROVIDER:PATH#KEY@VERSION`; returns `None` if the text has another format.
    fn reference(flag: Flag, text: &str) -> Result<Option<Self>, SourceError> {
        let of_container = matches!(flag, Flag::File | Flag::PublicFile | Flag::SecretEnv | Flag::SecretArg);
        let Some((key, source)) = text.split_once('=').filter(|(key, _)| of_container && !key.is_empty()) else {
            return Ok(None);
        };
        let (access, source) = match flag {
            Flag::File | Flag::PublicFile => Access::split(flag, key, source)?,
            _ => (Access::default(), source),
        };
        let is_name = |name: &str| {
            let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
            name.bytes().next().is_some_and(word) && name.bytes().all(|byte| word(byte) || b"._-".contains(&byte))
        };
        let Some((provider, rest)) = source.split_once(':').filter(|(name, rest)| is_name(name) && !rest.is_empty())
        else {
            return Ok(None);
        };
        let (rest, version) = rest.rsplit_once('@').unwrap_or((rest, ""));
        let (path, entry) = rest.split_once('#').unwrap_or((rest, ""));
        let reference = SecretReference {
            provider: provider.to_owned(),
            path: path.to_owned(),
            key: entry.to_owned(),
            version: version.to_owned(),
        };
        Ok(Some(Self { flag, key: key.to_owned(), source: Source::Reference(reference), access }))
    }

    /// Splits `KEY=@SOURCE`. KEY may contain `=`, because every source begins with `@`.
    pub fn parse(flag: Flag, text: &str) -> Result<Self, SourceError> {
        let Some((key, source)) = text.split_once("=@") else {
            if let Some(argument) = Self::reference(flag, text)? {
                return Ok(argument);
            }
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
            Self::Reference(reference) => format!("{}:{}", reference.provider, reference.path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CANARY: &str = "canary-77c1";

    fn parsed(text: &str) -> Argument {
        Argument::parse(Flag::File, text).unwrap()
    }

    #[test]
    fn file_stdin_and_environment_are_sources() {
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
    fn references_of_the_inputs_of_a_container() {
        let table = [
            ("db/pw=vault:kv/db#password", ["vault", "kv/db", "password", ""]),
            ("db/pw=vault:kv/db#password@3", ["vault", "kv/db", "password", "3"]),
            ("db/pw=credentials:db-password,mode=0640", ["credentials", "db-password", "", ""]),
            ("a=x.1:p=q@r", ["x.1", "p=q", "", "r"]),
        ];
        for (text, parts) in table {
            let [provider, path, key, version] = parts.map(str::to_owned);
            let expected = SecretReference { provider, path, key, version };
            assert_eq!(parsed(text).source, Source::Reference(expected), "{text}");
        }
        assert_eq!(parsed(table[2].0).access.mode, Some(0o640));
        for text in ["x=hunter2", "x=Hunter:2", "x=:hunter2", "x=hunter2:"] {
            let error = Argument::parse(Flag::File, text).unwrap_err().to_string();
            assert!(!error.to_lowercase().contains("hunter"), "{error}");
        }
        assert!(Argument::parse(Flag::Param, "x=vault:kv/db").is_err());
    }

    #[test]
    fn mode_and_group_follow_file_source() {
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
        // The source of a variable is only a file name, without permissions.
        let argument = Argument::parse(Flag::SecretEnv, "PW=@/tmp/pw,mode=0640").unwrap();
        assert_eq!(argument.source, Source::File("/tmp/pw,mode=0640".into()));
    }

    /// No message contains a possible secret.
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
}
