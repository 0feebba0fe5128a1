//! A tar archive as a table of the positions of its files.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Component, Path};

use executor_core::archive::Allowed;

use super::{Section, Source};
use crate::error::ImageError;

/// Most entries: an image has a few per layer.
const ENTRIES_MAX: usize = 10_000;
/// Longest name in bytes; longer ones are ignored.
const NAME_MAX: usize = 1024;
/// Most links to follow to a file.
const LINKS_MAX: usize = 8;

/// An entry of the table.
enum ArchiveEntry {
    File {
        at: u64,
        size: u64,
    },
    /// Link to another entry; symbolic and hard links are treated alike.
    Link(String),
}

pub(super) struct Archive {
    file: File,
    entries: HashMap<String, ArchiveEntry>,
}

impl Archive {
    /// Opens an archive and reads its table.
    pub(super) fn open(path: &Path, what: &str) -> Result<Self, ImageError> {
        let io = |error| ImageError::caller_io("read", path, error);
        let unsupported = |why: &str| ImageError::Unsupported { what: what.to_owned(), why: why.to_owned() };
        let malformed = |why: String| ImageError::Malformed { what: what.to_owned(), why };
        let mut file = File::open(path).map_err(io)?;
        if !file.metadata().map_err(io)?.is_file() {
            return Err(unsupported("it is not a regular file"));
        }
        let mut head = [0; 4];
        let n = file.read(&mut head).map_err(io)?;
        if matches!(head[..n], [0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd]) {
            return Err(unsupported("the whole archive is compressed: decompress it first"));
        }
        std::io::Seek::rewind(&mut file).map_err(io)?;
        let mut entries = HashMap::new();
        let (bounded, allowance) = Allowed::new(file.try_clone().map_err(io)?);
        let mut archive = tar::Archive::new(bounded);
        let broken = |error: std::io::Error| malformed(format!("it is not a tar archive: {error}"));
        for entry in archive.entries_with_seek().map_err(broken)? {
            let entry = entry.map_err(broken)?;
            allowance.renew(0); // contents are passed over by seeking
            let Some(name) = entry.path().ok().and_then(|path| normal("", &path)) else { continue };
            let kind = entry.header().entry_type();
            let value = if kind.is_file() {
                ArchiveEntry::File { at: entry.raw_file_position(), size: entry.size() }
            } else if kind.is_symlink() || kind.is_hard_link() {
                let base = if kind.is_symlink() { name.rsplit_once('/').map_or("", |(dir, _)| dir) } else { "" };
                let target = entry.link_name().ok().flatten().and_then(|target| normal(base, &target));
                let Some(target) = target else { continue };
                ArchiveEntry::Link(target)
            } else {
                continue;
            };
            entries.insert(name, value);
            if entries.len() > ENTRIES_MAX {
                return Err(malformed(format!("it has more than {ENTRIES_MAX} entries")));
            }
        }
        Ok(Self { file, entries })
    }
}

impl Source for Archive {
    fn open(&mut self, name: &str) -> Result<Option<Section>, ImageError> {
        let mut name = normal("", Path::new(name));
        for _ in 0..LINKS_MAX {
            match name.as_ref().and_then(|name| self.entries.get(name)) {
                None => return Ok(None),
                Some(ArchiveEntry::Link(target)) => name = Some(target.clone()),
                Some(ArchiveEntry::File { at, size }) => {
                    let file = self.file.try_clone().map_err(|error| ImageError::io("read", "the archive", error))?;
                    return Ok(Some(Section { file, at: *at, size: *size }));
                }
            }
        }
        Ok(None)
    }
}

/// Returns a name relative to the archive's root, without `.` and `..`; `None` if it leads out of the root or is too long.
fn normal(base: &str, path: &Path) -> Option<String> {
    if path.as_os_str().len() > NAME_MAX {
        return None;
    }
    let mut parts: Vec<&str> = if path.is_absolute() { Vec::new() } else { base.split('/').collect() };
    parts.retain(|part| !part.is_empty());
    for component in path.components() {
        match component {
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::ParentDir => drop(parts.pop()?),
            Component::CurDir | Component::RootDir => {}
            Component::Prefix(_) => return None,
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_inside() {
        let table = [
            ("", "a/b", Some("a/b")),
            ("", "./a//b/", Some("a/b")),
            ("", "/a", Some("a")),
            ("x", "../a", Some("a")),
            ("x", "../../a", None),
            ("", "../etc/passwd", None),
            ("", "a/../../b", None),
            ("", ".", None),
        ];
        for (base, path, expected) in table {
            assert_eq!(normal(base, Path::new(path)).as_deref(), expected, "{base} {path}");
        }
    }
}
