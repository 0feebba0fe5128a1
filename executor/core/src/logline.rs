//! Writes and parses log files in the format of the Kubernetes container runtime interface (CRI):
//! `2026-11-21T10:00:00.000000000Z stdout F text`.
//!
//! `F` marks the end of a line. `P` marks a part of a line that continues in the next entry or was never terminated.
//! Therefore, the output can be reproduced byte for byte. A third stream, `executor`, carries the executor's own
//! messages. The log source of a RunAction follows the tag as `F:source`; CRI allows further tags there.
//!
//! A position line contains the number of output bytes and the number of entries before the next line:
//! `2026-11-21T10:00:00.000000000Z executor @ 16777216 2048`. A position line begins each file that does not start with
//! the first byte of the output, and follows output that could not be written. A reader computes from the position how
//! much output is missing. If the missing output exceeded the log's limits, the tag is `@limits`.

use crate::time::Timestamp;

/// Maximum length of the content of one entry, in bytes, as in Diego.
pub const CHUNK_MAX: usize = 61_440;

/// Stream of a log entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output of the process.
    Stdout,
    /// Standard error of the process.
    Stderr,
    /// Messages of the executor.
    Executor,
}

impl Stream {
    fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Executor => "executor",
        }
    }
}

/// An entry of a log file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Time at which the output was read from the process.
    pub time: Timestamp,
    /// Stream of the entry.
    pub stream: Stream,
    /// True if a newline followed the content.
    pub complete: bool,
    /// Log source of the action; empty if the action has none.
    pub source: &'a str,
    /// Content without the newline.
    pub content: &'a [u8],
}

impl Entry<'_> {
    /// Returns the number of bytes of the process's output in this entry.
    pub fn output_bytes(&self) -> u64 {
        if self.stream == Stream::Executor { 0 } else { self.content.len() as u64 + u64::from(self.complete) }
    }
}

/// A position in the whole output of a container, including output that is no longer kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogPosition {
    /// Bytes of the process's output before this position.
    pub bytes: u64,
    /// Number of entries before this position.
    pub entries: u64,
}

impl LogPosition {
    /// Advances the position past an entry.
    pub fn advance(&mut self, entry: &Entry<'_>) {
        self.bytes = self.bytes.saturating_add(entry.output_bytes());
        self.entries = self.entries.saturating_add(1);
    }
}

/// A line of a log file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// Output of a process, or a message of the executor.
    Entry(Entry<'a>),
    /// The position of the next line, and the reason why earlier output may be missing.
    Place(Timestamp, LogPosition, Missing),
}

/// Reason why output before a position may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The output was in an older file, or could not be written.
    Lost,
    /// The output exceeded the log's limits.
    AboveLimits,
}

/// Tags of position lines.
const PLACE: &str = "@";
const PLACE_LIMITS: &str = "@limits";

/// Appends a position line to `out`.
pub fn write_place(time: Timestamp, place: LogPosition, missing: Missing, out: &mut Vec<u8>) {
    let tag = match missing {
        Missing::Lost => PLACE,
        Missing::AboveLimits => PLACE_LIMITS,
    };
    let line = format!("{} executor {tag} {} {}\n", time.rfc3339(), place.bytes, place.entries);
    out.extend_from_slice(line.as_bytes());
}

/// Appends an entry's line to `out`.
pub fn write(entry: &Entry<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(entry.time.rfc3339().as_bytes());
    out.push(b' ');
    out.extend_from_slice(entry.stream.name().as_bytes());
    out.extend_from_slice(if entry.complete { b" F" } else { b" P" });
    if !entry.source.is_empty() {
        out.push(b':');
        out.extend_from_slice(entry.source.as_bytes());
    }
    out.push(b' ');
    out.extend_from_slice(entry.content);
    out.push(b'\n');
}

/// Parses a line without its newline. Returns `None` if the line has another format.
pub fn parse(line: &[u8]) -> Option<Line<'_>> {
    let mut fields = line.splitn(4, |b| *b == b' ');
    let time = Timestamp::parse_rfc3339(std::str::from_utf8(fields.next()?).ok()?)?;
    let stream = match fields.next()? {
        b"stdout" => Stream::Stdout,
        b"stderr" => Stream::Stderr,
        b"executor" => Stream::Executor,
        _ => return None,
    };
    let tag = std::str::from_utf8(fields.next()?).ok()?;
    let content = fields.next()?;
    let missing = match tag {
        PLACE => Some(Missing::Lost),
        PLACE_LIMITS => Some(Missing::AboveLimits),
        _ => None,
    };
    if let Some(missing) = missing.filter(|_| stream == Stream::Executor) {
        let (bytes, entries) = std::str::from_utf8(content).ok()?.split_once(' ')?;
        let place = LogPosition { bytes: bytes.parse().ok()?, entries: entries.parse().ok()? };
        return Some(Line::Place(time, place, missing));
    }
    let (tag, source) = tag.split_once(':').unwrap_or((tag, ""));
    let complete = match tag {
        "F" => true,
        "P" => false,
        _ => return None,
    };
    Some(Line::Entry(Entry { time, stream, complete, source, content }))
}

/// Splits a stream of bytes into entries: at newlines, and after at most [`CHUNK_MAX`] bytes, on a UTF-8 boundary if
/// there is one. Yields each piece, and true if a newline terminated the piece.
pub fn split(bytes: &[u8]) -> impl Iterator<Item = (&[u8], bool)> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let window = &rest[..rest.len().min(CHUNK_MAX)];
        if let Some(end) = window.iter().position(|b| *b == b'\n') {
            let piece = &rest[..end];
            rest = &rest[end + 1..];
            return Some((piece, true));
        }
        let end = if rest.len() > CHUNK_MAX { boundary(window) } else { window.len() };
        let (piece, tail) = rest.split_at(end);
        rest = tail;
        Some((piece, false))
    })
}

/// Returns the length of the bytes without an incomplete UTF-8 sequence at their end.
pub fn whole_characters(bytes: &[u8]) -> usize {
    let tail = bytes.len().saturating_sub(3)..bytes.len();
    let Some(lead) = tail.rev().find(|at| bytes[*at] & 0xc0 != 0x80) else { return bytes.len() };
    let length = match bytes[lead] {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => 1,
    };
    if lead + length > bytes.len() { lead } else { bytes.len() }
}

/// Returns a position near the end of a full window at which a cut splits no UTF-8 sequence, or the length of the
/// window if the window is not UTF-8.
pub(crate) fn boundary(window: &[u8]) -> usize {
    (window.len().saturating_sub(3)..=window.len())
        .rev()
        .find(|end| *end < window.len() && window[*end] & 0xc0 != 0x80)
        .filter(|end| window[*end] >= 0xc0)
        .unwrap_or(window.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(bytes: &[u8]) -> Vec<u8> {
        let mut file = Vec::new();
        for (content, complete) in split(bytes) {
            assert!(content.len() <= CHUNK_MAX);
            write(&Entry { time: Timestamp(1), stream: Stream::Stdout, complete, source: "APP", content }, &mut file);
        }
        let mut back = Vec::new();
        for line in file.split_inclusive(|b| *b == b'\n') {
            let Some(Line::Entry(entry)) = parse(&line[..line.len() - 1]) else { panic!("{line:?}") };
            assert_eq!((entry.time, entry.source), (Timestamp(1), "APP"));
            back.extend_from_slice(entry.content);
            if entry.complete {
                back.push(b'\n');
            }
        }
        back
    }

    #[test]
    fn long_lines_are_cut_on_a_character() {
        let text = "ä".repeat(CHUNK_MAX);
        let pieces: Vec<_> = split(text.as_bytes()).collect();
        assert!(pieces.iter().all(|(piece, _)| std::str::from_utf8(piece).is_ok()));
        let odd = format!("x{text}");
        assert!(split(odd.as_bytes()).all(|(piece, _)| std::str::from_utf8(piece).is_ok()));
        assert_eq!(joined(odd.as_bytes()), odd.as_bytes());
    }

    #[test]
    fn foreign_log_lines_are_not_parsed() {
        for line in
            ["", "x", "2026-11-21T10:00:00.0Z stdin F x", "2026-11-21T10:00:00.0Z stdout Q x", "today stdout F x"]
        {
            assert_eq!(parse(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn only_valid_executor_log_positions_are_parsed() {
        let place = LogPosition { bytes: u64::MAX, entries: 7 };
        let mut line = Vec::new();
        for missing in [Missing::Lost, Missing::AboveLimits] {
            line.clear();
            write_place(Timestamp(1), place, missing, &mut line);
            assert_eq!(parse(line.strip_suffix(b"\n").unwrap()), Some(Line::Place(Timestamp(1), place, missing)));
        }
        for line in ["stdout @ 1 2", "executor @ 1", "executor @ -1 2", "executor @ 1 2 3", "executor @ x y"] {
            assert_eq!(parse(format!("2026-11-21T10:00:00.0Z {line}").as_bytes()), None, "{line}");
        }
        let words = b"2026-11-21T10:00:00.0Z executor F:@ 1 2";
        assert!(matches!(parse(words), Some(Line::Entry(_))), "words of a source called `@`");
    }

    #[test]
    fn places_count_the_output_and_every_entry() {
        let mut place = LogPosition::default();
        for (stream, complete) in [(Stream::Stdout, true), (Stream::Stderr, false), (Stream::Executor, true)] {
            place.advance(&Entry { time: Timestamp(1), stream, complete, source: "", content: b"abc" });
        }
        assert_eq!(place, LogPosition { bytes: 7, entries: 3 });
    }

    #[test]
    fn incomplete_utf8_at_end_is_cut() {
        let table: [(&[u8], usize); 12] = [
            (b"", 0),
            (b"ab", 2),
            ("aä".as_bytes(), 3),
            (b"a\xc3", 1),
            (b"a\xe2\x82", 1),
            (b"a\xe2\x82\xac", 4),
            (b"a\xf0\x9f\x98", 1),
            (b"a\xf0\x9f\x98\x80", 5),
            // Not UTF-8: the incomplete byte is not held back.
            (b"a\xff", 2),
            (b"\x80\x80\x80\x80", 4),
            (b"\xc3\x80\x80\x80", 4),
            (b"\xc0", 1),
        ];
        for (bytes, whole) in table {
            assert_eq!(whole_characters(bytes), whole, "{bytes:x?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn output_comes_back_byte_for_byte(bytes: Vec<u8>, repeat in 1usize..2000) {
            let bytes = bytes.repeat(repeat);
            proptest::prop_assert_eq!(joined(&bytes), bytes);
        }
    }
}
