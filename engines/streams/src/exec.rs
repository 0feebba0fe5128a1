//! Serves sessions of exec and attach.

use std::future::Future;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::activity::Activity;
use crate::packet::{Packet, QUEUE};
use crate::pipe::{Input, Output, Resizes, resize};
use crate::spdy::{self, Event, Reader, frame};
use crate::status::{Form, content};
use crate::{Handler, Limits, Process, Wanted};

/// Maximum wait for the client to close its connection after the status.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval of the pings that detect exited clients.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// Protocols over SPDY, newest first.
pub(crate) const PROTOCOLS: [&str; 4] =
    ["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"];

/// Maximum number of streams of a session: stdin, stdout, stderr, error and resize.
const STREAMS: usize = 5;

/// Runs a session with the frames of its connection, until the session ends or the client disconnects.
///
/// `reader` ends with the connection. `writer` ends when the session has dropped its queue.
pub(crate) async fn drive(
    reader: impl Future<Output = io::Error>,
    session: impl Future<Output = io::Result<()>>,
    writer: impl Future<Output = io::Result<()>>,
    queue: &mpsc::WeakSender<Packet>,
    activity: &Activity,
) -> io::Result<()> {
    tokio::pin!(reader);
    let work = async { tokio::try_join!(session, writer) };
    tokio::select! {
        err = &mut reader => return Err(err),
        () = ping(queue) => return Ok(()),
        () = activity.ended() => return Err(io::ErrorKind::TimedOut.into()),
        result = work => result?,
    };
    // The kernel discards unread output of a connection that is closed with unread input.
    let _ = timeout(CLOSE_TIMEOUT, &mut reader).await;
    Ok(())
}

/// Sends pings to detect a client that has exited while its input is blocked. The FIN is queued behind the unread
/// input, but the client's kernel answers a later packet with a reset.
async fn ping(queue: &mpsc::WeakSender<Packet>) {
    let mut id = 0;
    loop {
        sleep(PING_INTERVAL).await;
        id += 2;
        if let Some(queue) = queue.upgrade() {
            // A full queue has other packets, which detect an exited client as a ping does.
            let _ = queue.try_send(Packet::Ping { id });
        }
    }
}

/// Serves exec or attach on an upgraded SPDY connection.
pub(crate) async fn serve<T: AsyncRead + AsyncWrite>(
    io: T,
    wanted: Wanted,
    handler: Box<dyn Handler>,
    protocol: &str,
    limits: &Limits,
    activity: &Activity,
) -> io::Result<()> {
    let (read, write) = tokio::io::split(io);
    tokio::pin!(read);
    let (queue, packets) = mpsc::channel(QUEUE);
    let (sender, events) = mpsc::channel(STREAMS);
    let reader = Reader::new(read, queue.downgrade(), sender, activity.clone(), STREAMS, None).run();
    let weak = queue.downgrade();
    let session = session(queue, events, wanted, handler, protocol, limits);
    let mut write = std::pin::pin!(write);
    let result = drive(reader, session, spdy::write(&mut write, packets, activity), &weak, activity).await;
    let _ = timeout(CLOSE_TIMEOUT, write.shutdown()).await;
    result
}

async fn session(
    queue: mpsc::Sender<Packet>,
    mut events: mpsc::Receiver<Event>,
    wanted: Wanted,
    handler: Box<dyn Handler>,
    protocol: &str,
    limits: &Limits,
) -> io::Result<()> {
    let resizes = wanted.tty && matches!(protocol, "v3.channel.k8s.io" | "v4.channel.k8s.io");
    let form = if protocol == PROTOCOLS[0] { Form::Json } else { Form::Text };
    let mut opened = Opened::default();
    let complete = async {
        while !opened.complete(wanted, resizes) {
            match events.recv().await {
                Some(Event::Opened { stream, headers, input }) => {
                    let name = headers.get("streamtype").map_or("", String::as_str);
                    let packet = if opened.insert(name, stream, input, wanted, resizes) {
                        Packet::Reply { stream }
                    } else {
                        Packet::Reset { stream, status: frame::PROTOCOL_ERROR }
                    };
                    send(&queue, packet).await?;
                }
                Some(Event::Reset { .. }) => {}
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        io::Result::Ok(())
    };
    timeout(limits.streams, complete).await??;
    let Opened { stdin, stdout, stderr, error, resize } = opened;
    let error = error.map_or(0, |(stream, _)| stream);
    let all = [&stdin, &stdout, &stderr, &resize].into_iter().flatten().map(|(stream, _)| *stream).collect();
    let output = |stream: Option<(u32, Input)>| stream.map(|(stream, _)| Output::new(stream, &queue));
    let mut process = Process { stdin: None, stdout: output(stdout), stderr: output(stderr), resizes: None };
    process.stdin = stdin.map(|(_, input)| input);
    let sizes = resize.map(|(_, input)| {
        let (sender, resizes) = Resizes::new();
        process.resizes = Some(resizes);
        (input, sender)
    });
    let background = async {
        let resizing = async {
            if let Some((input, sender)) = sizes {
                forward_sizes(input, &sender).await;
            }
        };
        let refusing = async {
            while let Some(event) = events.recv().await {
                if let Event::Opened { stream, .. } = event {
                    let _ = queue.send(Packet::Reset { stream, status: frame::REFUSED_STREAM }).await;
                }
            }
        };
        tokio::join!(resizing, refusing);
    };
    conduct(handler, process, form, Ends { error, others: all }, &queue, background).await
}

async fn forward_sizes(mut input: Input, sender: &tokio::sync::watch::Sender<Option<crate::Size>>) {
    let mut buffer = Vec::new();
    while let Some(bytes) = input.read().await {
        buffer.extend_from_slice(&bytes);
        if !resize(&mut buffer, sender) {
            return;
        }
    }
}

/// Streams that the server finishes at the end of a session.
pub(crate) struct Ends {
    pub(crate) error: u32,
    pub(crate) others: Vec<u32>,
}

/// Runs the handler while polling `background`.
///
/// Afterwards, finishes the other streams, sends the status, and finishes the error stream.
pub(crate) async fn conduct(
    handler: Box<dyn Handler>,
    process: Process,
    form: Form,
    ends: Ends,
    queue: &mpsc::Sender<Packet>,
    background: impl Future<Output = ()>,
) -> io::Result<()> {
    let background = async {
        background.await;
        std::future::pending::<()>().await;
    };
    let outcome = tokio::select! {
        outcome = handler.run(process) => outcome,
        () = background => return Ok(()),
    };
    for stream in ends.others {
        send(queue, Packet::Finish { stream }).await?;
    }
    let status = content(&outcome, form);
    if !status.is_empty() {
        send(queue, Packet::Data { stream: ends.error, bytes: Bytes::from(status) }).await?;
    }
    send(queue, Packet::Finish { stream: ends.error }).await
}

pub(crate) async fn send(queue: &mpsc::Sender<Packet>, packet: Packet) -> io::Result<()> {
    queue.send(packet).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
}

/// Streams that the client of an exec or attach session has opened.
#[derive(Default)]
struct Opened {
    stdin: Option<(u32, Input)>,
    stdout: Option<(u32, Input)>,
    stderr: Option<(u32, Input)>,
    error: Option<(u32, Input)>,
    resize: Option<(u32, Input)>,
}

impl Opened {
    /// Adds a stream. Returns false if the stream is not requested or is already open.
    fn insert(&mut self, name: &str, stream: u32, input: Input, wanted: Wanted, resizes: bool) -> bool {
        let (slot, requested) = match name {
            "stdin" => (&mut self.stdin, wanted.stdin),
            "stdout" => (&mut self.stdout, wanted.stdout),
            "stderr" => (&mut self.stderr, wanted.stderr),
            "error" => (&mut self.error, true),
            "resize" => (&mut self.resize, resizes),
            _ => return false,
        };
        let free = requested && slot.is_none();
        if free {
            *slot = Some((stream, input));
        }
        free
    }

    fn complete(&self, wanted: Wanted, resizes: bool) -> bool {
        self.error.is_some()
            && self.stdin.is_some() == wanted.stdin
            && self.stdout.is_some() == wanted.stdout
            && self.stderr.is_some() == wanted.stderr
            && self.resize.is_some() == resizes
    }
}
