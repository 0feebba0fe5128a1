//! Splits a stream into documents at lines that begin with `---`, as kubectl does: a broken document does not hide the
//! other documents.

/// Text of one document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// Number of the document in its stream, from 1; empty documents count.
    pub number: usize,
    /// Line of the stream at which the text begins, from 1.
    pub line: usize,
    /// Text without the separators.
    pub text: &'a str,
    /// True if text other than a comment follows the separator on the same line. kubectl drops such text.
    pub beside_separator: bool,
}

/// Splits a stream. Documents with nothing but comments and space are skipped.
pub fn parts(text: &str) -> impl Iterator<Item = Part<'_>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut rest = Some(text);
    let (mut number, mut line, mut beside) = (0, 1, false);
    let whole = std::iter::from_fn(move || {
        let text = rest?;
        number += 1;
        let mut at = 0;
        let mut lines = 0;
        let mut ended = None;
        for one in text.split_inclusive('\n') {
            if one.starts_with("---") {
                ended = Some(one);
                break;
            }
            at += one.len();
            lines += 1;
        }
        let part = Part { number, line, text: &text[..at], beside_separator: beside };
        line += lines + 1;
        rest = ended.map(|separator| &text[at + separator.len()..]);
        beside = ended.is_some_and(|separator| {
            let after = separator.trim_start_matches('-').trim();
            !after.is_empty() && !after.starts_with('#')
        });
        Some(part)
    });
    let is_blank = |line: &str| {
        let line = line.trim();
        line.is_empty() || line.starts_with('#')
    };
    whole.filter(move |part| part.beside_separator || !part.text.lines().all(is_blank))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule P1: a stream is split at lines that begin with `---`, and empty documents are skipped.
    #[test]
    fn p1_documents() {
        let text = "# comment\n---\na: 1\n--- # second\nb: |\n  x\n---\n\n---\n---\nc: 3";
        let found: Vec<_> = parts(text).map(|part| (part.number, part.line, part.text.trim())).collect();
        assert_eq!(found, [(2, 3, "a: 1"), (3, 5, "b: |\n  x"), (6, 11, "c: 3")]);
        assert!(parts("--- {a: 1}\n").next().unwrap().beside_separator);
        assert_eq!(parts("").count() + parts("---\n---\n").count(), 0);
    }
}
