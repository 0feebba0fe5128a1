//! Text of others: the characters that change more than they show.
//!
//! A name, a label or a line of output comes from a client, an image or a server, and is read by people in terminals, logs and tables. A
//! control character moves the cursor or ends the line; a bidirectional mark changes the order in which the characters beside it are
//! shown, so that two different names look the same (CVE-2021-42574). This is the only list of such characters in the workspace.

/// True if the character is a control character (C0 with tab and line feed, DEL, C1), a bidirectional mark, or a separator of lines or
/// paragraphs. Callers that allow a tab or a line feed say so themselves.
pub fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// Returns the text with each harmful character as Rust escapes it, such as `\n` and `\u{202e}`.
pub fn visible(text: &str) -> String {
    let mut visible = String::with_capacity(text.len());
    for c in text.chars() {
        if is_harmful(c) { visible.extend(c.escape_default()) } else { visible.push(c) }
    }
    visible
}

/// Returns the text with another character in place of each harmful one.
pub fn replaced(text: &str, by: char) -> String {
    text.chars().map(|c| if is_harmful(c) { by } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harmful_characters_become_visible() {
        assert_eq!(visible("a\u{1b}[2Jb\nc\td\u{9b}e\u{202e}f"), "a\\u{1b}[2Jb\\nc\\td\\u{9b}e\\u{202e}f");
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
        assert_eq!((visible(text), replaced(text, '?')), (text.to_owned(), text.to_owned()));
    }
}
