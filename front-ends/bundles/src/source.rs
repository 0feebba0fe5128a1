//! Reads bundles and catalogs from directories, archives, images and git commits. Content is pinned by a digest.
//!
//! Content is read into memory or into a directory of the caller's choice. Links, devices and names outside the source
//! are refused.

pub mod archive;
pub mod git;
pub mod image;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read, Write as _};
use std::path::{Component, Path, PathBuf};

use executor_core::image::ImageReference;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Maximum number of files of a source.
pub const FILES_MAX: usize = 100_000;
/// Maximum size of a source that is held in memory, in bytes.
pub const MEMORY_MAX: u64 = 128 << 20;
/// Maximum size of a source that is written to a directory, in bytes.
pub const DIRECTORY_MAX: u64 = 4 << 30;
/// Maximum length of a file name, in bytes.
const NAME_MAX: usize = 1024;

/// Reason why a source cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("{} cannot be read", .0.display())]
    Read(PathBuf, #[source] io::Error),
    #[error("{} cannot be written", .0.display())]
    Write(PathBuf, #[source] io::Error),
    #[error("{0:?} {1}")]
    Entry(String, &'static str),
    #[error("the source has more than {FILES_MAX} files or {0} bytes")]
    TooLarge(u64),
    #[error("{0}")]
    Image(String),
    #[error("{0}")]
    Git(String),
    #[error("{0}")]
    Wrong(String),
}

/// A source, as given on the command line and stored in records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum Source {
    /// A directory or a single file.
    Directory {
        /// Absolute path.
        path: PathBuf,
    },
    /// A tar archive, optionally compressed with gzip.
    Archive {
        /// Absolute path.
        path: PathBuf,
    },
    /// An image in an OCI layout, or in an archive of a layout or of `docker save`.
    Layout {
        /// Path of the layout directory or the archive.
        path: PathBuf,
        /// Name or digest of the image; `None` if there is only one image.
        name: Option<String>,
    },
    /// An image in a registry, which the caller must fetch.
    Image {
        /// Image reference without a scheme.
        reference: String,
    },
    /// A commit of a git repository.
    Git {
        /// Path of a local repository, or its https URL.
        repository: String,
        /// Full name of the commit, in hexadecimal.
        commit: String,
        /// Directory in the commit; empty for the root.
        directory: String,
    },
}

impl Source {
    /// Parses a source of the command line: `PATH`, `oci:PATH[:NAME]`, `docker://REFERENCE`,
    /// `git:REPOSITORY@COMMIT[#DIRECTORY]`.
    ///
    /// # Errors
    /// Returns an error if the string is not a source or the path does not exist.
    pub fn parse(text: &str) -> Result<Self, SourceError> {
        if let Some(reference) = text.strip_prefix("docker://") {
            ImageReference::parse_registry(reference)
                .map_err(|bad| SourceError::Wrong(format!("the image {reference:?}: {bad}")))?;
            return Ok(Self::Image { reference: reference.to_owned() });
        }
        if let Some(rest) = text.strip_prefix("git:") {
            return git::parse(rest);
        }
        for prefix in ["oci:", "oci-archive:", "docker-archive:"] {
            if let Some(rest) = text.strip_prefix(prefix) {
                let (path, name) = match rest.split_once(':') {
                    Some((path, name)) => (path, Some(name.to_owned())),
                    None => (rest, None),
                };
                return Ok(Self::Layout { path: absolute(path)?, name });
            }
        }
        let path = absolute(text)?;
        if path.join("oci-layout").is_file() {
            return Ok(Self::Layout { path, name: None });
        }
        if path.is_file() {
            match archive::visit(&path)? {
                archive::ArchiveVisitor::Plain => {}
                archive::ArchiveVisitor::Files => return Ok(Self::Archive { path }),
                archive::ArchiveVisitor::Image => return Ok(Self::Layout { path, name: None }),
            }
        }
        Ok(Self::Directory { path })
    }

    /// Returns the source in the syntax of the command line.
    pub fn text(&self) -> String {
        match self {
            Self::Directory { path } | Self::Archive { path } => path.display().to_string(),
            Self::Layout { path, name: None } => format!("oci:{}", path.display()),
            Self::Layout { path, name: Some(name) } => format!("oci:{}:{name}", path.display()),
            Self::Image { reference } => format!("docker://{reference}"),
            Self::Git { repository, commit, directory } if directory.is_empty() => format!("git:{repository}@{commit}"),
            Self::Git { repository, commit, directory } => format!("git:{repository}@{commit}#{directory}"),
        }
    }
}

/// Creates a temporary directory, in tmpfs if possible, because bundles and layers may hold Secrets.
///
/// # Errors
/// Returns an error if the directory cannot be created.
pub fn memory_dir() -> Result<tempfile::TempDir, SourceError> {
    let shared = Path::new("/dev/shm");
    let parent = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
    tempfile::tempdir_in(&parent).map_err(|error| SourceError::Write(parent, error))
}

fn absolute(path: &str) -> Result<PathBuf, SourceError> {
    fs::canonicalize(path).map_err(|error| SourceError::Read(path.into(), error))
}

/// Files of a source, and the pin of the source.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// Contents by path; `/` separates directories.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Directories of the source, including empty directories.
    pub directories: BTreeSet<String>,
    /// Labels of the image; empty if the source is not an image.
    pub labels: BTreeMap<String, String>,
    /// Digest of the image's manifest (`sha256:HEX`), or the commit. `None` for other sources, whose pin is the digest
    /// of their files.
    pub pin: Option<String>,
}

impl Files {
    /// Returns `sha256:HEX` over names and contents. The same files have the same digest in every kind of source.
    pub fn digest(&self) -> String {
        let mut hasher = Sha256::new();
        for (path, content) in &self.files {
            hasher.update((path.len() as u64).to_be_bytes());
            hasher.update(path.as_bytes());
            hasher.update((content.len() as u64).to_be_bytes());
            hasher.update(content);
        }
        format!("sha256:{}", hex::encode(hasher.finalize()))
    }

    /// Returns the digest or commit that pins the source.
    pub fn pinned(&self) -> String {
        self.pin.clone().unwrap_or_else(|| self.digest())
    }

    /// Returns the files below a directory, with their paths relative to the directory.
    pub fn below<'a>(&'a self, directory: &'a str) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        self.files
            .iter()
            .filter_map(move |(path, content)| Some((path.strip_prefix(directory)?.strip_prefix('/')?, &**content)))
    }

    /// Returns the directories below `directory` that contain no files. If such directories are nested, returns only
    /// the topmost.
    pub fn empty_directories<'a>(&'a self, directory: &'a str) -> impl Iterator<Item = &'a str> {
        let is_empty = |name: &str| !self.has_directory(name);
        self.directories.iter().map(String::as_str).filter(move |name| {
            let below = if directory.is_empty() {
                Some(*name)
            } else {
                name.strip_prefix(directory).and_then(|rest| rest.strip_prefix('/'))
            };
            let parent = name.rsplit_once('/').map_or("", |(parent, _)| parent);
            below.is_some() && is_empty(name) && (parent == directory || !is_empty(parent))
        })
    }

    /// Returns true if a directory with this name has files.
    pub fn has_directory(&self, directory: &str) -> bool {
        self.below(directory).next().is_some()
    }
}

/// Reads a source into memory. Images of registries are not supported here.
///
/// # Errors
/// Returns an error if the source cannot be read or is too large.
pub fn read(source: &Source) -> Result<Files, SourceError> {
    let mut sink = Sink::memory();
    let found = open(source, &mut sink)?;
    Ok(sink.into_files(found))
}

/// Writes a source into a directory. Images of registries are not supported here.
///
/// # Errors
/// Returns an error if the source cannot be read or written, or is too large.
pub fn write(source: &Source, to: &Path) -> Result<Files, SourceError> {
    open(source, &mut Sink::directory(to))
}

fn open(source: &Source, sink: &mut Sink) -> Result<Files, SourceError> {
    match source {
        Source::Directory { path } => directory(path, sink).map(|()| Files::default()),
        Source::Archive { path } => archive::files(path, sink).map(|()| Files::default()),
        Source::Layout { path, name } => image::open(path, name.as_deref(), sink),
        Source::Git { repository, commit, directory } => {
            git::open(repository, commit, directory, sink)?;
            Ok(Files { pin: Some(commit.clone()), ..Files::default() })
        }
        Source::Image { reference } => {
            Err(SourceError::Image(format!("docker://{reference}: images in registries are not supported here")))
        }
    }
}

/// Destination of the files of a source: memory or a directory.
pub(crate) enum Sink {
    Memory { files: BTreeMap<String, Vec<u8>>, directories: BTreeSet<String>, bytes: u64 },
    Directory { root: PathBuf, count: usize, bytes: u64 },
}

impl Sink {
    fn memory() -> Self {
        Self::Memory { files: BTreeMap::new(), directories: BTreeSet::new(), bytes: 0 }
    }

    fn directory(root: &Path) -> Self {
        Self::Directory { root: root.to_owned(), count: 0, bytes: 0 }
    }

    /// Returns the files that were read into memory, with labels and pin from `found`.
    fn into_files(self, found: Files) -> Files {
        match self {
            Self::Memory { files, directories, .. } => Files { files, directories, ..found },
            Self::Directory { .. } => found,
        }
    }

    /// Returns the maximum total size of all files, in bytes.
    pub(crate) fn bytes_max(&self) -> u64 {
        match self {
            Self::Memory { .. } => MEMORY_MAX,
            Self::Directory { .. } => DIRECTORY_MAX,
        }
    }

    /// Returns the number of bytes that may still be added.
    pub(crate) fn room(&self) -> u64 {
        let (Self::Memory { bytes, .. } | Self::Directory { bytes, .. }) = self;
        self.bytes_max().saturating_sub(*bytes)
    }

    /// Adds a directory. On disk, a directory is created only when its first file is written.
    pub(crate) fn directory_entry(&mut self, name: &str) -> Result<(), SourceError> {
        if let Self::Memory { directories, .. } = self {
            if directories.len() >= FILES_MAX {
                return Err(SourceError::TooLarge(MEMORY_MAX));
            }
            directories.insert(name.to_owned());
        }
        Ok(())
    }

    /// Adds a file. Replaces an existing file of the same name, as a later image layer does.
    pub(crate) fn file(&mut self, name: &str, content: &mut dyn Read) -> Result<(), SourceError> {
        let read = |error| SourceError::Read(name.into(), error);
        match self {
            Self::Memory { files, directories, bytes } => {
                directories.remove(name);
                let mut held = Vec::new();
                content.take(MEMORY_MAX + 1 - *bytes).read_to_end(&mut held).map_err(read)?;
                *bytes += held.len() as u64;
                if *bytes > MEMORY_MAX || files.len() >= FILES_MAX {
                    return Err(SourceError::TooLarge(MEMORY_MAX));
                }
                if let Some(before) = files.insert(name.to_owned(), held) {
                    *bytes -= before.len() as u64;
                }
            }
            Self::Directory { root, count, bytes } => {
                let path = root.join(name);
                let write = |error| SourceError::Write(path.clone(), error);
                fs::create_dir_all(path.parent().unwrap_or(root)).map_err(write)?;
                let mut file = fs::File::create(&path).map_err(write)?;
                let copied = io::copy(&mut content.take(DIRECTORY_MAX + 1 - *bytes), &mut file).map_err(write)?;
                file.flush().map_err(write)?;
                *bytes += copied;
                *count += 1;
                if *bytes > DIRECTORY_MAX || *count > FILES_MAX {
                    return Err(SourceError::TooLarge(DIRECTORY_MAX));
                }
            }
        }
        Ok(())
    }

    /// Removes a file or a directory. If `within` is true, removes only the content of the directory.
    pub(crate) fn remove(&mut self, name: &str, within: bool) -> Result<(), SourceError> {
        match self {
            Self::Memory { files, directories, bytes } => {
                let below = format!("{name}/");
                let goes =
                    |path: &str| path.starts_with(&below) || (name.is_empty() && within) || (!within && path == name);
                files.retain(|path, content| {
                    if goes(path) {
                        *bytes -= content.len() as u64;
                    }
                    !goes(path)
                });
                directories.retain(|path| !goes(path));
            }
            Self::Directory { root, .. } => {
                let path = root.join(name);
                let removed = if path.is_dir() {
                    fs::remove_dir_all(&path)
                } else if within {
                    Ok(())
                } else {
                    fs::remove_file(&path)
                };
                match removed {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    other => other.map_err(|error| SourceError::Write(path.clone(), error))?,
                }
                if within {
                    fs::create_dir_all(&path).map_err(|error| SourceError::Write(path, error))?;
                }
            }
        }
        Ok(())
    }
}

/// Removes leading slashes and `.` components from a name in an archive. Refuses names that escape the archive.
pub(crate) fn name_within(name: &[u8]) -> Result<String, SourceError> {
    let shown = || String::from_utf8_lossy(name).chars().take(200).collect::<String>();
    let text = std::str::from_utf8(name).map_err(|_| SourceError::Entry(shown(), "is not UTF-8"))?;
    let mut parts = Vec::new();
    for component in Path::new(text.trim_start_matches('/')).components() {
        match component {
            Component::Normal(part) => parts.push(part.to_str().unwrap_or_default()),
            Component::CurDir => {}
            _ => return Err(SourceError::Entry(shown(), "escapes the source")),
        }
    }
    let name = parts.join("/");
    if name.len() > NAME_MAX {
        return Err(SourceError::Entry(shown(), "has a name longer than 1024 bytes"));
    }
    Ok(name)
}

fn directory(root: &Path, sink: &mut Sink) -> Result<(), SourceError> {
    if root.is_file() {
        let name = root.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let mut file = fs::File::open(root).map_err(|error| SourceError::Read(root.to_owned(), error))?;
        return sink.file(&name, &mut file);
    }
    let mut waiting = vec![(root.to_owned(), String::new())];
    let mut seen = 0;
    while let Some((path, prefix)) = waiting.pop() {
        let read = |error| SourceError::Read(path.clone(), error);
        for entry in fs::read_dir(&path).map_err(read)? {
            let entry = entry.map_err(read)?;
            seen += 1;
            if seen > FILES_MAX {
                return Err(SourceError::TooLarge(MEMORY_MAX));
            }
            let Ok(leaf) = entry.file_name().into_string() else {
                return Err(SourceError::Entry(entry.path().display().to_string(), "is not UTF-8"));
            };
            // Skip git's own directory.
            if prefix.is_empty() && leaf == ".git" {
                continue;
            }
            let name = format!("{prefix}{leaf}");
            let kind = entry.file_type().map_err(read)?;
            if kind.is_dir() {
                if prefix.matches('/').count() >= 64 {
                    return Err(SourceError::Entry(name, "is nested more than 64 directories deep"));
                }
                sink.directory_entry(&name)?;
                waiting.push((entry.path(), format!("{name}/")));
            } else if kind.is_file() {
                let mut file = fs::File::open(entry.path()).map_err(|error| SourceError::Read(entry.path(), error))?;
                sink.file(&name, &mut file)?;
            } else {
                return Err(SourceError::Entry(name, "is neither a file nor a directory"));
            }
        }
    }
    Ok(())
}
