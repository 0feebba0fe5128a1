//! Parses credential sets, which define the sources of a bundle's credentials (CNAB 802).
//!
//! A set is JSON or YAML. Each entry has one source: a variable, a file, a command, or a value. The caller reads the
//! sources ([`Source`]). Values never occur in claims, messages or errors. For an error of the YAML parser, only the
//! position is reported, because the parser's message quotes the document.
//!
//! Rules are numbered as in `docs/guides/cnab-rules.md`.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::action::Action;
use crate::bundle::{Bundle, applies};
use crate::secret::Secret;
use crate::violation::{Violations, pointer};

/// Maximum size of a credential set, in bytes.
pub const SET_MAX: usize = 1 << 20;

#[derive(Clone, PartialEq, Eq)]
pub enum Source {
    /// A variable of the caller's environment.
    Env(String),
    /// A file; `$NAME` and `${NAME}` in its path are expanded.
    Path(String),
    /// The standard output of a program, without its standard error.
    Command(String),
    /// The value itself.
    Value(Secret),
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.kind())
    }
}

impl Source {
    /// Returns the key of this kind of source in a set.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Env(_) => "env",
            Self::Path(_) => "path",
            Self::Command(_) => "command",
            Self::Value(_) => "value",
        }
    }
}

#[derive(Clone, Debug)]
pub struct CredentialSet {
    /// Name that the set declares.
    pub name: String,
    /// Sources by credential name.
    pub sources: BTreeMap<String, Source>,
}

#[derive(Deserialize)]
struct Written {
    #[serde(default)]
    name: String,
    credentials: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    name: String,
    source: BTreeMap<String, String>,
}

impl CredentialSet {
    /// Parses a set.
    ///
    /// # Errors
    /// Returns an error if the set is not YAML, an entry does not have exactly one known source, or a name occurs
    /// twice.
    pub fn parse(bytes: &[u8]) -> Result<Self, Violations> {
        let set = |message: String| Violations::one("", 31, message);
        if bytes.len() > SET_MAX {
            return Err(set(format!("the credential set is {} bytes; the maximum is {SET_MAX}", bytes.len())));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| set("the credential set is not UTF-8".into()))?;
        let written: Written = serde_saphyr::from_str(text).map_err(|error| match error.location() {
            Some(at) => set(format!("not a valid credential set: line {}, column {}", at.line(), at.column())),
            None => {
                set("not a valid credential set: it must have `name` and a list `credentials`, each entry with `name` and `source`".into())
            }
        })?;
        let mut wrong = Violations::default();
        let mut sources = BTreeMap::new();
        for (index, Entry { name, source }) in written.credentials.into_iter().enumerate() {
            let at = format!("/credentials/{index}");
            let mut pairs = source.into_iter();
            let source = match (pairs.next(), pairs.next()) {
                (Some((kind, value)), None) => match &*kind {
                    "env" => Some(Source::Env(value)),
                    "path" => Some(Source::Path(value)),
                    "command" => Some(Source::Command(value)),
                    "value" => Some(Source::Value(value.into())),
                    "secret" => {
                        wrong.add(
                            format!("{at}/source"),
                            31,
                            "`secret` (a secret store of Porter) is not supported; use `command`",
                        );
                        None
                    }
                    _ => {
                        wrong.add(format!("{at}/source"), 31, "has an unknown source; use env, path, command or value");
                        None
                    }
                },
                _ => {
                    wrong.add(format!("{at}/source"), 31, "must have exactly one source: env, path, command or value");
                    None
                }
            };
            let Some(source) = source else { continue };
            if sources.insert(name.clone(), source).is_some() {
                wrong.add(at, 31, format!("{name:?} is listed twice"));
            }
        }
        wrong.or(Self { name: written.name, sources })
    }
}

/// Merges sets.
///
/// # Errors
/// Returns an error if two sets have the same credential, even with the same source, because the choice would be
/// ambiguous.
pub fn merge(sets: Vec<CredentialSet>) -> Result<BTreeMap<String, Source>, Violations> {
    let mut wrong = Violations::default();
    let mut merged: BTreeMap<String, (String, Source)> = BTreeMap::new();
    for set in sets {
        for (name, source) in set.sources {
            match merged.get(&name) {
                Some((first, _)) => {
                    let message = format!("is in two credential sets, {first:?} and {:?}", set.name);
                    wrong.add(pointer("/credentials", &name), 31, message);
                }
                None => drop(merged.insert(name, (set.name.clone(), source))),
            }
        }
    }
    wrong.or(merged.into_iter().map(|(name, (_, source))| (name, source)).collect())
}

/// Returns the sources of the credentials that the action uses. Other credentials of the sets are not read.
pub fn wanted<'a>(
    bundle: &Bundle,
    action: &Action,
    sources: &'a BTreeMap<String, Source>,
) -> Vec<(&'a str, &'a Source)> {
    let wanted = |name: &String| bundle.credentials.get(name).is_some_and(|it| applies(&it.apply_to, action.name()));
    sources.iter().filter(|(name, _)| wanted(name)).map(|(name, source)| (name.as_str(), source)).collect()
}

/// Checks that every required credential is supplied (rule 31). Stateless actions require no credentials (rule 34).
///
/// # Errors
/// Returns a violation for each missing credential.
pub fn check<'a>(bundle: &Bundle, action: &Action, supplied: impl Fn(&str) -> bool + 'a) -> Result<(), Violations> {
    let mut wrong = Violations::default();
    for (name, credential) in &bundle.credentials {
        if credential.required
            && applies(&credential.apply_to, action.name())
            && !action.is_stateless()
            && !supplied(name)
        {
            wrong.add(
                pointer("/credentials", name),
                31,
                format!("is required for {} and is in no credential set", action.name()),
            );
        }
    }
    wrong.or(())
}
