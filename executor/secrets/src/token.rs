//! Generates runtime tokens and verifies them by digest. Only the process that delivers a token ever holds it.
//!
//! The format is in `executor_core::token`. A verifier keeps only a [`TokenDigest`]. A digest cannot be presented as a
//! token, does not allow guessing the token (32 random bytes), and is compared in constant time.

use executor_core::ident::ContainerId;
use executor_core::token::{DIGEST_BYTES, RANDOM_BYTES};
use hmac::digest::CtOutput;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

/// A runtime token. Wiped on drop; prints as `[REDACTED]`.
pub struct Token(Zeroizing<Vec<u8>>);

impl Token {
    /// Generates a runtime token for a container.
    ///
    /// # Errors
    /// Returns an error if the kernel has no randomness.
    pub fn random(id: &ContainerId) -> Result<Self, getrandom::Error> {
        let mut random = Zeroizing::new([0; RANDOM_BYTES]);
        getrandom::fill(&mut *random)?;
        let head = id.as_str().len() + 1;
        // Allocated once at the final size, so that no partial copy remains.
        let mut token = Zeroizing::new(vec![b'.'; head + 2 * RANDOM_BYTES]);
        token[..head - 1].copy_from_slice(id.as_str().as_bytes());
        hex::encode_to_slice(*random, &mut token[head..]).expect("the buffer has room for the token");
        Ok(Self(token))
    }

    /// Returns the token as clients present it.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[REDACTED]")
    }
}

/// Digest of a token, compared in constant time.
#[derive(PartialEq, Eq)]
pub struct TokenDigest(CtOutput<Sha256>);

impl TokenDigest {
    /// Computes the digest of a presented token.
    pub fn from_token(token: &[u8]) -> Self {
        Self(CtOutput::new(Sha256::digest(token)))
    }

    /// Wraps a digest that another executor process passed. Returns `None` if the length is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: [u8; DIGEST_BYTES] = bytes.try_into().ok()?;
        Some(Self(CtOutput::new(bytes.into())))
    }

    /// Returns the bytes, to pass them to another process of the executor.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.as_bytes().to_vec()
    }
}

impl std::fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[REDACTED]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_has_format_and_matches_digest() {
        let id: ContainerId = "web.1".parse().unwrap();
        let (token, other) = (Token::random(&id).unwrap(), Token::random(&id).unwrap());
        let text = std::str::from_utf8(token.as_bytes()).unwrap();
        assert_eq!(executor_core::token::parse_container_id(text), Some(id));
        let digest = TokenDigest::from_token(token.as_bytes());
        assert_eq!(TokenDigest::from_bytes(&digest.to_bytes()).unwrap(), digest);
        assert_ne!(TokenDigest::from_token(other.as_bytes()), digest);
        assert!(TokenDigest::from_bytes(b"short").is_none() && TokenDigest::from_bytes(&[0; 33]).is_none());
        assert_eq!(format!("{token:?} {digest:?}"), "[REDACTED] [REDACTED]");
    }
}
