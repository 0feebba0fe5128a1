//! Reads the values of credentials from their sources: a variable, a file, a program's standard output, or the
//! credential set itself.
//!
//! Errors name the credential and the source, but never contain the value. The standard error of a program is forwarded
//! to the standard error of agent-cli, and is not part of the value.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use executor_cnab::credentials::Source;
use executor_cnab::secret::Secret;
use zeroize::Zeroizing;

use crate::error::CnabError;

/// Maximum size of a credential, in bytes. executord's own limit is lower.
const CREDENTIAL_MAX: usize = 1 << 20;

/// Reads the values of the given credentials.
pub(crate) fn read(wanted: &[(&str, &Source)]) -> Result<BTreeMap<String, Secret>, CnabError> {
    let mut values = BTreeMap::new();
    for (name, source) in wanted {
        let value = one(source).map_err(|why| CnabError::Credential { name: (*name).to_owned(), why })?;
        values.insert((*name).to_owned(), value);
    }
    Ok(values)
}

fn one(source: &Source) -> Result<Secret, String> {
    match source {
        Source::Value(value) => Ok(value.clone()),
        Source::Env(name) => {
            let value = std::env::var_os(name).ok_or_else(|| format!("the environment has no {name}"))?;
            Ok(Secret::new(value.into_encoded_bytes()))
        }
        Source::Path(path) => {
            let path = PathBuf::from(expand(path, &|name| std::env::var(name).ok())?);
            let file =
                std::fs::File::open(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            bounded(file).map_err(|error| format!("{}: {error}", path.display()))
        }
        Source::Command(line) => command(line),
    }
}

/// Runs a program without a shell. The command is split at spaces, as in cnab-go.
fn command(line: &str) -> Result<Secret, String> {
    let mut words = line.split_whitespace();
    let program = words.next().ok_or("the command is empty")?;
    let failed = |error: std::io::Error| format!("cannot run {program}: {error}");
    let mut child =
        Command::new(program).args(words).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let output = child.stdout.take().ok_or_else(|| format!("{program} has no standard output"))?;
    let value = bounded(output);
    if value.is_err() {
        let _ = child.kill(); // the program may write without end
    }
    let status = child.wait().map_err(failed)?;
    let value = value.map_err(|error| format!("{program}: {error}"))?;
    if !status.success() {
        return Err(format!("{program} failed: {status}"));
    }
    // Strip the newline that ends a program's output.
    match value.bytes().strip_suffix(b"\n") {
        Some(bytes) => Ok(Secret::new(bytes.to_vec())),
        None => Ok(value),
    }
}

fn bounded(reader: impl Read) -> Result<Secret, String> {
    // Allocate the maximum size: a growing buffer would leave copies of the secret in memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(CREDENTIAL_MAX + 1));
    let read = reader.take(CREDENTIAL_MAX as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|error| format!("cannot read the value: {error}"))?;
    if bytes.len() > CREDENTIAL_MAX {
        return Err(format!("the value is larger than the maximum of {CREDENTIAL_MAX} bytes"));
    }
    Ok(Secret::new(bytes.to_vec()))
}

/// Expands `$NAME` and `${NAME}`.
fn expand(path: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut expanded = String::new();
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        let (name, left) = match after.strip_prefix('{') {
            Some(braced) => braced.split_once('}').ok_or_else(|| format!("{path}: a brace is not closed"))?,
            None => {
                let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len());
                after.split_at(end)
            }
        };
        if name.is_empty() {
            return Err(format!("{path}: a variable name is missing after `$`"));
        }
        expanded.push_str(&variable(name).ok_or_else(|| format!("{path}: the environment has no {name}"))?);
        rest = left;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_in_paths_are_expanded() {
        let variable = |name: &str| (name == "HOME").then(|| "/root".to_owned());
        let table = [
            ("/plain", Ok("/plain")),
            ("$HOME/.kube/config", Ok("/root/.kube/config")),
            ("${HOME}x$HOME", Ok("/rootx/root")),
            ("$NOPE/x", Err("no NOPE")),
            ("a$", Err("a variable name is missing")),
            ("${HOME", Err("not closed")),
        ];
        for (path, expected) in table {
            match (expand(path, &variable), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(found), Err(expected)) => assert!(found.contains(expected), "{found}"),
                (found, expected) => panic!("{path}: {found:?}, not {expected:?}"),
            }
        }
    }

    /// Neither values nor error messages contain the standard error of a program.
    #[test]
    fn only_standard_output_counts() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("ask");
        std::fs::write(&script, "echo canary-out; echo canary-err >&2; exit $1").unwrap();
        let run = |status: &str| command(&format!("sh {} {status}", script.display()));
        assert_eq!(run("0").unwrap().bytes(), b"canary-out");
        let error = run("3").unwrap_err();
        assert!(error.contains('3') && !error.contains("canary"), "{error}");
        assert!(command("/nonexistent/x").unwrap_err().contains("/nonexistent/x"));
        assert!(command("cat /dev/zero").unwrap_err().contains("is larger than"));
        assert!(command(" ").is_err());
    }
}
