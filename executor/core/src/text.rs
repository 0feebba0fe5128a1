//! Escapes or replaces control characters, bidirectional marks, and line or paragraph separators in untrusted text.
//!
//! A name, a label or a line of output comes from a client, an image or a server, and is displayed in terminals, logs
//! and tables. A control character moves the cursor or ends the line; a bidirectional mark changes the displayed order
//! of adjacent characters, so that two different names look the same (CVE-2021-42574). This is the only list of such
//! characters in the workspace.

/// Returns true if the character is a control character (C0 with tab and line feed, DEL, C1), a bidirectional mark, or
/// a separator of lines or paragraphs. Callers that allow a tab or a line feed must check for these characters
/// themselves.
pub fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// Escapes each harmful character as in Rust, such as `\n` and `\u{202e}`, and each byte that is not UTF-8 as `\xff`. A
/// result of more than `max` bytes is truncated and ends with `...`.
pub fn printable(text: impl AsRef<[u8]>, max: usize) -> String {
    let text = text.as_ref();
    let mut line = String::with_capacity(text.len().min(max));
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            if is_harmful(c) {
                line.extend(c.escape_default());
            } else {
                line.push(c);
            }
            if line.len() > max {
                return cut(line, max);
            }
        }
        for byte in chunk.invalid() {
            line.push_str(&format!("\\x{byte:02x}"));
        }
        if line.len() > max {
            return cut(line, max);
        }
    }
    line
}

fn cut(mut line: String, max: usize) -> String {
    line.truncate(line.floor_char_boundary(max));
    line.push_str("...");
    line
}

/// Replaces each harmful character with `replacement`.
pub fn replaced(text: &str, replacement: char) -> String {
    text.chars().map(|c| if is_harmful(c) { replacement } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_becomes_printable() {
        const CASES: [(&[u8], &str); 11] = [
            (b"", ""),
            (b"plain", "plain"),
            ("größe 20€".as_bytes(), "größe 20€"),
            (b"a\x1b[2Jb", "a\\u{1b}[2Jb"),
            (b"a\nb\rc\td", "a\\nb\\rc\\td"),
            ("a\u{9b}b\u{202e}c\u{2028}".as_bytes(), "a\\u{9b}b\\u{202e}c\\u{2028}"),
            (b"\xff\xfe-\xc3", "\\xff\\xfe-\\xc3"),
            (b"0123456789abcdefghij", "0123456789abcdefghij"),
            (b"0123456789abcdefghijk", "0123456789abcdefghij..."),
            ("0123456789abcdefgh€".as_bytes(), "0123456789abcdefgh..."),
            (b"\xff\xff\xff\xff\xff\xff", "\\xff\\xff\\xff\\xff\\xff..."),
        ];
        for (text, line) in CASES {
            let max = if text.contains(&0x9b) || text.contains(&0xe2) && text[0] == b'a' { 40 } else { 20 };
            assert_eq!(printable(text, max), line, "{text:?}");
        }
        assert_eq!(printable([b'x'; 1 << 20], 100).len(), 103);
    }

    #[test]
    fn harmful_characters_are_found() {
        assert_eq!(replaced("a\u{1b}b\u{2069}c\u{2028}", '?'), "a?b?c?");
        let all =
            ['\0', '\u{1f}', '\u{7f}', '\u{80}', '\u{9f}', '\u{61c}', '\u{200e}', '\u{200f}', '\u{2028}', '\u{2029}'];
        let turning = ('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}');
        for c in all.into_iter().chain(turning) {
            assert!(is_harmful(c), "{c:?}");
        }
    }

    #[test]
    fn ordinary_text_is_unchanged() {
        let text = "größe 20€ \u{a0}עברית 日本 \u{200d}\u{61b}\u{202f}\u{206a}";
        assert_eq!((printable(text, 1000), replaced(text, '?')), (text.to_owned(), text.to_owned()));
    }
}
