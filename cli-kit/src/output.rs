//! Standard output and standard error, written by a separate thread.
//!
//! A write can block on a slow reader (`| less`), and must not block the handling of signals and of the daemon's
//! responses. Therefore async code sends bytes to a queue and waits only while too many pieces are queued. Bytes are
//! written unchanged, unbuffered and in order. Notes of the program itself are queued without waiting. After the first
//! failed write, further output of the process is discarded, and [`Output::failed`] returns.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, poll};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use crate::failure::Failure;

/// True after something was written to standard output.
static WRITTEN: AtomicBool = AtomicBool::new(false);

/// Returns true if something was written to standard output.
pub fn has_written() -> bool {
    WRITTEN.load(Ordering::Relaxed)
}

/// Prints the result of a command that has no [`Output`], and waits until it is written.
///
/// # Errors
/// Returns an error if the reader closed the output, or if the write failed.
pub fn print(text: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_ref()).and_then(|()| out.flush()).map_err(|source| match source.kind() {
        io::ErrorKind::BrokenPipe => Failure::ClosedPipe,
        _ => Failure::Output { stream: "standard output", source },
    })
}

/// Maximum number of queued pieces; a log entry has at most 60 KiB.
const WAITING_MAX: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Out,
    Err,
}

impl Stream {
    fn name(self) -> &'static str {
        match self {
            Self::Out => "standard output",
            Self::Err => "standard error",
        }
    }
}

enum Message {
    Bytes(Stream, Vec<u8>, Option<OwnedSemaphorePermit>),
    Note(String),
    Flush(oneshot::Sender<()>),
}

#[derive(Debug)]
struct Broken {
    stream: Stream,
    error: io::Error,
}

/// A handle to the writing thread; cheap to clone.
#[derive(Clone)]
pub struct Output {
    queue: mpsc::UnboundedSender<Message>,
    room: Arc<Semaphore>,
    broken: watch::Receiver<Option<Arc<Broken>>>,
}

impl Output {
    /// Starts the writing thread.
    ///
    /// `program` is the prefix of notes.
    pub fn start(program: &'static str) -> io::Result<Self> {
        let out = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let err = File::from(io::stderr().as_fd().try_clone_to_owned()?);
        let (queue, messages) = mpsc::unbounded_channel();
        let (report, broken) = watch::channel(None);
        std::thread::Builder::new()
            .name("output".into())
            .spawn(move || write_all(program, out, err, messages, &report))?;
        Ok(Self { queue, room: Arc::new(Semaphore::new(WAITING_MAX)), broken })
    }

    /// Writes bytes unchanged. Waits while too many pieces are queued.
    pub async fn bytes(&self, stream: Stream, bytes: Vec<u8>) {
        // The semaphore is never closed, so a permit is always acquired.
        let permit = Arc::clone(&self.room).acquire_owned().await.ok();
        self.send(Message::Bytes(stream, bytes, permit));
    }

    /// Writes text to standard output.
    pub async fn text(&self, text: String) {
        self.bytes(Stream::Out, text.into_bytes()).await;
    }

    /// Prints a note of this program on its own line of standard error.
    pub fn note(&self, text: impl Into<String>) {
        self.send(Message::Note(text.into()));
    }

    fn send(&self, message: Message) {
        // The thread runs until the last handle is dropped, so the channel is open.
        let _ = self.queue.send(message);
    }

    /// Waits until a write has failed.
    pub async fn failed(&self) {
        let mut broken = self.broken.clone();
        if broken.wait_for(Option::is_some).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until all queued output is written.
    pub async fn finish(&self) -> Result<(), Failure> {
        let (done, written) = oneshot::channel();
        self.send(Message::Flush(done));
        let _ = written.await;
        self.result()
    }

    /// Returns an error if any output so far could not be written.
    pub fn result(&self) -> Result<(), Failure> {
        match &*self.broken.borrow() {
            None => Ok(()),
            Some(broken) if broken.error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::ClosedPipe),
            Some(broken) => {
                let source = broken
                    .error
                    .raw_os_error()
                    .map_or_else(|| io::Error::from(broken.error.kind()), io::Error::from_raw_os_error);
                Err(Failure::Output { stream: broken.stream.name(), source })
            }
        }
    }
}

fn write_all(
    program: &str,
    mut out: File,
    mut err: File,
    mut messages: mpsc::UnboundedReceiver<Message>,
    report: &watch::Sender<Option<Arc<Broken>>>,
) {
    // A note begins on a new line, even if the last line of the process is unfinished.
    let mut at_line_start = true;
    let mut broken = false;
    while let Some(message) = messages.blocking_recv() {
        match message {
            Message::Flush(done) => {
                let _ = done.send(());
            }
            Message::Note(text) => {
                let newline = if at_line_start { "" } else { "\n" };
                // A failure to write to standard error cannot be reported.
                let _ = write_one(&mut err, format!("{newline}{program}: {text}\n").as_bytes());
                at_line_start = true;
            }
            Message::Bytes(..) if broken => {}
            Message::Bytes(stream, bytes, _room) => {
                let file = if stream == Stream::Out { &mut out } else { &mut err };
                WRITTEN.fetch_or(stream == Stream::Out && !bytes.is_empty(), Ordering::Relaxed);
                if let Err(error) = write_one(file, &bytes) {
                    broken = true;
                    report.send_replace(Some(Arc::new(Broken { stream, error })));
                }
                if stream == Stream::Err {
                    at_line_start = bytes.last().is_none_or(|last| *last == b'\n');
                }
            }
        }
    }
}

/// Writes all bytes, even if another process made the descriptor non-blocking.
fn write_one(file: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut ready = [PollFd::new(file, PollFlags::OUT)];
                match poll(&mut ready, None) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_nonblocking_pipe_is_waited_for() {
        let (mut reader, writer) = io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        let mut file = File::from(std::os::fd::OwnedFd::from(writer));
        let sent: Vec<u8> = (0..300_000u32).map(|n| n as u8).collect();
        let expected = sent.clone();
        let thread = std::thread::spawn(move || write_one(&mut file, &sent));
        let mut read = Vec::new();
        io::Read::read_to_end(&mut reader, &mut read).unwrap();
        thread.join().unwrap().unwrap();
        assert!(read == expected);
    }
}
