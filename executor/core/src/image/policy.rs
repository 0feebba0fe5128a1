//! Applies the operator's image policy: from which repositories images may be fetched, and whether imported images and
//! archives may run.
//!
//! The input is the keys of the table `images` and a requested reference; the output is a permission, or a refusal that
//! names the key. executord applies the policy before it fetches an image, and the launcher applies the policy again
//! before it creates a container. `executor_images` decides which stored images a permitted reference may resolve to.

mod pattern;

use std::fmt;

use serde::Deserialize;

use super::{ImageReference, Repository};

pub use pattern::{BadPattern, RepositoryPattern};

/// Maximum number of patterns in a list.
const PATTERNS_MAX: usize = 1000;

/// Keys of the table `images` that both executord and the launcher read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ImageRules {
    /// Patterns of repositories that images may be fetched and run from.
    pub allow: Option<Vec<String>>,
    /// True if images may be imported and imported images may run.
    pub allow_import: Option<bool>,
    /// True if images from `oci:`, `oci-archive:` and `docker-archive:` may run.
    pub allow_archives: Option<bool>,
}

/// The policy for images. The default, without configuration, allows everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImagePolicy(Option<Rules>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rules {
    allow: Vec<RepositoryPattern>,
    import: bool,
    archives: bool,
}

/// A refusal, with the key that would permit the image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is not allowed by this daemon's configuration ({key})")]
pub struct Forbidden {
    what: String,
    key: &'static str,
}

/// Error from reading the policy; holds every invalid pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct BadRules(pub Vec<String>);

impl fmt::Display for BadRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

impl ImagePolicy {
    /// Creates the policy of a configuration. If any of the keys is set, unset keys allow nothing. A `private` daemon,
    /// which a user has started for private use, gets an explicit policy that allows everything.
    ///
    /// # Errors
    /// Returns every invalid pattern, or an error if there are too many.
    pub fn new(rules: &ImageRules, private: bool) -> Result<Self, BadRules> {
        let ImageRules { allow, allow_import, allow_archives } = rules;
        if private {
            return Ok(Self(Some(Rules { allow: vec![RepositoryPattern::any()], import: true, archives: true })));
        }
        if allow.is_none() && allow_import.is_none() && allow_archives.is_none() {
            return Ok(Self::default());
        }
        Ok(Self(Some(Rules {
            allow: repository_patterns(allow.as_deref().unwrap_or_default())?,
            import: allow_import.unwrap_or(false),
            archives: allow_archives.unwrap_or(false),
        })))
    }

    /// Returns true if there is an explicit policy.
    pub fn is_set(&self) -> bool {
        self.0.is_some()
    }

    /// Returns true if images from every source are allowed.
    pub fn is_open(&self) -> bool {
        self.may_fetch_all() && self.0.as_ref().is_none_or(|rules| rules.import && rules.archives)
    }

    /// Returns true if images may be fetched from every repository.
    pub fn may_fetch_all(&self) -> bool {
        self.0.as_ref().is_none_or(|rules| rules.allow.contains(&RepositoryPattern::any()))
    }

    /// Returns the patterns of repositories that may be fetched from; empty without an explicit policy.
    pub fn patterns(&self) -> &[RepositoryPattern] {
        self.0.as_ref().map_or(&[], |rules| &rules.allow)
    }

    /// Checks by name whether a requested image may run. If imports are allowed, an image from any repository may run,
    /// because an imported image can have any name.
    ///
    /// # Errors
    /// Returns the refusal if the image may not run.
    pub fn permits(&self, reference: &ImageReference) -> Result<(), Forbidden> {
        match reference {
            ImageReference::Registry(repository, _) => {
                self.may_fetch(repository).or_else(|refused| self.may_import().map_err(|_| refused))
            }
            ImageReference::Layout(..) | ImageReference::OciArchive(..) | ImageReference::DockerArchive(..) => {
                self.may_read_archives(&reference.to_string())
            }
        }
    }

    /// Checks whether a repository may be fetched from.
    ///
    /// # Errors
    /// Returns the refusal if no pattern matches.
    pub fn may_fetch(&self, repository: &Repository) -> Result<(), Forbidden> {
        let allowed = self.0.as_ref().is_none_or(|rules| rules.allow.iter().any(|pattern| pattern.matches(repository)));
        verdict(allowed, || (format!("an image of {repository}"), "images.allow"))
    }

    /// Checks whether images may be imported.
    ///
    /// # Errors
    /// Returns the refusal if imports are not allowed.
    pub fn may_import(&self) -> Result<(), Forbidden> {
        let allowed = self.0.as_ref().is_none_or(|rules| rules.import);
        verdict(allowed, || ("an imported image".to_owned(), "images.allow_import"))
    }

    /// Checks whether layouts and archives on the executor's disk may run. `what` is the reference that the refusal
    /// names.
    ///
    /// # Errors
    /// Returns the refusal if layouts and archives may not run.
    pub fn may_read_archives(&self, what: &str) -> Result<(), Forbidden> {
        let allowed = self.0.as_ref().is_none_or(|rules| rules.archives);
        verdict(allowed, || (what.to_owned(), "images.allow_archives"))
    }
}

fn verdict(allowed: bool, refused: impl FnOnce() -> (String, &'static str)) -> Result<(), Forbidden> {
    if allowed {
        return Ok(());
    }
    let (what, key) = refused();
    Err(Forbidden { what, key })
}

/// Parses a list of repository patterns.
///
/// # Errors
/// Returns every invalid pattern, or an error if there are too many.
pub fn repository_patterns(texts: &[String]) -> Result<Vec<RepositoryPattern>, BadRules> {
    if texts.len() > PATTERNS_MAX {
        return Err(BadRules(vec![format!("has {} patterns; at most {PATTERNS_MAX} are allowed", texts.len())]));
    }
    let mut faults = Vec::new();
    let read =
        texts.iter().filter_map(|text| text.parse().map_err(|bad: BadPattern| faults.push(bad.to_string())).ok());
    let read = read.collect();
    if faults.is_empty() { Ok(read) } else { Err(BadRules(faults)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(allow: Option<&[&str]>, allow_import: Option<bool>, allow_archives: Option<bool>) -> ImagePolicy {
        let allow = allow.map(|texts| texts.iter().map(|text| (*text).to_owned()).collect());
        ImagePolicy::new(&ImageRules { allow, allow_import, allow_archives }, false).unwrap()
    }

    fn reported(policy: &ImagePolicy, reference: &str) -> String {
        policy.permits(&reference.parse().unwrap()).map_or_else(|refused| refused.to_string(), |()| "may run".into())
    }

    #[test]
    fn image_policy_restricts_only_when_set() {
        let (registry, layout) = ("docker://docker.io/library/debian:12", "oci:/srv/layout:1");
        let archives = ["oci-archive:/srv/a.tar", "docker-archive:/srv/a.tar", layout];
        let closed = ImageRules { allow: Some(Vec::new()), ..ImageRules::default() };
        let private = ImagePolicy::new(&closed, true).unwrap();
        assert!(!ImagePolicy::default().is_set() && private.is_set());
        for open in [ImagePolicy::default(), private, policy(Some(&["*"]), Some(true), Some(true))] {
            assert!(open.is_open() && open.may_import().is_ok());
            assert!([registry, layout].iter().all(|reference| reported(&open, reference) == "may run"));
        }
        let refused =
            "an image of docker.io/library/debian is not allowed by this daemon's configuration (images.allow)";
        // If any key is set, the other keys deny by default.
        let closed = policy(Some(&[]), None, None);
        assert!(!closed.is_open() && closed.may_import().is_err());
        assert_eq!(reported(&closed, registry), refused);
        for archive in archives {
            let expected = format!("{archive} is not allowed by this daemon's configuration (images.allow_archives)");
            assert_eq!(reported(&closed, archive), expected);
        }
        assert_eq!(reported(&policy(None, Some(false), None), registry), refused);
        let archives_alone = policy(None, None, Some(true));
        assert_eq!(
            (reported(&archives_alone, registry), reported(&archives_alone, layout)),
            (refused.into(), "may run".into())
        );
        // Digest and tag do not affect the decision.
        let debian = policy(Some(&["docker.io/library/*"]), None, None);
        let digest = "0".repeat(64);
        for reference in
            ["debian", "debian:12", &format!("debian@sha256:{digest}"), &format!("debian:1@sha256:{digest}")]
        {
            assert_eq!(reported(&debian, &format!("docker://{reference}")), "may run", "{reference}");
            assert_ne!(reported(&debian, &format!("docker://team/{reference}")), "may run", "{reference}");
        }
        // Imported images have the names in their archives.
        let imports = policy(None, Some(true), None);
        assert_eq!(reported(&imports, registry), "may run");
        let ImageReference::Registry(repository, _) = registry.parse().unwrap() else { panic!() };
        assert!(imports.may_fetch(&repository).is_err());
    }

    #[test]
    fn every_pattern_at_fault_is_reported() {
        let allow = Some(["debian", "docker.io/library/*", "r.example/a:1"].map(str::to_owned).to_vec());
        let BadRules(faults) = ImagePolicy::new(&ImageRules { allow, ..ImageRules::default() }, false).unwrap_err();
        assert!(faults.len() == 2 && faults[0].contains("debian") && faults[1].contains("r.example/a:1"), "{faults:?}");
        let many = Some(vec!["*".to_owned(); PATTERNS_MAX + 1]);
        let reported =
            ImagePolicy::new(&ImageRules { allow: many, ..ImageRules::default() }, false).unwrap_err().to_string();
        assert!(reported.contains("1001") && reported.contains("at most 1000"), "{reported}");
    }
}
