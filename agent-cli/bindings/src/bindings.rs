//! Represents bindings as files, built from one or several sources and validated as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use zeroize::Zeroizing;

use crate::described::Described;
use crate::names::{PROVIDER, TYPE, is_binding, is_key};
use crate::violation::{Refused, Violation};
use crate::{BYTES_MAX, ONE_FILE, SERVICE_BINDING_ROOT, VCAP_SERVICES_FILE_PATH};

/// Layout of bindings below their root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `BINDING/ENTRY`, as in the Service Binding specification for Kubernetes.
    Directories,
    /// The whole VCAP_SERVICES in the file [`ONE_FILE`].
    OneFile,
}

impl Layout {
    /// Returns the environment variable that points a process to the files.
    pub fn variable(self) -> &'static str {
        match self {
            Self::Directories => SERVICE_BINDING_ROOT,
            Self::OneFile => VCAP_SERVICES_FILE_PATH,
        }
    }
}

/// A file with its path below the root.
#[derive(PartialEq, Eq)]
pub struct BindingFile {
    /// `BINDING/ENTRY`, or [`ONE_FILE`].
    pub path: String,
    /// Content of the file, which can be arbitrary bytes.
    pub content: Zeroizing<Vec<u8>>,
    /// True if the file only describes the binding and is not secret, such as type, provider and plan.
    pub public: bool,
}

impl BindingFile {
    /// Returns the number of bytes of path and content.
    fn weight(&self) -> u64 {
        self.path.len() as u64 + self.content.len() as u64
    }
}

impl fmt::Debug for BindingFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, content, public } = self;
        f.debug_struct("BindingFile")
            .field("path", path)
            .field("content", &format_args!("[REDACTED; {} bytes]", content.len()))
            .field("public", public)
            .finish()
    }
}

/// A binding of [`Bindings`], borrowed.
#[derive(Debug)]
pub struct Binding<'a> {
    /// Name of the binding and of its directory.
    pub name: &'a str,
    /// Entries, sorted by name.
    pub entries: Vec<(&'a str, &'a BindingFile)>,
}

impl Binding<'_> {
    /// Returns the content of an entry; `None` if the binding has no such entry.
    pub fn entry(&self, name: &str) -> Option<&[u8]> {
        self.entries.iter().find(|(entry, _)| *entry == name).map(|(_, file)| file.content.as_slice())
    }

    /// Returns the binding's type, such as `mysql`; `None` if the binding has no type or the type is not text.
    pub fn kind(&self) -> Option<&str> {
        self.entry(TYPE).and_then(|bytes| std::str::from_utf8(bytes).ok())
    }

    /// Returns the binding's provider; `None` if the binding has no provider or the provider is not text.
    pub fn provider(&self) -> Option<&str> {
        self.entry(PROVIDER).and_then(|bytes| std::str::from_utf8(bytes).ok())
    }
}

/// Validated files: every name is allowed and unique, and their total size is within the limit.
#[derive(Debug, PartialEq, Eq)]
pub struct Bindings {
    files: Vec<BindingFile>,
    layout: Layout,
}

impl Bindings {
    /// Returns bindings with the layout [`Layout::OneFile`] and this content.
    ///
    /// # Errors
    /// Returns an error if the file is too large.
    pub(crate) fn from_one_file(content: Zeroizing<Vec<u8>>) -> Result<Self, Refused> {
        let file = BindingFile { path: ONE_FILE.to_owned(), content, public: false };
        let size = file.weight();
        if size > BYTES_MAX {
            return Err(Refused(vec![Violation::Size(size)]));
        }
        Ok(Self { files: vec![file], layout: Layout::OneFile })
    }

    /// Returns the layout of the files.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the files, sorted by path.
    pub fn files(&self) -> &[BindingFile] {
        &self.files
    }

    /// Returns the files by value.
    pub fn into_files(self) -> Vec<BindingFile> {
        self.files
    }

    /// Returns the number of bytes of all paths and contents.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(BindingFile::weight).sum()
    }

    /// Returns the bindings, sorted by name; empty for [`Layout::OneFile`].
    pub fn bindings(&self) -> Vec<Binding<'_>> {
        let mut bindings: Vec<Binding<'_>> = Vec::new();
        for file in &self.files {
            let Some((name, entry)) = file.path.split_once('/') else { continue };
            match bindings.last_mut().filter(|binding| binding.name == name) {
                Some(binding) => binding.entries.push((entry, file)),
                None => bindings.push(Binding { name, entries: vec![(entry, file)] }),
            }
        }
        bindings
    }
}

/// Builds bindings in [`Layout::Directories`]. No error is returned before [`Builder::finish`], which reports all
/// violations.
#[derive(Default)]
pub struct Builder {
    files: BTreeMap<String, BindingFile>,
    names: BTreeSet<String>,
    violations: Vec<Violation>,
}

impl Builder {
    /// Returns a builder without bindings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a binding from a directory. The entries are not translated.
    #[must_use]
    pub fn binding(mut self, name: &str, entries: Vec<(String, Zeroizing<Vec<u8>>)>) -> Self {
        let begun = self.start(name);
        if begun && entries.iter().all(|(entry, _)| entry != TYPE) {
            self.refuse(Violation::NoType(name.to_owned()));
        }
        let described = Described::new(&entries);
        for (entry, content) in entries {
            if !is_key(&entry) {
                self.refuse(Violation::FileName(entry));
            } else if begun {
                let public = described.is_public(&entry);
                self.put(name, &entry, content, public);
            }
        }
        self
    }

    /// Starts a binding. Returns false if the name is invalid or already used.
    pub(crate) fn start(&mut self, name: &str) -> bool {
        if !is_binding(name) {
            self.violations.push(Violation::BindingName(name.to_owned()));
            return false;
        }
        if !self.names.insert(name.to_owned()) {
            self.violations.push(Violation::DuplicateBinding(name.to_owned()));
            return false;
        }
        true
    }

    pub(crate) fn put(&mut self, binding: &str, entry: &str, content: Zeroizing<Vec<u8>>, public: bool) {
        let path = format!("{binding}/{entry}");
        self.files.insert(path.clone(), BindingFile { path, content, public });
    }

    pub(crate) fn refuse(&mut self, violation: Violation) {
        self.violations.push(violation);
    }

    /// Validates all bindings.
    ///
    /// # Errors
    /// Returns all violations if there are invalid names, duplicates, bindings without a type, or a total size of the
    /// resulting files above the limit. (Cloud Controller stops at the first violation. If an attribute replaces a
    /// credential, Cloud Controller counts the sizes of both.)
    pub fn finish(self) -> Result<Bindings, Refused> {
        let Self { files, mut violations, .. } = self;
        let bindings = Bindings { files: files.into_values().collect(), layout: Layout::Directories };
        let size = bindings.bytes();
        if size > BYTES_MAX {
            violations.push(Violation::Size(size));
        }
        if violations.is_empty() { Ok(bindings) } else { Err(Refused(violations)) }
    }
}
