//! Tags, which tell whether two requests are the same without keeping either.
//!
//! A plain digest of a short secret can be guessed from the digest. A tag is keyed (HMAC-SHA-256), and the key is
//! random and in memory only, for as long as this boot's launcher or daemon lives.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

/// Bytes of a key.
const KEY: usize = 32;

/// A key of tags. Prints as `[REDACTED]`.
#[derive(Clone)]
pub struct TagKey(Zeroizing<[u8; KEY]>);

/// Error of bytes that are not a key.
#[derive(Debug, thiserror::Error)]
#[error("a tag key has {KEY} bytes, not {0}")]
pub struct BadKey(usize);

impl TagKey {
    /// A new key.
    ///
    /// # Errors
    /// The kernel has no randomness.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut key = Zeroizing::new([0; KEY]);
        getrandom::fill(&mut *key)?;
        Ok(Self(key))
    }

    /// A key that another process of ours passed.
    ///
    /// # Errors
    /// Another length.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BadKey> {
        Ok(Self(Zeroizing::new(bytes.try_into().map_err(|_| BadKey(bytes.len()))?)))
    }

    /// Returns the key, to pass it to another process of the executor.
    pub fn as_bytes(&self) -> &[u8] {
        &*self.0
    }

    /// The tag of a list of parts, in hexadecimal. Each part is counted with its length, so that no two lists
    /// are mistaken for one another.
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
    fn a_tag_depends_on_the_key_and_on_every_boundary() {
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
