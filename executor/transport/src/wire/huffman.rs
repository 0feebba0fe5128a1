//! Decodes header strings in the Huffman code of RFC 7541, appendix B.
//!
//! The code is canonical: codes of the same length are consecutive numbers in the order of their symbols, and follow
//! the codes of the next shorter length. Therefore the lengths define the code.

/// Code length of each byte and of the end-of-string symbol, in bits.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];
/// Length of the longest code, in bits.
const LONGEST: usize = 30;
/// End-of-string symbol, which is never encoded.
const END: u16 = 256;

/// The code, indexed by length.
struct Code {
    /// For each length, the upper bound of the codes of at most this length, left-aligned in a 32-bit word.
    below: [u64; LONGEST + 1],
    /// For each length, the difference between a code of this length and the index of its symbol in `symbols`.
    offset: [i64; LONGEST + 1],
    /// Symbols by length, then by number.
    symbols: [u16; 257],
}

static CODE: Code = Code::new();

impl Code {
    const fn new() -> Self {
        let mut code = Self { below: [0; LONGEST + 1], offset: [0; LONGEST + 1], symbols: [0; 257] };
        let (mut next, mut placed, mut bits) = (0u64, 0usize, 1usize);
        while bits <= LONGEST {
            next <<= 1;
            code.offset[bits] = next as i64 - placed as i64;
            let mut symbol = 0;
            while symbol < LENGTHS.len() {
                if LENGTHS[symbol] as usize == bits {
                    code.symbols[placed] = symbol as u16;
                    placed += 1;
                    next += 1;
                }
                symbol += 1;
            }
            code.below[bits] = next << (32 - bits);
            bits += 1;
        }
        code
    }
}

/// Decodes a string. Returns `None` if the input is malformed or the string is longer than `most` bytes.
pub(super) fn decode(bytes: &[u8], most: usize) -> Option<Vec<u8>> {
    // The shortest codes have 5 bits, so the buffer is never reallocated.
    let mut text = Vec::with_capacity((bytes.len() * 8 / 5).min(most));
    let (mut window, mut have, mut rest) = (0u64, 0usize, bytes.iter());
    loop {
        while have <= 32
            && let Some(byte) = rest.next()
        {
            window = window << 8 | u64::from(*byte);
            have += 8;
        }
        // The next 32 bits. If fewer bits are left, ones are appended, which begin the end-of-string code.
        let word = match have {
            32.. => window >> (have - 32) & 0xffff_ffff,
            _ => ((window << (32 - have)) | ((1 << (32 - have)) - 1)) & 0xffff_ffff,
        };
        let bits = (5..=LONGEST).find(|bits| word < CODE.below[*bits])?;
        let place = (word >> (32 - bits)) as i64 - CODE.offset[bits];
        let symbol = *CODE.symbols.get(usize::try_from(place).ok()?)?;
        if bits > have {
            // The remaining bits must be padding: less than a byte, all ones.
            let ones = (1u64 << have) - 1;
            return (have < 8 && window & ones == ones).then_some(text);
        }
        if symbol == END || text.len() == most {
            return None;
        }
        text.push(symbol as u8);
        have -= bits;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes the examples of RFC 7541, C.4 and C.6.
    #[test]
    fn the_examples_of_the_specification() {
        let examples: [(&[u8], &str); 4] = [
            (b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff", "www.example.com"),
            (b"\xa8\xeb\x10\x64\x9c\xbf", "no-cache"),
            (b"\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f", "custom-key"),
            (b"\x9d\x29\xad\x17\x18\x63\xc7\x8f\x0b\x97\xc8\xe9\xae\x82\xae\x43\xd3", "https://www.example.com"),
        ];
        for (coded, text) in examples {
            assert_eq!(decode(coded, 100).as_deref(), Some(text.as_bytes()));
            assert_eq!(decode(coded, text.len() - 1), None);
        }
        assert_eq!(decode(b"", 9), Some(Vec::new()));
    }

    /// Every byte, encoded as the code defines, is decoded correctly.
    #[test]
    fn every_byte_comes_back() {
        let (mut window, mut have, mut coded) = (0u128, 0, Vec::new());
        let mut put = |code: u64, bits: usize| {
            window = window << bits | u128::from(code);
            have += bits;
            while have >= 8 {
                coded.push((window >> (have - 8)) as u8);
                have -= 8;
            }
        };
        for byte in 0..=255_u8 {
            let bits = usize::from(LENGTHS[usize::from(byte)]);
            let place = CODE.symbols.iter().position(|symbol| *symbol == u16::from(byte)).unwrap();
            put((place as i64 + CODE.offset[bits]) as u64, bits);
        }
        put(0x7f, 7);
        assert_eq!(decode(&coded, 256), Some((0..=255).collect()));
    }

    #[test]
    fn malformed_strings_are_errors() {
        assert_eq!(decode(&[0xff; 4], 9), None, "truncated input is an error");
        assert_eq!(decode(&[0xff], 9), None, "a whole byte of padding");
        assert_eq!(decode(&[0b0000_0000], 9), None, "padding of zeros");
        assert_eq!(decode(&[0b0000_0111], 9), Some(b"0".into()));
    }
}
