//! Text of others, fit for a terminal.

/// Returns the text with control characters, and characters that turn the direction of writing, as Rust escapes them
/// (`\u{1b}`): it does nothing to a terminal.
pub fn plain(text: &str) -> String {
    let harmful = |c: char| {
        c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        if harmful(c) { plain.extend(c.escape_default()) } else { plain.push(c) }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn nothing_reaches_the_terminal_as_a_command() {
        assert_eq!(plain("a\u{1b}[2Jb\nc\td\u{9b}e\u{202e}f"), "a\\u{1b}[2Jb\\nc\\td\\u{9b}e\\u{202e}f");
        assert_eq!(plain("größe 20€"), "größe 20€");
    }
}
