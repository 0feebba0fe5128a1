//! Configuration file: the users of pods (rule C56), and the secrets that their annotations may refer to (rule C55).
//!
//! The rules are read again for each request that needs them, so a change needs no restart. Without a rule no reference is
//! allowed.

use std::fs;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use executor_core::reference::{check_provider_name, check_reference_path, covers};
use executor_core::validate::is_host_label;
use serde::Deserialize;

/// File that is read if the command line names none. It may be missing.
const DEFAULT: &str = "/etc/executor/executor-cri.toml";
/// Default prefix of annotations with references to secrets.
const ANNOTATION: &str = "secrets.executor.v1";
/// Longest prefix of an annotation in bytes: Kubernetes' limit.
const ANNOTATION_MAX: usize = 253;
/// Largest file, in bytes.
const FILE_MAX: u64 = 1 << 20;
/// Maximum number of rules, and of entries of each list of a rule.
const LIST_MAX: usize = 1000;
/// Namespace of a rule for all namespaces.
const ALL: &str = "*";

/// Pods with users of their own on the host (rule C56).
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum UserNamespaces {
    /// Those with `hostUsers: false`.
    #[default]
    Requested,
    /// All but privileged ones, those in a namespace of the host, and those of the RuntimeClass handler `executor-host`.
    All,
}

/// The table `[cri]`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// Pods with users of their own on the host.
    pub(crate) user_namespaces: UserNamespaces,
    /// Prefix of the annotations with references to secrets, before the `/` and the container's name.
    pub(crate) secrets_annotation: String,
    /// Rules for references to secrets.
    pub(crate) secrets: Vec<Rule>,
}

impl Default for Config {
    fn default() -> Self {
        Self { user_namespaces: UserNamespaces::default(), secrets_annotation: ANNOTATION.into(), secrets: Vec::new() }
    }
}

/// Allows pods of some namespaces to refer to some secrets of a provider.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Rule {
    /// True if the rule is for annotations. No other references exist.
    annotations: bool,
    /// Namespaces of the pods; [`ALL`] for all.
    namespaces: Vec<String>,
    provider: String,
    /// Paths at the provider, each with everything below. `/` is every path.
    paths: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Document {
    cri: Config,
}

/// The configuration file.
#[derive(Clone, Debug)]
pub(crate) struct ConfigFile {
    path: PathBuf,
    /// True if the command line names the file, which must exist then.
    is_required: bool,
}

impl ConfigFile {
    pub(crate) fn new(path: Option<&Path>) -> Self {
        Self { path: path.unwrap_or(Path::new(DEFAULT)).to_owned(), is_required: path.is_some() }
    }

    /// Reads the file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is not TOML, or has an unknown key or an impossible value. It names every
    /// impossible value.
    pub(crate) fn read(&self) -> Result<Config, String> {
        let shown = self.path.display();
        let mut text = String::new();
        match fs::File::open(&self.path).and_then(|file| file.take(FILE_MAX + 1).read_to_string(&mut text)) {
            Ok(bytes) if bytes as u64 > FILE_MAX => return Err(format!("{shown}: has more than {FILE_MAX} bytes")),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound && !self.is_required => {}
            Err(error) => return Err(format!("{shown}: {error}")),
        }
        parse(&text).map_err(|why| format!("{shown}: {why}"))
    }
}

fn parse(text: &str) -> Result<Config, String> {
    let Document { cri } = toml::from_str(text).map_err(|error: toml::de::Error| {
        let line = error.span().map_or(0, |span| text[..span.start.min(text.len())].matches('\n').count()) + 1;
        format!("line {line}: {}", error.message())
    })?;
    let faults = cri.faults();
    if faults.is_empty() { Ok(cri) } else { Err(faults.join("; ")) }
}

impl Config {
    /// Returns true if a rule allows the annotations of pods in a namespace to refer to a path.
    pub(crate) fn allows(&self, namespace: &str, provider: &str, path: &str) -> bool {
        self.secrets.iter().any(|rule| {
            rule.annotations
                && rule.provider == provider
                && rule.namespaces.iter().any(|one| one == ALL || one == namespace)
                && rule.paths.iter().any(|one| covers(one, path))
        })
    }

    /// Returns the names of the providers in rules.
    pub(crate) fn providers(&self) -> impl Iterator<Item = &str> {
        self.secrets.iter().map(|rule| &*rule.provider)
    }

    /// Returns every impossible value with its key.
    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if !is_subdomain(&self.secrets_annotation) {
            faults.push(format!(
                "cri.secrets_annotation = {:?}: must be a DNS name in lower case, of at most {ANNOTATION_MAX} bytes",
                self.secrets_annotation
            ));
        }
        if self.secrets.len() > LIST_MAX {
            faults.push(format!("cri.secrets: has {} rules; at most {LIST_MAX}", self.secrets.len()));
        }
        for (index, rule) in self.secrets.iter().enumerate() {
            faults.extend(rule.faults().into_iter().map(|fault| format!("cri.secrets[{index}].{fault}")));
        }
        faults
    }
}

impl Rule {
    fn faults(&self) -> Vec<String> {
        let Self { annotations, namespaces, provider, paths } = self;
        let mut faults = Vec::new();
        if !annotations {
            faults.push("annotations: must be true: rules are for the annotations of pods alone".to_owned());
        }
        if let Err(fault) = check_provider_name(provider) {
            faults.push(format!("provider = {provider:?}: {fault}"));
        }
        for (key, list) in [("namespaces", namespaces), ("paths", paths)] {
            if list.is_empty() || list.len() > LIST_MAX {
                faults.push(format!("{key}: has {} entries; 1 to {LIST_MAX} are allowed", list.len()));
            }
        }
        for (index, namespace) in namespaces.iter().enumerate().filter(|(_, name)| *name != ALL && !is_label(name)) {
            faults.push(format!("namespaces[{index}] = {namespace:?}: must be the name of a namespace, or {ALL:?}"));
        }
        for (index, path) in paths.iter().enumerate().filter(|(_, path)| *path != "/") {
            if let Err(fault) = check_reference_path(path.strip_suffix('/').unwrap_or(path)) {
                faults.push(format!("paths[{index}] = {path:?}: {fault}"));
            }
        }
        faults
    }
}

/// Returns true for a name of a namespace or a container: an RFC 1123 label in lower case.
pub(crate) fn is_label(name: &str) -> bool {
    is_host_label(name) && !name.contains(|c: char| c.is_ascii_uppercase())
}

fn is_subdomain(name: &str) -> bool {
    name.len() <= ANNOTATION_MAX && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: &str =
        "[[cri.secrets]]\nannotations = true\nnamespaces = [\"shop\"]\nprovider = \"vault\"\npaths = [\"kv/shop/\"]\n";

    /// Rule C55: closed by default, and each rule has its own namespaces, provider and paths.
    #[test]
    fn rules_allow_their_own_paths() {
        let config = parse(RULE).unwrap();
        for (namespace, provider, path, expected) in [
            ("shop", "vault", "kv/shop/db", true),
            ("shop", "vault", "kv/shopping", false),
            ("shop", "vault", "kv/other", false),
            ("shop", "other", "kv/shop/db", false),
            ("shops", "vault", "kv/shop/db", false),
            ("", "vault", "kv/shop/db", false),
        ] {
            assert_eq!(config.allows(namespace, provider, path), expected, "{namespace} {provider} {path}");
        }
        assert!(!parse("").unwrap().allows("shop", "vault", "kv/shop/db"));
        let all = parse(&RULE.replace("\"shop\"", "\"*\"").replace("kv/shop/", "/")).unwrap();
        assert!(all.allows("any", "vault", "x") && !all.allows("any", "other", "x"));
        assert_eq!(parse("").unwrap().secrets_annotation, ANNOTATION);
    }

    #[test]
    fn every_impossible_value_is_named() {
        let bad = "[cri]\nsecrets_annotation = \"A/b\"\n[[cri.secrets]]\nnamespaces = [\"Shop\"]\nprovider = \"V\"\n\
                   paths = [\"/a\", \"a/../b\"]\n[[cri.secrets]]\nannotations = true\nprovider = \"p\"\n";
        let error = parse(bad).unwrap_err();
        for key in [
            "cri.secrets_annotation",
            "cri.secrets[0].annotations",
            "cri.secrets[0].provider",
            "cri.secrets[0].namespaces[0]",
            "cri.secrets[0].paths[0]",
            "cri.secrets[0].paths[1]",
            "cri.secrets[1].namespaces",
            "cri.secrets[1].paths",
        ] {
            assert!(error.contains(key), "{key}: {error}");
        }
        for text in [
            "x = 1",
            "[cri]\nx = 1",
            "[[cri.secrets]]\nservice_accounts = []",
            "[cri]\nuser_namespaces = \"some\"",
            "[",
            "[[secrets]]",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_named_files_must_exist() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cri.toml");
        assert!(ConfigFile::new(Some(&path)).read().unwrap_err().contains("cri.toml"));
        assert_eq!(ConfigFile { path: path.clone(), is_required: false }.read().unwrap(), Config::default());
        fs::write(&path, RULE).unwrap();
        assert_eq!(ConfigFile::new(Some(&path)).read().unwrap().secrets.len(), 1);
        fs::write(&path, " ".repeat(FILE_MAX as usize + 1)).unwrap();
        assert!(ConfigFile::new(Some(&path)).read().unwrap_err().contains("has more than"));
    }
}
