//! Reads sources into buffers that are wiped on drop.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};

use executor_client::v1;
use zeroize::Zeroizing;

use super::{Access, Argument, Flag, Source, SourceError, TOTAL_MAX};

/// Initial buffer size for sources that do not report their size.
const FIRST_BUFFER: usize = 8 << 10;

pub struct Content {
    pub flag: Flag,
    /// Target of the content, as in [`Argument`].
    pub key: String,
    source: Source,
    access: Access,
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
            from: match self.source {
                Source::Reference(reference) => Some(reference),
                Source::File(_) | Source::Stdin | Source::Environment(_) => None,
            },
        }
    }

    /// Moves the reference out of the source; returns `None` if the source is not a reference.
    pub fn take_reference(&mut self) -> Option<v1::SecretReference> {
        match &mut self.source {
            Source::Reference(reference) => Some(std::mem::take(reference)),
            Source::File(_) | Source::Stdin | Source::Environment(_) => None,
        }
    }

    /// Converts the content to text for an argument. One newline at the end of a file or of standard input is removed:
    /// editors and `echo` add it, and it is not part of the secret.
    pub fn into_text(mut self) -> Result<Zeroizing<String>, SourceError> {
        self.trim();
        self.into_verbatim()
    }

    /// Converts the content to the token for a provider, whose key is `PROVIDER` or `PROVIDER/ROLE`.
    pub fn into_provider_token(self) -> Result<v1::ProviderToken, SourceError> {
        let (provider, role) = self.key.split_once('/').unwrap_or((&self.key, ""));
        let (provider, role) = (provider.to_owned(), role.to_owned());
        Ok(v1::ProviderToken { provider, role, token: std::mem::take(&mut *self.into_text()?) })
    }

    /// Converts the content to the value of a variable. The value need not be UTF-8. One newline is removed as in
    /// [`Self::into_text`].
    pub fn into_value(mut self) -> Result<Zeroizing<Vec<u8>>, SourceError> {
        self.trim();
        if self.bytes.contains(&0) {
            let source_name = self.source.name();
            return Err(SourceError::NoText { flag: self.flag, key: self.key, source_name, why: "contains a NUL" });
        }
        Ok(self.bytes)
    }

    fn trim(&mut self) {
        if !matches!(self.source, Source::Environment(_)) && self.bytes.last() == Some(&b'\n') {
            self.bytes.pop();
        }
    }

    /// Converts the content to text without removing a newline.
    pub fn into_verbatim(mut self) -> Result<Zeroizing<String>, SourceError> {
        let source_name = self.source.name();
        let (flag, key) = (self.flag, self.key);
        let no_text = |why| SourceError::NoText { flag, key, source_name, why };
        if self.bytes.contains(&0) {
            return Err(no_text("contains a NUL"));
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
/// Tests pass their own `stdin` and `variable` instead of the process's.
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
        size: size.map_or_else(|| format!("is larger than {left} bytes"), |size| format!("is {size} bytes")),
        left,
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
        Source::Reference(_) => Ok(Zeroizing::default()),
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

/// Reads to the end; returns `None` if there are more than `limit` bytes. Outgrown buffers are wiped.
pub fn bounded(reader: &mut dyn Read, expected: usize, limit: usize) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    // Allocate one byte more than expected, so that the read that returns end of file does not grow the buffer.
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
    fn source_bytes_are_read_unchanged() {
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
    fn unreadable_source_error_has_name() {
        let table: [(&[&str], &str); 4] = [
            (&["x=@/nonexistent/pw"], "--file x: cannot read /nonexistent/pw"),
            (&["x=@env:NOPE"], "the environment has no NOPE"),
            (&["a=@-", "b=@-"], "--file b=@-: standard input is already the content of --file a"),
            (&["x=@/dev/zero"], "--file x: /dev/zero is larger than 67108864 bytes"),
        ];
        for (arguments, expected) in table {
            let error = read(arguments, b"").err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    /// The limit applies to the sum of all files, and a file that reports a larger size is rejected before it is read.
    #[test]
    fn size_limit_applies_to_all_files() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(TOTAL_MAX as u64).unwrap();
        let name = format!("big=@{}", file.path().display());
        let error = read(&["e=@env:TOKEN", &name], b"").err().unwrap().to_string();
        assert!(error.contains("--file big") && error.contains("is 67108864 bytes"), "{error}");
    }

    /// A password file nearly always ends with a newline that is not part of the password; a variable is used
    /// unchanged.
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
        assert!(text(b"canary\0", "-").unwrap_err().contains("--secret-env PW: standard input contains a NUL"));
        let error = text(b"canary\xff", "FILE").unwrap_err();
        assert!(error.contains("is not UTF-8") && !error.contains("canary"), "{error}");
    }
}
