//! Formats the log file of a request (`RunRequest.log_file`) in the format of the Kubernetes container runtime
//! interface: `2026-11-21T10:00:00.000000000Z stdout F text`.
//!
//! Unlike the log (see [`crate::logline`]), the file has only the streams `stdout` and `stderr`, no log sources and no
//! positions. A line is written when it is complete, so that a rotation splits only lines of more than [`PIECE_MAX`]
//! bytes.

use crate::logline::{Entry, Stream, boundary, write};
use crate::time::Timestamp;

/// Maximum length of the content of one line in the file, in bytes, as in other runtimes.
pub const PIECE_MAX: usize = 16_384;

/// Converts entries of the log to lines of the file.
#[derive(Debug, Default)]
pub struct LogFileLines {
    terminal: bool,
    /// Incomplete lines of standard output and standard error.
    open: [Vec<u8>; 2],
}

impl LogFileLines {
    /// Creates the state of a new file. With a terminal, all output and all executor messages are on `stdout`.
    pub fn new(terminal: bool) -> Self {
        Self { terminal, ..Self::default() }
    }

    /// Appends to `out` the lines that an entry completes. Returns the number of bytes of the process's output in these
    /// lines. Executor messages are appended immediately, even within an incomplete line of the process.
    pub fn append(&mut self, entry: &Entry<'_>, out: &mut Vec<u8>) -> u64 {
        let Entry { time, complete, content, .. } = *entry;
        let open = match entry.stream {
            Stream::Stdout => 0,
            Stream::Stderr => 1,
            Stream::Executor => {
                let stream = self.shown(Stream::Stderr);
                pieces(time, stream, content, true, out);
                return 0;
            }
        };
        let stream = self.shown(entry.stream);
        let open = &mut self.open[open];
        let before = open.len();
        if open.is_empty() && complete {
            pieces(time, stream, content, true, out);
            return entry.output_bytes();
        }
        open.extend_from_slice(content);
        if complete {
            pieces(time, stream, &std::mem::take(open), true, out);
            return before as u64 + entry.output_bytes();
        }
        if open.len() > PIECE_MAX {
            let rest = pieces(time, stream, open, false, out);
            let written = open.len() - rest;
            open.drain(..written);
            return written as u64;
        }
        0
    }

    /// Appends incomplete lines to `out`. Returns the number of bytes of the process's output in these lines.
    pub fn finish(&mut self, time: Timestamp, out: &mut Vec<u8>) -> u64 {
        let mut bytes = 0;
        for (open, stream) in [(0, Stream::Stdout), (1, Stream::Stderr)] {
            let content = std::mem::take(&mut self.open[open]);
            if !content.is_empty() {
                bytes += content.len() as u64;
                write(&Entry { time, stream: self.shown(stream), complete: false, source: "", content: &content }, out);
            }
        }
        bytes
    }

    fn shown(&self, stream: Stream) -> Stream {
        if self.terminal { Stream::Stdout } else { stream }
    }
}

/// Appends a line in pieces. If the line is not complete, its last piece is omitted. Returns the length of the last
/// piece, in bytes.
fn pieces(time: Timestamp, stream: Stream, line: &[u8], complete: bool, out: &mut Vec<u8>) -> usize {
    let mut rest = line;
    while rest.len() > PIECE_MAX {
        let (content, tail) = rest.split_at(boundary(&rest[..PIECE_MAX]));
        write(&Entry { time, stream, complete: false, source: "", content }, out);
        rest = tail;
    }
    if complete {
        write(&Entry { time, stream, complete: true, source: "", content: rest }, out);
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Timestamp = Timestamp(1_700_000_000_000_000_001);
    const SHOWN: &str = "2023-11-14T22:13:20.000000001Z";

    fn entry(stream: Stream, complete: bool, content: &[u8]) -> Entry<'_> {
        Entry { time: TIME, stream, complete, source: "APP", content }
    }

    fn text(out: Vec<u8>) -> String {
        String::from_utf8(out).unwrap().replace(SHOWN, "T")
    }

    /// CRI rule C31: the kubelet supports no other streams and tags.
    #[test]
    fn lines_have_the_kubelets_format() {
        for (terminal, [err, own]) in [(false, ["stderr", "stderr"]), (true, ["stdout", "stdout"])] {
            let (mut lines, mut out) = (LogFileLines::new(terminal), Vec::new());
            let mut bytes = Vec::new();
            for (stream, complete, content) in [
                (Stream::Stdout, true, "a b"),
                (Stream::Stdout, true, ""),
                (Stream::Stdout, false, "in "),
                (Stream::Stderr, false, "par"),
                (Stream::Executor, true, "message"),
                (Stream::Stdout, true, "two"),
                (Stream::Stderr, false, "tial"),
            ] {
                bytes.push(lines.append(&entry(stream, complete, content.as_bytes()), &mut out));
            }
            assert_eq!(bytes, [4, 1, 0, 0, 0, 7, 0]);
            assert_eq!((lines.finish(TIME, &mut out), lines.finish(TIME, &mut out)), (7, 0));
            let shown =
                format!("T stdout F a b\nT stdout F \nT {own} F message\nT stdout F in two\nT {err} P partial\n");
            assert_eq!(text(out), shown);
        }
    }

    #[test]
    fn long_lines_have_full_pieces() {
        let (mut lines, mut out) = (LogFileLines::new(false), Vec::new());
        let long = "x".repeat(2 * PIECE_MAX + 1);
        let mut bytes = 0;
        for part in long.as_bytes().chunks(5000) {
            bytes += lines.append(&entry(Stream::Stdout, false, part), &mut out);
        }
        bytes += lines.append(&entry(Stream::Stdout, true, b""), &mut out);
        let piece = &long[..PIECE_MAX];
        assert_eq!(text(out), format!("T stdout P {piece}\nT stdout P {piece}\nT stdout F x\n"));
        assert_eq!(bytes, long.len() as u64 + 1);
    }

    proptest::proptest! {
        /// The pieces of each line are at most as long as allowed, split no character, and contain the whole output.
        #[test]
        fn pieces_contain_the_whole_output(
            words in proptest::collection::vec(("[aä€\n]{0,9}", 0usize..9000, proptest::bool::ANY), 0..9),
        ) {
            let (mut lines, mut out, mut bytes, mut all) = (LogFileLines::new(false), Vec::new(), 0, String::new());
            for (word, repeat, complete) in words {
                let word = word.replace('\n', "").repeat(repeat);
                bytes += lines.append(&entry(Stream::Stdout, complete, word.as_bytes()), &mut out);
                all = all + &word + if complete { "\n" } else { "" };
            }
            bytes += lines.finish(TIME, &mut out);
            proptest::prop_assert_eq!(bytes, all.len() as u64);
            let mut back = String::new();
            for line in text(out).split_terminator('\n') {
                let (tag, content) = line.strip_prefix("T stdout ").unwrap().split_once(' ').unwrap();
                proptest::prop_assert!(content.len() <= PIECE_MAX);
                back = back + content + if tag == "F" { "\n" } else { "" };
            }
            proptest::prop_assert_eq!(back, all);
        }
    }
}
