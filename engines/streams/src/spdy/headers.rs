//! Decompresses and writes the headers of SPDY/3.1.

use std::collections::HashMap;

use zlib_rs::{Inflate, InflateError, InflateFlush};

use super::frame::word;

/// Dictionary of the SPDY/3 specification.
const DICTIONARY: &[u8] = include_bytes!("dictionary.bin");

/// Maximum size of one block of headers after decompression, in bytes.
const MAX_BLOCK: usize = 16 << 10;

/// Maximum number of headers of a stream.
const MAX_HEADERS: u32 = 64;

/// Headers of a stream, with names in lower case.
pub(crate) type Headers = HashMap<String, String>;

/// Decompresses the headers of a connection, which share one zlib stream.
pub(crate) struct Decoder(Inflate);

impl Decoder {
    pub(crate) fn new() -> Self {
        Self(Inflate::new(true, 15))
    }

    /// Returns the headers of a block.
    ///
    /// # Errors
    ///
    /// Returns the reason if the block is malformed or too large. The decoder is not usable after an error.
    pub(crate) fn decode(&mut self, block: &[u8]) -> Result<Headers, &'static str> {
        parse(&self.inflate(block)?)
    }

    fn inflate(&mut self, mut block: &[u8]) -> Result<Vec<u8>, &'static str> {
        let mut output = vec![0; MAX_BLOCK];
        let mut filled = 0;
        loop {
            let (read, written) = (self.0.total_in(), self.0.total_out());
            let result = self.0.decompress(block, &mut output[filled..], InflateFlush::SyncFlush);
            let read = (self.0.total_in() - read) as usize;
            let written = (self.0.total_out() - written) as usize;
            block = &block[read..];
            filled += written;
            match result {
                Ok(_) => {}
                Err(InflateError::NeedDict { .. }) => {
                    self.0.set_dictionary(DICTIONARY).map_err(|_| "unknown compression dictionary")?;
                    continue;
                }
                Err(_) => return Err("malformed compressed headers"),
            }
            if filled == MAX_BLOCK {
                return Err("headers exceed 16 KiB");
            }
            if block.is_empty() {
                output.truncate(filled);
                return Ok(output);
            }
            if read == 0 && written == 0 {
                return Err("malformed compressed headers");
            }
        }
    }
}

fn parse(block: &[u8]) -> Result<Headers, &'static str> {
    const SHORT: &str = "truncated headers";
    let count = word(block, 0).ok_or(SHORT)?;
    if count > MAX_HEADERS {
        return Err("more than 64 headers");
    }
    let mut offset = 4;
    let mut next = || {
        let length = word(block, offset).ok_or(SHORT)? as usize;
        let end = (offset + 4).checked_add(length).ok_or(SHORT)?;
        let bytes = block.get(offset + 4..end).ok_or(SHORT)?;
        offset = end;
        String::from_utf8(bytes.to_vec()).map_err(|_| "header is not UTF-8")
    };
    let mut headers = Headers::new();
    for _ in 0..count {
        let name = next()?.to_ascii_lowercase();
        if headers.insert(name, next()?).is_some() {
            return Err("duplicate header");
        }
    }
    Ok(headers)
}

/// Returns a block without headers. The first block of a connection opens the zlib stream.
///
/// Replies have no headers, so the block is stored uncompressed, and the server needs no compressor.
pub(crate) fn empty(first: bool) -> Vec<u8> {
    const ZLIB: [u8; 2] = [0x78, 0x01];
    const STORED: [u8; 9] = [0, 4, 0, 0xfb, 0xff, 0, 0, 0, 0];
    // An empty block, as Z_SYNC_FLUSH writes it. Without this block, Go's decompressor does not return the preceding
    // bytes.
    const FLUSH: [u8; 5] = [0, 0, 0, 0xff, 0xff];
    let zlib: &[u8] = if first { &ZLIB } else { &[] };
    [zlib, &STORED, &FLUSH].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use zlib_rs::{Deflate, DeflateFlush};

    /// Compresses with a dictionary as a client does.
    fn compress(deflate: &mut Deflate, block: &[u8]) -> Vec<u8> {
        let mut output = vec![0; block.len() + 1024];
        let before = deflate.total_out();
        deflate.compress(block, &mut output, DeflateFlush::SyncFlush).expect("compression");
        output.truncate((deflate.total_out() - before) as usize);
        output
    }

    fn deflate(dictionary: &[u8]) -> Deflate {
        let mut deflate = Deflate::new(6, true, 15);
        deflate.set_dictionary(dictionary).expect("a dictionary");
        deflate
    }

    fn block(headers: &[(&str, &str)]) -> Vec<u8> {
        let mut block = (headers.len() as u32).to_be_bytes().to_vec();
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            block.extend_from_slice(&(text.len() as u32).to_be_bytes());
            block.extend_from_slice(text.as_bytes());
        }
        block
    }

    #[test]
    fn blocks_share_a_zlib_stream() {
        let (mut deflate, mut decoder) = (deflate(DICTIONARY), Decoder::new());
        for value in ["stdin", "stdout", "error"] {
            let headers = decoder.decode(&compress(&mut deflate, &block(&[("StreamType", value)]))).expect("headers");
            assert_eq!(headers["streamtype"], value);
        }
    }

    #[test]
    fn replies_are_blocks_without_headers() {
        let mut decoder = Decoder::new();
        assert_eq!(decoder.decode(&empty(true)), Ok(Headers::new()));
        assert_eq!(decoder.decode(&empty(false)), Ok(Headers::new()));
    }

    #[test]
    fn another_dictionary_is_refused() {
        let block = compress(&mut deflate(b"another dictionary"), &block(&[("a", "b")]));
        assert_eq!(Decoder::new().decode(&block), Err("unknown compression dictionary"));
    }

    #[test]
    fn headers_that_inflate_too_far_are_refused() {
        let large = "x".repeat(10 << 20);
        let block = compress(&mut deflate(DICTIONARY), &block(&[("a", &large)]));
        assert!(block.len() < 64 << 10, "{}", block.len());
        assert_eq!(Decoder::new().decode(&block), Err("headers exceed 16 KiB"));
    }

    #[test]
    fn malformed_blocks_are_refused() {
        let cases: [(&[u8], &str); 5] = [
            (&[0, 0, 0, 65], "more than 64 headers"),
            (&[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff], "truncated headers"),
            (&[0, 0, 0, 1, 0, 0, 0, 1, 0xff], "header is not UTF-8"),
            (&[], "truncated headers"),
            (&block(&[("a", "b"), ("A", "c")]), "duplicate header"),
        ];
        for (block, reason) in cases {
            let compressed = compress(&mut deflate(DICTIONARY), block);
            assert_eq!(Decoder::new().decode(&compressed), Err(reason), "{block:?}");
        }
        assert_eq!(Decoder::new().decode(b"no zlib"), Err("malformed compressed headers"));
    }
}
