//! `logs [-f] ID`, and the following of logs for `run`: over restarts of executord, nothing twice, nothing lost.

use std::time::SystemTime;

use executor_proto::v1::{LogStream, StreamLogsRequest, StreamLogsResponse};
use prost_types::Timestamp;
use tokio::time::Instant;

use super::Session;
use crate::cli::LogsArgs;
use crate::connect::{Client, Patience, is_away};
use crate::failure::Failure;
use crate::output::{Output, Stream};
use crate::view::json;
use crate::view::table::plain;

pub(super) async fn logs(session: &Session, args: LogsArgs) -> Result<u8, Failure> {
    let form = if session.json { Form::Json } else { Form::AsItWas };
    let mut printer = Printer::new(session.output.clone(), form);
    let since = args.since.map(timestamp);
    let request = StreamLogsRequest { id: args.id, follow: args.follow, since };
    follow(&session.client, request, &mut printer).await?;
    Ok(0)
}

/// A time before 1970 asks for everything.
fn timestamp(time: SystemTime) -> Timestamp {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or_else(
        |_| Timestamp::default(),
        |since| Timestamp {
            seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            nanos: i32::try_from(since.subsec_nanos()).unwrap_or(0),
        },
    )
}

/// In which form log entries are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Each stream on its own, byte for byte.
    AsItWas,
    /// All of it on standard error, byte for byte: standard output belongs to a document.
    OnStderr,
    /// An object a line.
    Json,
    /// Not at all.
    Silent,
}

/// Prints log entries, and remembers what the executor itself said.
pub(super) struct Printer {
    output: Output,
    form: Form,
    pub(super) told: Vec<String>,
    /// What the process wrote, where it is to be kept, and how much of it at most.
    kept: Option<(Vec<u8>, usize)>,
}

impl Printer {
    pub(super) fn new(output: Output, form: Form) -> Self {
        Self { output, form, told: Vec::new(), kept: None }
    }

    /// Keeps what the process wrote, too, as far as it has room.
    pub(super) fn keeping(mut self, bytes_max: usize) -> Self {
        self.kept = Some((Vec::new(), bytes_max));
        self
    }

    /// What was kept. That there was more is said at its end.
    pub(super) fn into_kept(self) -> Vec<u8> {
        self.kept.map(|(kept, _)| kept).unwrap_or_default()
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
        if entry.stream() != LogStream::Executor {
            self.keep(&entry.data);
        }
        if self.form == Form::Silent {
            return;
        }
        if self.form == Form::Json {
            return self.output.text(json::line(&json::LogEntry::from(entry))).await;
        }
        match entry.stream() {
            LogStream::Executor => {
                let text = plain(String::from_utf8_lossy(&entry.data).trim_end());
                self.told.push(text.clone());
                self.output.note(text);
            }
            LogStream::Stdout if self.form == Form::AsItWas => self.output.bytes(Stream::Out, entry.data).await,
            _ => self.output.bytes(Stream::Err, entry.data).await,
        }
    }
}

/// Streams a container's log to its end.
pub(super) async fn follow(
    client: &Client,
    mut request: StreamLogsRequest,
    printer: &mut Printer,
) -> Result<(), Failure> {
    let doing = format!("logs of {}", request.id);
    let mut place = Place::default();
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
                            if place.is_new(entry.time.unwrap_or_default()) {
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
            return Err(Failure::GaveUp { doing, socket: client.socket().into() });
        }
        if let Some(time) = place.resume() {
            request.since = Some(time);
        }
    }
}

/// How far a log was read. Times may repeat, so the entries at the last one are counted.
#[derive(Debug, Default)]
struct Place {
    /// The latest time seen, and how many entries had it.
    last: Option<(i64, i32)>,
    count: u64,
    /// Entries at `last` to pass over after a resumption.
    repeated: u64,
}

impl Place {
    /// Takes note of the next entry: false when it was there before the resumption.
    fn is_new(&mut self, time: Timestamp) -> bool {
        let time = (time.seconds, time.nanos);
        match self.last {
            Some(last) if time == last && self.repeated > 0 => {
                self.repeated -= 1;
                return false;
            }
            Some(last) if time == last => self.count += 1,
            // A clock that was set back: the entry is new, the place stays where it is furthest.
            Some(last) if time < last => {}
            _ => {
                self.last = Some(time);
                self.count = 1;
                self.repeated = 0;
            }
        }
        true
    }

    /// Where to go on: entries at or after this time.
    fn resume(&mut self) -> Option<Timestamp> {
        self.repeated = self.count;
        self.last.map(|(seconds, nanos)| Timestamp { seconds, nanos })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: i32) -> Timestamp {
        Timestamp { seconds: 7, nanos }
    }

    /// Cuts a log at every place, resumes it there as a daemon would, and expects every entry once.
    #[test]
    fn nothing_twice_and_nothing_lost_wherever_it_breaks() {
        let log = [1, 1, 2, 3, 3, 3, 4];
        for first_cut in 0..=log.len() {
            for second_cut in 0..=log.len() {
                let mut place = Place::default();
                let mut seen = Vec::new();
                let mut from = None;
                for cut in [first_cut, second_cut, log.len()] {
                    let mut served = 0;
                    for &time in log.iter().filter(|time| from.is_none_or(|from| **time >= from)).take(cut) {
                        served += 1;
                        if place.is_new(at(time)) {
                            seen.push(time);
                        }
                    }
                    from = place.resume().map(|time| time.nanos);
                    assert!(served <= cut);
                }
                assert_eq!(seen, log, "cuts {first_cut} and {second_cut}");
            }
        }
    }

    #[test]
    fn a_clock_set_back_loses_no_entry() {
        let mut place = Place::default();
        for time in [5, 6, 2, 3, 6] {
            assert!(place.is_new(at(time)));
        }
        assert_eq!(place.resume(), Some(at(6)));
        // What a daemon has at or after 6, in the order of the log.
        assert_eq!([6, 6, 9].map(|time| place.is_new(at(time))), [false, false, true]);
    }
}
