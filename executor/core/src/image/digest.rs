//! Parses digests, which identify images, layers and blobs (image-spec, `descriptor.md`).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Hash algorithm of a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// SHA-256, 64 hexadecimal digits.
    Sha256,
    /// SHA-512, 128 hexadecimal digits.
    Sha512,
}

impl Algorithm {
    /// Returns the prefix of the digest, without the colon.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }

    /// Returns the number of hexadecimal digits.
    pub fn digits(self) -> usize {
        match self {
            Self::Sha256 => 64,
            Self::Sha512 => 128,
        }
    }
}

/// `sha256:HEX` or `sha512:HEX`, in lower case: the part after the colon is safe as a path component.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest {
    algorithm: Algorithm,
    hex: String,
}

/// Error from parsing a digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDigest {
    /// The digest has no colon, or an unknown algorithm.
    #[error("does not begin with `sha256:` or `sha512:`")]
    Algorithm,
    /// The digest is too short or too long.
    #[error("has {is} hexadecimal digits; {algorithm} requires {must}")]
    Length {
        /// Number of hexadecimal digits in the digest.
        is: usize,
        /// Name of the digest's algorithm.
        algorithm: &'static str,
        /// Number of digits that the algorithm requires.
        must: usize,
    },
    /// The digits are not `[0-9a-f]`.
    #[error("has characters other than 0-9 and a-f")]
    Characters,
    /// The digest has an unsupported algorithm; holds its name.
    #[error("has the algorithm {0}; only sha256 is supported here")]
    NotSha256(&'static str),
}

impl Digest {
    /// Creates a digest from a computed hash; `None` if the length does not match the algorithm.
    pub fn from_hash(algorithm: Algorithm, hash: &[u8]) -> Option<Self> {
        (hash.len() * 2 == algorithm.digits()).then(|| Self { algorithm, hex: hex::encode(hash) })
    }

    /// Returns the algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the hexadecimal digits, which are safe as a path component.
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

/// A layer's diffID: SHA-256 of its uncompressed archive (image-spec, `config.md`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiffId([u8; 32]);

impl DiffId {
    /// Creates a diffID from a computed hash.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes of the hash.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the 64 hexadecimal digits, which are safe as a path component.
    pub fn hex(&self) -> String {
        hex::encode(self.0)
    }
}

impl TryFrom<&Digest> for DiffId {
    type Error = BadDigest;

    fn try_from(digest: &Digest) -> Result<Self, BadDigest> {
        if digest.algorithm != Algorithm::Sha256 {
            return Err(BadDigest::NotSha256(digest.algorithm.name()));
        }
        let mut bytes = [0; 32];
        hex::decode_to_slice(&digest.hex, &mut bytes).map_err(|_| BadDigest::Characters)?;
        Ok(Self(bytes))
    }
}

impl FromStr for DiffId {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Self, BadDigest> {
        Self::try_from(&text.parse::<Digest>()?)
    }
}

impl From<DiffId> for Digest {
    fn from(id: DiffId) -> Self {
        Self { algorithm: Algorithm::Sha256, hex: id.hex() }
    }
}

impl fmt::Display for DiffId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", Algorithm::Sha256.name(), self.hex())
    }
}

impl fmt::Debug for DiffId {
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

    #[test]
    fn a_diff_id_is_a_sha256_digest() {
        let text = format!("sha256:{}", "0a".repeat(32));
        let id = text.parse::<DiffId>().unwrap();
        assert_eq!((id.to_string(), Digest::from(id).to_string()), (text.clone(), text.clone()));
        assert_eq!(format!("sha512:{}", "0".repeat(128)).parse::<DiffId>(), Err(BadDigest::NotSha256("sha512")));
        for bad in ["", "sha256:", &text.to_uppercase(), &text[..70], &format!("{text}0"), "sha256:../.."] {
            assert!(bad.parse::<DiffId>().is_err(), "{bad}");
        }
    }
}
