//! Printing a container's log. Output that was dropped before it could be read is told.

use executor_client::v1::{LogGap, LogStream, StreamLogsRequest, StreamLogsResponse};

use crate::connect::Client;
use crate::failure::Failure;
use crate::output::{Output, Stream};
use crate::status::ErrorContext as _;
use crate::text::plain;
use crate::view::json;

/// Form in which log entries are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Separate streams, byte for byte.
    AsItWas,
    /// Standard error for all output, byte for byte: standard output belongs to a document.
    OnStderr,
    /// A JSON object per line.
    Json,
    /// No output.
    Silent,
}

/// Prints the output of a process, and keeps the messages of the executor itself.
pub struct Printer {
    output: Output,
    form: Form,
    /// Messages of the executor.
    pub messages: Vec<String>,
    /// Bytes of output that are missing.
    pub dropped: u64,
    /// Number of places where output is missing.
    gaps: u64,
    /// Times are written in front of lines.
    stamps: Option<Stamps>,
    /// Output of the process that is kept, with the most bytes to keep.
    kept: Option<(Vec<u8>, usize)>,
}

impl Printer {
    pub fn new(output: Output, form: Form) -> Self {
        Self { output, form, messages: Vec::new(), dropped: 0, gaps: 0, stamps: None, kept: None }
    }

    /// Keeps what the process wrote, too, as far as it has room.
    pub fn keeping(mut self, bytes_max: usize) -> Self {
        self.kept = Some((Vec::new(), bytes_max));
        self
    }

    /// Returns the kept output. If there was more, its end says so.
    pub fn into_kept(self) -> Vec<u8> {
        self.kept.map(|(kept, _)| kept).unwrap_or_default()
    }

    /// Writes times in front of lines.
    pub fn with_times(mut self) -> Self {
        self.stamps = Some(Stamps::default());
        self
    }

    fn push(&mut self, data: &[u8]) {
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
        match entry.gap {
            Some(LogGap { dropped_bytes, above_limits: true, .. }) => self.above_limits(dropped_bytes),
            Some(LogGap { dropped_bytes, log_bytes_max, .. }) => self.dropped(dropped_bytes, Some(log_bytes_max)),
            None => {}
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
                self.messages.push(text.clone());
                self.output.note(text);
            }
            LogStream::Stdout => self.bytes(Stream::Out, entry.data).await,
            LogStream::Stderr => self.bytes(Stream::Err, entry.data).await,
            LogStream::Executor | LogStream::Unspecified => {}
        }
    }

    /// Prints what the process wrote.
    pub async fn bytes(&mut self, stream: Stream, bytes: Vec<u8>) {
        self.push(&bytes);
        match self.form {
            Form::Silent => {}
            Form::AsItWas => self.output.bytes(stream, bytes).await,
            Form::OnStderr | Form::Json => self.output.bytes(Stream::Err, bytes).await,
        }
    }

    /// Says that output was above the limits of the container's log. It was asked for: nothing is lost.
    fn above_limits(&self, bytes: u64) {
        self.output.note(format!("{} not kept: above the container's log limits", of_output(bytes)));
    }

    /// Says that output is missing here.
    pub fn dropped(&mut self, bytes: u64, log_bytes_max: Option<u64>) {
        self.dropped += bytes;
        self.gaps += 1;
        let why = log_bytes_max.map(|max| format!(" (log_bytes_max is {})", grouped(max))).unwrap_or_default();
        self.output.note(format!("{} dropped before they could be read{why}", of_output(bytes)));
    }

    /// Says how much output is missing in all, where more than one place was told.
    fn sum_up(&self) {
        if self.gaps > 1 {
            self.output.note(format!("{} dropped in all, in {} places", of_output(self.dropped), grouped(self.gaps)));
        }
    }
}

/// Subject and verb of a message about missing output.
fn of_output(bytes: u64) -> String {
    if bytes == 1 { "1 byte of output was".into() } else { format!("{} bytes of output were", grouped(bytes)) }
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

/// Prints a container's log to its end.
///
/// # Errors
/// Fails if the container does not exist, or executord is away for too long.
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
    fn numbers_are_grouped() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (117_440_512, "117,440,512")] {
            assert_eq!(grouped(number), text);
        }
    }
}
