//! Compares two catalogs: packages, channels with their heads, and the content of bundles.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::blob::{BUNDLE, Blob};
use super::load::Objects;
use super::model::{Catalog, Package};

/// A change from the old catalog to the new catalog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    pub package: String,
    /// Kind of the object: `package`, `channel`, `bundle` or `deprecation`.
    pub what: &'static str,
    /// Name of the channel or bundle; empty for the package.
    pub name: String,
    /// Kind of the change: `added`, `removed` or `changed`.
    pub how: &'static str,
    /// Details for users, such as versions and heads.
    pub detail: String,
}

/// Compares two catalogs. The objects must have been read with their digests.
pub fn diff(old: (&Objects, &Catalog), new: (&Objects, &Catalog)) -> Vec<Change> {
    let mut changes = Vec::new();
    let empty = Package::default();
    let digests = |objects: &Objects| -> BTreeMap<(String, String), Option<[u8; 32]>> {
        let bundles = objects.objects.iter().filter(|object| matches!(object.blob, Blob::Bundle(_)));
        bundles
            .map(|object| ((object.blob.meta().1.to_owned(), object.blob.meta().2.to_owned()), object.digest))
            .collect()
    };
    let (old_digests, new_digests) = (digests(old.0), digests(new.0));
    debug_assert_eq!(BUNDLE, "olm.bundle");
    for name in old.1.packages.keys().chain(new.1.packages.keys()).collect::<BTreeSet<_>>() {
        let (before, after) = (old.1.packages.get(name), new.1.packages.get(name));
        let mut push = |what, of: &str, how, detail: String| {
            changes.push(Change { package: name.clone(), what, name: of.to_owned(), how, detail });
        };
        match (before, after) {
            (None, Some(_)) => push("package", "", "added", String::new()),
            (Some(_), None) => push("package", "", "removed", String::new()),
            (Some(before), Some(after)) if before.default_channel != after.default_channel => {
                push(
                    "package",
                    "",
                    "changed",
                    format!("default channel {} -> {}", before.default_channel, after.default_channel),
                );
            }
            _ => {}
        }
        let (before, after) = (before.unwrap_or(&empty), after.unwrap_or(&empty));
        for channel in before.channels.keys().chain(after.channels.keys()).collect::<BTreeSet<_>>() {
            match (before.channels.get(channel), after.channels.get(channel)) {
                (None, Some(it)) => push("channel", channel, "added", format!("head {}", it.head)),
                (Some(it), None) => push("channel", channel, "removed", format!("head {}", it.head)),
                (Some(old), Some(new)) => {
                    let edges = |it: &super::model::Channel| -> Vec<_> {
                        let edge = |entry: &super::model::Entry| {
                            (
                                entry.name.clone(),
                                entry.replaces.clone(),
                                entry.skips.clone(),
                                entry.skip_range.as_ref().map(ToString::to_string),
                            )
                        };
                        it.entries.values().map(edge).collect()
                    };
                    if old.head != new.head {
                        push("channel", channel, "changed", format!("head {} -> {}", old.head, new.head));
                    } else if edges(old) != edges(new) {
                        push("channel", channel, "changed", "upgrade edges".to_owned());
                    }
                }
                (None, None) => {}
            }
        }
        for bundle in before.bundles.keys().chain(after.bundles.keys()).collect::<BTreeSet<_>>() {
            let key = (name.clone(), bundle.clone());
            match (before.bundles.get(bundle), after.bundles.get(bundle)) {
                (None, Some(it)) => push("bundle", bundle, "added", it.version_text()),
                (Some(it), None) => push("bundle", bundle, "removed", it.version_text()),
                (Some(old), Some(new)) => {
                    if old_digests.get(&key) != new_digests.get(&key) {
                        let detail = if old.image == new.image {
                            "content".to_owned()
                        } else {
                            format!("image {} -> {}", old.image, new.image)
                        };
                        push("bundle", bundle, "changed", detail);
                    }
                    if old.deprecation != new.deprecation {
                        let how = if new.deprecation.is_some() { "added" } else { "removed" };
                        push("deprecation", bundle, how, new.deprecation.clone().unwrap_or_default());
                    }
                }
                (None, None) => {}
            }
        }
    }
    changes
}
