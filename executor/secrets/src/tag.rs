//! Computes digests of requests, which compare two requests without storing either.
//!
//! An attacker can guess a short secret from its plain digest, so request digests are keyed (HMAC-SHA-256). The key is
//! random and exists only in memory, until the launcher or daemon that generated it exits.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

/// Length of a digest key in bytes.
const KEY: usize = 32;

/// Key of request digests. Prints as `[REDACTED]`.
#[derive(Clone)]
pub struct TagKey(Zeroizing<[u8; KEY]>);

/// Error for a key of the wrong length.
#[derive(Debug, thiserror::Error)]
#[error("the request digest key is {0} bytes; expected {KEY}")]
pub struct BadKey(usize);

impl TagKey {
    /// Generates a new random key.
    ///
    /// # Errors
    /// Returns an error if the kernel has no randomness.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut key = Zeroizing::new([0; KEY]);
        getrandom::fill(&mut *key)?;
        Ok(Self(key))
    }

    /// Wraps a key that another executor process passed.
    ///
    /// # Errors
    /// Returns an error if the key has the wrong length.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BadKey> {
        Ok(Self(Zeroizing::new(bytes.try_into().map_err(|_| BadKey(bytes.len()))?)))
    }

    /// Returns the key, to pass it to another process of the executor.
    pub fn as_bytes(&self) -> &[u8] {
        &*self.0
    }

    /// Computes the digest of a list of parts, in hexadecimal. The digest includes the length of each part, so lists
    /// that differ only in the boundaries of their parts have different digests.
    pub fn tag<'a>(&self, parts: impl IntoIterator<Item = &'a [u8]>) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(&*self.0).expect("HMAC takes a key of any length");
        for part in parts {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        hex::encode(mac.finalize().into_bytes())
    }
}

impl std::fmt::Debug for TagKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[REDACTED]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_depends_on_key_and_part_boundaries() {
        let (key, other) = (TagKey::random().unwrap(), TagKey::random().unwrap());
        let tag = |key: &TagKey, parts: &[&[u8]]| key.tag(parts.iter().copied());
        assert_eq!(tag(&key, &[b"a", b"b"]), tag(&TagKey::from_bytes(key.as_bytes()).unwrap(), &[b"a", b"b"]));
        assert_ne!(tag(&key, &[b"a", b"b"]), tag(&key, &[b"ab"]));
        assert_ne!(tag(&key, &[b"a", b""]), tag(&key, &[b"a"]));
        assert_ne!(tag(&key, &[b"a"]), tag(&other, &[b"a"]));
        assert_eq!(format!("{key:?}"), "[REDACTED]");
        assert!(TagKey::from_bytes(b"short").is_err());
    }
}
