//! Server side of a SPDY/3.1 connection, compatible with spdystream.

pub(crate) mod frame;
pub(crate) mod headers;

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::activity::Activity;
use crate::packet::Packet;
use crate::pipe::Input;
use frame::Head;
use headers::{Decoder, Headers};

/// Maximum number of input bytes per read.
const CHUNK: usize = 16 << 10;

/// Maximum number of chunks of one stream that wait for their handler.
const SLOTS: usize = 64;

/// Stream that the client opened or reset.
#[derive(Debug)]
pub(crate) enum Event {
    Opened { stream: u32, headers: Headers, input: Input },
    Reset { stream: u32 },
}

/// Reads the client's frames.
pub(crate) struct Reader<R> {
    io: R,
    /// Weak reference, so that the writer ends with the session, before the reader.
    queue: mpsc::WeakSender<Packet>,
    events: mpsc::Sender<Event>,
    activity: Activity,
    decoder: Decoder,
    inputs: HashMap<u32, mpsc::Sender<Bytes>>,
    last: u32,
    /// Maximum number of open streams.
    streams: usize,
    stall: Option<Duration>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(crate) fn new(
        io: R,
        queue: mpsc::WeakSender<Packet>,
        events: mpsc::Sender<Event>,
        activity: Activity,
        streams: usize,
        stall: Option<Duration>,
    ) -> Self {
        Self { io, queue, events, activity, decoder: Decoder::new(), inputs: HashMap::new(), last: 0, streams, stall }
    }

    /// Reads frames until the connection ends or a frame is malformed, and returns the reason.
    pub(crate) async fn run(mut self) -> io::Error {
        match self.frames().await {
            Ok(never) => match never {},
            Err(err) => err,
        }
    }

    /// Reads frames until the end of the connection or the first malformed frame.
    async fn frames(&mut self) -> io::Result<Infallible> {
        loop {
            let mut bytes = [0; frame::HEADER];
            self.io.read_exact(&mut bytes).await?;
            match frame::head(bytes).map_err(invalid)? {
                Head::Data { stream, fin, length } => self.data(stream, fin, length).await?,
                Head::Control { kind, fin, length } => {
                    let mut payload = vec![0; length];
                    self.io.read_exact(&mut payload).await?;
                    self.control(kind, fin, &payload).await?;
                }
            }
        }
    }

    async fn data(&mut self, stream: u32, fin: bool, mut length: usize) -> io::Result<()> {
        while length > 0 {
            let mut chunk = vec![0; length.min(CHUNK)];
            self.io.read_exact(&mut chunk).await?;
            self.activity.touch();
            length -= chunk.len();
            self.deliver(stream, chunk.into()).await;
        }
        if fin {
            self.inputs.remove(&stream);
        }
        Ok(())
    }

    /// Sends input to the handler of its stream. Input of a finished stream is discarded.
    async fn deliver(&mut self, stream: u32, chunk: Bytes) {
        let Some(input) = self.inputs.get(&stream) else { return };
        let sent = input.send(chunk);
        let stuck = match self.stall {
            None => {
                let _ = sent.await;
                false
            }
            Some(stall) => timeout(stall, sent).await.is_err(),
        };
        if stuck {
            self.inputs.remove(&stream);
            self.send(Packet::Reset { stream, status: frame::FLOW_CONTROL_ERROR }).await;
            let _ = self.events.send(Event::Reset { stream }).await;
        }
    }

    async fn control(&mut self, kind: u16, fin: bool, payload: &[u8]) -> io::Result<()> {
        const SHORT: &str = "truncated control frame";
        if kind != frame::PING {
            self.activity.touch();
        }
        match kind {
            frame::SYN_STREAM => {
                let stream = frame::word(payload, 0).ok_or_else(|| invalid(SHORT))? & 0x7fff_ffff;
                let block = payload.get(10..).ok_or_else(|| invalid(SHORT))?;
                let headers = self.decoder.decode(block).map_err(invalid)?;
                self.open(stream, fin, headers).await?;
            }
            frame::HEADERS => {
                let block = payload.get(4..).ok_or_else(|| invalid(SHORT))?;
                self.decoder.decode(block).map_err(invalid)?;
            }
            frame::RST_STREAM => {
                let stream = frame::word(payload, 0).ok_or_else(|| invalid(SHORT))?;
                self.inputs.remove(&stream);
                let _ = self.events.send(Event::Reset { stream }).await;
            }
            frame::PING => {
                let id = frame::word(payload, 0).ok_or_else(|| invalid(SHORT))?;
                // Even ids are replies to the server's pings.
                if id % 2 == 1 {
                    self.send(Packet::Ping { id }).await;
                }
            }
            // GOAWAY precedes the closing of the connection. SETTINGS and WINDOW_UPDATE are ignored.
            _ => {}
        }
        Ok(())
    }

    async fn open(&mut self, stream: u32, fin: bool, headers: Headers) -> io::Result<()> {
        if stream.is_multiple_of(2) || stream <= self.last {
            return Err(invalid("stream id is even or not increasing"));
        }
        self.last = stream;
        if self.inputs.len() >= self.streams {
            self.inputs.retain(|_, input| !input.is_closed());
        }
        if self.inputs.len() >= self.streams {
            self.send(Packet::Reset { stream, status: frame::REFUSED_STREAM }).await;
            return Ok(());
        }
        let (sender, input) = Input::new(SLOTS);
        if !fin {
            self.inputs.insert(stream, sender);
        }
        let _ = self.events.send(Event::Opened { stream, headers, input }).await;
        Ok(())
    }

    async fn send(&mut self, packet: Packet) {
        if let Some(queue) = self.queue.upgrade() {
            let _ = queue.send(packet).await;
        }
    }
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// Writes packets as frames until all senders are dropped. Does not close the connection.
pub(crate) async fn write<W: AsyncWrite + Unpin>(
    io: &mut W,
    mut packets: mpsc::Receiver<Packet>,
    activity: &Activity,
) -> io::Result<()> {
    let mut first = true;
    while let Some(packet) = packets.recv().await {
        let ping = matches!(packet, Packet::Ping { .. });
        let frame = match packet {
            Packet::Data { stream, bytes } => frame::data(stream, false, &bytes),
            Packet::Finish { stream } => frame::data(stream, true, &[]),
            Packet::Reset { stream, status } => frame::reset(stream, status),
            Packet::Ping { id } => frame::ping(id),
            Packet::Reply { stream } => frame::reply(stream, &headers::empty(std::mem::take(&mut first))),
        };
        io.write_all(&frame).await?;
        io.flush().await?;
        if !ping {
            activity.touch();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::QUEUE;

    /// Reads `bytes`, and returns the error that stopped the reader, the packets and the number of opened streams.
    async fn read(bytes: Vec<u8>, streams: usize) -> (io::Error, Vec<Packet>, usize) {
        let (queue, mut packets) = mpsc::channel(QUEUE);
        let (sender, mut events) = mpsc::channel(1);
        let activity = Activity::new(Duration::from_secs(60), None);
        let weak = queue.downgrade();
        let reader = Reader::new(&bytes[..], weak, sender, activity, streams, Some(Duration::from_millis(20)));
        let reading = async move {
            let err = reader.run().await;
            drop(queue);
            err
        };
        let sent = async {
            let mut sent = Vec::new();
            while let Some(packet) = packets.recv().await {
                sent.push(packet);
            }
            sent
        };
        // Inputs stay open and unread.
        let opened = async {
            let mut opened = Vec::new();
            while let Some(event) = events.recv().await {
                opened.extend(matches!(event, Event::Opened { .. }).then_some(event));
            }
            opened.len()
        };
        tokio::join!(reading, sent, opened)
    }

    fn control(kind: u16, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0x80, 3, 0, kind as u8];
        frame.extend_from_slice(&(payload.len() as u32).to_be_bytes());
        frame.extend_from_slice(payload);
        frame
    }

    /// Returns `SYN_STREAM` frames with increasing stream ids.
    fn opens(count: u32) -> Vec<u8> {
        let open = |index: u32| {
            let fixed = [(2 * index + 1).to_be_bytes(), [0; 4]].concat();
            control(frame::SYN_STREAM, &[&fixed[..], &[0, 0], &headers::empty(index == 0)].concat())
        };
        (0..count).flat_map(open).collect()
    }

    #[tokio::test]
    async fn floods_of_streams_are_refused() {
        let (err, packets, opened) = read(opens(10_000), 5).await;
        assert_eq!(err.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!((opened, packets.len()), (5, 9_995));
        assert_eq!(packets[0], Packet::Reset { stream: 11, status: frame::REFUSED_STREAM });
    }

    #[tokio::test]
    async fn floods_of_pings_are_answered() {
        let (_, packets, _) = read((0..10_000).flat_map(frame::ping).collect(), 5).await;
        assert_eq!(packets.len(), 5_000, "only odd ids are answered");
        assert_eq!(packets[0], Packet::Ping { id: 1 });
    }

    #[tokio::test]
    async fn stuck_input_resets_its_stream() {
        let mut bytes = opens(2);
        bytes.extend(frame::data(1, false, &vec![0; 2 << 20]));
        bytes.extend(frame::ping(9));
        let (err, packets, opened) = read(bytes, 5).await;
        assert_eq!(err.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(opened, 2);
        let reset = Packet::Reset { stream: 1, status: frame::FLOW_CONTROL_ERROR };
        assert_eq!(packets, [reset, Packet::Ping { id: 9 }]);
    }

    #[tokio::test]
    async fn bad_frames_end_the_connection() {
        let long = [0x80, 3, 0, 1, 0, 1, 0, 1].to_vec();
        let repeated = [opens(1), opens(1)].concat();
        let version = [0x80, 2, 0, 1, 0, 0, 0, 0].to_vec();
        let short = [frame::SYN_STREAM, frame::HEADERS, frame::RST_STREAM, frame::PING].map(|kind| control(kind, &[0]));
        for bytes in [long, repeated, version].into_iter().chain(short) {
            let (err, _, _) = read(bytes.clone(), 5).await;
            assert_eq!(err.kind(), io::ErrorKind::InvalidData, "{bytes:?}");
        }
    }

    #[tokio::test]
    async fn ignored_frames_change_nothing() {
        let mut bytes = control(4, &[0; 4]);
        bytes.extend(control(7, &[0; 8]));
        bytes.extend(control(9, &[0; 8]));
        bytes.extend(control(99, &[0; 100]));
        bytes.extend(frame::data(77, true, b"of no stream"));
        bytes.extend(frame::reset(77, frame::CANCEL));
        let (err, packets, opened) = read(bytes, 5).await;
        assert_eq!((err.kind(), packets.len(), opened), (io::ErrorKind::UnexpectedEof, 0, 0));
    }

    /// Random bytes, and valid frames with random changes, end the connection without a panic.
    #[tokio::test]
    async fn random_bytes_end_without_a_panic() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for round in 0..2_000 {
            let mut bytes = if round % 2 == 0 { opens(8) } else { (0..200).map(|_| random() as u8).collect() };
            for _ in 0..random() % 8 {
                let place = random() as usize % bytes.len();
                bytes[place] = random() as u8;
            }
            if bytes[0] & 0x80 != 0 && round % 4 == 1 {
                bytes[..8].copy_from_slice(&[0x80, 3, 0, random() as u8 % 10, 0, 0, 0, random() as u8]);
            }
            read(bytes, 5).await;
        }
    }
}
