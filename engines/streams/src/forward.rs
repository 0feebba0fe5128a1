//! Serves sessions of port-forward.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, interval, timeout};

use crate::activity::Activity;
use crate::exec::{drive, send};
use crate::packet::{PAYLOAD, Packet, QUEUE};
use crate::pipe::{Input, Output};
use crate::spdy::headers::Headers;
use crate::spdy::{self, Event, Reader, frame};
use crate::{Connect, Limits};

/// Protocol over SPDY.
pub(crate) const PROTOCOL: &str = "portforward.k8s.io";

/// Maximum number of events that wait for the session.
const EVENTS: usize = 16;

/// Time limit for shutting down the write half.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves port-forward on an upgraded SPDY connection. Returns when the client closes the connection.
pub(crate) async fn serve<T: AsyncRead + AsyncWrite>(
    io: T,
    connect: Arc<dyn Connect>,
    limits: &Limits,
    activity: &Activity,
) -> io::Result<()> {
    let (read, write) = tokio::io::split(io);
    let read = std::pin::pin!(read);
    let mut write = std::pin::pin!(write);
    let (queue, packets) = mpsc::channel(QUEUE);
    let (sender, events) = mpsc::channel(EVENTS);
    let stall = Some(limits.stall);
    let reader = Reader::new(read, queue.downgrade(), sender, activity.clone(), 2 * limits.pairs, stall).run();
    let weak = queue.downgrade();
    let session = Session { queue, connect, limits, halves: HashMap::new(), resets: HashMap::new() }.run(events);
    let result = drive(reader, session, spdy::write(&mut write, packets, activity), &weak, activity).await;
    let _ = timeout(SHUTDOWN_TIMEOUT, write.shutdown()).await;
    result
}

/// First stream of a pair, which waits for the second stream.
struct Half {
    stream: u32,
    data: bool,
    port: u16,
    input: Input,
    since: Instant,
}

struct Session<'a> {
    queue: mpsc::Sender<Packet>,
    connect: Arc<dyn Connect>,
    limits: &'a Limits,
    halves: HashMap<String, Half>,
    /// Senders that end the pair of a data stream when the client resets the stream.
    resets: HashMap<u32, oneshot::Sender<()>>,
}

impl Session<'_> {
    async fn run(mut self, mut events: mpsc::Receiver<Event>) -> io::Result<()> {
        // The set aborts the connections when it is dropped.
        let mut pairs = JoinSet::new();
        let mut expiry = interval(self.limits.streams.max(Duration::from_millis(10)) / 10);
        loop {
            tokio::select! {
                event = events.recv() => match event {
                    Some(Event::Opened { stream, headers, input }) => {
                        self.open(stream, &headers, input, &mut pairs).await?;
                    }
                    Some(Event::Reset { stream }) => {
                        self.resets.remove(&stream);
                        self.halves.retain(|_, half| half.stream != stream);
                    }
                    None => return Ok(()),
                },
                Some(finished) = pairs.join_next() => {
                    if let Ok(stream) = finished {
                        self.resets.remove(&stream);
                    }
                }
                _ = expiry.tick() => self.expire().await?,
            }
        }
    }

    async fn open(&mut self, stream: u32, headers: &Headers, input: Input, pairs: &mut JoinSet<u32>) -> io::Result<()> {
        let Some((data, port, id)) = parse(stream, headers) else {
            return send(&self.queue, Packet::Reset { stream, status: frame::PROTOCOL_ERROR }).await;
        };
        if self.halves.get(&id).is_some_and(|half| half.data == data || half.port != port) {
            return send(&self.queue, Packet::Reset { stream, status: frame::PROTOCOL_ERROR }).await;
        }
        let first = self.halves.remove(&id);
        if first.is_none() && pairs.len() + self.halves.len() >= self.limits.pairs {
            return send(&self.queue, Packet::Reset { stream, status: frame::REFUSED_STREAM }).await;
        }
        send(&self.queue, Packet::Reply { stream }).await?;
        let second = Half { stream, data, port, input, since: Instant::now() };
        let Some(first) = first else {
            self.halves.insert(id, second);
            return Ok(());
        };
        let (data, error) = if data { (second, first) } else { (first, second) };
        let (reset, was_reset) = oneshot::channel();
        self.resets.insert(data.stream, reset);
        pairs.spawn(pair(Arc::clone(&self.connect), data, error.stream, self.queue.clone(), was_reset));
        Ok(())
    }

    /// Resets streams whose pair has been incomplete for longer than the limit.
    async fn expire(&mut self) -> io::Result<()> {
        let limit = self.limits.streams;
        let expired: Vec<String> =
            self.halves.iter().filter(|(_, half)| half.since.elapsed() >= limit).map(|(id, _)| id.clone()).collect();
        for id in expired {
            if let Some(Half { stream, .. }) = self.halves.remove(&id) {
                send(&self.queue, Packet::Reset { stream, status: frame::CANCEL }).await?;
            }
        }
        Ok(())
    }
}

/// Parses the headers of a stream. Returns true for the data stream of a pair (false for the error stream), the port
/// number and the pair's id.
fn parse(stream: u32, headers: &Headers) -> Option<(bool, u16, String)> {
    let data = match headers.get("streamtype")?.as_str() {
        "data" => true,
        "error" => false,
        _ => return None,
    };
    let port = headers.get("port")?.parse().ok().filter(|port| *port > 0)?;
    // Old clients send no id; their data stream follows the error stream.
    let id = match headers.get("requestid") {
        Some(id) if !id.is_empty() => id.clone(),
        _ => format!("stream {}", if data { stream.saturating_sub(2) } else { stream }),
    };
    Some((data, port, id))
}

/// Result of the connection of a port-forward pair.
enum End {
    Finished,
    /// The port refused or reset the connection, or the client reset the stream.
    Reset,
    Failed(io::Error),
}

/// Connects to the port and copies bytes in both directions. Returns the id of the data stream.
async fn pair(
    connect: Arc<dyn Connect>,
    data: Half,
    error: u32,
    queue: mpsc::Sender<Packet>,
    was_reset: oneshot::Receiver<()>,
) -> u32 {
    let Half { stream, port, input, .. } = data;
    let end = tokio::select! {
        end = copy(connect, port, input, Output::new(stream, &queue)) => end,
        _ = was_reset => End::Reset,
    };
    let mut packets = Vec::new();
    match end {
        End::Finished => packets.push(Packet::Finish { stream }),
        // No message, because clients such as kubectl end the whole session after a message.
        End::Reset => packets.push(Packet::Reset { stream, status: frame::CANCEL }),
        End::Failed(err) => {
            packets.push(Packet::Finish { stream });
            let bytes = Bytes::from(format!("error forwarding port {port}: {err}"));
            packets.push(Packet::Data { stream: error, bytes });
        }
    }
    packets.push(Packet::Finish { stream: error });
    for packet in packets {
        if queue.send(packet).await.is_err() {
            break;
        }
    }
    stream
}

async fn copy(connect: Arc<dyn Connect>, port: u16, mut input: Input, mut output: Output) -> End {
    let connection = match connect.connect(port).await {
        Ok(connection) => connection,
        Err(err) if is_reset(&err) => return End::Reset,
        Err(err) => return End::Failed(err),
    };
    let (mut read, mut write) = tokio::io::split(connection);
    let up = async {
        while let Some(bytes) = input.read().await {
            if write.write_all(&bytes).await.is_err() {
                break;
            }
        }
        let _ = write.shutdown().await;
        // Further input would have no reader.
        drop(input);
        std::future::pending::<()>().await;
    };
    let down = async {
        let mut buffer = vec![0; PAYLOAD];
        loop {
            match read.read(&mut buffer).await {
                Ok(0) => return End::Finished,
                Ok(length) => {
                    if output.write(&buffer[..length]).await.is_err() {
                        return End::Finished;
                    }
                }
                Err(_) => return End::Reset,
            }
        }
    };
    tokio::select! {
        end = down => end,
        () = up => End::Finished,
    }
}

fn is_reset(err: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(err.kind(), BrokenPipe | ConnectionAborted | ConnectionRefused | ConnectionReset)
}
