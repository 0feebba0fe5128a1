//! Parses versions and ranges of versions as blang/semver v4 does. `skipRange`, dependencies and `--version` use this
//! grammar.
//!
//! ```text
//!  range      = and { " || " and }
//!  and        = term { " " term }
//!  term       = [ "=" | "==" | ">" | ">=" | "<" | "<=" | "!" | "!=" ] version
//! ```
//! A version without an operator matches only itself: there is no implied caret. Prereleases are compared like other
//! versions: `>=1.0.0` matches `1.1.0-rc.1`. A version may end in a wildcard, `1.x` or `1.2.x`.
//!
//! Existing catalogs depend on some peculiarities of blang/semver, which are kept:
//!
//! - A term of one byte is ignored.
//! - A version with an `x` elsewhere (`1.0.0-xyz`) is treated as a wildcard, which is valid only with `>=` and `<`.
//! - An unknown operator before a wildcard means equality.

use std::cmp::Ordering;
use std::fmt;

use semver::Version;

/// Maximum length of a range and of a version, in bytes. Ranges in catalogs have fewer than 100 bytes.
pub const TEXT_MAX: usize = 4096;

/// Error for a string that is not a version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a semantic version: {reason}")]
pub struct VersionError {
    text: String,
    reason: String,
}

/// Error for a string that is not a range of versions.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    #[error("is {0} bytes; the maximum is {TEXT_MAX}")]
    TooLong(usize),
    #[error("is empty, or ends in `||`")]
    Empty,
    #[error("begins with `||`")]
    BeginsWithOr,
    #[error("has `{0}` without a version")]
    NoVersion(String),
    #[error("has the unknown operator `{operator}` in `{term}`")]
    Operator { operator: String, term: String },
    #[error("has `{term}`: {source}")]
    Version { term: String, source: VersionError },
    #[error("has two `||` with no version between them")]
    EmptyTerm,
}

/// Parses a version as defined by semver.org, whose numbers must fit into 64 bits.
///
/// # Errors
/// Returns an error if the string is not a version.
pub fn version(text: &str) -> Result<Version, VersionError> {
    let wrong = |reason: String| VersionError { text: text.chars().take(80).collect(), reason };
    if text.len() > TEXT_MAX {
        return Err(wrong(format!("the version is {} bytes; the maximum is {TEXT_MAX}", text.len())));
    }
    let version = Version::parse(text).map_err(|error| wrong(error.to_string()))?;
    let is_large = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit()) && part.parse::<u64>().is_err();
    match version.pre.split('.').find(|part| !part.is_empty() && is_large(part)) {
        Some(part) => Err(wrong(format!("{part} does not fit into 64 bits"))),
        None => Ok(version),
    }
}

/// Returns true for a valid release of a bundle. A release has the syntax of a semver prerelease.
pub fn is_release(text: &str) -> bool {
    !text.is_empty() && !text.contains('+') && version(&format!("0.0.0-{text}")).is_ok()
}

/// Comparison operator of a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
}

impl Operator {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "" | "=" | "==" => Self::Equal,
            "!" | "!=" => Self::NotEqual,
            ">" => Self::Greater,
            ">=" => Self::GreaterOrEqual,
            "<" => Self::Less,
            "<=" => Self::LessOrEqual,
            _ => return None,
        })
    }

    fn holds(self, ordering: Ordering) -> bool {
        match self {
            Self::Equal => ordering.is_eq(),
            Self::NotEqual => ordering.is_ne(),
            Self::Greater => ordering.is_gt(),
            Self::GreaterOrEqual => ordering.is_ge(),
            Self::Less => ordering.is_lt(),
            Self::LessOrEqual => ordering.is_le(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    text: String,
    any: Vec<Vec<(Operator, Version)>>,
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Range {
    /// Parses a range.
    ///
    /// # Errors
    /// Returns an error if the string is not a range.
    pub fn parse(text: &str) -> Result<Self, RangeError> {
        if text.len() > TEXT_MAX {
            return Err(RangeError::TooLong(text.len()));
        }
        let terms = split(text);
        if terms.first().is_some_and(|term| term == "||") {
            return Err(RangeError::BeginsWithOr);
        }
        if terms.last().is_none_or(|term| term == "||") {
            return Err(RangeError::Empty);
        }
        let mut any = Vec::new();
        for group in terms.split(|term| term == "||") {
            if group.is_empty() {
                return Err(RangeError::EmptyTerm);
            }
            let mut all = Vec::new();
            for term in group {
                for (operator, wanted) in expand(term)? {
                    all.push(parse(&operator, &wanted)?);
                }
            }
            any.push(all);
        }
        Ok(Self { text: text.to_owned(), any })
    }

    /// Returns true if the range contains this version. Build metadata after `+` is ignored.
    pub fn has(&self, version: &Version) -> bool {
        let holds = |(operator, wanted): &(Operator, Version)| operator.holds(version.cmp_precedence(wanted));
        self.any.iter().any(|all| all.iter().all(holds))
    }
}

/// Splits at spaces that do not follow an operator, and removes spaces from the terms.
fn split(text: &str) -> Vec<String> {
    let (mut terms, mut start, mut before) = (Vec::new(), 0, 0u8);
    let mut push = |term: &str| {
        if term.len() > 1 {
            terms.push(term.replace(' ', ""));
        }
    };
    for (at, byte) in text.bytes().enumerate() {
        if byte != b' ' {
            before = byte;
        } else if !matches!(before, b'>' | b'<' | b'=') {
            push(&text[start..at]);
            start = at + 1;
        }
    }
    push(text.get(start..).unwrap_or_default());
    terms
}

/// Splits a term before its first digit.
fn operator_and_version(term: &str) -> Result<(&str, &str), RangeError> {
    let at = term.find(|c: char| c.is_ascii_digit()).ok_or_else(|| RangeError::NoVersion(term.to_owned()))?;
    Ok((term[..at].trim(), &term[at..]))
}

/// Expands a term with the wildcard `x` into terms without wildcard. Other terms are returned unchanged.
fn expand(term: &str) -> Result<Vec<(String, String)>, RangeError> {
    let (operator, version) = operator_and_version(term)?;
    let of = |operator: &str, version: String| (operator.to_owned(), version);
    if !term.contains('x') {
        return Ok(vec![of(operator, version.to_owned())]);
    }
    let lowest = lowest(version);
    // First version after the versions that the wildcard matches; empty if the `x` is not a wildcard or a number
    // overflows.
    let next = || {
        let parts: Vec<&str> = version.split('.').collect();
        let raised = match (parts.len(), parts.last()) {
            (3, Some(&"x")) => Some(1),
            (2, Some(&"x")) => Some(0),
            _ => None,
        };
        raised.and_then(|at| raise(&lowest, at)).unwrap_or_default()
    };
    Ok(match operator {
        ">" => vec![of(">=", next())],
        ">=" | "<" => vec![of(operator, lowest)],
        "<=" => vec![of("<", next())],
        "" | "=" | "==" => {
            let next = next();
            vec![of(">=", lowest), of("<", next)]
        }
        "!" | "!=" => {
            let next = next();
            vec![of("<", lowest), of(">=", next)]
        }
        _ => vec![of("", lowest)],
    })
}

/// Replaces the wildcard with zeros: `1.x`, `1.x.x` and `1.0.x` become `1.0.0`.
fn lowest(version: &str) -> String {
    let version = version.replacen(".x.x", ".x", 1).replacen(".x", ".0", 1);
    if version.split('.').count() == 2 { format!("{version}.0") } else { version }
}

/// Increments the number at index `at` of a version.
fn raise(version: &str, at: usize) -> Option<String> {
    let mut parts: Vec<String> = version.split('.').map(str::to_owned).collect();
    let part = parts.get_mut(at)?;
    *part = part.parse::<i64>().ok()?.checked_add(1)?.to_string();
    Some(parts.join("."))
}

fn parse(operator: &str, text: &str) -> Result<(Operator, Version), RangeError> {
    let term = || format!("{operator}{text}");
    let found = Operator::parse(operator)
        .ok_or_else(|| RangeError::Operator { operator: operator.to_owned(), term: term() })?;
    if text.is_empty() {
        return Err(RangeError::NoVersion(term()));
    }
    let version = version(text).map_err(|source| RangeError::Version { term: term(), source })?;
    Ok((found, version))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(range: &str, text: &str) -> bool {
        Range::parse(range).unwrap_or_else(|error| panic!("{range}: {error}")).has(&version(text).unwrap())
    }

    #[test]
    fn malformed_or_large_versions_are_refused() {
        for good in [
            "0.0.0",
            "1.2.3",
            "1.2.3-rc.1",
            "1.2.3-0a.x-y",
            "1.2.3+build.001",
            "1.2.3-rc+b",
            "18446744073709551615.0.0",
        ] {
            assert!(version(good).is_ok(), "{good}");
        }
        let large = "1.0.0-18446744073709551616";
        for bad in [
            "",
            "1",
            "1.2",
            "v1.2.3",
            "01.2.3",
            "1.02.3",
            "1.2.3-01",
            "1.2.3-",
            "1.2.3+",
            "1.2.3-a..b",
            "1.2.3 ",
            large,
            "1.2.3-ä",
        ] {
            assert!(version(bad).is_err(), "{bad}");
        }
        assert!(version(&format!("1.0.0-{}", "a".repeat(TEXT_MAX))).is_err());
    }

    #[test]
    fn precedence_follows_semver() {
        let order = [
            "1.0.0-alpha",
            "1.0.0-alpha.1",
            "1.0.0-alpha.beta",
            "1.0.0-beta",
            "1.0.0-beta.2",
            "1.0.0-beta.11",
            "1.0.0-rc.1",
            "1.0.0",
        ];
        for pair in order.windows(2) {
            assert!(has(&format!("<{}", pair[1]), pair[0]), "{pair:?}");
            assert!(!has(&format!(">={}", pair[1]), pair[0]), "{pair:?}");
        }
        // Build metadata after `+` is ignored.
        assert!(has("1.0.0+a", "1.0.0+b"));
        assert!(has(">=1.0.0", "1.1.0-rc.1"), "a range includes prereleases");
    }

    #[test]
    fn documented_ranges_select_versions() {
        let table = [
            (">1.0.0 <2.0.0", "1.1.1 1.8.7", "1.0.0 2.0.0"),
            (">1.0.0 <3.0.0 !2.0.3-beta.2", "2.0.3 1.0.1 2.0.3-beta.1", "2.0.3-beta.2"),
            ("<2.0.0 || >=3.0.0", "1.0.0 3.0.0 4.1.0", "2.0.0 2.9.9"),
            (">1.0.0 <2.0.0 || >3.0.0 !4.2.1", "1.2.3 1.9.9 3.1.1", "4.2.1 2.1.1"),
            ("1.0.0", "1.0.0", "1.0.1 1.1.0"),
            ("=1.0.0", "1.0.0", "1.0.1"),
            ("==1.0.0", "1.0.0", "1.0.1"),
            ("!1.0.0", "1.0.1", "1.0.0"),
            ("!=1.0.0", "1.0.1", "1.0.0"),
            ("<=1.0.0", "1.0.0 0.9.0", "1.0.1"),
            ("  >= 1.0.0   < 2.0.0  ", "1.0.0", "2.0.0"),
            ("<4.0.1 <6.0.0", "3.1.0 4.0.0", "4.0.1 5.0.0 6.0.0"),
            (">4.0.1 <4.0.5 !=4.0.3", "4.0.2 4.0.4", "4.0.1 4.0.3 4.0.5"),
            (">4.0.1 <4.0.5 !4.0.3", "4.0.2 4.0.4", "4.0.1 4.0.3 4.0.5"),
            (">4.0.1 || <4.0.3", "4.0.0 4.0.1 4.0.2 9.0.0", ""),
            ("<4.0.1 || >4.0.3", "4.0.0 4.0.4", "4.0.1 4.0.2 4.0.3"),
            (">4.x", "5.0.0", "3.9.9 4.0.0 4.9.9"),
            (">4.2.x", "4.3.0 5.0.0", "4.1.9 4.2.0 4.2.9"),
            ("3.x || >=5.1.x <5.4.x", "3.0.0 3.9.1 5.1.0 5.3.9", "2.9.9 4.0.0 5.0.9 5.4.0"),
            (">1.2.2 <1.2.4 || >=2.0.0", "1.2.3 2.0.0 9.0.0", "1.2.2 1.2.4 1.9.9"),
        ];
        for (range, inside, outside) in table {
            inside.split_whitespace().for_each(|text| assert!(has(range, text), "{range} {text}"));
            outside.split_whitespace().for_each(|text| assert!(!has(range, text), "{range} {text}"));
        }
    }

    #[test]
    fn wildcards_become_bounds() {
        let table = [
            (">=1.2.x", ">=1.2.0"),
            ("<=1.2.x", "<1.3.0"),
            (">1.2.x", ">=1.3.0"),
            ("<1.2.x", "<1.2.0"),
            (">=1.x", ">=1.0.0"),
            ("<=1.x", "<2.0.0"),
            (">1.x", ">=2.0.0"),
            ("1.2.x", ">=1.2.0 <1.3.0"),
            ("=1.x", ">=1.0.0 <2.0.0"),
            ("1.x.x", ">=1.0.0 <1.1.0"),
            ("^1.2.x", "1.2.0"),
        ];
        for (wildcard, plain) in table {
            let (wildcard, plain) = (Range::parse(wildcard).unwrap(), Range::parse(plain).unwrap());
            assert_eq!(wildcard.any, plain.any, "{wildcard}");
        }
        // Both conditions must hold, so nothing matches, as in blang/semver.
        assert!(!has("!=1.2.x", "1.1.0") && !has("!=1.2.x", "1.3.0"));
    }

    #[test]
    fn unusual_ranges_are_parsed() {
        assert!(has("! 1.0.0", "1.0.0"), "an operator of one byte before a space is ignored");
        assert!(has(">=1.0.0-xyz", "1.0.0-xyz") && Range::parse("1.0.0-xyz").is_err());
        assert!(Range::parse(">1.0.0-next").is_err() && has("<1.0.0-next", "1.0.0-a"));
        assert!(has("\t>1.0.0", "1.0.1"));
        assert!(!has("1.0.0 - 2.0.0", "1.5.0"), "`A - B` requires both versions, so no version matches");
    }

    #[test]
    fn invalid_range_fails() {
        for bad in [
            "",
            " ",
            "x",
            "*",
            "||",
            "1.0.0 ||",
            "|| 1.0.0",
            "1.0.0 || || 2.0.0",
            "~1.2.3",
            "^1.2.3",
            "1.2",
            ">=1",
            "1.0.0||2.0.0",
            ">=",
            ">1.0.0 and <2.0.0",
            "“>=1.0.0”",
            ">=v1.0.0",
            "1.2.3,1.2.4",
            "(1.0.0)",
            "9223372036854775807.x",
            ">>1.2.3",
            "<<1.2.3",
            "<==1.2.3",
            "-1.2.3",
            "=latest",
            "foox",
            "fo.ob.ar.x",
        ] {
            assert!(Range::parse(bad).is_err(), "{bad:?}");
        }
        assert_eq!(Range::parse(&"1".repeat(TEXT_MAX + 1)), Err(RangeError::TooLong(TEXT_MAX + 1)));
        assert_eq!(Range::parse("~1.2.3").unwrap_err().to_string(), "has the unknown operator `~` in `~1.2.3`");
    }
}
