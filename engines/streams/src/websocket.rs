//! WebSocket connections: the channels of exec and attach, and SPDY in binary messages.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::activity::Activity;
use crate::exec::{Ends, conduct, drive, send};
use crate::packet::{PAYLOAD, Packet, QUEUE};
use crate::pipe::{Input, Output, Resizes, resize};
use crate::status::Form;
use crate::{Connect, Handler, Limits, Process, Size, Wanted};

/// Protocols of exec and attach, newest first. Clients that name no protocol use the empty protocol.
pub(crate) const PROTOCOLS: [&str; 6] = [
    "v5.channel.k8s.io",
    "v4.channel.k8s.io",
    "v4.base64.channel.k8s.io",
    "channel.k8s.io",
    "base64.channel.k8s.io",
    "",
];

/// Protocol of port-forward.
pub(crate) const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";

/// Maximum size of a message, in bytes.
const MESSAGE: usize = 1 << 20;

/// Maximum number of messages for stdin that wait for the handler.
const SLOTS: usize = 4;

/// Time limit for sending the closing frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
/// Channel whose messages close another channel, since protocol v5.
const END: u8 = 255;

async fn accept<T: AsyncRead + AsyncWrite + Unpin>(io: T) -> WebSocketStream<T> {
    let config = WebSocketConfig::default()
        .read_buffer_size(PAYLOAD)
        .write_buffer_size(0)
        .max_write_buffer_size(4 * MESSAGE)
        .max_message_size(Some(MESSAGE))
        .max_frame_size(Some(MESSAGE));
    WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await
}

/// Serves exec or attach on an upgraded connection.
pub(crate) async fn serve<T: AsyncRead + AsyncWrite + Unpin>(
    io: T,
    wanted: Wanted,
    handler: Box<dyn Handler>,
    protocol: &str,
    activity: &Activity,
) -> io::Result<()> {
    let (mut sink, stream) = accept(io).await.split();
    let (queue, packets) = mpsc::channel(QUEUE);
    let base64 = protocol.contains("base64");
    let form = if protocol.starts_with('v') { Form::Json } else { Form::Text };
    let output = |wanted: bool, channel: u8| wanted.then(|| Output::new(channel.into(), &queue));
    let (stdout, stderr) = (output(wanted.stdout, STDOUT), output(wanted.stderr, STDERR));
    let mut process = Process { stdin: None, stdout, stderr, resizes: None };
    let mut channels = Channels { stdin: None, sizes: None, base64, ends: protocol == PROTOCOLS[0] };
    if wanted.stdin {
        let (sender, input) = Input::new(SLOTS);
        (channels.stdin, process.stdin) = (Some(sender), Some(input));
    }
    if wanted.tty {
        let (sender, resizes) = Resizes::new();
        (channels.sizes, process.resizes) = (Some(sender), Some(resizes));
    }
    let weak = queue.downgrade();
    let session = async move {
        // As in the kubelet, an empty message shows that the connection is established.
        let lowest = if wanted.stdout {
            STDOUT
        } else if wanted.stderr {
            STDERR
        } else {
            ERROR
        };
        send(&queue, Packet::Data { stream: lowest.into(), bytes: Bytes::new() }).await?;
        let ends = Ends { error: ERROR.into(), others: Vec::new() };
        conduct(handler, process, form, ends, &queue, std::future::pending()).await
    };
    drive(channels.read(stream, activity), session, write(&mut sink, packets, base64, activity), &weak, activity).await
}

async fn write<T: AsyncRead + AsyncWrite + Unpin>(
    sink: &mut SplitSink<WebSocketStream<T>, Message>,
    mut packets: mpsc::Receiver<Packet>,
    base64: bool,
    activity: &Activity,
) -> io::Result<()> {
    while let Some(packet) = packets.recv().await {
        // Only SPDY has the other packets. Channels end with the connection.
        let (stream, bytes) = match packet {
            Packet::Data { stream, bytes } => (stream, bytes),
            Packet::Ping { .. } => {
                sink.send(Message::Ping(Bytes::new())).await.map_err(from)?;
                continue;
            }
            _ => continue,
        };
        let channel = stream as u8;
        let message = if base64 {
            let mut text = char::from(b'0' + channel).to_string();
            STANDARD.encode_string(&bytes, &mut text);
            Message::text(text)
        } else {
            let mut message = Vec::with_capacity(1 + bytes.len());
            message.push(channel);
            message.extend_from_slice(&bytes);
            Message::binary(message)
        };
        sink.send(message).await.map_err(from)?;
        activity.touch();
    }
    let close = CloseFrame { code: CloseCode::Normal, reason: "".into() };
    sink.send(Message::Close(Some(close))).await.map_err(from)
}

fn from(err: Error) -> io::Error {
    match err {
        Error::Io(err) => err,
        Error::ConnectionClosed | Error::AlreadyClosed => io::ErrorKind::UnexpectedEof.into(),
        // The text of the error is omitted, because it could contain bytes of the client.
        _ => io::Error::new(io::ErrorKind::InvalidData, "malformed WebSocket message"),
    }
}

/// Destinations of the messages that the client sends on each channel.
struct Channels {
    stdin: Option<mpsc::Sender<Bytes>>,
    sizes: Option<watch::Sender<Option<Size>>>,
    base64: bool,
    /// True if the protocol has the channel [`END`].
    ends: bool,
}

impl Channels {
    /// Reads messages until the end of the connection or a malformed message.
    async fn read<T>(mut self, mut stream: SplitStream<WebSocketStream<T>>, activity: &Activity) -> io::Error
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        loop {
            let bytes = match stream.next().await {
                None => return io::ErrorKind::UnexpectedEof.into(),
                Some(Err(err)) => return from(err),
                Some(Ok(Message::Binary(bytes))) => bytes,
                Some(Ok(Message::Text(text))) => text.into(),
                // tungstenite replies to pings and close frames; the connection closes after a close frame.
                Some(Ok(_)) => continue,
            };
            activity.touch();
            if !self.receive(bytes).await {
                return io::Error::new(io::ErrorKind::InvalidData, "malformed channel message");
            }
        }
    }

    /// Passes a message to its channel. Returns false if the message is malformed.
    async fn receive(&mut self, mut message: Bytes) -> bool {
        let Some(&first) = message.first() else { return true };
        let payload = message.split_off(1);
        let (channel, payload) = if self.base64 {
            let Ok(bytes) = STANDARD.decode(&payload) else { return false };
            (first.wrapping_sub(b'0'), Bytes::from(bytes))
        } else {
            (first, payload)
        };
        match channel {
            STDIN => {
                if let Some(stdin) = &self.stdin
                    && !payload.is_empty()
                {
                    // A handler may drop its stdin; the bytes are discarded then.
                    let _ = stdin.send(payload).await;
                }
                true
            }
            RESIZE => {
                let Some(sizes) = &self.sizes else { return true };
                resize(&mut payload.to_vec(), sizes)
            }
            END if self.ends => {
                if payload.first() == Some(&STDIN) {
                    self.stdin = None;
                }
                true
            }
            _ => true,
        }
    }
}

/// Serves port-forward: binary messages carry the bytes of a SPDY connection.
pub(crate) async fn tunnel<T: AsyncRead + AsyncWrite + Unpin>(
    io: T,
    connect: Arc<dyn Connect>,
    limits: &Limits,
    activity: &Activity,
) -> io::Result<()> {
    let (mut sink, mut stream) = accept(io).await.split();
    let (near, far) = tokio::io::duplex(2 * PAYLOAD);
    let (mut from_spdy, mut to_spdy) = tokio::io::split(far);
    let inbound = async {
        while let Some(Ok(message)) = stream.next().await {
            match message {
                Message::Binary(bytes) if to_spdy.write_all(&bytes).await.is_ok() => {}
                Message::Ping(_) | Message::Pong(_) => {}
                _ => break,
            }
        }
        let _ = to_spdy.shutdown().await;
    };
    let outbound = async {
        let mut buffer = vec![0; PAYLOAD];
        loop {
            match from_spdy.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(length) => {
                    let message = Message::binary(buffer[..length].to_vec());
                    if sink.send(message).await.is_err() {
                        return;
                    }
                }
            }
        }
        let close = CloseFrame { code: CloseCode::Normal, reason: "".into() };
        let _ = timeout(CLOSE_TIMEOUT, sink.send(Message::Close(Some(close)))).await;
    };
    let (result, (), ()) = tokio::join!(crate::forward::serve(near, connect, limits, activity), inbound, outbound);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channels(base64: bool, ends: bool) -> (Channels, Input, Resizes) {
        let (stdin, input) = Input::new(SLOTS);
        let (sizes, resizes) = Resizes::new();
        (Channels { stdin: Some(stdin), sizes: Some(sizes), base64, ends }, input, resizes)
    }

    /// The first byte is the channel; since v5, channel 255 closes a channel.
    #[tokio::test]
    async fn messages_reach_their_channel() {
        let (mut channels, mut input, mut resizes) = channels(false, true);
        for message in [&b"\0hello"[..], b"\x04{\"Width\":80,\"Height\":24}", b"", b"\x09other", b"\xff\x01", b"\xff\0"]
        {
            assert!(channels.receive(Bytes::copy_from_slice(message)).await, "{message:?}");
        }
        assert_eq!(input.read().await.as_deref(), Some(&b"hello"[..]));
        assert_eq!(input.read().await, None);
        assert_eq!(resizes.next().await, Some(Size { width: 80, height: 24 }));
    }

    #[tokio::test]
    async fn base64_is_decoded_or_refused() {
        let (mut channels, mut input, _resizes) = channels(true, false);
        assert!(channels.receive(Bytes::from_static(b"0aGVsbG8=")).await);
        assert_eq!(input.read().await.as_deref(), Some(&b"hello"[..]));
        assert!(!channels.receive(Bytes::from_static(b"0?")).await);
    }

    #[tokio::test]
    async fn malformed_sizes_are_refused() {
        let (mut channels, _input, _resizes) = channels(false, false);
        assert!(!channels.receive(Bytes::from_static(b"\x04[]")).await);
        assert!(channels.receive(Bytes::from_static(b"\xff\0")).await, "no channel before v5");
        assert!(channels.stdin.is_some());
    }
}
