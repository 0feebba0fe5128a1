//! Computes digests, and checks documents against the descriptors that refer to them.

use executor_core::image::{Algorithm, Digest};
use sha2::{Digest as _, Sha256, Sha512};

use crate::error::ImageError;

/// An incremental digest computation.
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
        Digest::from_hash(algorithm, &hash).unwrap_or_else(|| unreachable!("a hash has its algorithm's length"))
    }
}

/// Computes the digest of `bytes`.
pub(crate) fn digest(algorithm: Algorithm, bytes: &[u8]) -> Digest {
    let mut hasher = Hasher::new(algorithm);
    hasher.update(bytes);
    hasher.finish()
}

/// Checks that bytes have the declared digest.
pub(crate) fn check_digest(declared: &Digest, bytes: &[u8], what: &str) -> Result<(), ImageError> {
    let got = digest(declared.algorithm(), bytes);
    if got == *declared {
        return Ok(());
    }
    Err(ImageError::WrongDigest { what: what.to_owned(), declared: declared.clone(), got })
}

/// Checks that a document has its declared size.
pub(crate) fn check_size(declared: u64, bytes: &[u8], what: &str) -> Result<(), ImageError> {
    let (what, got) = (what.to_owned(), bytes.len() as u64);
    match got.cmp(&declared) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Less => Err(ImageError::Truncated { what, declared, got }),
        std::cmp::Ordering::Greater => Err(ImageError::Longer { what, declared }),
    }
}
