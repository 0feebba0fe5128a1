//! Target: compares the masked output with a slow reference implementation, for any division of the text.
//!
//! The first byte selects the mode, the second how the text is divided. Then follow three values and the text,
//! separated by NUL. In the text, the bytes 1 to 3 stand for a value. Byte 4 stands for an encoding of a value; the
//! next byte is its index.

use executor_core::plan::Redaction;
use executor_secrets::redact::{Redactor, Stream, Watched};

/// Maximum length of a value and of the text, in bytes; the reference implementation is slow.
const VALUE_MAX: usize = 300;
const TEXT_MAX: usize = 1000;
const NAMES: [&str; 3] = ["v0", "v1", "v2"];
/// Beginning of every marker.
const MARKER: &[u8] = b"[REDACTED:";

/// Runs the target of this module.
pub fn run(data: &[u8]) {
    let [mode, cut, rest @ ..] = data else { return };
    let mode = match mode % 3 {
        0 => Redaction::Auto,
        1 => Redaction::All,
        _ => Redaction::None,
    };
    let mut parts = rest.splitn(4, |byte| *byte == 0).map(|part| &part[..part.len().min(VALUE_MAX)]);
    let values: Vec<&[u8]> = parts.by_ref().take(3).collect();
    let written = rest.splitn(4, |byte| *byte == 0).nth(3).unwrap_or_default();
    let watched = NAMES.iter().zip(&values).map(|(name, value)| Watched { name, value });
    let redactor = Redactor::new(mode, watched);
    let forms: Vec<&[u8]> = redactor.forms().collect();
    let text = text(written, &values, &forms);

    let whole = masked(&redactor, &text, text.len().max(1));
    assert!(whole == masked(&redactor, &text, usize::from(*cut).max(1)), "the output depends on how the text is split");
    if mode == Redaction::None {
        assert!(whole == text && redactor.is_idle());
    }
    // If the text itself contains a marker, masked parts cannot be distinguished from it.
    if !text.windows(MARKER.len()).any(|window| window == MARKER) {
        agrees(&text, &whole, &covered(&text, &forms));
    }
    if let Ok(text) = std::str::from_utf8(&text) {
        assert_eq!(redactor.text(text).as_bytes(), String::from_utf8_lossy(&whole).as_bytes());
    }
    let values = redactor.warnings().iter().filter(|warning| !NAMES.iter().any(|name| warning.contains(name))).count();
    assert_eq!(values, 0, "warnings without the name of a value");
}

/// Replaces the bytes 1 to 4 of the written text with values and encodings of values.
fn text(written: &[u8], values: &[&[u8]], forms: &[&[u8]]) -> Vec<u8> {
    let mut text = Vec::new();
    let mut bytes = written.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            1..=3 => text.extend_from_slice(values.get(usize::from(byte - 1)).copied().unwrap_or_default()),
            4 if !forms.is_empty() => {
                let number = usize::from(bytes.next().copied().unwrap_or_default());
                text.extend_from_slice(forms[number % forms.len()]);
            }
            byte => text.push(*byte),
        }
    }
    text.truncate(TEXT_MAX);
    text
}

/// Returns the output of a stream that receives the text in pieces of this length.
fn masked(redactor: &Redactor, text: &[u8], length: usize) -> Vec<u8> {
    let (mut stream, mut out) = (Stream::default(), Vec::new());
    for part in text.chunks(length) {
        stream.push(redactor, part, &mut out);
        assert!(stream.held() < redactor.longest().max(1), "{} bytes are held back", stream.held());
    }
    stream.flush(redactor, &mut out);
    assert_eq!(stream.held(), 0);
    out
}

/// Returns true for each byte of the text that belongs to an encoded value, and false for each other byte.
fn covered(text: &[u8], forms: &[&[u8]]) -> Vec<bool> {
    let mut covered = vec![false; text.len()];
    for form in forms.iter().filter(|form| form.len() <= text.len()) {
        for at in (0..=text.len() - form.len()).filter(|at| text[*at] == form[0]) {
            if text[at..].starts_with(form) {
                covered[at..at + form.len()].fill(true);
            }
        }
    }
    covered
}

/// Checks that the output is the text with at least one marker in place of each covered range.
fn agrees(text: &[u8], mut out: &[u8], covered: &[bool]) {
    let mut at = 0;
    while at < text.len() {
        if !covered[at] {
            assert_eq!(out.first(), Some(&text[at]), "byte {at} is masked or missing");
            (at, out) = (at + 1, &out[1..]);
            continue;
        }
        assert!(out.starts_with(MARKER), "byte {at} is not masked");
        while out.starts_with(MARKER) {
            let end = out.iter().position(|byte| *byte == b']').expect("a marker has a closing bracket");
            out = &out[end + 1..];
        }
        at += covered[at..].iter().take_while(|covered| **covered).count();
    }
    assert!(out.is_empty(), "the output has {} bytes more than the input", out.len());
}
