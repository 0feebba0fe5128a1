//! Reads public keys of image signers from PEM as openssl and cosign write it (`BEGIN PUBLIC KEY`).

use std::io::Read as _;
use std::path::Path;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer};
use webpki::{Error, RawPublicKeyEntity, ring};

use crate::hash;
use executor_core::image::Algorithm;

/// Maximum size of a key file, in bytes.
const FILE_MAX: u64 = 64 << 10;

/// Supported signature algorithms, each with its key type.
static ALGORITHMS: [&dyn SignatureVerificationAlgorithm; 5] = [
    ring::ECDSA_P256_SHA256,
    ring::ED25519,
    ring::RSA_PKCS1_2048_8192_SHA256,
    ring::ECDSA_P384_SHA384,
    ring::ECDSA_P384_SHA256,
];

#[derive(Clone, Debug)]
pub struct TrustedKey {
    /// SHA-256 of the SubjectPublicKeyInfo, in hexadecimal.
    id: String,
    spki: SubjectPublicKeyInfoDer<'static>,
    algorithms: Vec<&'static dyn SignatureVerificationAlgorithm>,
}

impl TrustedKey {
    /// Reads the keys in a file.
    ///
    /// # Errors
    /// Returns a message of one line, without the path, if the file cannot be read, has no key, or has an unsupported
    /// key.
    pub fn read(path: &Path) -> Result<Vec<Self>, String> {
        let mut pem = Vec::new();
        let reported = |error: std::io::Error| {
            let words = error.to_string();
            format!("cannot be read: {}", words.split(" (os error").next().unwrap_or_default())
        };
        let file = std::fs::File::open(path).map_err(reported)?;
        file.take(FILE_MAX + 1).read_to_end(&mut pem).map_err(reported)?;
        if pem.len() as u64 > FILE_MAX {
            return Err(format!("is larger than the maximum of {FILE_MAX} bytes"));
        }
        Self::parse(&pem)
    }

    /// Parses the keys of a PEM document.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::read`].
    pub fn parse(pem: &[u8]) -> Result<Vec<Self>, String> {
        let keys = SubjectPublicKeyInfoDer::pem_slice_iter(pem)
            .map(|spki| Self::from_spki(spki.map_err(|error| format!("is not PEM: {error}"))?))
            .collect::<Result<Vec<_>, _>>()?;
        if keys.is_empty() {
            return Err("has no public key (PEM, BEGIN PUBLIC KEY)".into());
        }
        Ok(keys)
    }

    fn from_spki(spki: SubjectPublicKeyInfoDer<'static>) -> Result<Self, String> {
        let key = RawPublicKeyEntity::try_from(&spki).map_err(|error| format!("has a malformed key: {error}"))?;
        // The error for an empty signature shows whether the algorithm supports the key.
        let fits = |algorithm: &&&'static dyn SignatureVerificationAlgorithm| {
            !matches!(
                key.verify_signature(**algorithm, b"", b""),
                Err(Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_))
            )
        };
        let algorithms: Vec<_> = ALGORITHMS.iter().filter(fits).copied().collect();
        if algorithms.is_empty() {
            return Err("has a key of an unsupported type; supported are ECDSA (P-256, P-384), Ed25519 and RSA".into());
        }
        let id = hash::digest(Algorithm::Sha256, &spki).hex().to_owned();
        Ok(Self { id, spki, algorithms })
    }

    /// Returns the id of the key: the SHA-256 of its SubjectPublicKeyInfo.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns true if the signature of the message was made by this key.
    pub(super) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        let Ok(key) = RawPublicKeyEntity::try_from(&self.spki) else { return false };
        self.algorithms.iter().any(|algorithm| key.verify_signature(*algorithm, message, signature).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    /// Keys that openssl generated, each with its signature of `message`.
    const VECTORS: [(&str, &str); 4] = [
        (
            concat!(
                "-----BEGIN PUBLIC KEY-----\n",
                "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAELUv5iTLyzzdq89Nt95xT3REyiZlu\n",
                "Yvp2lE7ncVD0SZKQZHK8cZ18EiZsNzD0cxDMn4XUORYHNdtv+/7lZGNA2g==\n",
                "-----END PUBLIC KEY-----\n",
            ),
            "MEUCIQCs/6iC9H8Z9qUHYpMw6EF6URhXdavgDzMIVSzRW7KDpgIgb3LUw7rnodFPntLFoJ2Ax4nlQwj4j8onSZPBQMTBjw8=",
        ),
        (
            concat!(
                "-----BEGIN PUBLIC KEY-----\n",
                "MCowBQYDK2VwAyEABmF3Dv6b/wHNFkq7s2akP6v17oQ9cWvV7OOHKcV/fek=\n",
                "-----END PUBLIC KEY-----\n",
            ),
            "PJriUmElOYgBTbZSRzd59OgmRLybZOGvRyLZowLU7z+S96vbVQicMoSoA+Xjsxw/MKAusTqbG1A0Ure7/g03BA==",
        ),
        (
            concat!(
                "-----BEGIN PUBLIC KEY-----\n",
                "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA35+cFVcIbkmC04W6rnfT\n",
                "6fFJAaEeCvq6jaqMqFKlrFRh85pETo/3J/MydFPERPbr5KUvZ7+UfODPLM73iPde\n",
                "SseIeZxM38eRrnRh1VhKYqp3aK5uxwkjBD9Lxrqsg1fqtH+S/cIncjz/XqW9/D+p\n",
                "JjAX2gHtd4yM0s5c4W3wY/rBaHNoz9oB+PH8vYqSqqJdOi/J26ORFsl+SGO+F5lq\n",
                "t6VqWeRDmwhCCWMu32O49vgZJOdI/ShdQdmpfEnMNtDoerIC9BoOydw3XEuQyoxG\n",
                "Ow8H6P6kukBTi1DPy4uw7GRO+UrOoIqm98s+QHuRxCD8F8/LQdrMOb072qF6he/r\n",
                "fwIDAQAB\n",
                "-----END PUBLIC KEY-----\n",
            ),
            concat!(
                "joSKZil3IFDEDipOJCTG3nCrLrv8LwJr3IlQaxoaMUZYvUI92YwmYVjEK8fjipDPrUCXPm/APtVENM9LuMH7SG7sWJ1oYlUE2fQZ",
                "py7NNhGTHZ8LN0Msq/6XyuqwaGaW8GjstvqibzBUJqcqreSFHd7tLrlYskPBxJ8Akn5yJq6n1wYIlaCG8cPvKjLjGP9q/plawhqz",
                "CshIDH6Q2JipbOyQjX6ulwY0X7I7IFAi6Zao1HhdkK60W27KU0loyVA5uLYv8cA0Ym5kyzlEnuxnPcLr9L40fjOFRMrwLdXRVbAW",
                "cIcuh6LcN6zGheNuD/mllkKYU9UY7Zuy/qezIBs+Bw==",
            ),
        ),
        (
            concat!(
                "-----BEGIN PUBLIC KEY-----\n",
                "MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAEidClS6UrGKSpF7dd+NV5DRwfBDMsqiyC\n",
                "tKDFDGjXSUsxQakwlF1yAB07guaxrz0o1gdIwGkRNpD5CuJmae9Weudi38+kI7+L\n",
                "SVg9P7EBrhQgp7DjGX+O2s5fRS2+GuoN\n",
                "-----END PUBLIC KEY-----\n",
            ),
            concat!(
                "MGQCMFMnFNbsEiKxL7xZ0YigzThc9VhFnkrGIRg4UGV1NMY6LWU51eGfBvkEJJsZriT0PQIwfxxybUaI/kysAlKQEaiXydHDbaxI",
                "HzPWsvhOr8AnaXKbTCYJB99Q8OarxqzQDIxz",
            ),
        ),
    ];
    /// A key with an unsupported curve.
    const OTHER_CURVE: &str = concat!(
        "-----BEGIN PUBLIC KEY-----\n",
        "MFYwEAYHKoZIzj0CAQYFK4EEAAoDQgAE8AsUNMFd7WZE7NhaGSr9HJYf+nUlzSt2\n",
        "2aoMNzqa9oa3TQW0GL6KtEd12EtSAAdI7NCYIQSfKyfce02kjL/dnQ==\n",
        "-----END PUBLIC KEY-----\n",
    );

    #[test]
    fn openssl_keys_and_signatures_are_accepted() {
        for (pem, signature) in VECTORS {
            let [key] = &TrustedKey::parse(pem.as_bytes()).unwrap()[..] else { panic!("{pem}") };
            let signature = STANDARD.decode(signature).unwrap();
            assert!(key.verifies(b"message", &signature), "{pem}");
            assert!(!key.verifies(b"massage", &signature), "a signature of another message was accepted");
            for at in 0..signature.len() {
                let mut damaged = signature.clone();
                damaged[at] ^= 1;
                assert!(
                    !key.verifies(b"message", &damaged),
                    "a signature with bit 0 of byte {at} changed was accepted"
                );
            }
            assert!(!key.verifies(b"message", b"") && !key.verifies(b"", &signature));
        }
        let all = VECTORS.map(|(pem, _)| pem).concat();
        let keys = TrustedKey::parse(all.as_bytes()).unwrap();
        let signed: Vec<Vec<u8>> = VECTORS.iter().map(|(_, signature)| STANDARD.decode(signature).unwrap()).collect();
        for (at, key) in keys.iter().enumerate() {
            for (other, signature) in signed.iter().enumerate() {
                assert_eq!(key.verifies(b"message", signature), at == other, "{at} {other}");
            }
        }
    }

    #[test]
    fn invalid_public_key_fails() {
        let private = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        let damaged = VECTORS[0].0.replace("MFkw", "MFkx");
        let table = [
            ("", "no public key"),
            ("nonsense", "no public key"),
            (private, "no public key"),
            (&damaged, "malformed"),
            (OTHER_CURVE, "unsupported type"),
            ("-----BEGIN PUBLIC KEY-----\n!\n-----END PUBLIC KEY-----\n", "not PEM"),
        ];
        for (pem, why) in table {
            let reported = TrustedKey::parse(pem.as_bytes()).unwrap_err();
            assert!(reported.contains(why), "{pem}: {reported}");
        }
    }
}
