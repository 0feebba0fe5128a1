//! Digests: the names of what never changes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How a digest was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// SHA-256, 64 hexadecimal digits.
    Sha256,
    /// SHA-512, 128 hexadecimal digits.
    Sha512,
}

impl Algorithm {
    /// As a digest begins.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }

    /// Hexadecimal digits of its digests.
    pub fn digits(self) -> usize {
        match self {
            Self::Sha256 => 64,
            Self::Sha512 => 128,
        }
    }
}

/// `sha256:HEX` or `sha512:HEX`, in lower case: safe as a single path component once the colon is gone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest {
    algorithm: Algorithm,
    hex: String,
}

/// Why a string is no digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDigest {
    /// No colon, or another algorithm.
    #[error("is no digest of a known algorithm: `sha256:` or `sha512:` and hexadecimal digits")]
    Algorithm,
    /// Too short or too long.
    #[error("has {is} hexadecimal digits; {algorithm} has {must}")]
    Length {
        /// Its own.
        is: usize,
        /// As it names itself.
        algorithm: &'static str,
        /// The algorithm's.
        must: usize,
    },
    /// Not `[0-9a-f]`.
    #[error("has characters other than 0-9 and a-f")]
    Characters,
}

impl Digest {
    /// The digest that a computed hash is.
    pub fn of_hash(algorithm: Algorithm, hash: &[u8]) -> Option<Self> {
        (hash.len() * 2 == algorithm.digits()).then(|| Self { algorithm, hex: hex::encode(hash) })
    }

    /// How it was computed.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Its digits, a safe path component.
    pub fn hex(&self) -> &str {
        &self.hex
    }
}

impl FromStr for Digest {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Self, BadDigest> {
        let (algorithm, hex) = text.split_once(':').ok_or(BadDigest::Algorithm)?;
        let algorithm = [Algorithm::Sha256, Algorithm::Sha512].into_iter().find(|known| known.name() == algorithm);
        let algorithm = algorithm.ok_or(BadDigest::Algorithm)?;
        if hex.len() != algorithm.digits() {
            let (algorithm, must) = (algorithm.name(), algorithm.digits());
            return Err(BadDigest::Length { is: hex.len(), algorithm, must });
        }
        if !hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(BadDigest::Characters);
        }
        Ok(Self { algorithm, hex: hex.to_owned() })
    }
}

impl TryFrom<String> for Digest {
    type Error = BadDigest;

    fn try_from(text: String) -> Result<Self, BadDigest> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm.name(), self.hex)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_digests_in_lower_case() {
        let (short, long) = ("a".repeat(64), "0".repeat(128));
        for good in [format!("sha256:{short}"), format!("sha512:{long}")] {
            assert_eq!(good.parse::<Digest>().unwrap().to_string(), good);
        }
        let bad = [
            String::new(),
            "sha256:".into(),
            short.clone(),
            format!("sha256:{long}"),
            format!("sha512:{short}"),
            format!("md5:{short}"),
            format!("sha256:{}", short.to_uppercase()),
            format!("sha256:{}/", "a".repeat(63)),
            format!("sha256:{}é", "a".repeat(62)),
            format!("SHA256:{short}"),
        ];
        for bad in bad {
            assert!(bad.parse::<Digest>().is_err(), "{bad:?}");
        }
    }
}
