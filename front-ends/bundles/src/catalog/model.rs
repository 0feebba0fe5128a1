//! Builds packages, channels and bundles from the objects of a catalog, and validates them by rules C4 to C14 of
//! `docs/guides/catalogs.md`.
//!
//! A catalog is refused if operator-registry's `opm validate` refuses it. All violations are reported together.

use std::collections::{BTreeMap, BTreeSet};

use semver::Version;
use serde::Serialize;

use super::blob::{self, Blob, BundleBlob, ChannelBlob, DeprecationsBlob, Requirement};
use super::load::Objects;
use crate::fault::Faults;
use crate::range::Range;

#[derive(Debug, Default)]
pub struct Catalog {
    pub packages: BTreeMap<String, Package>,
    /// Number of objects of each schema.
    pub schemas: BTreeMap<String, usize>,
    /// Problems that break no rule.
    pub warnings: Vec<String>,
}

#[derive(Debug, Default)]
pub struct Package {
    pub name: String,
    /// Description for users.
    pub description: String,
    /// Name of the channel that is used by default.
    pub default_channel: String,
    pub channels: BTreeMap<String, Channel>,
    pub bundles: BTreeMap<String, Bundle>,
    /// Deprecation message, if the package is deprecated.
    pub deprecation: Option<String>,
    place: String,
}

/// A channel: bundles and the upgrade edges between them.
#[derive(Debug, Default)]
pub struct Channel {
    pub name: String,
    /// Entries by bundle name.
    pub entries: BTreeMap<String, Entry>,
    /// Name of the bundle that no other bundle replaces or skips.
    pub head: String,
    /// Deprecation message, if the channel is deprecated.
    pub deprecation: Option<String>,
    place: String,
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub name: String,
    /// Name of the bundle that this bundle replaces; that bundle may not exist.
    pub replaces: Option<String>,
    /// Names of bundles that an upgrade to this bundle may skip.
    pub skips: Vec<String>,
    /// Versions that can be upgraded to this bundle.
    pub skip_range: Option<Range>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Bundle {
    pub name: String,
    #[serde(serialize_with = "as_text")]
    pub version: Version,
    /// Release, which orders bundles of equal version; may be empty.
    pub release: String,
    /// Reference of the bundle's image; empty if the catalog holds the bundle's objects.
    pub image: String,
    pub requires: Vec<Requirement>,
    /// Deprecation message, if the bundle is deprecated.
    pub deprecation: Option<String>,
}

fn as_text<S: serde::Serializer>(version: &Version, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(version)
}

impl Bundle {
    /// Orders bundles by version, then by release. A bundle with a release is higher than a bundle without. If a bundle
    /// has no release, the build metadata after `+` is used as the release, as in operator-controller.
    pub fn precedes(&self, other: &Self) -> std::cmp::Ordering {
        let release = |it: &Self| {
            let text = if it.release.is_empty() { it.version.build.as_str() } else { &it.release };
            Version::parse(&format!("0.0.0-{text}")).ok()
        };
        self.version.cmp_precedence(&other.version).then_with(|| release(self).cmp(&release(other)))
    }

    /// Returns the version and, if the bundle has one, the release as text: `VERSION-RELEASE`.
    pub fn version_text(&self) -> String {
        match &*self.release {
            "" => self.version.to_string(),
            release => format!("{}-{release}", self.version),
        }
    }
}

impl Catalog {
    /// Builds and validates the model.
    ///
    /// # Errors
    /// Returns all violations of rules if there are any.
    pub fn build(objects: &Objects) -> Result<Self, Faults> {
        let mut building = Building::default();
        for object in &objects.objects {
            *building.catalog.schemas.entry(object.blob.meta().0.to_owned()).or_default() += 1;
        }
        // Process packages first, regardless of their position, as opm does.
        let each = || objects.objects.iter().map(|object| (&object.blob, objects.place_of(object)));
        for (blob, place) in each() {
            if let Blob::Package(package) = blob {
                building.package(package, place);
            }
        }
        for (blob, place) in each() {
            if let Blob::Channel(channel) = blob {
                building.channel(channel, place);
            }
        }
        for (blob, place) in each() {
            if let Blob::Bundle(bundle) = blob {
                building.bundle(bundle, &place);
            }
        }
        for (blob, place) in each() {
            if let Blob::Deprecations(deprecations) = blob {
                building.deprecations(deprecations, &place);
            }
        }
        let mut catalog = building.finish()?;
        if catalog.packages.is_empty() {
            catalog.warnings.push(objects.why_empty());
        }
        Ok(catalog)
    }
}

#[derive(Default)]
struct Building {
    catalog: Catalog,
    faults: Faults,
    /// Package and name of each bundle object, including invalid bundles.
    named: BTreeSet<(String, String)>,
    deprecated: BTreeSet<String>,
}

impl Building {
    /// Checks a package object, and adds the package to the catalog (rule C4).
    fn package(&mut self, blob: &blob::PackageBlob, place: String) {
        let name = &blob.name;
        if name.is_empty() {
            return self.faults.add(place, "C4", "the package has no name");
        }
        if !is_label(name) {
            self.faults.add(&*place, "C4", format!("package {name:?}: the name must be 1 to 63 characters of a-z, 0-9 and `-`, and begin and end with a letter or digit"));
        }
        if self.catalog.packages.contains_key(name) {
            return self.faults.add(place, "C4", format!("package {name:?} occurs twice"));
        }
        let package = Package {
            name: name.clone(),
            description: blob.description.clone(),
            default_channel: blob.default_channel.clone(),
            place,
            ..Package::default()
        };
        self.catalog.packages.insert(name.clone(), package);
    }

    /// Checks a channel object, and adds the channel to its package (rule C5).
    fn channel(&mut self, blob: &ChannelBlob, place: String) {
        let ChannelBlob { name, package: package_name, .. } = blob;
        let Some(package) = self.catalog.packages.get_mut(package_name) else {
            return self.faults.add(place, "C5", format!("channel {name:?}: there is no package {package_name:?}"));
        };
        let at = format!("package {package_name:?}, channel {name:?}");
        if name.is_empty() {
            return self.faults.add(place, "C5", format!("package {package_name:?} has a channel without a name"));
        }
        if package.channels.contains_key(name) {
            return self.faults.add(place, "C5", format!("{at} occurs twice"));
        }
        let mut channel = Channel { name: name.clone(), place: place.clone(), ..Channel::default() };
        if blob.entries.is_empty() {
            self.faults.add(&*place, "C5", format!("{at} has no entry"));
        }
        for entry in &blob.entries {
            let name = &entry.name;
            if channel.entries.contains_key(name) {
                self.faults.add(&*place, "C5", format!("{at} has the entry {name:?} twice"));
                continue;
            }
            if entry.skips.iter().any(String::is_empty) {
                self.faults.add(&*place, "C12", format!("{at}, entry {name:?} skips a bundle without a name"));
            }
            let skip_range = match &*entry.skip_range {
                "" => None,
                text => match Range::parse(text) {
                    Ok(range) => Some(range),
                    Err(error) => {
                        self.faults.add(&*place, "C12", format!("{at}, entry {name:?}: skipRange {text:?} {error}"));
                        None
                    }
                },
            };
            let replaces = Some(entry.replaces.clone()).filter(|name| !name.is_empty());
            channel
                .entries
                .insert(name.clone(), Entry { name: name.clone(), replaces, skips: entry.skips.clone(), skip_range });
        }
        package.channels.insert(name.clone(), channel);
    }

    /// Checks a bundle object, and adds the bundle to its package (rules C6 and C13).
    fn bundle(&mut self, blob: &BundleBlob, place: &str) {
        let (name, package_name) = (&blob.name, &blob.package);
        let Some(package) = self.catalog.packages.get_mut(package_name) else {
            let message = format!("bundle {name:?}: there is no package {package_name:?}");
            return self.faults.add(place, "C6", message);
        };
        let at = format!("package {package_name:?}, bundle {name:?}");
        if name.is_empty() {
            return self.faults.add(place, "C6", format!("package {package_name:?} has a bundle without a name"));
        }
        if !self.named.insert((package_name.clone(), name.clone())) {
            return self.faults.add(place, "C6", format!("{at} occurs twice"));
        }
        for (rule, message) in &blob.faults {
            self.faults.add(place, rule, format!("{at}: {message}"));
        }
        if !package.channels.values().any(|channel| channel.entries.contains_key(name)) {
            self.faults.add(place, "C6", format!("{at} is in no channel"));
        }
        let Some(version) = &blob.version else { return };
        let bundle = Bundle {
            name: name.clone(),
            version: version.clone(),
            release: blob.release.clone(),
            image: blob.image.clone(),
            requires: blob.requires.clone(),
            deprecation: None,
        };
        if !bundle.release.is_empty() {
            let expected = format!("{package_name}-v{}", bundle.version_text());
            if *name != expected {
                self.faults.add(place, "C6", format!("{at}: a bundle with a release must be named {expected:?}"));
            }
        }
        package.bundles.insert(name.clone(), bundle);
    }

    /// Checks a deprecations object, and records the deprecations in its package (rule C14).
    fn deprecations(&mut self, blob: &DeprecationsBlob, place: &str) {
        let name = &blob.package;
        let Some(package) = self.catalog.packages.get_mut(name) else {
            return self.faults.add(place, "C14", format!("there is no package {name:?} to deprecate"));
        };
        if !self.deprecated.insert(name.clone()) {
            return self.faults.add(place, "C14", format!("package {name:?} has more than one {}", blob::DEPRECATIONS));
        }
        let mut seen = BTreeSet::new();
        for (index, entry) in blob.entries.iter().enumerate() {
            let (schema, referred) = (&entry.reference.schema, &entry.reference.name);
            let mut wrong = |message: String| {
                self.faults.add(place, "C14", format!("package {name:?}, entries[{index}] {message}"));
            };
            if !seen.insert((schema, referred)) {
                wrong(format!("deprecates {schema} {referred:?} a second time"));
                continue;
            }
            if entry.message.is_empty() {
                wrong("has no message".to_owned());
            }
            let message = Some(entry.message.clone());
            match &**schema {
                blob::PACKAGE if referred.is_empty() => package.deprecation = message,
                blob::PACKAGE => {
                    wrong(format!("deprecates the package, but sets the name {referred:?}; the name must be empty"));
                }
                blob::CHANNEL => match package.channels.get_mut(referred) {
                    Some(channel) => channel.deprecation = message,
                    None => wrong(format!("deprecates the channel {referred:?}, which does not exist")),
                },
                blob::BUNDLE => {
                    if let Some(bundle) = package.bundles.get_mut(referred) {
                        bundle.deprecation = message;
                    } else if !self.named.contains(&(name.clone(), referred.clone())) {
                        wrong(format!("deprecates the bundle {referred:?}, which does not exist"));
                    }
                }
                "" => wrong("has no reference.schema".to_owned()),
                other => {
                    wrong(format!("deprecates a {other:?}; only packages, channels and bundles can be deprecated"));
                }
            }
        }
    }

    /// Checks the rules that need the whole catalog: rules C4 and C6 to C11.
    fn finish(mut self) -> Result<Catalog, Faults> {
        for package in self.catalog.packages.values_mut() {
            let (name, place) = (&package.name, &*package.place);
            let at = format!("package {name:?}");
            match (&*package.default_channel, package.channels.is_empty()) {
                ("", _) => self.faults.add(place, "C4", format!("{at} has no defaultChannel")),
                (default, false) if !package.channels.contains_key(default) => {
                    self.faults.add(place, "C4", format!("{at}: the defaultChannel {default:?} does not exist"));
                }
                _ => {}
            }
            if package.channels.is_empty() {
                self.faults.add(place, "C4", format!("{at} has no channel"));
            }
            let mut versions: BTreeMap<String, Vec<&str>> = BTreeMap::new();
            for bundle in package.bundles.values() {
                versions.entry(bundle.version_text()).or_default().push(&bundle.name);
            }
            for (version, bundles) in versions {
                if bundles.len() > 1 {
                    self.faults.add(
                        place,
                        "C7",
                        format!("{at} has version {version} in several bundles: {}", bundles.join(", ")),
                    );
                }
            }
            for channel in package.channels.values_mut() {
                let at = format!("{at}, channel {:?}", channel.name);
                for entry in channel.entries.keys() {
                    if !self.named.contains(&(name.clone(), entry.clone())) {
                        self.faults.add(
                            &*channel.place,
                            "C6",
                            format!("{at} has the entry {entry:?}, but there is no such bundle"),
                        );
                    }
                }
                if !channel.entries.is_empty() {
                    match chain(channel) {
                        Ok(head) => channel.head = head,
                        Err((rule, message)) => self.faults.add(&*channel.place, rule, format!("{at} {message}")),
                    }
                }
            }
        }
        self.faults.or(self.catalog)
    }
}

/// Finds the head and follows the chain of `replaces` (rules C8 to C11).
fn chain(channel: &Channel) -> Result<String, (&'static str, String)> {
    let skipped: BTreeSet<&str> =
        channel.entries.values().flat_map(|entry| entry.skips.iter().map(String::as_str)).collect();
    let replaced: BTreeSet<&str> = channel.entries.values().filter_map(|entry| entry.replaces.as_deref()).collect();
    let mut heads = channel.entries.keys().filter(|name| !skipped.contains(&***name) && !replaced.contains(&***name));
    let head = match (heads.next(), heads.next()) {
        (Some(head), None) => head,
        (None, _) => return Err(("C8", "has no head: each entry is replaced or skipped by another".to_owned())),
        (Some(first), Some(second)) => {
            let mut all = vec![&**first, second];
            all.extend(heads.map(String::as_str));
            return Err(("C8", format!("has several heads: {}", all.join(", "))));
        }
    };
    let mut reached = vec![&**head];
    let mut seen = BTreeSet::from([&**head]);
    let mut current = channel.entries.get(head);
    // A `replaces` with an unknown bundle ends the chain (rule C11).
    while let Some(next) = current.and_then(|entry| entry.replaces.as_deref()) {
        if skipped.contains(next) {
            break;
        }
        reached.push(next);
        if !seen.insert(next) {
            return Err(("C9", format!("has a cycle: {}", reached.join(" -> "))));
        }
        current = channel.entries.get(next);
    }
    let stranded: Vec<&str> = channel
        .entries
        .keys()
        .map(String::as_str)
        .filter(|name| !seen.contains(name) && !skipped.contains(name))
        .collect();
    if stranded.is_empty() {
        Ok(head.clone())
    } else {
        Err(("C10", format!("has entries that the chain from {head} does not reach: {}", stranded.join(", "))))
    }
}

/// Returns true for a DNS label (RFC 1123).
fn is_label(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&name.len()) && name.bytes().all(inner) && !name.starts_with('-') && !name.ends_with('-')
}
