//! Computes and parses digests: an algorithm, a colon and lowercase hexadecimal digits (OCI image specification,
//! descriptor.md).

use sha2::{Digest as _, Sha256};

/// Algorithm of all computed digests.
const SHA256: &str = "sha256";
/// Number of hexadecimal digits of each algorithm.
const DIGITS: [(&str, usize); 2] = [(SHA256, 64), ("sha512", 128)];

/// Returns `sha256:HEX` of `bytes`.
pub fn sha256(bytes: &[u8]) -> String {
    format!("{SHA256}:{}", sha256_hex(bytes))
}

/// Returns the hexadecimal digits of [`sha256`].
pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// Returns the hexadecimal digits of a SHA-256 digest; `None` for any other string.
pub(crate) fn hex_of_sha256(digest: &str) -> Option<&str> {
    parts(digest).filter(|(algorithm, _)| *algorithm == SHA256).map(|(_, hex)| hex)
}

/// Returns the algorithm and the hexadecimal digits of a digest; `None` if the string is not a digest.
pub(crate) fn parts(digest: &str) -> Option<(&str, &str)> {
    let (algorithm, hex) = digest.split_once(':')?;
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_known = DIGITS.contains(&(algorithm, hex.len()));
    (is_known && hex.bytes().all(is_hex)).then_some((algorithm, hex))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_is_split_by_algorithm() {
        let digest = sha256(b"abc");
        assert_eq!(hex_of_sha256(&digest), Some(&*sha256_hex(b"abc")));
        let long = format!("sha512:{}", "0".repeat(128));
        assert!(parts(&long).is_some() && hex_of_sha256(&long).is_none());
        for bad in
            ["", "sha256", "sha256:", "sha256:00", &digest.to_ascii_uppercase(), &digest[1..], &format!("{digest}0")]
        {
            assert_eq!(parts(bad), None, "{bad:?}");
        }
        assert_eq!(parts(&format!("sha256:{}", "A".repeat(64))), None);
    }
}
