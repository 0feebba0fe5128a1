//! Reads the inputs of an action that the command line names: bundles, relocation maps, parameters and credential sets.
//!
//! All inputs are read before anything is started. Files have a size limit.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek as _};
use std::path::{Path, PathBuf};

use executor_cli_kit::failure::Failure;
use executor_cli_kit::source::{self, Argument, Flag};
use executor_cnab::archive;
use executor_cnab::bundle::{BUNDLE_MAX, Bundle};
use executor_cnab::credentials::{CredentialSet, SET_MAX, Source as CredentialSource, merge};
use executor_cnab::violation::Violations;
use serde_json::Value;
use zeroize::Zeroizing;

use crate::error::CnabError;

/// A bundle file.
pub(crate) struct Loaded {
    pub(crate) bundle: Bundle,
    /// Path of the archive if the bundle is thick.
    pub(crate) thick: Option<PathBuf>,
}

/// Reads at most `limit` bytes of a file.
pub(crate) fn read(path: &Path, limit: u64) -> Result<Vec<u8>, CnabError> {
    let failed = |source| CnabError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > limit { Err(CnabError::TooLarge { path: path.to_owned(), limit }) } else { Ok(bytes) }
}

/// Returns a function that converts the violations in `what` to an error.
pub(crate) fn wrong(what: impl Into<String>) -> impl FnOnce(Violations) -> CnabError {
    let what = what.into();
    move |violations| CnabError::Wrong { what, violations }
}

/// Reads a thin or thick bundle.
pub(crate) fn bundle(path: &Path) -> Result<Loaded, CnabError> {
    let failed = |source| CnabError::Read { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(failed)?;
    let mut beginning = [0; 2];
    let thick = file.read_exact(&mut beginning).is_ok() && archive::is_thick(&beginning);
    let bytes = if thick {
        file.rewind().map_err(failed)?;
        let reader = std::io::BufReader::new(file);
        archive::bundle(reader).map_err(|source| CnabError::Archive { path: path.to_owned(), source })?
    } else {
        read(path, BUNDLE_MAX as u64)?
    };
    let bundle = Bundle::parse(&bytes).map_err(wrong(format!("{} is not a valid CNAB bundle", path.display())))?;
    Ok(Loaded { bundle, thick: thick.then(|| path.to_owned()) })
}

/// Values of `-p` by dependency and parameter. The key of the bundle itself is empty.
pub(crate) type Given = BTreeMap<String, BTreeMap<String, Text>>;

/// Unparsed value of a parameter. The type does not implement `Debug`, so that no value is printed.
pub(crate) struct Text {
    text: Zeroizing<String>,
    /// True if the command line contains the value.
    visible: bool,
}

/// Reads the `-p` flags, and the files and variables that they name.
pub(crate) fn parameters(
    flags: &[String],
    stdin: &mut dyn Read,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Given, Failure> {
    let mut given = Given::new();
    let mut sourced = Vec::new();
    let mut put = |key: &str, text: Text| {
        let (dependency, name) = key.split_once('#').unwrap_or(("", key));
        match given.entry(dependency.to_owned()).or_default().insert(name.to_owned(), text) {
            None => Ok(()),
            Some(_) => Err(Failure::Usage(format!("--param {key} is given twice"))),
        }
    };
    for flag in flags {
        let Some((key, value)) = flag.split_once('=').filter(|(key, _)| !key.is_empty()) else {
            return Err(Failure::Usage("--param takes NAME=VALUE, NAME=@FILE, NAME=@- or NAME=@env:VARIABLE".into()));
        };
        match value.strip_prefix('@') {
            Some(rest) if !rest.starts_with('@') => sourced.push(Argument::parse(Flag::Param, flag)?),
            Some(escaped) => put(key, Text { text: escaped.to_owned().into(), visible: true })?,
            None => put(key, Text { text: value.to_owned().into(), visible: true })?,
        }
    }
    for content in source::read_all(sourced, stdin, variable)? {
        let key = content.key.clone();
        let text = content.into_verbatim()?;
        put(&key, Text { text, visible: false })?;
    }
    Ok(given)
}

/// Parses the given strings according to the types of the bundle's parameters.
pub(crate) fn values(
    bundle: &Bundle,
    given: Option<&BTreeMap<String, Text>>,
) -> Result<BTreeMap<String, Value>, Failure> {
    let mut values = BTreeMap::new();
    let mut violations = Violations::default();
    for (name, given) in given.into_iter().flatten() {
        let definition = bundle.parameters.get(name).and_then(|it| bundle.definitions.get(&it.definition));
        if given.visible && bundle.is_write_only(name) {
            return Err(Failure::Usage(format!(
                "--param {name}=...: the bundle declares the parameter writeOnly, and everyone on this machine can \
                 read a command line; use {name}=@FILE, {name}=@- (standard input) or {name}=@env:VARIABLE"
            )));
        }
        let value = match definition {
            // Unknown parameters are reported later, with all other errors.
            None => Ok(Value::String(String::new())),
            Some(definition) => definition.read(&format!("/parameters/{name}"), &given.text),
        };
        match value {
            Ok(value) => drop(values.insert(name.clone(), value)),
            Err(wrong) => violations.append(wrong),
        }
    }
    violations.or(values).map_err(|violations| wrong("the parameters are not valid")(violations).into())
}

/// Reads credential sets from files or by name, and merges them.
pub(crate) fn credential_sets(
    names: &[String],
    claims_dir: &Path,
) -> Result<BTreeMap<String, CredentialSource>, CnabError> {
    let mut sets = Vec::new();
    for name in names {
        let path = set_path(name, claims_dir)?;
        let mut set = CredentialSet::parse(&Zeroizing::new(read(&path, SET_MAX as u64)?))
            .map_err(wrong(format!("{} is not a credential set", path.display())))?;
        if set.name.is_empty() {
            set.name = path.display().to_string();
        }
        sets.push(set);
    }
    merge(sets).map_err(wrong("the credential sets conflict"))
}

/// Returns the path of a credential set. A name without a slash is a set below the claims directory if that set exists,
/// as for Porter. Otherwise the name is a path.
fn set_path(name: &str, claims_dir: &Path) -> Result<PathBuf, CnabError> {
    let directory = claims_dir.join("credentials");
    let candidates = ["json", "yaml", "yml"].map(|end| directory.join(format!("{name}.{end}")));
    match candidates.into_iter().find(|path| !name.contains('/') && path.is_file()) {
        Some(path) => Ok(path),
        None if !name.contains('/') && !Path::new(name).exists() => {
            Err(CnabError::NoSet { name: name.to_owned(), directory })
        }
        None => Ok(name.into()),
    }
}

/// Parses the flags for dependencies (`NAME=FILE`) and images (`[NAME#]REF`).
pub(crate) fn pairs(flags: &[String], flag: &str, separator: char) -> Result<BTreeMap<String, String>, Failure> {
    let mut pairs = BTreeMap::new();
    for text in flags {
        let (name, value) = match text.split_once(separator) {
            Some((name, value)) => (name, value),
            None if separator == '#' => ("", text.as_str()),
            None => return Err(Failure::Usage(format!("{flag} takes NAME{separator}..."))),
        };
        if value.is_empty() || pairs.insert(name.to_owned(), value.to_owned()).is_some() {
            return Err(Failure::Usage(format!("{flag} {text}: the value is empty, or its name is given twice")));
        }
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(flags: &[&str]) -> Result<Given, Failure> {
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let variable = |name: &str| (name == "TOKEN").then(|| OsString::from("canary"));
        parameters(&flags, &mut "from stdin\n".as_bytes(), &variable)
    }

    #[test]
    fn parameter_sources_are_parsed() {
        let all = given(&["a=1=2", "b=@@x", "c=@env:TOKEN", "d=@-", "db#e=", "f="]).unwrap();
        let text = |name: &str| (all[""][name].text.as_str(), all[""][name].visible);
        assert_eq!(text("a"), ("1=2", true));
        assert_eq!(text("b"), ("@x", true));
        assert_eq!(text("c"), ("canary", false));
        assert_eq!(text("d"), ("from stdin\n", false));
        assert_eq!(text("f"), ("", true));
        assert_eq!(all["db"]["e"].text.as_str(), "");
        for bad in [&["a"][..], &["=x"], &["a=1", "a=2"], &["a=@-", "b=@-"], &["a=@env:NOPE"]] {
            assert!(given(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn write_only_argument_value_is_refused() {
        let bundle = serde_json::json!({
            "schemaVersion": "v1", "name": "x", "version": "1.0.0", "invocationImages": [{ "image": "x" }],
            "definitions": { "pw": { "type": "string", "writeOnly": true }, "n": { "type": "integer" } },
            "parameters": {
                "pw": { "definition": "pw", "destination": { "env": "PW" } },
                "n": { "definition": "n", "destination": { "env": "N" } },
            },
        });
        let bundle = Bundle::parse(bundle.to_string().as_bytes()).unwrap();
        let read = |flags: &[&str]| values(&bundle, given(flags).unwrap().get(""));
        let error = read(&["pw=canary"]).unwrap_err().describe();
        assert!(error.contains("pw=@FILE") && !error.contains("canary"), "{error}");
        let read_values = read(&["pw=@env:TOKEN", "n=5"]).unwrap();
        assert_eq!((&read_values["pw"], &read_values["n"]), (&Value::from("canary"), &Value::from(5)));
        let error = read(&["n=@env:TOKEN"]).unwrap_err().describe();
        assert!(error.contains("/parameters/n") && !error.contains("canary"), "{error}");
    }
}
