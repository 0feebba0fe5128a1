//! Finds the files to be removed on a rotation: files of the container's current bindings that are not among the new
//! bindings.
//!
//! The container may have other files below the same root. A directory directly below the root is a binding if it has
//! an entry `type`, as for every reader of bindings. Files outside these directories are not removed.

use std::collections::BTreeSet;

use crate::names::TYPE;
use crate::{Bindings, Layout, ONE_FILE};

/// Files of a container below the root of its bindings.
#[derive(Debug, Default)]
pub struct Present<'a> {
    paths: Vec<&'a str>,
}

impl<'a> Present<'a> {
    /// Selects the container's files, absolute or not, that are below `root`.
    pub fn below(root: &str, files: impl IntoIterator<Item = &'a str>) -> Self {
        let below = |path: &'a str| path.strip_prefix(root)?.strip_prefix('/');
        Self { paths: files.into_iter().filter_map(below).collect() }
    }

    /// Returns the layout of the files; `None` if there are no files.
    pub fn layout(&self) -> Option<Layout> {
        if !self.typed().is_empty() {
            Some(Layout::Directories)
        } else {
            self.paths.contains(&ONE_FILE).then_some(Layout::OneFile)
        }
    }

    /// Returns the names of the bindings.
    fn typed(&self) -> BTreeSet<&'a str> {
        self.entries().filter(|(_, entry)| *entry == TYPE).map(|(binding, _)| binding).collect()
    }

    /// Returns `BINDING/ENTRY` paths only: deeper files and files directly below the root are not entries.
    fn entries(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.paths.iter().filter_map(|path| path.split_once('/')).filter(|(_, entry)| !entry.contains('/'))
    }
}

/// Returns the paths below the root that belong to current bindings but not to the new bindings.
pub fn obsolete(present: &Present<'_>, new: &Bindings) -> Vec<String> {
    let kept: BTreeSet<&str> = new.files().iter().map(|file| file.path.as_str()).collect();
    let bindings = present.typed();
    let entries = present.entries().filter(|(binding, _)| bindings.contains(binding));
    entries.map(|(binding, entry)| format!("{binding}/{entry}")).filter(|path| !kept.contains(path.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Builder, Profile};

    fn new(names: &[&str]) -> Bindings {
        let list: Vec<String> =
            names.iter().map(|name| format!(r#"{{"name":"{name}","credentials":{{"uri":"x"}}}}"#)).collect();
        let json = format!(r#"{{"mysql":[{}]}}"#, list.join(","));
        Builder::new().vcap_services(json.as_bytes(), Profile::Libcnb).finish().unwrap()
    }

    #[test]
    fn only_files_of_obsolete_bindings_are_removed() {
        let files = [
            "/etc/b/db/type",
            "/etc/b/db/provider",
            "/etc/b/db/uri",
            "/etc/b/db/old-key",
            "/etc/b/gone/type",
            "/etc/b/gone/uri",
            // Not bindings: no type, too deep, directly below the root, or outside the root.
            "/etc/b/executor/token",
            "/etc/b/db/sub/type",
            "/etc/b/vcap_services",
            "/etc/bb/x/type",
            "/run/y/type",
        ];
        let present = Present::below("/etc/b", files);
        assert_eq!(present.layout(), Some(Layout::Directories));
        assert_eq!(obsolete(&present, &new(&["db", "added"])), ["db/old-key", "gone/type", "gone/uri"]);
        assert_eq!(obsolete(&present, &new(&[])).len(), 6, "all bindings are removed");
    }

    #[test]
    fn layout_is_derived_from_present_files() {
        let layout = |files: &[&'static str]| Present::below("/b", files.iter().copied()).layout();
        assert_eq!(layout(&[]), None);
        assert_eq!(layout(&["/b/token", "/b/x/token"]), None);
        assert_eq!(layout(&["/b/vcap_services"]), Some(Layout::OneFile));
        assert_eq!(layout(&["/b/type"]), None);
    }
}
