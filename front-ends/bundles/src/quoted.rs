//! Texts in quotes whose next lines are not indented enough. Programs in Go write and take them, YAML does not.

use zeroize::Zeroizing;

/// End of the parser's message about such a line.
pub(crate) const INDENT_FAULT: &str = "invalid indentation in multiline quoted scalar";
/// Parses a text; where `is_fault` says that a line is not indented enough, once more with every such line indented.
pub(crate) fn tolerant<T, E>(
    text: &str,
    parse: impl Fn(&str) -> Result<T, E>,
    is_fault: impl Fn(&E) -> bool,
) -> Result<T, E> {
    match parse(text) {
        Err(error) if is_fault(&error) => parse(&indented(text)),
        other => other,
    }
}

/// Indents the lines that texts in quotes go on in more than the key or the element that they are of. Spaces at the beginning of such a line do not count.
fn indented(text: &str) -> Zeroizing<String> {
    // No more than twice the text; and reserved once, so that no copy of a Secret stays in memory that is given back.
    let mut room = text.len();
    let mut all = Zeroizing::new(String::with_capacity(text.len() + room));
    // The text that is open, and what has more than this indentation because it comes after `|` or `>`.
    let (mut open, mut block) = (None, None);
    for line in text.split_inclusive('\n') {
        let content = line.trim_start_matches(' ');
        let indent = line.len() - content.len();
        if let Some(Quote { quote, within }) = open {
            let missing = (within + 1).saturating_sub(indent).min(room);
            room -= missing;
            all.extend(std::iter::repeat_n(' ', missing));
            if end(line, quote).is_some() {
                open = None;
            }
        } else if block.is_none_or(|block| !content.trim().is_empty() && indent <= block) {
            (open, block) = opened(content, indent);
        }
        all.push_str(line);
    }
    all
}

/// A text in quotes that is open.
#[derive(Clone, Copy)]
struct Quote {
    quote: char,
    /// Indentation of its key or element.
    within: usize,
}

/// Text that a line leaves open: a text in quotes, or the indentation of the key before `|` or `>`.
fn opened(mut content: &str, mut indent: usize) -> (Option<Quote>, Option<usize>) {
    while let Some(element) = content.strip_prefix("- ") {
        let rest = element.trim_start_matches(' ');
        indent += content.len() - rest.len();
        content = rest;
    }
    let value = match content.chars().next() {
        Some('#') => return (None, None),
        Some(quote @ ('"' | '\'')) => match end(&content[1..], quote) {
            // A key in quotes, or a whole text.
            Some(at) => content[1 + at..].strip_prefix(':').unwrap_or_default(),
            None => content,
        },
        _ => content.split_once(": ").map_or(content, |(_, value)| value),
    };
    let value = value.trim_start();
    match value.chars().next() {
        Some(quote @ ('"' | '\'')) if end(&value[1..], quote).is_none() => {
            (Some(Quote { quote, within: indent }), None)
        }
        Some('|' | '>') => (None, Some(indent)),
        _ => (None, None),
    }
}

/// Index behind the quote that closes a text.
fn end(text: &str, quote: char) -> Option<usize> {
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let escaped = match quote {
            '"' => c == '\\',
            _ => c == quote && chars.peek().is_some_and(|(_, next)| *next == quote),
        };
        if escaped {
            chars.next();
        } else if c == quote {
            return Some(at + 1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spaces that are put before each line.
    fn added(text: &str) -> Vec<usize> {
        let after = indented(text);
        let spaces = |line: &str| line.len() - line.trim_start_matches(' ').len();
        text.lines().zip(after.lines()).map(|(before, after)| spaces(after) - spaces(before)).collect()
    }

    #[test]
    fn lines_within_quotes_are_indented_and_no_others() {
        assert_eq!(added("a: \"one\n  two\"\nb: 'it''s\n\nme'\nc: d\n"), [0, 0, 0, 1, 1, 0]);
        assert_eq!(added("- \"one\ntwo\\\"\nthree\"\n- - k: 'x\n  '\n"), [0, 3, 3, 0, 3]);
        assert_eq!(added("\"key\": \"one\ntwo\"\n\"k\": \"one\"\n'l': 'one\ntwo'\n"), [0, 1, 0, 0, 1]);
        assert_eq!(added("a: don't\nb: 5\" x\nc: 'x' # it's\n# it's: \"a\nd: e\n"), [0; 5]);
        // A text after `|` is of its own.
        assert_eq!(added("- a: |-\n    b: \"c\n\n    d\n  e: \"f\ng\"\n"), [0, 0, 0, 0, 0, 3]);
        assert_eq!(added("a: >\n  b: 'c\nd: 'e\nf'\n"), [0, 0, 0, 1]);
    }

    #[test]
    fn a_text_is_parsed_twice_at_most_and_no_longer_than_doubled() {
        let deep = format!("{}a: \"{}\"", " ".repeat(1000), "\n".repeat(1_000_000));
        let sizes = std::cell::RefCell::new(Vec::new());
        let parse = |text: &str| {
            sizes.borrow_mut().push(text.len());
            Err::<(), _>(INDENT_FAULT)
        };
        assert_eq!(tolerant(&deep, parse, |_| true), Err(INDENT_FAULT));
        assert_eq!(*sizes.borrow(), [deep.len(), 2 * deep.len()]);
    }
}
