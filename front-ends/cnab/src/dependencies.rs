//! Parses the extension `io.cnab.dependencies`, which lists other bundles that a bundle needs (CNAB 500, rule 48 of
//! `docs/guides/cnab-rules.md`).

use std::collections::{BTreeMap, BTreeSet};

use semver::Version;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::action::{INSTALL, UNINSTALL, UPGRADE};
use crate::violation::{Violations, pointer};

/// Name of the extension in `custom`.
pub const EXTENSION: &str = "io.cnab.dependencies";
const AT: &str = "/custom/io.cnab.dependencies";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dependencies {
    sequence: Vec<String>,
    requires: BTreeMap<String, Requirement>,
}

/// A bundle that the dependent bundle requires.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Requirement {
    pub bundle: String,
    /// Accepted versions.
    #[serde(default)]
    pub version: Criteria,
}

/// Accepted versions. If `ranges` is empty, all releases are accepted; prereleases only if `prereleases` is true.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Criteria {
    /// Ranges such as `1.2.3`, `1.2.x`, `1.x` or `1.5.x - 3`. A version must match at least one range.
    #[serde(default)]
    pub ranges: Vec<String>,
    /// True if prereleases are also accepted.
    #[serde(default)]
    pub prereleases: bool,
}

/// Reason why the extension cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// The extension is a list, as in an early draft and in an example of the specification.
    Draft,
    /// The extension breaks rules.
    Wrong(Violations),
}

#[derive(Deserialize)]
struct Written {
    #[serde(default)]
    sequence: Vec<String>,
    #[serde(default)]
    requires: BTreeMap<String, Requirement>,
}

impl Dependencies {
    /// Parses the extension; empty if the bundle does not have it.
    ///
    /// # Errors
    /// Returns an error if the extension is malformed or breaks rules.
    pub fn from_custom(custom: &Map<String, Value>) -> Result<Self, Unusable> {
        let Some(value) = custom.get(EXTENSION).filter(|value| !value.is_null()) else { return Ok(Self::default()) };
        if value.is_array() {
            return Err(Unusable::Draft);
        }
        let Written { sequence, requires } = Written::deserialize(value)
            .map_err(|error| Unusable::Wrong(Violations::one(AT, 48, format!("is not valid: {error}"))))?;
        let mut wrong = Violations::default();
        let mut seen = BTreeSet::new();
        for (index, name) in sequence.iter().enumerate() {
            if !requires.contains_key(name) {
                wrong.add(format!("{AT}/sequence/{index}"), 48, format!("{name:?} is not in `requires`"));
            }
            if !seen.insert(name) {
                wrong.add(format!("{AT}/sequence/{index}"), 48, format!("{name:?} is listed twice"));
            }
        }
        for (name, requirement) in &requires {
            let at = pointer(&format!("{AT}/requires"), name);
            if !sequence.is_empty() && !seen.contains(name) {
                wrong.add(&at, 48, "is missing from `sequence`");
            }
            if name.is_empty() || name.contains('#') {
                wrong.add(&at, 48, "is not a valid dependency name: it is empty or contains `#`");
            }
            for (index, range) in requirement.version.ranges.iter().enumerate() {
                if Range::parse(range).is_none() {
                    wrong.add(
                        format!("{at}/version/ranges/{index}"),
                        48,
                        format!("{range:?} is not a version range, such as 1.2.x"),
                    );
                }
            }
        }
        if wrong.is_empty() { Ok(Self { sequence, requires }) } else { Err(Unusable::Wrong(wrong)) }
    }

    /// Returns true if there are no dependencies.
    pub fn is_empty(&self) -> bool {
        self.requires.is_empty()
    }

    pub fn requirement(&self, name: &str) -> Option<&Requirement> {
        self.requires.get(name)
    }

    /// Returns the dependencies on which an action runs: first the dependencies that run before the bundle itself, then
    /// the dependencies that run after the bundle. Dependencies are installed and upgraded before the bundle, in the
    /// bundle's sequence. Dependencies are uninstalled after the bundle, in reverse sequence. Custom actions run only
    /// on the bundle.
    pub fn order(&self, action: &str) -> (Vec<&str>, Vec<&str>) {
        let mut names: Vec<&str> = if self.sequence.is_empty() {
            self.requires.keys().map(String::as_str).collect()
        } else {
            self.sequence.iter().map(String::as_str).collect()
        };
        match action {
            INSTALL | UPGRADE => (names, Vec::new()),
            UNINSTALL => {
                names.reverse();
                (Vec::new(), names)
            }
            _ => (Vec::new(), Vec::new()),
        }
    }
}

impl Criteria {
    /// Returns true if the criteria accept a version.
    pub fn matches(&self, version: &str) -> bool {
        let Ok(version) = Version::parse(version.strip_prefix('v').unwrap_or(version)) else { return false };
        if !version.pre.is_empty() && !self.prereleases {
            return false;
        }
        self.ranges.is_empty()
            || self.ranges.iter().filter_map(|range| Range::parse(range)).any(|range| range.has(&version))
    }
}

/// Range of versions: `from` is inclusive, `before` is exclusive.
struct Range {
    from: Version,
    before: Option<Version>,
    exact: bool,
}

impl Range {
    fn parse(text: &str) -> Option<Self> {
        if let Some((from, to)) = text.split_once(" - ") {
            return Some(Self { from: Self::parse(from)?.from, before: Self::parse(to)?.before, exact: false });
        }
        let text = text.trim();
        let text = text.strip_prefix('v').unwrap_or(text);
        if let Ok(version) = Version::parse(text) {
            let after = Version::new(version.major, version.minor, version.patch.checked_add(1)?);
            return Some(Self { from: version, before: Some(after), exact: true });
        }
        let mut parts = text.split('.').map(|part| match part {
            "x" | "X" | "*" => Some(None),
            number => number.parse::<u64>().ok().map(Some),
        });
        let part = |part: Option<Option<Option<u64>>>| match part {
            None => Some(None),
            Some(None) => None,
            Some(given) => given,
        };
        let (major, minor, patch) = (part(parts.next())?, part(parts.next())?, part(parts.next())?);
        if parts.next().is_some() {
            return None;
        }
        let (from, before) = match (major, minor, patch) {
            (None, None, None) => (Version::new(0, 0, 0), None),
            (Some(major), None, None) => (Version::new(major, 0, 0), Some(Version::new(major.checked_add(1)?, 0, 0))),
            (Some(major), Some(minor), None) => {
                (Version::new(major, minor, 0), Some(Version::new(major, minor.checked_add(1)?, 0)))
            }
            _ => return None,
        };
        Some(Self { from, before, exact: false })
    }

    fn has(&self, version: &Version) -> bool {
        if self.exact {
            // Build metadata is ignored.
            return version.cmp_precedence(&self.from).is_eq();
        }
        *version >= self.from
            && self.before.as_ref().is_none_or(|before| version < before && !is_prerelease_of(version, before))
    }
}

/// Returns true if `version`, which precedes `of`, is a prerelease of `of`. For example, 2.0.0-beta precedes 2.0.0 but
/// does not match 1.x.
fn is_prerelease_of(version: &Version, of: &Version) -> bool {
    (version.major, version.minor, version.patch) == (of.major, of.minor, of.patch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependency_ranges_select_versions() {
        let table = [
            ("1.2.3", "1.2.3", true),
            ("1.2.3", "1.2.4", false),
            ("v1.2.3", "1.2.3+build", true),
            ("1.2.x", "1.2.9", true),
            ("1.2.x", "1.3.0", false),
            ("1.x", "1.9.9", true),
            ("1", "1.0.0", true),
            ("1.x", "2.0.0", false),
            ("1.x", "2.0.0-beta", false),
            ("1.5.x - 3", "3.9.0", true),
            ("1.5.x - 3", "4.0.0", false),
            ("1.5.x - 3", "1.4.9", false),
            ("x", "7.0.0", true),
        ];
        for (range, version, expected) in table {
            let criteria = Criteria { ranges: vec![range.into()], prereleases: true };
            assert_eq!(criteria.matches(version), expected, "{range} {version}");
        }
        for range in ["", "a", "1.2.3.4", "1.x.3", "-1", "1..2"] {
            assert!(Range::parse(range).is_none(), "{range}");
        }
        let any = Criteria::default();
        assert!(any.matches("1.0.0") && !any.matches("1.0.0-rc1") && !any.matches("one"));
    }
}
