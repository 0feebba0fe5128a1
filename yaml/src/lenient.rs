//! Accepts text that Go programs write and read although YAML forbids it: lines within quotes, braces or brackets that
//! are not indented more than their key, and tabs as space within braces and brackets.

use std::fmt::Display;

use zeroize::Zeroizing;

/// Substrings of the parser's messages about wrong indentation and tabs.
const FAULTS: [&str; 5] = [
    "invalid indentation in multiline quoted scalar",
    "invalid indentation in flow construct",
    "tabs disallowed",
    "tab cannot be used as indentation",
    "while scanning a plain scalar, found a tab",
];

/// Parses a text. If the parser reports an indentation or tab error, continuation lines are indented, tabs are replaced
/// with spaces, and the text is parsed once more.
///
/// # Errors
/// Returns the error of the last attempt if both attempts fail.
pub fn lenient<T, E: Display>(text: &str, parse: impl Fn(&str) -> Result<T, E>) -> Result<T, E> {
    match parse(text) {
        Err(error) if FAULTS.iter().any(|fault| error.to_string().contains(fault)) => parse(&mended(text)),
        other => other,
    }
}

/// Indents continuation lines more than their key or element, and replaces tabs within braces and brackets with spaces.
/// The number of lines stays the same.
fn mended(text: &str) -> Zeroizing<String> {
    // The result has at most twice the length of the text. Its memory is reserved in one allocation, so that no copy of
    // a Secret stays in freed memory.
    let mut room = text.len();
    let mut all = Zeroizing::new(String::with_capacity(text.len() + room));
    let mut open = Open::default();
    // Indentation of the key before `|` or `>`: lines that are indented more belong to its text.
    let mut block: Option<usize> = None;
    for line in text.split_inclusive('\n') {
        let content = line.trim_start_matches(' ');
        let indent = line.len() - content.len();
        let mut at = 0;
        if open.is_open() {
            let missing = (open.within + 1).saturating_sub(indent).min(room);
            room -= missing;
            all.extend(std::iter::repeat_n(' ', missing));
        } else if block.is_none_or(|block| !content.trim().is_empty() && indent <= block) {
            let (value, within) = value_of(content, indent);
            block = value.starts_with(['|', '>']).then_some(within);
            open = Open { within, ..Open::default() };
            at = if value.starts_with(['"', '\'', '{', '[']) { line.len() - value.len() } else { line.len() };
        } else {
            at = line.len();
        }
        all.push_str(&line[..at]);
        open.read(&line[at..], &mut all);
    }
    all
}

/// Returns the value of a line in block style, and the indentation of its key or element.
fn value_of(mut content: &str, mut indent: usize) -> (&str, usize) {
    while let Some(element) = content.strip_prefix("- ") {
        let rest = element.trim_start_matches(' ');
        indent += content.len() - rest.len();
        content = rest;
    }
    let value = match content.chars().next() {
        Some('#') => "",
        Some('{' | '[') => content,
        Some(quote @ ('"' | '\'')) => match end(&content[1..], quote) {
            // The text is a quoted key or a complete quoted value.
            Some(at) => content[1 + at..].trim_start_matches(' ').strip_prefix(':').unwrap_or_default(),
            None => content,
        },
        _ => after_key(content).unwrap_or(content),
    };
    (value.trim_start_matches([' ', '\t']), indent)
}

/// Returns the text after the first `:` that is followed by space.
fn after_key(content: &str) -> Option<&str> {
    content.match_indices(':').map(|(at, _)| &content[at + 1..]).find(|rest| rest.starts_with([' ', '\t']))
}

/// Returns the index after the closing quote of a text.
fn end(text: &str, quote: char) -> Option<usize> {
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let is_escape = match quote {
            '"' => c == '\\',
            _ => c == quote && chars.peek().is_some_and(|(_, next)| *next == quote),
        };
        if is_escape {
            chars.next();
        } else if c == quote {
            return Some(at + 1);
        }
    }
    None
}

/// An unfinished value in quotes, braces or brackets.
#[derive(Default)]
struct Open {
    /// Indentation of the key or element that has the value.
    within: usize,
    /// Quote character of an open text.
    quote: Option<char>,
    /// Number of open braces and brackets.
    depth: usize,
    /// Last character other than space in braces or brackets.
    before: Option<char>,
}

impl Open {
    const fn is_open(&self) -> bool {
        self.quote.is_some() || self.depth > 0
    }

    /// Reads a part of a line up to the end of the value, and appends the whole part to `all`. Replaces tabs within
    /// braces and brackets.
    fn read(&mut self, line: &str, all: &mut String) {
        let mut rest = line;
        let mut is_after_space = true;
        while let Some(c) = rest.chars().next() {
            if let Some(quote) = self.quote {
                let Some(at) = end(rest, quote) else { break };
                all.push_str(&rest[..at]);
                rest = &rest[at..];
                self.quote = None;
                self.before = Some(quote);
            } else {
                match c {
                    '#' if is_after_space => break,
                    '{' | '[' => self.depth += 1,
                    '}' | ']' => self.depth = self.depth.saturating_sub(1),
                    '"' | '\'' if self.before.is_none_or(|before| "{[,:?".contains(before)) => self.quote = Some(c),
                    _ => {}
                }
                all.push(if c == '\t' { ' ' } else { c });
                rest = &rest[c.len_utf8()..];
                is_after_space = c.is_whitespace();
                if !is_after_space {
                    self.before = Some(c);
                }
            }
            if !self.is_open() {
                break;
            }
        }
        all.push_str(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of spaces that [`mended`] inserts before each line.
    fn added(text: &str) -> Vec<usize> {
        let after = mended(text);
        let spaces = |line: &str| line.len() - line.trim_start_matches(' ').len();
        text.lines().zip(after.lines()).map(|(before, after)| spaces(after) - spaces(before)).collect()
    }

    #[test]
    fn only_lines_within_quotes_are_indented() {
        assert_eq!(added("a: \"one\n  two\"\nb: 'it''s\n\nme'\nc: d\n"), [0, 0, 0, 1, 1, 0]);
        assert_eq!(added("- \"one\ntwo\\\"\nthree\"\n- - k: 'x\n  '\n"), [0, 3, 3, 0, 3]);
        assert_eq!(added("\"key\": \"one\ntwo\"\n\"k\": \"one\"\n'l': 'one\ntwo'\n"), [0, 1, 0, 0, 1]);
        assert_eq!(added("a: don't\nb: 5\" x\nc: 'x' # it's\n# it's: \"a\nd: e\n"), [0; 5]);
        // Text after `|` is not changed.
        assert_eq!(added("- a: |-\n    b: \"c\n\n    d\n  e: \"f\ng\"\n"), [0, 0, 0, 0, 0, 3]);
        assert_eq!(added("a: >\n  b: 'c\nd: 'e\nf'\n"), [0, 0, 0, 1]);
        assert_eq!(added("a: {b: 'one\ntwo',\nc: d}\ne: f\n"), [0, 1, 1, 0]);
    }

    #[test]
    fn tabs_are_replaced_within_braces_alone() {
        for (text, after) in [
            ("a: {\tb: \"c\td\",\te: f\t}\t# x\ty", "a: { b: \"c\td\", e: f }\t# x\ty"),
            ("a: [b, # c\td {\n'e\tf']\ng:\th", "a: [b, # c\td {\n 'e\tf']\ng:\th"),
            ("a: |\n  {\tb\nc: don't {\td", "a: |\n  {\tb\nc: don't {\td"),
            ("a: {b: don't,\tc: http://x#\ty}", "a: {b: don't, c: http://x# y}"),
            ("{\"a\":\"b\tc\",\t\"d\":1}\n", "{\"a\":\"b\tc\", \"d\":1}\n"),
        ] {
            assert_eq!(&*mended(text), after, "{text:?}");
        }
    }

    #[test]
    fn lenient_parsing_retries_once_with_bounded_growth() {
        let deep = format!("{}a: \"{}\"", " ".repeat(1000), "\n".repeat(1_000_000));
        let sizes = std::cell::RefCell::new(Vec::new());
        let parse = |text: &str| {
            sizes.borrow_mut().push(text.len());
            Err::<(), _>(FAULTS[0])
        };
        assert_eq!(lenient(&deep, parse), Err(FAULTS[0]));
        assert_eq!(*sizes.borrow(), [deep.len(), 2 * deep.len()]);
    }
}
