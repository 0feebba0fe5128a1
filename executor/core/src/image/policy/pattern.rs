//! Parses and matches repository patterns.
//!
//! ```text
//!  *                               every repository of every registry
//!  REGISTRY[:PORT]/NAME[/NAME...]  `*` in a name matches any characters except `/`
//!  REGISTRY[:PORT]/[NAME/...]**    `**` as the last name matches one or more names
//!  *.DOMAIN[:PORT]/...             every registry below a domain
//! ```
//! A pattern is compared with the long form of a reference, in which each repository has one name. A registry is
//! compared with its port: `r.example` and `r.example:443` are different.

use std::fmt;
use std::str::FromStr;

use super::super::Repository;
use super::super::reference::{
    DEFAULT_NAMESPACE, DEFAULT_REGISTRY, canonical_registry, is_component, is_host_like, is_registry,
};

/// Maximum length of a pattern, in bytes.
const PATTERN_MAX: usize = 512;

/// A repository pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepositoryPattern(PatternScope);

#[derive(Clone, Debug, PartialEq, Eq)]
enum PatternScope {
    Any,
    Repositories { registry: Registry, names: Vec<String>, below: bool },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Registry {
    Exact(String),
    /// Part after the first `*`: `.example.com:5000`.
    Below(String),
}

/// An invalid pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid repository pattern {pattern:?}: {why}")]
pub struct BadPattern {
    pattern: String,
    why: String,
}

impl RepositoryPattern {
    /// Returns the pattern that matches every repository.
    pub fn any() -> Self {
        Self(PatternScope::Any)
    }

    /// Returns true if the pattern matches the repository.
    pub fn matches(&self, repository: &Repository) -> bool {
        let PatternScope::Repositories { registry, names, below } = &self.0 else { return true };
        let registry = match registry {
            Registry::Exact(registry) => registry == repository.registry(),
            Registry::Below(end) => repository.registry().strip_suffix(&**end).is_some_and(|host| !host.is_empty()),
        };
        let parts: Vec<&str> = repository.path().split('/').collect();
        let number = if *below { parts.len() > names.len() } else { parts.len() == names.len() };
        registry && number && names.iter().zip(parts).all(|(name, part)| is_like(name.as_bytes(), part.as_bytes()))
    }
}

/// Returns true if the pattern matches the name; `*` matches any characters.
fn is_like(pattern: &[u8], name: &[u8]) -> bool {
    let Some(star) = pattern.iter().position(|byte| *byte == b'*') else { return pattern == name };
    let (head, rest) = (&pattern[..star], &pattern[star + 1..]);
    let Some(mut left) = name.strip_prefix(head) else { return false };
    // Between two stars the first match suffices; the part after the last star must match the end.
    let mut pieces: Vec<&[u8]> = rest.split(|byte| *byte == b'*').collect();
    let last = pieces.pop().unwrap_or_default();
    for piece in pieces.into_iter().filter(|piece| !piece.is_empty()) {
        let Some(at) = left.windows(piece.len()).position(|window| window == piece) else { return false };
        left = &left[at + piece.len()..];
    }
    left.ends_with(last)
}

impl FromStr for RepositoryPattern {
    type Err = BadPattern;

    fn from_str(text: &str) -> Result<Self, BadPattern> {
        let bad = |why: &str| BadPattern { pattern: text.chars().take(100).collect(), why: why.to_owned() };
        if text.len() > PATTERN_MAX {
            return Err(bad(&format!("the pattern is {} bytes; the maximum is {PATTERN_MAX}", text.len())));
        }
        if text == "*" {
            return Ok(Self::any());
        }
        let rest = text.strip_prefix("docker://").unwrap_or(text);
        let Some((registry, path)) = rest.split_once('/') else {
            return Err(bad("use *, REGISTRY/** or REGISTRY/NAME, such as docker.io/library/debian"));
        };
        if path.contains('@') || path.contains(':') {
            return Err(bad("a repository pattern cannot have a tag or a digest"));
        }
        let registry = registry_of(registry).ok_or_else(|| {
            bad("the pattern must begin with a registry's host name or address with an optional port, or with *.DOMAIN")
        })?;
        let mut names: Vec<String> = path.split('/').map(str::to_owned).collect();
        let below = names.pop_if(|name| name == "**").is_some();
        if let Some(name) = names.iter().find(|name| !is_name(name)) {
            let why = format!(
                "the name {:?} is not valid: use a-z, 0-9, `.`, `_`, `-` and `*`; `**` is allowed only as the last name",
                name.chars().take(40).collect::<String>()
            );
            return Err(bad(&why));
        }
        if registry == Registry::Exact(DEFAULT_REGISTRY.into()) && !below && names.len() == 1 {
            if names[0].contains('*') {
                return Err(bad("a docker.io repository has two components; use docker.io/library/* or docker.io/**"));
            }
            names.insert(0, DEFAULT_NAMESPACE.trim_end_matches('/').to_owned());
        }
        Ok(Self(PatternScope::Repositories { registry, names, below }))
    }
}

/// Parses the registry in a pattern, which may contain `*`.
fn registry_of(text: &str) -> Option<Registry> {
    match text.strip_prefix('*') {
        Some(end) => {
            let end = end.to_ascii_lowercase();
            end.strip_prefix('.').is_some_and(is_registry).then_some(Registry::Below(end))
        }
        None => {
            let registry = canonical_registry(text);
            (is_host_like(text) && is_registry(&registry)).then_some(Registry::Exact(registry))
        }
    }
}

fn is_name(text: &str) -> bool {
    let part =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'_' | b'-' | b'*');
    match text.contains('*') {
        true => text.bytes().all(part) && !text.contains("**"),
        false => is_component(text),
    }
}

impl fmt::Display for RepositoryPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PatternScope::Repositories { registry, names, below } = &self.0 else { return f.write_str("*") };
        match registry {
            Registry::Exact(registry) => f.write_str(registry)?,
            Registry::Below(end) => write!(f, "*{end}")?,
        }
        names.iter().try_for_each(|name| write!(f, "/{name}"))?;
        if *below { f.write_str("/**") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::ImageReference;
    use super::*;

    fn matches(pattern: &str, reference: &str) -> bool {
        let pattern: RepositoryPattern = pattern.parse().unwrap_or_else(|bad| panic!("{bad}"));
        let again: RepositoryPattern = pattern.to_string().parse().unwrap();
        assert_eq!(again, pattern);
        let Ok(ImageReference::Registry(repository, _)) = ImageReference::parse_short(reference) else {
            panic!("{reference}")
        };
        pattern.matches(&repository)
    }

    #[test]
    fn image_patterns_match_only_named_repositories() {
        let table: [(&str, &[&str], &[&str]); 13] = [
            ("*", &["debian", "r.example/a/b/c", "[::1]:5000/x"], &[]),
            (
                "docker.io/library/*",
                &["debian", "debian:12", "index.docker.io/debian", "DOCKER.IO/library/debian", "docker://debian"],
                &["team/debian", "docker.io/library/a/b", "docker.io:443/library/debian", "x.docker.io/library/debian"],
            ),
            (
                "docker.io/debian",
                &["debian", "library/debian:1"],
                &["team/debian", "debian2", "r.example/library/debian"],
            ),
            ("index.docker.io/team/**", &["team/a", "team/a/b"], &["team2/a", "r.example/team/a"]),
            (
                "registry.example:5000/team/**",
                &["registry.example:5000/team/a", "REGISTRY.EXAMPLE:5000/team/a/b/c:1"],
                &[
                    "registry.example:5000/team",
                    "registry.example:5000/teams/a",
                    "registry.example/team/a",
                    "registry.example:50000/team/a",
                    "registry.example.evil:5000/team/a",
                    "evil.example/registry.example/team/a",
                    "registry.example:5000/a/team/b",
                ],
            ),
            ("r.example/**", &["r.example/a", "r.example/a/b"], &["r.example:443/a", "x.r.example/a", "r.examples/a"]),
            ("r.example/app-*", &["r.example/app-1", "r.example/app-a-b"], &["r.example/app", "r.example/app-1/b"]),
            ("r.example/*/app", &["r.example/a/app"], &["r.example/app", "r.example/a/b/app", "r.example/a/apps"]),
            (
                "r.example/a*b*c",
                &["r.example/axbyc", "r.example/abc", "r.example/abbcc"],
                &["r.example/acb", "r.example/ab"],
            ),
            (
                "*.example.com/**",
                &["r.example.com/a", "a.b.example.com/a"],
                &["example.com/a", "rexample.com/a", "r.example.com:1/a"],
            ),
            ("*.example.com:5000/a", &["r.example.com:5000/a"], &["r.example.com/a", "r.example.com:15000/a"]),
            ("[::1]:5000/**", &["[::1]:5000/a"], &["[::1]/a", "127.0.0.1:5000/a"]),
            ("localhost/a", &["localhost/a"], &["localhost:5000/a", "library/a"]),
        ];
        for (pattern, those, others) in table {
            those.iter().for_each(|reference| assert!(matches(pattern, reference), "{pattern} {reference}"));
            others.iter().for_each(|reference| assert!(!matches(pattern, reference), "{pattern} {reference}"));
        }
    }

    #[test]
    fn invalid_pattern_fails() {
        let long = format!("r.example/{}", "a".repeat(PATTERN_MAX));
        let bad = [
            "",
            "debian",
            "r.example",
            "library/*",
            "*/app",
            "**",
            "**/a",
            "*.example.com",
            "*example.com/a",
            "*./a",
            "r.example/",
            "r.example//a",
            "r.example/**/a",
            "r.example/a**",
            "r.example/A",
            "r.example/a:1",
            "r.example/a b",
            "r.example/a@sha256:0",
            "r.*.example/a",
            "r.example:0/a",
            "r.example:x/a",
            "docker.io/*",
            "docker.io/a*",
            "oci:/srv/a",
            "https://r.example/a",
            "r.example/../a",
            "r.example/.a",
            &long,
        ];
        for text in bad {
            assert!(text.parse::<RepositoryPattern>().is_err(), "{text}");
        }
    }
}
