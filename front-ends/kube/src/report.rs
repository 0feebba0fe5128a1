//! Collects violations and warnings with their locations.
//!
//! Rules are numbered as in `docs/guides/kube-rules.md`.

use std::collections::HashSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use executor_yaml::{Node, Place, Value};

/// Maximum number of violations and maximum number of warnings that are stored.
pub const KEPT_MAX: usize = 200;

/// Location of an object in the files.
#[derive(Clone, Debug)]
pub struct Origin {
    /// File, or `-` for standard input.
    pub file: Arc<str>,
    /// Number of the document in the file, from 1.
    pub document: usize,
    /// Path of the object in its document; `items[2]` in a list, otherwise empty.
    pub base: String,
    /// Kind, namespace and name of the object, such as `Pod default/web`.
    pub object: String,
    /// The document, in which lines are looked up.
    pub root: Arc<Node>,
}

impl Origin {
    /// Returns the line and column of a path below the object.
    pub fn place(&self, path: &str) -> Place {
        self.root.place_of(&self.full(path))
    }

    /// Returns the index of the list item whose field `key` equals `text`.
    pub(crate) fn item(&self, list: &str, key: &str, text: &str) -> Option<usize> {
        let Value::List(items) = &self.root.at(&self.full(list))?.value else { return None };
        items.iter().position(|item| item.get(key).and_then(Node::text) == Some(text))
    }

    fn full(&self, path: &str) -> String {
        match (self.base.is_empty(), path.is_empty()) {
            (true, _) => path.to_owned(),
            (false, true) => self.base.clone(),
            (false, false) => format!("{}.{path}", self.base),
        }
    }

    fn violation(&self, path: String, rule: &'static str, message: String) -> Violation {
        let Place { line, column } = self.place(&path);
        let (file, object) = (self.file.to_string(), self.object.clone());
        Violation { file, document: self.document, line, column, object, path, rule, message }
    }
}

/// A violation of a rule, or a warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub file: String,
    /// Number of the document, from 1.
    pub document: usize,
    /// Line in the file, from 1.
    pub line: usize,
    /// Column in the line, from 1.
    pub column: usize,
    /// Kind, namespace and name of the object, such as `Pod default/web`; empty if the document is not an object.
    pub object: String,
    /// Path of the field; empty for the whole object.
    pub path: String,
    /// Number of the rule, for example `P17`.
    pub rule: &'static str,
    /// Description in one sentence, without the location.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{} (document {}", self.file, self.line, self.column, self.document)?;
        if !self.object.is_empty() {
            write!(f, ", {}", self.object)?;
        }
        f.write_str("): ")?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// Treatment of unknown fields, duplicate keys, and kinds that are not run (rule P4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strictness {
    /// Unknown fields are violations, as with kubectl.
    #[default]
    Strict,
    /// Unknown fields are warnings, as at the API server.
    Warn,
    /// Unknown fields are ignored.
    Ignore,
}

/// Collected violations and warnings.
#[derive(Clone, Debug, Default)]
pub struct Report {
    violations: Vec<Violation>,
    warnings: Vec<Violation>,
    /// Hashes of the reported violations, to skip duplicates: the pods of a workload have the same violations.
    reported: HashSet<u64>,
    beyond: usize,
    strictness: Strictness,
}

impl Report {
    pub fn new(strictness: Strictness) -> Self {
        Self { strictness, ..Self::default() }
    }

    /// Adds a violation of a rule by the field at `path` in an object.
    pub fn refuse(&mut self, origin: &Origin, path: impl Into<String>, rule: &'static str, message: impl Into<String>) {
        let (path, message) = (path.into(), message.into());
        let mut hash = DefaultHasher::new();
        (&origin.file, origin.document, &origin.base, &path, &message).hash(&mut hash);
        if !self.reported.insert(hash.finish()) {
            return;
        }
        match self.violations.len() < KEPT_MAX {
            true => self.violations.push(origin.violation(path, rule, message)),
            false => self.beyond += 1,
        }
    }

    /// Returns the number of violations.
    pub fn count(&self) -> usize {
        self.violations.len() + self.beyond
    }

    pub fn warn(&mut self, origin: &Origin, path: impl Into<String>, rule: &'static str, message: impl Into<String>) {
        if self.warnings.len() < KEPT_MAX {
            let warning = origin.violation(path.into(), rule, message.into());
            if !self.warnings.contains(&warning) {
                self.warnings.push(warning);
            }
        }
    }

    /// Adds a violation, a warning or nothing, depending on the strictness.
    pub fn unknown(
        &mut self,
        origin: &Origin,
        path: impl Into<String>,
        rule: &'static str,
        message: impl Into<String>,
    ) {
        match self.strictness {
            Strictness::Strict => self.refuse(origin, path, rule, message),
            Strictness::Warn => self.warn(origin, path, rule, message),
            Strictness::Ignore => {}
        }
    }

    /// Returns the violations in the order in which they were found.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    pub fn warnings(&self) -> &[Violation] {
        &self.warnings
    }

    pub fn strictness(&self) -> Strictness {
        self.strictness
    }

    /// Returns the value and the warnings, or all violations if there are any.
    ///
    /// # Errors
    /// Returns all violations if there are any.
    pub fn finish<T>(self, value: T) -> Result<(T, Vec<Violation>), Violations> {
        let Self { violations: mut list, beyond, warnings, .. } = self;
        // Sort by file, in the order in which the files first occur, and by line.
        let files: Vec<String> = list.iter().map(|violation| violation.file.clone()).collect();
        let first = |file: &str| files.iter().position(|other| other == file);
        list.sort_by_key(|violation| (first(&violation.file), violation.line));
        if list.is_empty() { Ok((value, warnings)) } else { Err(Violations { list, beyond }) }
    }
}

/// A list of violations that is not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violations {
    /// The stored violations.
    pub list: Vec<Violation>,
    /// Number of violations that were not stored.
    pub beyond: usize,
}

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, violation) in self.list.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            violation.fmt(f)?;
        }
        if self.beyond > 0 {
            write!(f, "\nand {} more", self.beyond)?;
        }
        Ok(())
    }
}

impl std::error::Error for Violations {}
