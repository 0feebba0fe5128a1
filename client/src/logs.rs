//! A container's log, followed across restarts of executord. No entry is repeated, and dropped entries are reported as
//! a gap.

use executor_proto::v1::{LogStream, StreamLogsRequest, StreamLogsResponse};
use tokio::time::Instant;
use tonic::Streaming;

use crate::connect::Client;
use crate::error::Error;
use crate::retry::{Patience, is_away};

/// Stream of log entries.
pub struct Logs {
    client: Client,
    request: StreamLogsRequest,
    place: Place,
    patience: Patience,
    stream: Option<Streaming<StreamLogsResponse>>,
}

impl Client {
    /// Reads a container's log. With `follow`, the stream ends when the container is completed.
    pub fn logs(&self, request: StreamLogsRequest) -> Logs {
        let place = Place { offset: request.offset.unwrap_or(0), sequence: 0 };
        Logs { client: self.clone(), request, place, patience: self.patience(), stream: None }
    }
}

impl Logs {
    /// Returns the next entry or gap, or `None` at the end of the log. This method is cancel safe.
    ///
    /// # Errors
    /// Returns an error if there is no such container or executord is unavailable for too long.
    pub async fn next(&mut self) -> Result<Option<StreamLogsResponse>, Error> {
        loop {
            let begun = Instant::now();
            let broken = match self.entry().await {
                Ok(Some(entry)) => {
                    self.patience.reset();
                    match self.place.pass(&entry) {
                        true => return Ok(Some(entry)),
                        false => continue,
                    }
                }
                Ok(None) => return Ok(None),
                Err(status) => status,
            };
            self.stream = None;
            self.client.await_return(&mut self.patience, begun, &broken, is_away).await?;
            if self.place.sequence > 0 || self.place.offset > 0 {
                self.request.offset = Some(self.place.offset);
                // `tail` and `from_sequence` select the start for the first connection only.
                (self.request.tail, self.request.from_sequence) = (None, None);
            }
        }
    }

    async fn entry(&mut self) -> Result<Option<StreamLogsResponse>, tonic::Status> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => none.insert(self.client.rpc().stream_logs(self.request.clone()).await?.into_inner()),
        };
        stream.message().await
    }
}

/// Position in a log after the last entry that was read.
#[derive(Debug, Default)]
struct Place {
    /// Offset in the process's output, in bytes.
    offset: u64,
    /// Sequence number of the last entry.
    sequence: u64,
}

impl Place {
    /// Advances past an entry or a gap. Returns false if the entry was already read: if a request has an offset,
    /// executord repeats its own messages at that offset.
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
    use executor_proto::v1::LogGap;

    use super::*;

    /// A log that is cut at any position and resumed there yields every entry once.
    #[test]
    fn log_resume_neither_repeats_nor_loses_entries() {
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
    fn gap_and_entry_advance_position_once() {
        let mut place = Place::default();
        let gap = Some(LogGap { dropped_bytes: 100, dropped_entries: 3, log_bytes_max: 9, above_limits: false });
        assert!(place.pass(&StreamLogsResponse { gap, offset: 7, ..Default::default() }));
        assert_eq!((place.offset, place.sequence), (107, 0));
        let entry = StreamLogsResponse { sequence: 4, offset: 107, data: vec![0; 3], ..Default::default() };
        assert!(place.pass(&entry) && !place.pass(&entry));
        assert_eq!(place.offset, 110);
    }
}
