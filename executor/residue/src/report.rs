//! Defines the result of a search: hits, coverage, and places that could not be searched.

use std::fmt;
use std::path::PathBuf;

/// Maximum number of hits that are listed individually. Further hits are only counted.
const HITS_MAX: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Memory {
        /// Process id on the host.
        pid: u32,
        name: String,
        /// Mapping as in /proc/PID/maps: `[heap]`, `[stack]`, or a file. Empty for anonymous memory.
        mapping: String,
    },
    /// A file that is accessible only through descriptors of a process: a memory file, a deleted file, a detached
    /// mount.
    Descriptor {
        /// Process id on the host.
        pid: u32,
        name: String,
        /// Descriptor as in /proc/PID/fd.
        target: String,
    },
    /// Environment, from /proc/PID/environ.
    Environment {
        /// Process id on the host.
        pid: u32,
        name: String,
    },
    /// Command line, from /proc/PID/cmdline.
    CommandLine {
        /// Process id on the host.
        pid: u32,
        name: String,
    },
    /// Mount table, from /proc/PID/mountinfo.
    MountTable {
        /// Process id on the host.
        pid: u32,
        name: String,
    },
    /// The content of a file.
    File(PathBuf),
    Journal,
    /// The machine's physical memory.
    Kernel {
        /// Owner of the page according to /proc/kpageflags, such as `free`, `slab`, `anonymous` or `file`.
        page: &'static str,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory { pid, name, mapping } if mapping.is_empty() => write!(out, "memory of {name} {pid}"),
            Self::Memory { pid, name, mapping } => write!(out, "memory of {name} {pid}, {mapping}"),
            Self::Descriptor { pid, name, target } => write!(out, "{target}, open in {name} {pid}"),
            Self::Environment { pid, name } => write!(out, "environment of {name} {pid}"),
            Self::CommandLine { pid, name } => write!(out, "command line of {name} {pid}"),
            Self::MountTable { pid, name } => write!(out, "mount table of {name} {pid}"),
            Self::File(path) => write!(out, "{}", path.display()),
            Self::Journal => out.write_str("the journal"),
            Self::Kernel { page } => write!(out, "physical memory, {page} page"),
        }
    }
}

/// A secret that was found at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    pub label: String,
    pub place: Place,
    /// Number of windows of the secret that were found at the place, in any encoding.
    pub windows: u64,
    /// Address or offset of the first window that was found.
    pub at: u64,
}

impl fmt::Display for Hit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { label, place, windows, at } = self;
        write!(out, "{label} in {place} at {at:x} ({} bytes)", windows * crate::WINDOW as u64)
    }
}

/// A place that could not be searched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsearched {
    pub what: String,
    pub why: String,
}

/// Hits and extent of a search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Hits: at most one for each combination of a secret's name and a place.
    pub hits: Vec<Hit>,
    /// Number of further hits that are not listed.
    pub further: u64,
    /// Number of searched processes.
    pub processes: u64,
    /// Number of searched files, including files that were opened by descriptor.
    pub files: u64,
    /// Number of searched bytes.
    pub bytes: u64,
    pub unsearched: Vec<Unsearched>,
}

impl Report {
    /// Returns true if anything was found.
    pub fn found(&self) -> bool {
        !self.hits.is_empty()
    }

    pub(crate) fn hit(&mut self, label: &str, at: u64, place: Place) {
        let full = self.hits.len() >= HITS_MAX;
        match self.hits.iter_mut().rev().find(|hit| hit.label == label && hit.place == place) {
            Some(hit) => hit.windows += 1,
            None if full => self.further += 1,
            None => self.hits.push(Hit { label: label.to_owned(), place, windows: 1, at }),
        }
    }

    pub(crate) fn unsearched(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.unsearched.push(Unsearched { what: what.into(), why: why.into() });
    }
}

/// Prints one hit per line, or nothing if there are no hits.
impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for hit in &self.hits {
            writeln!(out, "{hit}")?;
        }
        if self.further > 0 {
            writeln!(out, "and {} more", self.further)?;
        }
        Ok(())
    }
}
