//! Builds messages from log entries: whole lines, or marked parts of lines that are too long or incomplete.
//!
//! An entry holds the data of one read by the shim, so a line may consist of several entries. The entries are joined
//! here, up to the maximum message size. The size limit also applies to the sum of all partial lines of a container. If
//! no further data arrives within a second, a partial line is sent as a part.

use std::collections::VecDeque;
use std::time::Duration;

use executor_core::logline::{Entry, LogPosition, Stream, whole_characters};
use executor_core::time::Timestamp;
use tokio::time::Instant;

use crate::logs::reader::LogItem;

/// Time limit for the rest of a partial line.
const PARTIAL_LINE_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of partial lines of a container: one per stream and log source.
const OPEN_MAX: usize = 16;

/// A line of a container's output, or a part of such a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// Time at which the start of the message was read from the process.
    pub(super) time: Timestamp,
    pub(super) stream: Stream,
    /// Log source of the process that wrote the message.
    pub(super) source: String,
    /// Sequence number of the message's first entry in the log, starting at 1.
    pub(super) sequence: u64,
    /// Position in the line; `None` if the message is a whole line.
    pub(super) part: Option<MessagePart>,
    /// Text without the newline.
    pub(super) content: Vec<u8>,
    /// Missing output before the message, if the message reports a gap.
    pub(super) missing: Option<Dropped>,
    /// Position at which reading continues if this is the last sent message.
    pub(super) resume: LogPosition,
}

/// Position of a part in its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MessagePart {
    /// Sequence number of the line's first entry.
    pub(super) line: u64,
    /// Number of the part, starting at 1.
    pub(super) ordinal: u32,
    pub(super) last: bool,
}

/// Output that was not sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dropped {
    /// Number of lines or partial lines.
    pub(crate) lines: u64,
    /// Number of bytes of output.
    pub(crate) bytes: u64,
}

impl Dropped {
    pub(super) fn between(from: LogPosition, to: LogPosition) -> Self {
        Self { lines: to.entries.saturating_sub(from.entries), bytes: to.bytes.saturating_sub(from.bytes) }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.lines = self.lines.saturating_add(other.lines);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

#[derive(Debug)]
struct PartialLine {
    stream: Stream,
    source: String,
    time: Timestamp,
    sequence: u64,
    /// Position before the first entry that contributes to `content`.
    before: LogPosition,
    content: Vec<u8>,
    /// Number of parts that were already emitted.
    parts: u32,
    since: Instant,
}

/// Joins the entries of a container's log.
#[derive(Debug)]
pub(super) struct Assembler {
    /// Maximum content of a message, in bytes.
    max: usize,
    /// Rewrites the content of entries before it is measured.
    rewrite: fn(&[u8]) -> Option<Vec<u8>>,
    open: VecDeque<PartialLine>,
    /// Position up to which entries were consumed.
    at: LogPosition,
    /// Missing output since the last [`Self::take_dropped`].
    dropped: Dropped,
}

impl Assembler {
    /// Creates an assembler that starts at this position. `rewrite` returns `None` if it changes nothing.
    pub(super) fn new(at: LogPosition, max: usize, rewrite: fn(&[u8]) -> Option<Vec<u8>>) -> Self {
        Self { max, rewrite, open: VecDeque::new(), at, dropped: Dropped::default() }
    }

    /// Returns the position at which reading continues after all emitted messages are sent.
    pub(super) fn resume(&self) -> LogPosition {
        self.open.iter().filter(|open| !open.content.is_empty()).map(|open| open.before).min().unwrap_or(self.at)
    }

    /// Returns the time at which the oldest partial line times out.
    pub(super) fn due(&self) -> Option<Instant> {
        self.open.iter().filter(|open| !open.content.is_empty()).map(|open| open.since + PARTIAL_LINE_TIMEOUT).min()
    }

    /// Returns the missing output since the previous call.
    pub(super) fn take_dropped(&mut self) -> Dropped {
        std::mem::take(&mut self.dropped)
    }

    /// Consumes an item of the log. Items before the start position are skipped.
    pub(super) fn take(&mut self, item: &LogItem<'_>, now: Timestamp, out: &mut Vec<Message>) {
        match item {
            LogItem::Entry(_, before) if before.entries < self.at.entries => {}
            LogItem::Entry(entry, before) => {
                let given = out.len();
                self.at = *before;
                self.entry(entry, *before, out);
                self.at.advance(entry);
                // After the last message of an entry, reading continues after the whole entry.
                let resume = self.resume();
                if let Some(last) = out[given..].last_mut() {
                    last.resume = resume;
                }
            }
            LogItem::Gap(from, to, missing) => self.gap((*from).max(self.at), *to, *missing, now, out),
        }
    }

    fn gap(
        &mut self,
        from: LogPosition,
        to: LogPosition,
        missing: executor_core::logline::Missing,
        now: Timestamp,
        out: &mut Vec<Message>,
    ) {
        let dropped = Dropped::between(from, to);
        if dropped == Dropped::default() {
            return;
        }
        // The remaining parts of these lines are missing.
        for mut open in std::mem::take(&mut self.open) {
            if !open.content.is_empty() {
                out.push(open.part(false, from));
            }
        }
        self.at = to;
        // Output above the log's limits is reported in the log itself.
        if missing == executor_core::logline::Missing::AboveLimits {
            return;
        }
        self.dropped.add(dropped);
        let Dropped { lines, bytes } = dropped;
        let words = format!(
            "{lines} lines of output with {bytes} bytes are missing here: they were removed from the log before they could be sent"
        );
        out.push(Message {
            time: now,
            stream: Stream::Executor,
            source: String::new(),
            sequence: from.entries.saturating_add(1),
            part: None,
            content: words.into_bytes(),
            missing: Some(dropped),
            resume: to,
        });
    }

    fn entry(&mut self, entry: &Entry<'_>, before: LogPosition, out: &mut Vec<Message>) {
        let same = |open: &PartialLine| open.stream == entry.stream && open.source == entry.source;
        let known = self.open.iter().position(same).and_then(|at| self.open.remove(at));
        let fresh = || PartialLine {
            stream: entry.stream,
            source: entry.source.to_owned(),
            time: entry.time,
            sequence: before.entries.saturating_add(1),
            before,
            content: Vec::new(),
            parts: 0,
            since: Instant::now(),
        };
        let mut open = known.unwrap_or_else(fresh);
        let rewritten = (self.rewrite)(entry.content);
        let mut rest = rewritten.as_deref().unwrap_or(entry.content);
        loop {
            let room = self.max - open.content.len();
            if rest.len() <= room {
                if open.content.is_empty() {
                    (open.before, open.since) = (before, Instant::now());
                }
                open.content.extend_from_slice(rest);
                break;
            }
            // A character that does not fit is moved to the next part.
            let whole = match whole_characters(&rest[..room]) {
                0 if open.content.is_empty() => room,
                whole => whole,
            };
            open.content.extend_from_slice(&rest[..whole]);
            rest = &rest[whole..];
            let resume = self.resume().min(before);
            out.push(open.part(false, resume));
        }
        if entry.complete {
            let resume = self.resume();
            out.push(open.part(true, resume));
            return;
        }
        self.open.push_back(open);
        while self.open.len() > OPEN_MAX || self.open.iter().map(|open| open.content.len()).sum::<usize>() > self.max {
            let Some(mut oldest) = self.open.pop_front() else { return };
            let resume = self.resume();
            if !oldest.content.is_empty() {
                out.push(oldest.part(false, resume));
            }
        }
    }

    /// Emits the partial lines that have timed out; the rest of such a line follows in further parts. If `all` is true,
    /// no more data follows, and all partial lines are emitted.
    pub(super) fn flush(&mut self, all: bool, out: &mut Vec<Message>) {
        let now = Instant::now();
        for index in 0..self.open.len() {
            let at = self.at;
            let open = &mut self.open[index];
            if !open.content.is_empty() && (all || open.since + PARTIAL_LINE_TIMEOUT <= now) {
                out.push(open.part(all, at));
                let resume = self.resume();
                out.last_mut().into_iter().for_each(|last| last.resume = resume);
            }
        }
        if all {
            self.open.clear();
        }
    }
}

impl PartialLine {
    /// Builds a message from the buffered content of a line.
    fn part(&mut self, last: bool, resume: LogPosition) -> Message {
        let is_whole = last && self.parts == 0;
        self.parts = self.parts.saturating_add(1);
        Message {
            time: self.time,
            stream: self.stream,
            source: self.source.clone(),
            sequence: self.sequence,
            part: (!is_whole).then_some(MessagePart { line: self.sequence, ordinal: self.parts, last }),
            content: std::mem::take(&mut self.content),
            missing: None,
            resume,
        }
    }
}

#[cfg(test)]
mod tests {
    use executor_core::logline::Missing;

    use super::*;

    fn entry(stream: Stream, source: &'static str, complete: bool, content: &'static str) -> Entry<'static> {
        Entry { time: Timestamp(1), stream, complete, source, content: content.as_bytes() }
    }

    fn reported(out: &[Message]) -> Vec<String> {
        let one = |message: &Message| {
            let part =
                message.part.map(|part| format!("{}.{}{}", part.line, part.ordinal, if part.last { "." } else { "" }));
            format!("{}{}", part.map(|part| format!("[{part}]")).unwrap_or_default(), message.content.escape_ascii())
        };
        out.iter().map(one).collect()
    }

    #[tokio::test]
    async fn lines_are_joined_split_and_marked() {
        let mut assembler = Assembler::new(LogPosition::default(), 8, |_| None);
        let (mut out, mut place) = (Vec::new(), LogPosition::default());
        let entries = [
            entry(Stream::Stdout, "", true, "one"),
            entry(Stream::Stdout, "", false, "be"),
            entry(Stream::Stderr, "", true, "err"),
            entry(Stream::Stdout, "APP", true, "other"),
            entry(Stream::Stdout, "", true, "gin"),
            entry(Stream::Stdout, "", true, ""),
            entry(Stream::Stdout, "", true, "aaaaaaaäbbbb"),
        ];
        for entry in &entries {
            assembler.take(&LogItem::Entry(entry.clone(), place), Timestamp(9), &mut out);
            place.advance(entry);
        }
        let a = "\\xc3\\xa4";
        let parts = ["[7.1]aaaaaaa".to_owned(), format!("[7.2.]{a}bbbb")];
        assert_eq!(reported(&out)[..5], ["one", "err", "other", "begin", ""]);
        assert_eq!(reported(&out)[5..], parts);
        // While the partial line is not emitted, reading would continue from its start.
        let resumes: Vec<u64> = out.iter().map(|message| message.resume.entries).collect();
        assert_eq!(resumes, [1, 1, 1, 5, 6, 6, 7]);
        assert_eq!((assembler.resume(), assembler.due()), (place, None));
    }

    #[tokio::test]
    async fn gap_is_reported_once_sent_entries_skipped() {
        let begun = LogPosition { bytes: 10, entries: 2 };
        let mut assembler = Assembler::new(begun, 100, |_| None);
        let mut out = Vec::new();
        let at = |bytes, entries| LogPosition { bytes, entries };
        assembler.take(&LogItem::Entry(entry(Stream::Stdout, "", true, "sent"), at(5, 1)), Timestamp(9), &mut out);
        assert!(out.is_empty());
        assembler.take(&LogItem::Gap(LogPosition::default(), at(40, 5), Missing::Lost), Timestamp(9), &mut out);
        assert_eq!(assembler.take_dropped(), Dropped { lines: 3, bytes: 30 });
        assert_eq!((out.len(), out[0].resume), (1, at(40, 5)));
        assembler.take(&LogItem::Gap(at(40, 5), at(90, 9), Missing::AboveLimits), Timestamp(9), &mut out);
        assert_eq!((assembler.take_dropped(), out.len(), assembler.resume()), (Dropped::default(), 1, at(90, 9)));
    }

    #[tokio::test(start_paused = true)]
    async fn partial_line_is_bounded_and_times_out() {
        let mut assembler = Assembler::new(LogPosition::default(), 10, |_| None);
        let (mut out, mut place) = (Vec::new(), LogPosition::default());
        let mut take = |assembler: &mut Assembler, entry: &Entry<'_>, out: &mut Vec<Message>| {
            assembler.take(&LogItem::Entry(entry.clone(), place), Timestamp(9), out);
            place.advance(entry);
        };
        take(&mut assembler, &entry(Stream::Stdout, "", false, "prompt"), &mut out);
        assembler.flush(false, &mut out);
        assert!(out.is_empty());
        tokio::time::advance(PARTIAL_LINE_TIMEOUT).await;
        assembler.flush(false, &mut out);
        take(&mut assembler, &entry(Stream::Stdout, "", true, " answer"), &mut out);
        assert_eq!(reported(&out), ["[1.1]prompt", "[1.2.] answer"]);
        out.clear();
        let sources = ["a", "b", "c", "d"];
        for source in sources {
            take(&mut assembler, &entry(Stream::Stderr, source, false, "xxxx"), &mut out);
        }
        assert_eq!(out.len(), 2, "more than ten bytes wait: {out:?}");
        assembler.flush(true, &mut out);
        assert_eq!((out.len(), assembler.due()), (4, None));
    }
}
