//! Environment variables of a process: reads `--env`, and files of `--env-file` in docker's format.
//!
//! A line `NAME=VALUE` sets a variable. Everything after the `=` is the value, including quotes and trailing spaces. A
//! line `NAME` copies the value from this program's environment, which need not be UTF-8, or is skipped if the variable
//! is unset there. Leading white space, empty lines and lines that begin with `#` are ignored.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use executor_cli_kit::failure::Failure;
use executor_client::v1::EnvironmentVariable;
use zeroize::{Zeroize as _, Zeroizing};

/// Maximum file size, in bytes: the limit for arguments and variables of a process.
const FILE_MAX: u64 = 2_000_000;

/// Reads the variables of a file, in order.
fn read(path: &Path, variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Vec<EnvironmentVariable>, Failure> {
    let wrong = |why: String| Failure::Usage(format!("--env-file {}: {why}", path.display()));
    let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
    let mut bytes = Zeroizing::new(Vec::new());
    file.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(|error| wrong(error.to_string()))?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(wrong(format!("the file is larger than the maximum of {FILE_MAX} bytes")));
    }
    let mut variables = Vec::new();
    let text = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&bytes);
    for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let at = |why: &str| wrong(format!("line {}: {why}", index + 1));
        let line = std::str::from_utf8(line).map_err(|_| at("the text is not UTF-8"))?;
        let line = line.strip_suffix('\r').unwrap_or(line).trim_start();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = line.split_once('=').map_or((line, None), |(name, value)| (name, Some(value)));
        if name.is_empty() {
            return Err(at("the name before the `=` is missing"));
        }
        // A malformed line may hold a secret, so the error does not repeat it.
        if name.contains(char::is_whitespace) {
            return Err(at("the name contains white space; use NAME=VALUE or NAME"));
        }
        let value = match (value, variable(name)) {
            (Some(value), _) => value.as_bytes().to_vec(),
            (None, None) => continue,
            (None, Some(value)) => value.into_vec(),
        };
        variables.push(EnvironmentVariable::from_bytes(name, value));
    }
    Ok(variables)
}

/// Returns the variables of `--env-file`, followed by the variables of `--env`. `--env K` has this program's value of
/// K. The last occurrence of a name wins.
pub(crate) fn environment(
    files: &[PathBuf],
    env: Vec<String>,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Vec<EnvironmentVariable>, Failure> {
    let usage = |text: String| Err(Failure::Usage(text));
    let mut variables = Vec::with_capacity(env.len());
    for file in files {
        variables.extend(read(file, variable)?);
    }
    for mut text in env {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name.to_owned(), value.as_bytes().to_vec()),
            None => match variable(&text) {
                Some(value) => (text.clone(), value.into_vec()),
                None => return usage(format!("--env {text}: the environment has no {text}; write --env {text}=VALUE")),
            },
        };
        text.zeroize();
        if name.is_empty() {
            return usage("--env takes NAME=VALUE, or NAME to copy the value from this command's environment".into());
        }
        variables.push(EnvironmentVariable::from_bytes(name, value));
    }
    let last: HashMap<String, usize> =
        variables.iter().enumerate().map(|(index, variable)| (variable.name.clone(), index)).collect();
    let mut index = 0..;
    variables.retain_mut(|variable| {
        let stays = last.get(&variable.name).copied() == index.next();
        if !stays {
            variable.wipe();
        }
        stays
    });
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8]) -> Result<String, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let here = |name: &str| (name == "HERE").then(|| OsString::from("there"));
        let variables = read(file.path(), &here).map_err(|failure| failure.to_string())?;
        Ok(variables.into_iter().map(|variable| format!("{}={};", variable.name, variable.value)).collect())
    }

    #[test]
    fn env_file_is_parsed_like_docker() {
        let text = "\u{feff}A=1\n# B=2\n\n  C=3  \r\nD=\"x\" # y\nE=\nHERE\nMISSING\nF=a=b\n\t#G=1\nA=2";
        assert_eq!(parse(text.as_bytes()).unwrap(), "A=1;C=3  ;D=\"x\" # y;E=;HERE=there;F=a=b;A=2;");
        assert_eq!(parse(b"").unwrap(), "");
    }

    #[test]
    fn variable_errors_name_line_without_value() {
        let table: [(&[u8], &str); 4] = [
            (b"A=1\nmy hunter2=x", "line 2: the name contains white space"),
            (b"=hunter2", "line 1: the name before"),
            (b"A=1\n\nhunter2 x\n", "line 3"),
            (b"A=hunter2\xff", "line 1: the text is not UTF-8"),
        ];
        for (bytes, expected) in table {
            let error = parse(bytes).unwrap_err();
            assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
        }
        let long = vec![b'x'; 2_000_001];
        assert!(parse(&long).unwrap_err().contains("the maximum of 2000000 bytes"));
    }
}
