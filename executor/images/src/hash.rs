//! Digests of bytes as they come.

use executor_core::image::{Algorithm, Digest};
use sha2::{Digest as _, Sha256, Sha512};

/// Computes the digest of what it is fed with.
pub(crate) enum Hasher {
    Sha256(Sha256),
    Sha512(Box<Sha512>),
}

impl Hasher {
    pub(crate) fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Sha256 => Self::Sha256(Sha256::new()),
            Algorithm::Sha512 => Self::Sha512(Box::new(Sha512::new())),
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
        }
    }

    pub(crate) fn finish(self) -> Digest {
        let (algorithm, hash) = match self {
            Self::Sha256(hasher) => (Algorithm::Sha256, hasher.finalize().to_vec()),
            Self::Sha512(hasher) => (Algorithm::Sha512, hasher.finalize().to_vec()),
        };
        Digest::of_hash(algorithm, &hash).unwrap_or_else(|| unreachable!("a hash has its algorithm's length"))
    }
}

/// The digest of some bytes.
pub(crate) fn digest(algorithm: Algorithm, bytes: &[u8]) -> Digest {
    let mut hasher = Hasher::new(algorithm);
    hasher.update(bytes);
    hasher.finish()
}
