//! Parses the patterns of an `.indexignore` file, and matches them as git matches the patterns of a `.gitignore` file.
//!
//! The rules are in gitignore(5). Cases that gitignore(5) does not define are handled as in `git check-ignore`: a
//! pattern with an unclosed class, an unknown `[:name:]` or a backslash at the end matches nothing.

/// Maximum number of comparisons for all files of a catalog.
const STEPS_MAX: u64 = 1 << 32;

/// Counts comparisons, to limit the time that untrusted patterns take.
#[derive(Debug, Default)]
pub(super) struct Steps(u64);

impl Steps {
    fn add(&mut self, steps: usize) {
        self.0 = self.0.saturating_add(steps as u64);
    }

    /// Returns true if the patterns needed too many comparisons.
    pub(super) const fn is_exceeded(&self) -> bool {
        self.0 > STEPS_MAX
    }
}

/// Patterns of one `.indexignore` file.
#[derive(Debug, Default)]
pub(super) struct Patterns(Vec<Pattern>);

#[derive(Debug)]
struct Pattern {
    tokens: Vec<Token>,
    /// True if the pattern begins with `!`. Such a pattern includes paths that an earlier pattern excludes.
    is_negated: bool,
    /// True if the pattern ends in `/`. Such a pattern matches only directories.
    is_of_directories: bool,
    /// True if the pattern has a `/` before its end. Such a pattern matches the whole path instead of the last
    /// component.
    is_of_paths: bool,
}

#[derive(Debug)]
enum Token {
    Byte(u8),
    /// `?` or a class; true for each matching byte.
    Class(Box<[bool; 256]>),
    /// `*`: any bytes except `/`.
    Star,
    /// `**`: any bytes.
    Deep,
    /// `**/`: nothing, or any bytes and a `/`.
    Parents,
}

impl Patterns {
    pub(super) fn parse(text: &[u8]) -> Self {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        Self(text.split(|byte| *byte == b'\n').filter_map(Pattern::parse).collect())
    }

    /// Returns true if the last matching pattern excludes the path, false if it includes the path, `None` if no pattern
    /// matches.
    pub(super) fn is_left_out(&self, path: &[u8], is_directory: bool, steps: &mut Steps) -> Option<bool> {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        let matches = |pattern: &&Pattern| {
            (is_directory || !pattern.is_of_directories)
                && matches(&pattern.tokens, if pattern.is_of_paths { path } else { name }, steps)
        };
        self.0.iter().rev().find(matches).map(|pattern| !pattern.is_negated)
    }
}

impl Pattern {
    /// Parses a line; `None` for comments and for patterns that match nothing.
    fn parse(line: &[u8]) -> Option<Self> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.starts_with(b"#") {
            return None;
        }
        let line = without_spaces(line);
        let (line, is_negated) = line.strip_prefix(b"!").map_or((line, false), |rest| (rest, true));
        let (line, is_of_directories) = line.strip_suffix(b"/").map_or((line, false), |rest| (rest, true));
        let is_of_paths = line.contains(&b'/');
        let line = line.strip_prefix(b"/").unwrap_or(line);
        Some(Self { tokens: tokens(line)?, is_negated, is_of_directories, is_of_paths })
    }
}

/// Removes trailing spaces, except a space after a backslash. Tabs are kept.
fn without_spaces(line: &[u8]) -> &[u8] {
    let (mut at, mut end) = (0, 0);
    while let Some(byte) = line.get(at) {
        at += if *byte == b'\\' { 2 } else { 1 };
        if *byte != b' ' {
            end = at.min(line.len());
        }
    }
    &line[..end]
}

/// Returns the tokens of a pattern; `None` if the pattern matches nothing.
fn tokens(pattern: &[u8]) -> Option<Vec<Token>> {
    // git compares the text before the first wildcard separately, so git treats a `**` that is the first wildcard as if
    // the pattern began with the `**`.
    let first_wildcard = pattern.iter().position(|byte| b"*?[\\".contains(byte));
    let mut tokens = Vec::new();
    let mut rest = pattern;
    while let [first, after @ ..] = rest {
        rest = after;
        match first {
            b'\\' => {
                let [byte, after @ ..] = rest else { return None };
                rest = after;
                tokens.push(Token::Byte(*byte));
            }
            b'?' => tokens.push(class(|byte| byte != b'/')),
            b'*' => {
                let at = pattern.len() - rest.len() - 1;
                let is_after_slash = Some(at) == first_wildcard || pattern[..at].ends_with(b"/");
                let stars = rest.iter().take_while(|byte| **byte == b'*').count();
                rest = &rest[stars..];
                let is_before_slash = rest.is_empty() || rest.starts_with(b"/") || rest.starts_with(b"\\/");
                tokens.push(match rest {
                    _ if stars == 0 || !is_after_slash || !is_before_slash => Token::Star,
                    [b'/', after @ ..] => {
                        rest = after;
                        Token::Parents
                    }
                    _ => Token::Deep,
                });
            }
            b'[' => {
                let (token, after) = bracket(rest)?;
                rest = after;
                tokens.push(token);
            }
            byte => tokens.push(Token::Byte(*byte)),
        }
    }
    (!pattern.is_empty()).then_some(tokens)
}

fn class(matches: impl Fn(u8) -> bool) -> Token {
    let mut bytes = Box::new([false; 256]);
    for byte in 0..=u8::MAX {
        bytes[usize::from(byte)] = matches(byte);
    }
    Token::Class(bytes)
}

/// Parses a class after its `[`. Returns the class and the rest of the pattern; `None` if the class is unclosed or has
/// an unknown name.
fn bracket(text: &[u8]) -> Option<(Token, &[u8])> {
    let is_negated = matches!(text.first(), Some(b'!' | b'^'));
    let mut rest = &text[usize::from(is_negated)..];
    let mut bytes = [false; 256];
    let mut before = None;
    let mut is_first = true;
    loop {
        let [first, after @ ..] = rest else { return None };
        rest = after;
        if *first == b']' && !is_first {
            break;
        }
        is_first = false;
        match (first, before) {
            (b'\\', _) => {
                let [byte, after @ ..] = rest else { return None };
                rest = after;
                bytes[usize::from(*byte)] = true;
                before = Some(*byte);
            }
            (b'-', Some(low)) if rest.first().is_some_and(|byte| *byte != b']') => {
                let (high, after) = match rest {
                    [b'\\', byte, after @ ..] => (*byte, after),
                    [b'\\'] => return None,
                    [byte, after @ ..] => (*byte, after),
                    [] => return None,
                };
                rest = after;
                bytes.iter_mut().take(usize::from(high) + 1).skip(usize::from(low)).for_each(|it| *it = true);
                before = None;
            }
            (b'[', _) if rest.starts_with(b":") => {
                let name = &rest[1..rest.iter().position(|byte| *byte == b']')?];
                if let Some(name) = name.strip_suffix(b":") {
                    let is_in = named(name)?;
                    (0..=u8::MAX).filter(is_in).for_each(|byte| bytes[usize::from(byte)] = true);
                    rest = &rest[name.len() + 3..];
                    before = None;
                } else {
                    bytes[usize::from(b'[')] = true;
                    before = Some(b'[');
                }
            }
            (byte, _) => {
                bytes[usize::from(*byte)] = true;
                before = Some(*byte);
            }
        }
    }
    Some((class(|byte| byte != b'/' && bytes[usize::from(byte)] != is_negated), rest))
}

/// Returns the bytes of a POSIX class; `None` for an unknown class.
fn named(name: &[u8]) -> Option<fn(&u8) -> bool> {
    Some(match name {
        b"alnum" => u8::is_ascii_alphanumeric,
        b"alpha" => u8::is_ascii_alphabetic,
        b"blank" => |byte| matches!(byte, b' ' | b'\t'),
        b"cntrl" => u8::is_ascii_control,
        b"digit" => u8::is_ascii_digit,
        b"graph" => u8::is_ascii_graphic,
        b"lower" => u8::is_ascii_lowercase,
        b"print" => |byte| byte.is_ascii_graphic() || *byte == b' ',
        b"punct" => u8::is_ascii_punctuation,
        b"space" => |byte| byte.is_ascii_whitespace() || *byte == 0x0b,
        b"upper" => u8::is_ascii_uppercase,
        b"xdigit" => u8::is_ascii_hexdigit,
        _ => return None,
    })
}

/// Returns true if the tokens match the whole path. `reached[n]` is true if the tokens processed so far match the first
/// n bytes.
fn matches(tokens: &[Token], text: &[u8], steps: &mut Steps) -> bool {
    let mut reached = vec![false; text.len() + 1];
    reached[0] = true;
    for token in tokens {
        if steps.is_exceeded() {
            return false;
        }
        steps.add(reached.len());
        match token {
            Token::Byte(byte) => advance(&mut reached, text, |it| it == *byte),
            Token::Class(bytes) => advance(&mut reached, text, |it| bytes[usize::from(it)]),
            Token::Star => {
                for (at, byte) in text.iter().enumerate() {
                    reached[at + 1] |= reached[at] && *byte != b'/';
                }
            }
            Token::Deep => {
                for at in 0..text.len() {
                    reached[at + 1] |= reached[at];
                }
            }
            Token::Parents => {
                let mut is_after = false;
                for (at, byte) in text.iter().enumerate() {
                    is_after |= reached[at];
                    reached[at + 1] |= is_after && *byte == b'/';
                }
            }
        }
        if !reached.contains(&true) {
            return false;
        }
    }
    reached[text.len()]
}

/// Advances each reached position by one matching byte.
fn advance(reached: &mut [bool], text: &[u8], is_match: impl Fn(u8) -> bool) {
    for at in (0..text.len()).rev() {
        reached[at + 1] = reached[at] && is_match(text[at]);
    }
    reached[0] = false;
}
