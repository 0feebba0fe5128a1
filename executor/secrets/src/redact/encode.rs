//! Encodes values as programs print them: as JSON strings, percent-encoded, and in base64.
//!
//! Encoders differ in the characters that they escape, so each encoding is a table of the styles in use. All styles
//! accept any bytes; the JSON styles leave invalid UTF-8 unchanged.

use super::pieces::{BufferFull, Forms};

/// A style of writing JSON strings.
pub(super) struct Json {
    /// True if everything except printable ASCII is escaped as `\uXXXX`.
    ascii: bool,
    /// True if hexadecimal digits are uppercase.
    upper: bool,
    /// True if `/` is escaped as `\/`.
    slash: bool,
    /// Additional characters to escape as `\uXXXX`.
    also: &'static str,
}

/// JSON styles in use.
pub(super) const JSON: [Json; 8] = [
    // serde_json, JSON.stringify, jq
    Json { ascii: false, upper: false, slash: false, also: "" },
    // Python's json
    Json { ascii: true, upper: false, slash: false, also: "" },
    // Go's encoding/json
    Json { ascii: false, upper: false, slash: false, also: "<>&\u{2028}\u{2029}" },
    // JSON within HTML scripts: JSON.stringify with these characters replaced
    Json { ascii: false, upper: false, slash: false, also: "<>&" },
    // PHP, and PHP with JSON_UNESCAPED_UNICODE
    Json { ascii: true, upper: false, slash: true, also: "" },
    Json { ascii: false, upper: false, slash: true, also: "" },
    // Gson
    Json { ascii: false, upper: false, slash: false, also: "<>&='\u{2028}\u{2029}" },
    // .NET's System.Text.Json
    Json { ascii: true, upper: true, slash: false, also: "\"&'+<>`" },
];

impl Json {
    /// Returns true if `text` certainly needs no escapes, and false if `text` may need escapes.
    pub(super) fn keeps(&self, text: &[u8]) -> bool {
        // Only `write` examines the bytes of multi-byte characters.
        text.iter().all(|byte| {
            matches!(byte, b' ' | b'!' | b'#'..=b'[' | b']'..=b'~')
                && !(self.slash && *byte == b'/')
                && !self.also.as_bytes().contains(byte)
        })
    }

    /// Writes `text` as the content of a JSON string, without the quotes.
    pub(super) fn write(&self, text: &[u8], out: &mut Forms) -> Result<(), BufferFull> {
        for chunk in text.utf8_chunks() {
            for c in chunk.valid().chars() {
                self.character(c, out)?;
            }
            out.push(chunk.invalid())?;
        }
        Ok(())
    }

    fn character(&self, c: char, out: &mut Forms) -> Result<(), BufferFull> {
        if self.also.contains(c) {
            return self.unicode(c, out);
        }
        match c {
            '"' => out.push(b"\\\""),
            '\\' => out.push(b"\\\\"),
            '\n' => out.push(b"\\n"),
            '\r' => out.push(b"\\r"),
            '\t' => out.push(b"\\t"),
            '\u{8}' => out.push(b"\\b"),
            '\u{c}' => out.push(b"\\f"),
            '/' if self.slash => out.push(b"\\/"),
            '\0'..' ' => self.unicode(c, out),
            '\x7f'.. if self.ascii => self.unicode(c, out),
            _ => out.push(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }

    fn unicode(&self, c: char, out: &mut Forms) -> Result<(), BufferFull> {
        for unit in c.encode_utf16(&mut [0; 2]) {
            let [high, low] = unit.to_be_bytes();
            let ([a, b], [c, d]) = (hex(high, self.upper), hex(low, self.upper));
            out.push(&[b'\\', b'u', a, b, c, d])?;
        }
        Ok(())
    }
}

/// A style of percent-encoding, for URLs or forms.
pub(super) struct Percent {
    /// Characters that are not escaped, in addition to letters and digits.
    keep: &'static [u8],
    /// True if a space is encoded as `+`.
    plus: bool,
    /// True if hexadecimal digits are uppercase.
    upper: bool,
}

/// Percent-encoding styles in use.
pub(super) const PERCENT: [Percent; 12] = {
    const fn style(keep: &'static [u8], plus: bool, upper: bool) -> Percent {
        Percent { keep, plus, upper }
    }
    // RFC 3986; Python's quote; encodeURIComponent; encodeURI; forms as in Go and Python; forms as in browsers and
    // Java.
    const RFC: &[u8] = b"-._~";
    const PATH: &[u8] = b"-._~/";
    const COMPONENT: &[u8] = b"-._~!*'()";
    const URI: &[u8] = b"-._~!*'();/?:@&=+$,#";
    const FORM: &[u8] = b"*-._";
    [
        style(RFC, false, true),
        style(RFC, false, false),
        style(RFC, true, true),
        style(RFC, true, false),
        style(FORM, true, true),
        style(FORM, true, false),
        style(PATH, false, true),
        style(PATH, false, false),
        style(COMPONENT, false, true),
        style(COMPONENT, false, false),
        style(URI, false, true),
        style(URI, false, false),
    ]
};

impl Percent {
    /// Returns true if `text` needs no escapes.
    pub(super) fn keeps(&self, text: &[u8]) -> bool {
        text.iter().all(|byte| byte.is_ascii_alphanumeric() || self.keep.contains(byte))
    }

    /// Writes `text` percent-encoded in this style.
    pub(super) fn write(&self, text: &[u8], out: &mut Forms) -> Result<(), BufferFull> {
        for byte in text {
            if byte.is_ascii_alphanumeric() || self.keep.contains(byte) {
                out.push(&[*byte])?;
            } else if *byte == b' ' && self.plus {
                out.push(b"+")?;
            } else {
                let [high, low] = hex(*byte, self.upper);
                out.push(&[b'%', high, low])?;
            }
        }
        Ok(())
    }
}

fn hex(byte: u8, upper: bool) -> [u8; 2] {
    let digits = if upper { b"0123456789ABCDEF" } else { b"0123456789abcdef" };
    [digits[usize::from(byte >> 4)], digits[usize::from(byte & 15)]]
}

/// The two alphabets of base64, RFC 4648: standard and URL-safe.
pub(super) const BASE64: [&[u8; 64]; 2] = [
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_",
];

/// Writes `bytes` in base64 with padding.
pub(super) fn base64(
    alphabet: &[u8; 64],
    bytes: impl IntoIterator<Item = u8>,
    out: &mut Forms,
) -> Result<(), BufferFull> {
    let mut bytes = bytes.into_iter();
    while let Some(first) = bytes.next() {
        let (second, third) = (bytes.next(), bytes.next());
        let group = u32::from_be_bytes([0, first, second.unwrap_or(0), third.unwrap_or(0)]);
        let digit = |place: u32| alphabet[(group >> (18 - 6 * place) & 63) as usize];
        let third = if third.is_some() { digit(3) } else { b'=' };
        let second = if second.is_some() { digit(2) } else { b'=' };
        out.push(&[digit(0), digit(1), second, third])?;
    }
    Ok(())
}
