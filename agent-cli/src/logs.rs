//! Following a container's log: over restarts of executord, nothing twice, and what was dropped
//! before it could be read is told.

use executor_proto::v1::{LogGap, LogStream, StreamLogsRequest, StreamLogsResponse};
use tokio::time::Instant;

use crate::connect::{Client, Patience};
use crate::failure::Failure;
use crate::output::{Output, Stream};
use crate::status::is_away;
use crate::text::plain;
use crate::view::json;

/// In which form log entries are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Each stream on its own, byte for byte.
    AsItWas,
    /// All of it on standard error, byte for byte: standard output belongs to a document.
    OnStderr,
    /// An object a line.
    Json,
    /// Not at all.
    Silent,
}

/// Prints what a process wrote, and remembers what the executor itself said.
pub struct Printer {
    output: Output,
    form: Form,
    pub told: Vec<String>,
    /// Bytes of output that are missing.
    pub dropped: u64,
    /// Times are written in front of lines.
    stamps: Option<Stamps>,
    /// What the process wrote, where it is to be kept, and how much of it at most.
    kept: Option<(Vec<u8>, usize)>,
}

impl Printer {
    pub fn new(output: Output, form: Form) -> Self {
        Self { output, form, told: Vec::new(), dropped: 0, stamps: None, kept: None }
    }

    /// Keeps what the process wrote, too, as far as it has room.
    pub fn keeping(mut self, bytes_max: usize) -> Self {
        self.kept = Some((Vec::new(), bytes_max));
        self
    }

    /// What was kept. That there was more is said at its end.
    pub fn into_kept(self) -> Vec<u8> {
        self.kept.map(|(kept, _)| kept).unwrap_or_default()
    }

    /// Writes times in front of lines.
    pub fn with_times(mut self) -> Self {
        self.stamps = Some(Stamps::default());
        self
    }

    fn keep(&mut self, data: &[u8]) {
        let Some((kept, bytes_max)) = &mut self.kept else { return };
        let room = bytes_max.saturating_sub(kept.len());
        if room > 0 {
            kept.extend_from_slice(&data[..data.len().min(room)]);
            if data.len() >= room {
                kept.extend_from_slice(b"\n[the rest was not kept]\n");
            }
        }
    }

    async fn print(&mut self, entry: StreamLogsResponse) {
        if let Some(LogGap { dropped_bytes, log_bytes_max, .. }) = entry.gap {
            self.dropped(dropped_bytes, Some(log_bytes_max));
        }
        if self.form == Form::Json {
            return self.output.text(json::line(&json::LogEntry::from(entry))).await;
        }
        let mut entry = entry;
        if let Some(stamps) = &mut self.stamps {
            stamps.put(&mut entry);
        }
        match entry.stream() {
            LogStream::Executor if self.form != Form::Silent => {
                let text = plain(String::from_utf8_lossy(&entry.data).trim_end());
                self.told.push(text.clone());
                self.output.note(text);
            }
            LogStream::Stdout => self.bytes(Stream::Out, entry.data).await,
            LogStream::Stderr => self.bytes(Stream::Err, entry.data).await,
            LogStream::Executor | LogStream::Unspecified => {}
        }
    }

    /// Prints what the process wrote.
    pub async fn bytes(&mut self, stream: Stream, bytes: Vec<u8>) {
        self.keep(&bytes);
        match self.form {
            Form::Silent => {}
            Form::AsItWas => self.output.bytes(stream, bytes).await,
            Form::OnStderr | Form::Json => self.output.bytes(Stream::Err, bytes).await,
        }
    }

    /// Says that output is missing here.
    pub fn dropped(&mut self, bytes: u64, log_bytes_max: Option<u64>) {
        self.dropped += bytes;
        let was =
            if bytes == 1 { "1 byte of output was".into() } else { format!("{} bytes of output were", grouped(bytes)) };
        let why = log_bytes_max.map(|max| format!(" (log_bytes_max is {})", grouped(max))).unwrap_or_default();
        self.output.note(format!("{was} dropped before they could be read{why}"));
    }
}

/// A number with a comma between its thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Keeps for each stream whether its last line is unfinished: the next entry then gets no time of its own.
#[derive(Debug, Default)]
struct Stamps {
    within: [bool; 2],
}

impl Stamps {
    /// Puts its time in front of an entry that begins a line.
    fn put(&mut self, entry: &mut StreamLogsResponse) {
        let ends = entry.data.ends_with(b"\n");
        let within = match entry.stream() {
            LogStream::Stdout => std::mem::replace(&mut self.within[0], !ends),
            LogStream::Stderr => std::mem::replace(&mut self.within[1], !ends),
            LogStream::Executor | LogStream::Unspecified => false,
        };
        if !within {
            let stamp = format!("{} ", json::stamp(entry.time.as_ref()));
            entry.data.splice(0..0, stamp.into_bytes());
        }
    }
}

/// Streams a container's log to its end.
pub async fn follow(client: &Client, mut request: StreamLogsRequest, printer: &mut Printer) -> Result<(), Failure> {
    let doing = format!("logs of {}", request.id);
    let mut place = Place { offset: request.offset.unwrap_or(0), sequence: 0 };
    let mut patience = Patience::default();
    loop {
        let begun = Instant::now();
        let broken = match client.rpc().stream_logs(request.clone()).await {
            Err(status) => status,
            Ok(stream) => {
                let mut stream = stream.into_inner();
                loop {
                    match stream.message().await {
                        Ok(None) => return Ok(()),
                        Err(status) => break status,
                        Ok(Some(entry)) => {
                            patience.heard();
                            if place.pass(&entry) {
                                printer.print(entry).await;
                            }
                        }
                    }
                }
            }
        };
        if !is_away(&broken) {
            return Err(client.failure(&doing, &broken));
        }
        patience.since(begun);
        if !patience.pause().await {
            return Err(client.gave_up(&doing));
        }
        if place.sequence > 0 || place.offset > 0 {
            request.offset = Some(place.offset);
            request.tail = None; // it was of what there was at first
        }
    }
}

/// Position in a log: everything before it was read.
#[derive(Debug, Default)]
struct Place {
    /// Bytes of output.
    offset: u64,
    /// Number of the last entry.
    sequence: u64,
}

impl Place {
    /// Goes on behind an entry or a gap. Tells false where it was there before: from an offset on the executor's own words
    /// at that place come again.
    fn pass(&mut self, entry: &StreamLogsResponse) -> bool {
        if let Some(gap) = &entry.gap {
            self.offset = entry.offset.saturating_add(gap.dropped_bytes);
            return true;
        }
        if entry.sequence <= self.sequence {
            return false;
        }
        let output = if entry.stream() == LogStream::Executor { 0 } else { entry.data.len() as u64 };
        (self.offset, self.sequence) = (entry.offset.saturating_add(output), entry.sequence);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cuts a log at every place, resumes it there as a daemon would, and expects every entry once.
    #[test]
    fn nothing_twice_and_nothing_lost_wherever_it_breaks() {
        use LogStream::{Executor, Stderr, Stdout};
        let mut log = Vec::new();
        for (stream, offset) in [(Executor, 0), (Stdout, 0), (Stderr, 2), (Executor, 4), (Executor, 4), (Stdout, 4)] {
            let sequence = log.len() as u64 + 1;
            let data = b"ab".to_vec();
            log.push(StreamLogsResponse { stream: stream.into(), offset, sequence, data, ..Default::default() });
        }
        let end = |entry: &StreamLogsResponse| entry.offset + if entry.stream() == Executor { 0 } else { 2 };
        for first_cut in 0..=log.len() {
            for second_cut in 0..=log.len() {
                let (mut place, mut seen, mut from) = (Place::default(), Vec::new(), 0);
                for cut in [first_cut, second_cut, log.len()] {
                    let own = |entry: &&StreamLogsResponse| entry.stream() == Executor && entry.offset >= from;
                    let served = log.iter().filter(|entry| own(entry) || end(entry) > from).take(cut);
                    seen.extend(served.filter(|entry| place.pass(entry)).map(|entry| entry.sequence));
                    from = place.offset;
                }
                assert_eq!(seen, [1, 2, 3, 4, 5, 6], "cuts {first_cut} and {second_cut}");
            }
        }
    }

    #[test]
    fn a_gap_is_passed_once() {
        let mut place = Place::default();
        let gap = Some(LogGap { dropped_bytes: 100, dropped_entries: 3, log_bytes_max: 9 });
        assert!(place.pass(&StreamLogsResponse { gap, offset: 7, ..Default::default() }));
        assert_eq!((place.offset, place.sequence), (107, 0));
        let entry = StreamLogsResponse { sequence: 4, offset: 107, data: vec![0; 3], ..Default::default() };
        assert!(place.pass(&entry) && !place.pass(&entry));
        assert_eq!(place.offset, 110);
    }

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (117_440_512, "117,440,512")] {
            assert_eq!(grouped(number), text);
        }
    }
}
