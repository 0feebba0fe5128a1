//! What a layer is known by.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

/// SHA-256 of a layer's uncompressed archive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiffId([u8; 32]);

/// A text that is no `sha256:` and 64 hexadecimal digits in lower case.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no digest `sha256:HEX`")]
pub struct BadDiffId(String);

impl DiffId {
    /// From the digest itself.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The digest itself.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The 64 digits.
    pub(crate) fn hex(&self) -> String {
        hex::encode(self.0)
    }

    /// Digest of a list, in its order.
    pub(crate) fn of_list(list: &[Self]) -> Self {
        let mut hasher = Sha256::new();
        for one in list {
            hasher.update(one.0);
        }
        Self(hasher.finalize().into())
    }
}

impl FromStr for DiffId {
    type Err = BadDiffId;

    fn from_str(text: &str) -> Result<Self, BadDiffId> {
        let bad = || BadDiffId(text.chars().take(80).collect());
        let digits = text.strip_prefix("sha256:").ok_or_else(bad)?;
        let mut bytes = [0; 32];
        hex::decode_to_slice(digits, &mut bytes).map_err(|_| bad())?;
        let id = Self(bytes);
        if id.hex() == digits { Ok(id) } else { Err(bad()) }
    }
}

impl fmt::Display for DiffId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for DiffId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_has_one_form() {
        let text = format!("sha256:{}", "0a".repeat(32));
        assert_eq!(text.parse::<DiffId>().unwrap().to_string(), text);
        for bad in ["", "sha256:", "sha512:00", &text.to_uppercase(), &text[..70], &format!("{text}0"), "sha256:../.."]
        {
            assert!(bad.parse::<DiffId>().is_err(), "{bad}");
        }
        let upper = format!("sha256:{}", "0A".repeat(32));
        assert!(upper.parse::<DiffId>().is_err());
    }
}
