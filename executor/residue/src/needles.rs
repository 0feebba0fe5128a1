//! Stores secrets as keyed hashes (needles), and searches for them in memory.
//!
//! Every window of a secret is stored as 128 bits: 64 for the lookup, and 64 for confirmation. Therefore, the memory of
//! the searching process contains no part of a secret.
//!
//! A filter with one bit per hash is checked first, so the search takes one to two nanoseconds per byte. Most pages
//! contain only zeros, and take almost no time.

use std::collections::HashMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use zeroize::Zeroizing;

/// Length of a searched window of a secret in bytes.
pub const WINDOW: usize = 16;
/// Number of words in the filter, a power of two. The filter has 256 KiB.
const FILTER: usize = 1 << 15;
/// Size of the blocks in which zeros are skipped, in bytes.
const ZEROS: usize = 512;

/// Hashes of the secrets to search for, under a random key. The secrets themselves are not stored.
pub struct Needles {
    keys: [u64; 4],
    filter: Box<[u64; FILTER]>,
    windows: HashMap<u64, (u64, usize)>,
    labels: Vec<String>,
}

impl Needles {
    /// Creates an empty set.
    ///
    /// # Errors
    /// Returns an error if the kernel has no randomness.
    pub fn new() -> Result<Self, getrandom::Error> {
        let mut keys = [0; 4];
        for key in &mut keys {
            *key = getrandom::u64()?;
        }
        Ok(Self { keys, filter: Box::new([0; FILTER]), windows: HashMap::new(), labels: Vec::new() })
    }

    /// Adds a secret of at least 2 * [`WINDOW`] bytes under a name for reports. Several secrets may have the same name.
    /// Content that two secrets share is reported for the first secret.
    ///
    /// # Panics
    /// Panics if the secret is shorter, because results would be meaningless.
    pub fn add(&mut self, label: &str, secret: &[u8]) {
        assert!(secret.len() >= 2 * WINDOW, "a secret of {} bytes cannot be searched for", secret.len());
        let label = self.labels.iter().position(|known| known == label).unwrap_or_else(|| {
            self.labels.push(label.to_owned());
            self.labels.len() - 1
        });
        self.add_windows(label, secret);
        for alignment in 0..3 {
            let whole = (secret.len() - alignment) / 3 * 3;
            let text = Zeroizing::new(STANDARD_NO_PAD.encode(&secret[alignment..alignment + whole]));
            self.add_windows(label, text.as_bytes());
        }
        self.add_windows(label, Zeroizing::new(hex::encode(secret)).as_bytes());
    }

    fn add_windows(&mut self, label: usize, text: &[u8]) {
        for window in text.as_chunks::<WINDOW>().0 {
            let hash = self.hash(window, 0);
            self.filter[hash as usize / 64 % FILTER] |= 1 << (hash % 64);
            let confirmation = self.hash(window, 2);
            self.windows.entry(hash).or_insert((confirmation, label));
        }
    }

    /// Returns the names in the order in which they were added.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// Calls `found` with the name and offset of every window that is found.
    pub(crate) fn find<'a>(&'a self, bytes: &[u8], mut found: impl FnMut(&'a str, usize)) {
        let mut at = 0;
        while at + WINDOW <= bytes.len() {
            if bytes.len() - at >= ZEROS && is_zero(&bytes[at..at + ZEROS]) {
                // The last bytes of the block may begin a window that continues after the block.
                at += ZEROS - (WINDOW - 1);
                continue;
            }
            let end = (at + ZEROS).min(bytes.len() - WINDOW + 1);
            let windows = bytes[at..end + WINDOW - 1].windows(WINDOW);
            for (offset, window) in windows.filter_map(|window| window.first_chunk()).enumerate() {
                let hash = self.hash(window, 0);
                if self.filter[hash as usize / 64 % FILTER] >> (hash % 64) & 1 == 0 {
                    continue;
                }
                if let Some((confirmation, label)) = self.windows.get(&hash)
                    && *confirmation == self.hash(window, 2)
                {
                    found(&self.labels[*label], at + offset);
                }
            }
            at = end;
        }
    }

    /// Returns 64 keyed bits of a window: the two halves of a 128-bit product, mixed as in wyhash.
    #[inline]
    fn hash(&self, window: &[u8; WINDOW], key: usize) -> u64 {
        let whole = u128::from_ne_bytes(*window);
        let (one, other) = (whole as u64 ^ self.keys[key], (whole >> 64) as u64 ^ self.keys[key + 1]);
        let product = u128::from(one) * u128::from(other);
        product as u64 ^ (product >> 64) as u64
    }
}

impl fmt::Debug for Needles {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_list().entries(&self.labels).finish()
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |all, byte| all | byte) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Canary;

    fn found(needles: &Needles, bytes: &[u8]) -> Vec<String> {
        let mut labels: Vec<String> = Vec::new();
        needles.find(bytes, |label, _| labels.push(label.to_owned()));
        labels.dedup();
        labels
    }

    fn surrounded(bytes: &[u8], before: usize) -> Vec<u8> {
        [&vec![(before % 2) as u8; before][..], bytes, &[0; 700]].concat()
    }

    #[test]
    fn any_31_byte_part_is_found() {
        let (canary, other) = (Canary::random(64).unwrap(), Canary::random(4096).unwrap());
        let mut needles = Needles::new().unwrap();
        needles.add("one", canary.as_bytes());
        needles.add("other", other.as_bytes());
        for begin in 0..=64 - 31 {
            for before in [0, 1, 495, 496, 497, 510, 2000] {
                let bytes = surrounded(&canary.as_bytes()[begin..begin + 31], before);
                assert_eq!(found(&needles, &bytes), ["one"], "{begin} {before}");
            }
        }
        for begin in (0..4096 - 31).step_by(7) {
            assert_eq!(found(&needles, &surrounded(&other.as_bytes()[begin..begin + 31], 3)), ["other"]);
        }
        assert_eq!(found(&needles, &surrounded(&[0; 5000], 600)), [""; 0]);
        assert_eq!(found(&needles, Canary::random(100_000).unwrap().as_bytes()), [""; 0], "the control");
    }

    #[test]
    fn encoded_secret_is_found_between_other_bytes() {
        for length in [64, 65, 100, 5000] {
            let canary = Canary::random(length).unwrap();
            let mut needles = Needles::new().unwrap();
            needles.add("it", canary.as_bytes());
            for before in 0..3 {
                let text = STANDARD_NO_PAD.encode([&b"xyz"[..before], canary.as_bytes(), b"end"].concat());
                for part in [&text[..text.len() / 2], &text[text.len() / 2..]] {
                    assert_eq!(found(&needles, part.as_bytes()), ["it"], "{length} {before}");
                }
                let url_safe = base64::engine::general_purpose::URL_SAFE.encode(canary.as_bytes());
                assert_eq!(found(&needles, url_safe.as_bytes()), ["it"]);
            }
            assert_eq!(found(&needles, hex::encode(canary.as_bytes()).as_bytes()), ["it"]);
        }
    }

    /// The number of needles of a long canary is limited by the period. The needles contain no part of the canary.
    #[test]
    fn needles_are_few_and_contain_no_secret() {
        let canary = Canary::random(900_000).unwrap();
        let mut needles = Needles::new().unwrap();
        needles.add("it", canary.as_bytes());
        assert!(needles.windows.len() < 3000, "{}", needles.windows.len());
        let mut kept: Vec<u8> = needles.filter.iter().flat_map(|word| word.to_ne_bytes()).collect();
        for (hash, (confirmation, _)) in &needles.windows {
            kept.extend(hash.to_ne_bytes().iter().chain(&confirmation.to_ne_bytes()));
        }
        assert_eq!(found(&needles, &kept), [""; 0]);
        assert_eq!(format!("{needles:?}"), r#"["it"]"#);
    }
}
