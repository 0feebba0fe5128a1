//! Generates canaries: random secrets, so that every hit of a search is certain to come from the test.

use std::fmt;

use zeroize::Zeroizing;

/// Number of bytes after which a longer canary repeats. The number is a multiple of 48, so that base64 groups and
/// windows are aligned. Therefore, a long canary needs no more needles than one period.
const PERIOD: usize = 48 * 85;
/// Characters of canaries, which need no escaping in JSON, URLs and shells.
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// A secret of random letters and digits. Prints as `[REDACTED]`; wiped on drop.
pub struct Canary(Zeroizing<Vec<u8>>);

impl Canary {
    /// Generates a canary of this length.
    ///
    /// # Errors
    /// Returns an error if the kernel has no randomness.
    pub fn random(length: usize) -> Result<Self, getrandom::Error> {
        let mut text = Zeroizing::new(vec![0; length]);
        let period = length.min(PERIOD);
        getrandom::fill(&mut text[..period])?;
        for byte in &mut text[..period] {
            *byte = ALPHABET[usize::from(*byte) % ALPHABET.len()];
        }
        for at in period..length {
            text[at] = text[at - period];
        }
        Ok(Self(text))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the canary as a string.
    ///
    /// # Panics
    /// Never panics, because the canary consists of letters and digits.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("letters and digits")
    }
}

impl fmt::Debug for Canary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("[REDACTED]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canary_has_length_is_random_and_redacted() {
        for length in [0, 1, 64, PERIOD - 1, PERIOD + 1, 900_000] {
            let canary = Canary::random(length).unwrap();
            assert_eq!(canary.as_str().len(), length);
            assert!(canary.as_bytes().iter().all(u8::is_ascii_alphanumeric));
        }
        let (one, other) = (Canary::random(64).unwrap(), Canary::random(64).unwrap());
        assert_ne!(one.as_str(), other.as_str());
        assert_eq!(format!("{one:?}"), "[REDACTED]");
    }
}
