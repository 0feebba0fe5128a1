//! Encodes and decodes header blocks (RFC 7541) in memory that is overwritten when freed.
//!
//! h2's decoder keeps the entries of its dynamic table as slices of its read buffer, and decodes strings into a
//! persistent buffer. This decoder copies fields. The settings forbid clients to use a dynamic table
//! (SETTINGS_HEADER_TABLE_SIZE of 0). A client may add entries before it has received the settings. Such an entry is
//! stored as two halves, each of which alone is random, and is dropped when the client acknowledges the settings.

use std::collections::VecDeque;

use super::huffman;

/// Size of the dynamic table that a client may use before it has received the settings, in bytes (RFC 9113, 6.5.2).
const TABLE_DEFAULT: usize = 4096;
/// Overhead of a table entry, in bytes (RFC 7541, 4.1).
pub(super) const ENTRY_OVERHEAD: usize = 32;
/// Maximum length of a decoded string, in bytes.
const STRING_MAX: usize = 1 << 18;

/// A malformed block, after which the connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Corrupt;

/// Decoder for the header blocks of one direction.
#[derive(Debug)]
pub(super) struct Decoder {
    /// Dynamic table, newest entry first.
    table: VecDeque<Entry>,
    size: usize,
    /// Maximum table size that the encoder has chosen, in bytes.
    most: usize,
    /// Maximum value that the encoder may choose for `most`.
    allowed: usize,
}

/// An entry of the dynamic table.
struct Entry {
    name: usize,
    /// Name and value, XORed with `pad`.
    masked: Vec<u8>,
    pad: Vec<u8>,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} bytes", self.masked.len())
    }
}

impl Entry {
    fn new(name: &[u8], value: &[u8]) -> Result<Self, Corrupt> {
        let mut pad = vec![0; name.len() + value.len()];
        let mut filled = 0;
        while filled < pad.len() {
            let flags = rustix::rand::GetRandomFlags::empty();
            filled += rustix::rand::getrandom(&mut pad[filled..], flags).map_err(|_| Corrupt)?;
        }
        let masked = name.iter().chain(value).zip(&pad).map(|(byte, pad)| byte ^ pad).collect();
        Ok(Self { name: name.len(), masked, pad })
    }

    fn size(&self) -> usize {
        self.masked.len() + ENTRY_OVERHEAD
    }

    fn name(&self) -> Vec<u8> {
        self.open(0..self.name)
    }

    fn value(&self) -> Vec<u8> {
        self.open(self.name..self.masked.len())
    }

    fn open(&self, part: std::ops::Range<usize>) -> Vec<u8> {
        self.masked[part.clone()].iter().zip(&self.pad[part]).map(|(byte, pad)| byte ^ pad).collect()
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self { table: VecDeque::new(), size: 0, most: TABLE_DEFAULT, allowed: TABLE_DEFAULT }
    }
}

impl Decoder {
    /// Drops the dynamic table after the client has acknowledged the settings (RFC 7541, 4.2).
    pub(super) fn drop_table(&mut self) {
        (self.allowed, self.most) = (0, 0);
        self.table.clear();
        self.size = 0;
    }

    /// Calls `field` with name and value of each field of a block.
    ///
    /// # Errors
    /// Returns [`Corrupt`] if the block is malformed or refers to missing table entries.
    pub(super) fn decode(&mut self, block: &[u8], mut field: impl FnMut(&[u8], &[u8])) -> Result<(), Corrupt> {
        let mut rest = block;
        let mut begun = false;
        while let Some(first) = rest.first().copied() {
            if first & 0xe0 == 0x20 {
                let size = integer(&mut rest, 5)?;
                if begun || size > self.allowed {
                    return Err(Corrupt);
                }
                self.most = size;
                self.shrink(size);
                continue;
            }
            begun = true;
            if first & 0x80 != 0 {
                let index = integer(&mut rest, 7)?;
                match self.entry(index)? {
                    TableEntry::Static(name, value) => field(name.as_bytes(), value.as_bytes()),
                    TableEntry::Dynamic(entry) => field(&entry.name(), &entry.value()),
                }
                continue;
            }
            let keep = first & 0x40 != 0;
            let index = integer(&mut rest, if keep { 6 } else { 4 })?;
            let name = match index {
                0 => string(&mut rest)?,
                index => match self.entry(index)? {
                    TableEntry::Static(name, _) => name.as_bytes().to_vec(),
                    TableEntry::Dynamic(entry) => entry.name(),
                },
            };
            let value = string(&mut rest)?;
            field(&name, &value);
            if keep {
                self.insert(&name, &value)?;
            }
        }
        Ok(())
    }

    fn entry(&self, index: usize) -> Result<TableEntry<'_>, Corrupt> {
        let place = index.checked_sub(1).ok_or(Corrupt)?;
        match STATIC.get(place) {
            Some((name, value)) => Ok(TableEntry::Static(name, value)),
            None => self.table.get(place - STATIC.len()).map(TableEntry::Dynamic).ok_or(Corrupt),
        }
    }

    fn insert(&mut self, name: &[u8], value: &[u8]) -> Result<(), Corrupt> {
        let size = name.len() + value.len() + ENTRY_OVERHEAD;
        self.shrink(self.most.saturating_sub(size));
        // An entry that is larger than the table empties the table, which is no error (RFC 7541, 4.4).
        if size <= self.most {
            self.table.push_front(Entry::new(name, value)?);
            self.size += size;
        }
        Ok(())
    }

    fn shrink(&mut self, to: usize) {
        while self.size > to
            && let Some(oldest) = self.table.pop_back()
        {
            self.size -= oldest.size();
        }
    }
}

enum TableEntry<'a> {
    Static(&'static str, &'static str),
    Dynamic(&'a Entry),
}

/// Decodes an integer that starts in the last `bits` bits of the first byte (RFC 7541, 5.1).
fn integer(rest: &mut &[u8], bits: u32) -> Result<usize, Corrupt> {
    let (first, mut more) = rest.split_first().ok_or(Corrupt)?;
    let most = (1_usize << bits) - 1;
    let mut value = usize::from(*first) & most;
    if value == most {
        let mut shift = 0;
        loop {
            let (byte, behind) = more.split_first().ok_or(Corrupt)?;
            more = behind;
            value += usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
            if shift > 21 {
                return Err(Corrupt); // larger than any block
            }
        }
    }
    *rest = more;
    Ok(value)
}

fn string(rest: &mut &[u8]) -> Result<Vec<u8>, Corrupt> {
    let coded = rest.first().is_some_and(|first| first & 0x80 != 0);
    let length = integer(rest, 7)?;
    let (text, behind) = rest.split_at_checked(length).ok_or(Corrupt)?;
    *rest = behind;
    match coded {
        true => huffman::decode(text, STRING_MAX).ok_or(Corrupt),
        false if length > STRING_MAX => Err(Corrupt),
        false => Ok(text.to_vec()),
    }
}

/// Writes a never-indexed field (RFC 7541, 6.2.3).
pub(super) fn put_field(block: &mut Vec<u8>, name: &str, value: &[u8]) {
    block.push(0x10);
    put_string(block, name.as_bytes());
    put_string(block, value);
}

/// Writes the status of a response.
pub(super) fn put_status(block: &mut Vec<u8>, status: u16) {
    if status == 200 {
        return block.push(0x80 | 8);
    }
    block.extend_from_slice(&[0x08, 3]);
    block.extend_from_slice(format!("{status:03}").as_bytes());
}

/// Writes the update that sets this direction's dynamic table size to 0 (RFC 7541, 6.3).
pub(super) fn put_no_table(block: &mut Vec<u8>) {
    block.push(0x20);
}

/// Writes the header block of a request: method POST, scheme http, and this path.
pub(super) fn put_request(block: &mut Vec<u8>, path: &str) {
    block.extend_from_slice(&[0x80 | 3, 0x80 | 6, 0x04]);
    put_string(block, path.as_bytes());
}

fn put_string(block: &mut Vec<u8>, text: &[u8]) {
    let mut left = text.len();
    if left < 0x7f {
        block.push(left as u8);
    } else {
        block.push(0x7f);
        left -= 0x7f;
        while left >= 0x80 {
            block.push(left as u8 | 0x80);
            left >>= 7;
        }
        block.push(left as u8);
    }
    block.extend_from_slice(text);
}

/// The static table (RFC 7541, appendix A).
const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(decoder: &mut Decoder, block: &[u8]) -> Result<String, Corrupt> {
        let mut reported = String::new();
        decoder.decode(block, |name, value| {
            reported += &format!("{}: {}\n", String::from_utf8_lossy(name), String::from_utf8_lossy(value));
        })?;
        Ok(reported)
    }

    /// Decodes the examples of RFC 7541, C.3 (plain) and C.4 (Huffman): three requests on one connection.
    #[test]
    fn the_examples_of_the_specification() {
        let plain: [&[u8]; 3] = [
            b"\x82\x86\x84\x41\x0fwww.example.com",
            b"\x82\x86\x84\xbe\x58\x08no-cache",
            b"\x82\x87\x85\xbf\x40\x0acustom-key\x0ccustom-value",
        ];
        let coded: [&[u8]; 3] = [
            b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff",
            b"\x82\x86\x84\xbe\x58\x86\xa8\xeb\x10\x64\x9c\xbf",
            b"\x82\x87\x85\xbf\x40\x88\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f\x89\x25\xa8\x49\xe9\x5b\xb8\xe8\xb4\xbf",
        ];
        for blocks in [plain, coded] {
            let mut decoder = Decoder::default();
            let first = ":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com\n";
            assert_eq!(fields(&mut decoder, blocks[0]).unwrap(), first);
            assert_eq!(fields(&mut decoder, blocks[1]).unwrap(), format!("{first}cache-control: no-cache\n"));
            let third = ":method: GET\n:scheme: https\n:path: /index.html\n:authority: www.example.com\n\
                         custom-key: custom-value\n";
            assert_eq!(fields(&mut decoder, blocks[2]).unwrap(), third);
            assert_eq!((decoder.table.len(), decoder.size), (3, 164));
        }
    }

    /// The table obeys the size limit of RFC 7541, 4: entry sizes, evictions, and limits that the client chooses.
    #[test]
    fn the_table_keeps_its_size() {
        let mut decoder = Decoder::default();
        let entry = |size: usize| {
            let mut block = vec![0x40];
            put_string(&mut block, b"n");
            put_string(&mut block, &vec![b'v'; size - 33]);
            block
        };
        fields(&mut decoder, &[entry(2048), entry(2048)].concat()).unwrap();
        assert_eq!((decoder.table.len(), decoder.size), (2, 4096));
        fields(&mut decoder, &entry(33)).unwrap();
        assert_eq!((decoder.table.len(), decoder.size), (2, 2081));
        fields(&mut decoder, &entry(4097)).unwrap();
        assert_eq!((decoder.table.len(), decoder.size), (0, 0), "too large for the table");
        fields(&mut decoder, &[&[0x20 | 31, 50 - 31][..], &entry(50)].concat()).unwrap();
        assert_eq!(fields(&mut decoder, b"\xbe"), Ok("n: vvvvvvvvvvvvvvvvv\n".into()));
        assert_eq!(fields(&mut decoder, b"\xbf"), Err(Corrupt));
        assert_eq!(fields(&mut decoder, b"\x3f\xe2\x1f"), Err(Corrupt), "4097");
        assert_eq!(fields(&mut decoder, b"\x82\x20"), Err(Corrupt), "behind a field");
        decoder.drop_table();
        assert_eq!(fields(&mut decoder, b"\xbe"), Err(Corrupt));
        assert_eq!(fields(&mut decoder, &[&[0x20][..], &entry(50)].concat()), Ok("n: vvvvvvvvvvvvvvvvv\n".into()));
        assert_eq!((decoder.table.len(), fields(&mut decoder, b"\x21")), (0, Err(Corrupt)));
    }

    /// Neither half of a stored table entry contains a part of the field.
    #[test]
    fn entries_are_kept_in_two_halves() {
        let secret = [7; 1000];
        let entry = Entry::new(b"authorization", &secret).unwrap();
        for half in [&entry.masked, &entry.pad] {
            assert!(!half.windows(16).any(|window| window == &secret[..16]));
        }
        assert_eq!((entry.name(), entry.value()), (b"authorization".to_vec(), secret.to_vec()));
    }

    #[test]
    fn written_fields_are_decoded() {
        let (mut decoder, mut block) = (Decoder::default(), Vec::new());
        put_no_table(&mut block);
        put_request(&mut block, "/17");
        for length in [0, 126, 127, 128, 254, 255, 16_511, 70_000] {
            put_field(&mut block, "x", &vec![b'a'; length]);
        }
        let reported = fields(&mut decoder, &block).unwrap();
        assert!(reported.starts_with(":method: POST\n:scheme: http\n:path: /17\nx: \n"), "{reported:.100}");
        let lengths: Vec<usize> = reported.lines().skip(3).map(|line| line.len() - 3).collect();
        assert_eq!(lengths, [0, 126, 127, 128, 254, 255, 16_511, 70_000]);
        let mut block = Vec::new();
        put_status(&mut block, 200);
        put_status(&mut block, 431);
        assert_eq!(fields(&mut decoder, &block).unwrap(), ":status: 200\n:status: 431\n");
    }

    #[test]
    fn malformed_blocks_are_errors() {
        let bad: [&[u8]; 8] =
            [b"\x80", b"\xff", b"\xff\xff\xff\xff\xff\x01", b"\x00\x05ab", b"\x00", b"\x00\x01a", b"\x04", b"\x7f\x00"];
        for block in bad {
            assert_eq!(fields(&mut Decoder::default(), block), Err(Corrupt), "{block:?}");
        }
    }
}
