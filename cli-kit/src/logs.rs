//! Prints a container's log, and reports output that was dropped before it could be read.

use executor_client::v1::{LogGap, LogStream, StreamLogsRequest, StreamLogsResponse};

use crate::connect::Client;
use crate::failure::Failure;
use crate::output::{Output, Stream};
use crate::status::ErrorContext as _;
use crate::text::plain;
use crate::view::json;

/// Output format of log entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Output on the stream that the process wrote to, byte for byte.
    AsItWas,
    /// All output on standard error, byte for byte: standard output is reserved for a document.
    OnStderr,
    /// A JSON object per line.
    Json,
    /// No output.
    Silent,
}

/// Prints the output of a process, and collects the executor's messages.
pub struct Printer {
    output: Output,
    form: Form,
    pub messages: Vec<String>,
    /// Number of bytes of output that are missing.
    pub dropped: u64,
    /// Number of gaps in the output.
    gaps: u64,
    /// State of the timestamps before lines; `None` if lines have no timestamps.
    stamps: Option<Stamps>,
    kept: Option<Kept>,
}

impl Printer {
    pub fn new(output: Output, form: Form) -> Self {
        Self { output, form, messages: Vec::new(), dropped: 0, gaps: 0, stamps: None, kept: None }
    }

    /// Sets the printer to retain the first `bytes_max` bytes of the process's output as well.
    pub fn keeping(mut self, bytes_max: usize) -> Self {
        self.kept = Some(Kept { bytes: Vec::new(), bytes_max, truncated: false });
        self
    }

    /// Returns the retained output. If the output was truncated, a note is appended.
    pub fn into_kept(self) -> Vec<u8> {
        self.kept.map(Kept::into_bytes).unwrap_or_default()
    }

    /// Sets the printer to prefix lines with timestamps.
    pub fn with_times(mut self) -> Self {
        self.stamps = Some(Stamps::default());
        self
    }

    async fn print(&mut self, entry: StreamLogsResponse) {
        match entry.gap {
            Some(LogGap { dropped_bytes, above_limits: true, .. }) => self.above_limits(dropped_bytes),
            Some(LogGap { dropped_bytes, log_bytes_max, .. }) => self.dropped(dropped_bytes, Some(log_bytes_max)),
            None => {}
        }
        if self.form == Form::Json {
            return self.output.text(json::to_line(&json::LogEntry::from(entry))).await;
        }
        let mut entry = entry;
        if let Some(stamps) = &mut self.stamps {
            stamps.put(&mut entry);
        }
        match entry.stream() {
            LogStream::Executor if self.form != Form::Silent => {
                let text = plain(String::from_utf8_lossy(&entry.data).trim_end());
                self.messages.push(text.clone());
                self.output.note(text);
            }
            LogStream::Stdout => self.bytes(Stream::Out, entry.data).await,
            LogStream::Stderr => self.bytes(Stream::Err, entry.data).await,
            LogStream::Executor | LogStream::Unspecified => {}
        }
    }

    /// Prints bytes that the process wrote to a stream.
    pub async fn bytes(&mut self, stream: Stream, bytes: Vec<u8>) {
        if let Some(kept) = &mut self.kept {
            kept.push(&bytes);
        }
        match self.form {
            Form::Silent => {}
            Form::AsItWas => self.output.bytes(stream, bytes).await,
            Form::OnStderr | Form::Json => self.output.bytes(Stream::Err, bytes).await,
        }
    }

    /// Warns that output exceeded the limits of the container's log. The printed output is complete.
    fn above_limits(&self, bytes: u64) {
        self.output.note(format!("{} not logged, because the container's log limits were exceeded", of_output(bytes)));
    }

    /// Reports that `bytes` of output are missing at this position.
    pub fn dropped(&mut self, bytes: u64, log_bytes_max: Option<u64>) {
        self.dropped += bytes;
        self.gaps += 1;
        let why = log_bytes_max.map(|max| format!(" (log_bytes_max is {})", grouped(max))).unwrap_or_default();
        self.output.note(format!("{} dropped before they could be read{why}", of_output(bytes)));
    }

    /// Reports the total of missing output, if there was more than one gap.
    fn sum_up(&self) {
        if self.gaps > 1 {
            self.output.note(format!("{} dropped in total, in {} places", of_output(self.dropped), grouped(self.gaps)));
        }
    }
}

/// The first bytes of a process's output.
struct Kept {
    bytes: Vec<u8>,
    bytes_max: usize,
    /// True after output beyond `bytes_max` was discarded.
    truncated: bool,
}

impl Kept {
    fn push(&mut self, data: &[u8]) {
        let room = self.bytes_max.saturating_sub(self.bytes.len());
        self.bytes.extend_from_slice(&data[..data.len().min(room)]);
        self.truncated |= data.len() > room;
    }

    fn into_bytes(mut self) -> Vec<u8> {
        if self.truncated {
            self.bytes.extend_from_slice(b"\n[the remaining output was not kept]\n");
        }
        self.bytes
    }
}

/// Returns the subject and verb of a message about missing output.
fn of_output(bytes: u64) -> String {
    if bytes == 1 { "1 byte of output was".into() } else { format!("{} bytes of output were", grouped(bytes)) }
}

/// Formats a number with commas between thousands.
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

/// Records for each stream whether its last line is unfinished; an entry that continues the line gets no timestamp.
#[derive(Debug, Default)]
struct Stamps {
    within: [bool; 2],
}

impl Stamps {
    /// Adds the timestamp to an entry if the entry begins a line.
    fn put(&mut self, entry: &mut StreamLogsResponse) {
        let ends = entry.data.ends_with(b"\n");
        let within = match entry.stream() {
            LogStream::Stdout => std::mem::replace(&mut self.within[0], !ends),
            LogStream::Stderr => std::mem::replace(&mut self.within[1], !ends),
            LogStream::Executor | LogStream::Unspecified => false,
        };
        if !within {
            let time = json::time(entry.time.as_ref());
            let stamp = format!("{} ", time.as_deref().unwrap_or("-"));
            entry.data.splice(0..0, stamp.into_bytes());
        }
    }
}

/// Prints a container's log until it ends.
///
/// # Errors
/// Returns an error if the container does not exist, or if executord is unavailable for too long.
pub async fn follow(client: &Client, request: StreamLogsRequest, printer: &mut Printer) -> Result<(), Failure> {
    let doing = format!("logs of {}", request.id);
    let mut log = client.logs(request);
    while let Some(entry) = log.next().await.doing(&doing)? {
        printer.print(entry).await;
    }
    printer.sum_up();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_output_notes_truncation_once() {
        let table: [(&[&str], &str); 5] = [
            (&["abc"], "abc"),
            (&["ab", "cd"], "abcd"),
            (&["abcd", ""], "abcd"),
            (&["abcd", "e", "f"], "abcd\n[the remaining output was not kept]\n"),
            (&["abcde"], "abcd\n[the remaining output was not kept]\n"),
        ];
        for (pushed, expected) in table {
            let mut kept = Kept { bytes: Vec::new(), bytes_max: 4, truncated: false };
            pushed.iter().for_each(|data| kept.push(data.as_bytes()));
            assert_eq!(String::from_utf8_lossy(&kept.into_bytes()), expected, "{pushed:?}");
        }
    }

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (117_440_512, "117,440,512")] {
            assert_eq!(grouped(number), text);
        }
    }
}
