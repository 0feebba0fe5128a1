//! The output of a container, masked, into its log file.
//!
//! Secrets are masked before a byte leaves this process (see [`super::redaction`]). What may be the beginning of one is
//! held back until it is decided, or until nothing came for a moment.
//!
//! The file is bounded: at its limit it becomes `log.1` and a new one begins, which says how much came before it. A file
//! has its name only when its owner and mode are right: executord opens it at any time. A disk that is full loses output
//! and says so in the log when there is room again; it never stops the container. What attached clients get does not go
//! through the file (see [`super::attach`]).

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use executor_core::loglimit::{Decision, LogLimiter};
use executor_core::logline::{CHUNK_MAX, Entry, Missing, Place, Stream, split, whole_characters, write, write_place};
use executor_core::plan::{Plan, PlannedProcess};
use executor_core::protocol::{Attach, Reason, Refused};
use executor_core::usage::LogUsage;
use executor_secrets::redact;
use executor_sys::events::Events;
use rustix::fs::{Gid, Mode, OFlags, Uid, fchown};
use rustix::pipe::{PipeFlags, pipe_with};

use super::attach::{Attached, Sink};
use super::redaction::Masking;
use crate::dirs::Dirs;
use crate::errors::plain;
use crate::finish::now;
use crate::log::{self, Level};

/// After this long without output, what was held back is written. Long enough for the parts of one line that a
/// program writes one by one, short for somebody who follows the log.
const IDLE: Duration = Duration::from_millis(200);

/// The container's output on its way.
pub(crate) struct Log {
    id: String,
    dirs: Dirs,
    path: PathBuf,
    file: File,
    /// Bytes of the file, and how many of them tell where it begins.
    size: u64,
    header: u64,
    size_max: u64,
    /// Place of the log's end in the whole of the output.
    place: Place,
    source: Rc<Source>,
    pipes: Vec<Pipe>,
    attached: Attached,
    terminal: bool,
    stdin: bool,
    masking: Masking,
    /// Bytes that could not be written, and are not told yet.
    lost: u64,
    usage: LogUsage,
    /// Limits on the rate at which output is kept, if there are any.
    limiter: Option<LogLimiter>,
    begun: Instant,
    /// True when output was dropped since the last line, and no line tells the place yet.
    untold: bool,
}

/// What output is marked with.
#[derive(Default)]
struct Source {
    name: String,
    /// The output is not kept.
    suppressed: bool,
}

/// An output of the container.
struct Pipe {
    stream: Stream,
    source: Rc<Source>,
    /// Index of the process that it belongs to, in a tree of actions.
    process: Option<usize>,
    file: File,
    masked: redact::Stream,
    /// The beginning of a character whose rest has not come yet. Clients have it already.
    torn: Vec<u8>,
    /// Time when what is held back goes out, if nothing comes.
    flush_at: Option<Instant>,
    /// The end of the pipe was read: this is dropped after the turn.
    ended: bool,
}

impl Source {
    fn from_process(process: &PlannedProcess) -> Rc<Self> {
        Rc::new(Self { name: process.log_source.clone(), suppressed: process.suppress_log_output })
    }
}

impl Pipe {
    fn new(stream: Stream, source: &Rc<Source>, process: Option<usize>, file: File) -> Self {
        let (source, masked) = (Rc::clone(source), redact::Stream::default());
        Self { stream, source, process, file, masked, torn: Vec::new(), flush_at: None, ended: false }
    }

    /// Reads as much as there is and no more: a shim whose container is silent holds no buffer. `None` where nothing more comes.
    fn read(&mut self) -> Option<Vec<u8>> {
        let waiting = rustix::io::ioctl_fionread(&self.file)
            .map_or(CHUNK_MAX, |bytes| usize::try_from(bytes).unwrap_or(CHUNK_MAX));
        let mut buffer = vec![0; waiting.clamp(1, CHUNK_MAX)]; // one byte sees the end
        let length = match self.file.read(&mut buffer) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => 0,
            Ok(length) if length > 0 => length,
            _ => {
                self.ended = true;
                return None;
            }
        };
        buffer.truncate(length);
        Some(buffer)
    }
}

impl Log {
    /// Begins a log, in an empty file that is there or in a new one.
    pub(crate) fn create(dirs: &Dirs, plan: &Plan, size_max: u64, file: Option<File>) -> io::Result<Self> {
        let path = dirs.log();
        let main = plan.main();
        Ok(Self {
            id: plan.id.to_string(),
            file: file.map_or_else(|| dirs.replacement(&path).write(&[]), Ok)?,
            dirs: dirs.clone(),
            path,
            size: 0,
            header: 0,
            size_max,
            place: Place::default(),
            source: main.map(Source::from_process).unwrap_or_default(),
            pipes: Vec::new(),
            attached: Attached::default(),
            terminal: plan.terminal,
            stdin: plan.stdin,
            masking: Masking::none(),
            lost: 0,
            usage: LogUsage::default(),
            limiter: LogLimiter::new(plan.logging.limits),
            begun: Instant::now(),
            untold: false,
        })
    }

    /// The container's ends: standard input, output and error. The pipes belong to its user, so that the process
    /// can open /dev/stdout again. Output that is not kept has pipes, too: attached clients see it, and libcontainer opens
    /// a /dev/null that it finds there anew, for reading only.
    pub(crate) fn ends(&mut self, uid: u32, gid: u32) -> io::Result<[OwnedFd; 3]> {
        let null = || rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        if self.terminal {
            return Ok([null()?, null()?, null()?]); // until it has opened its terminal
        }
        let stdin = if self.stdin { self.input(uid, gid)? } else { null()? };
        let source = Rc::clone(&self.source);
        let stdout = self.end_of(Stream::Stdout, &source, None, (uid, gid))?;
        Ok([stdin, stdout, self.end_of(Stream::Stderr, &source, None, (uid, gid))?])
    }

    /// The ends of a process of a tree of actions: standard input, output and error.
    pub(crate) fn ends_of(
        &mut self,
        process: usize,
        plan: &PlannedProcess,
        owner: (u32, u32),
    ) -> io::Result<[OwnedFd; 3]> {
        let stdin = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let source = Source::from_process(plan);
        let stdout = self.end_of(Stream::Stdout, &source, Some(process), owner)?;
        Ok([stdin, stdout, self.end_of(Stream::Stderr, &source, Some(process), owner)?])
    }

    /// A process's end of a pipe whose other end is read here.
    fn end_of(
        &mut self,
        stream: Stream,
        source: &Rc<Source>,
        process: Option<usize>,
        (uid, gid): (u32, u32),
    ) -> io::Result<OwnedFd> {
        let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        fchown(&theirs, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        self.pipes.push(Pipe::new(stream, source, process, File::from(ours)));
        Ok(theirs)
    }

    /// The process's end of a pipe that attached clients write into.
    fn input(&mut self, uid: u32, gid: u32) -> io::Result<OwnedFd> {
        let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        fchown(&theirs, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        self.attached.expect(Sink::Pipe(ours));
        Ok(theirs)
    }

    /// The process has opened a terminal: what it writes there is its output, and its input comes from there.
    pub(crate) fn keep_terminal(&mut self, terminal: OwnedFd) {
        match terminal.try_clone() {
            Ok(sink) => self.attached.expect(Sink::Terminal(sink)),
            Err(error) => log::line(Level::Error, &self.id, format_args!("the terminal takes no input: {error}")),
        }
        self.pipes.push(Pipe::new(Stream::Stdout, &self.source, None, File::from(terminal)));
    }

    /// Takes a client that wants to see what the process writes, or to send what it reads.
    pub(crate) fn take_client(&mut self, asked: &Attach, fds: Vec<OwnedFd>) -> Result<(), Refused> {
        if asked.input && !self.stdin {
            return Err(Refused::new(Reason::Precondition, "the process takes no input: it was not run with `stdin`"));
        }
        self.attached.take(asked, fds)
    }

    /// Sends clients what waits for them, takes what they sent.
    pub(crate) fn attend_clients(&mut self) {
        self.attached.poll_clients();
    }

    /// Returns when a client has had its time.
    pub(crate) fn clients_due(&self) -> Option<Instant> {
        self.attached.due()
    }

    /// Registers the clients for a turn of a loop.
    pub(crate) fn register_clients<'fd, T: Copy>(&'fd self, events: &mut Events<'fd, T>, token: T) {
        self.attached.register(events, token);
    }

    /// Registers the process's output for a turn of a loop, unless a client holds it up.
    pub(crate) fn register_output<'fd, T: Copy>(&'fd self, events: &mut Events<'fd, T>, token: T) {
        let pipes = if self.attached.holds_up() { &[] } else { &self.pipes[..] };
        pipes.iter().for_each(|pipe| events.read(pipe.file.as_fd(), token));
    }

    /// Takes some of what is there, of each stream, unless a client holds it up.
    pub(crate) fn pump(&mut self) {
        if !self.attached.holds_up() {
            self.take_some(|_| true);
        }
    }

    /// Takes all that a process of a tree of actions has written, unless a client holds it up.
    pub(crate) fn drain(&mut self, process: usize) {
        while !self.attached.holds_up() && self.take_some(|of| of == Some(process)) {}
    }

    /// Takes all that is there: nothing more comes, and nobody is waited for.
    pub(crate) fn pump_rest(&mut self) {
        while self.take_some(|_| true) {}
    }

    /// Takes some of each stream of the processes that are meant. Returns whether there may be more.
    fn take_some(&mut self, meant: impl Fn(Option<usize>) -> bool) -> bool {
        let mut more = false;
        let mut pipes = std::mem::take(&mut self.pipes);
        for of_one in pipes.chunk_by_mut(|one, next| one.process == next.process) {
            if !meant(of_one[0].process) {
                continue;
            }
            // Standard error is read first and taken last: what was printed before an error is there by then.
            let read: Vec<_> = of_one.iter_mut().rev().map(Pipe::read).collect();
            for (pipe, bytes) in of_one.iter_mut().zip(read.into_iter().rev()) {
                match bytes {
                    None => self.flush(pipe),
                    Some(bytes) if bytes.is_empty() => {}
                    Some(bytes) => {
                        self.take(pipe, &bytes);
                        more = true;
                    }
                }
            }
        }
        pipes.retain(|pipe| !pipe.ended);
        self.pipes = pipes;
        more
    }

    /// Masks from now on. What is held back is judged by the new values, too.
    pub(crate) fn mask(&mut self, masking: Masking) {
        self.masking = masking;
    }

    /// Returns what has turned out about masking since it was told last.
    pub(crate) fn news_of_masking(&mut self) -> Vec<String> {
        self.masking.news()
    }

    /// Masks words that are not on their way to the log.
    pub(crate) fn masked(&self, words: &str) -> String {
        self.masking.redactor().text(words)
    }

    /// Masks bytes that are not on their way to the log.
    pub(crate) fn masked_bytes(&self, bytes: &[u8]) -> Vec<u8> {
        self.masking.redactor().masked(bytes)
    }

    /// Returns the path of the log's newest file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns when something that is held back is due.
    pub(crate) fn flush_at(&self) -> Option<Instant> {
        self.pipes.iter().filter_map(|pipe| pipe.flush_at).min()
    }

    /// Writes what was held back for long enough.
    pub(crate) fn flush_idle(&mut self) {
        let mut pipes = std::mem::take(&mut self.pipes);
        let now = Instant::now();
        for pipe in pipes.iter_mut().filter(|pipe| pipe.flush_at.is_some_and(|at| at <= now)) {
            self.flush(pipe);
        }
        self.pipes = pipes;
    }

    /// The process begins. What it writes may have to wait for its reader.
    pub(crate) fn start(&mut self, plan: &Plan) {
        if plan.await_reader {
            self.attached.await_reader();
        }
    }

    /// Writes what is held back: nothing more comes. Gives the clients, who may not have all of it yet, and the
    /// counters.
    pub(crate) fn end(mut self) -> (Attached, LogUsage) {
        for mut pipe in std::mem::take(&mut self.pipes) {
            self.flush(&mut pipe);
        }
        self.tell_place();
        self.attached.end();
        (self.attached, self.usage)
    }

    /// Returns what was kept of the output, and what was not.
    pub(crate) fn usage(&self) -> LogUsage {
        self.usage
    }

    fn take(&mut self, pipe: &mut Pipe, bytes: &[u8]) {
        if self.masking.redactor().is_idle() && pipe.masked.held() == 0 {
            self.pass_on(pipe, bytes);
        } else {
            let mut masked = Vec::with_capacity(bytes.len());
            pipe.masked.push(self.masking.redactor(), bytes, &mut masked);
            self.pass_on(pipe, &masked);
        }
        let is_held = pipe.masked.held() > 0 || !pipe.torn.is_empty();
        pipe.flush_at = is_held.then(|| Instant::now() + IDLE);
    }

    /// Passes output on to clients and to the log, but for a character of which only the beginning has come: no entry of the
    /// log ends within one.
    fn pass_on(&mut self, pipe: &mut Pipe, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.attached.output(pipe.stream, bytes);
        let joined = if pipe.torn.is_empty() { None } else { Some([&pipe.torn[..], bytes].concat()) };
        let bytes = joined.as_deref().unwrap_or(bytes);
        let (whole, torn) = bytes.split_at(whole_characters(bytes));
        self.log(pipe.stream, &pipe.source, whole);
        pipe.torn = torn.to_vec();
    }

    fn flush(&mut self, pipe: &mut Pipe) {
        let mut masked = Vec::new();
        if !pipe.masked.is_fresh() {
            pipe.masked.flush(self.masking.redactor(), &mut masked);
        }
        pipe.flush_at = None;
        if !masked.is_empty() {
            self.attached.output(pipe.stream, &masked);
        }
        let rest = [&std::mem::take(&mut pipe.torn)[..], &masked].concat();
        self.log(pipe.stream, &pipe.source, &rest);
    }

    /// Words of the executor's own, on a stream of their own.
    pub(crate) fn own_words(&mut self, words: &str) {
        let source = Rc::clone(&self.source);
        self.write_message(Stream::Executor, &source.name, words);
    }

    /// Words with this source: of the request, as if a process had written them, or of the executor's own.
    pub(crate) fn write_message(&mut self, stream: Stream, source: &str, words: &str) {
        let words = format!("{}\n", self.masked(words));
        self.attached.output(stream, words.as_bytes());
        let source = Source { name: source.to_owned(), suppressed: false };
        self.log(stream, &source, words.as_bytes());
    }

    /// Notes the exit of a process that has a log source, where the plan has exits noted.
    pub(crate) fn note_exit(&mut self, plan: &Plan, process: &PlannedProcess, line: &str) {
        if plan.notes_exits() && !process.log_source.is_empty() && !process.suppress_log_output {
            self.write_message(Stream::Executor, &process.log_source, line);
        }
    }

    /// Writes output to the log, as far as its limits allow.
    fn log(&mut self, stream: Stream, source: &Source, bytes: &[u8]) {
        if bytes.is_empty() || (source.suppressed && stream != Stream::Executor) {
            return;
        }
        let (mut lines, mut place) = (Vec::with_capacity(bytes.len() + 256), self.place);
        let time = now();
        if self.lost > 0 {
            let words = format!("{} bytes of output were lost: the log could not be written", self.lost);
            let content = words.as_bytes();
            let notice = Entry { time, stream: Stream::Executor, complete: true, source: "", content };
            write(&notice, &mut lines);
            place.pass(&notice);
            write_place(time, place, Missing::Lost, &mut lines);
            self.untold = false;
        }
        let (before, mut kept, mut lines_kept) = (place, 0, 0);
        let since = self.begun.elapsed();
        let put = |entry: &Entry<'_>, place: &mut Place, untold: &mut bool, lines: &mut Vec<u8>| {
            if std::mem::take(untold) {
                write_place(time, *place, Missing::AboveLimits, lines);
            }
            write(entry, lines);
            place.pass(entry);
        };
        for (content, complete) in split(bytes) {
            let entry = Entry { time, stream, complete, source: &source.name, content };
            let decision = self.limiter.as_mut().map_or(Decision::Keep, |limiter| limiter.decide(since, &entry));
            if let Decision::DropAndTell(words) = &decision {
                let content = words.as_bytes();
                let notice = Entry { time, stream: Stream::Executor, complete: true, source: "", content };
                put(&notice, &mut place, &mut self.untold, &mut lines);
            }
            if decision == Decision::Keep {
                put(&entry, &mut place, &mut self.untold, &mut lines);
                kept += entry.output_bytes();
                lines_kept += u64::from(stream != Stream::Executor);
            } else {
                self.usage.limited_bytes += entry.output_bytes();
                self.usage.overages += u64::from(decision != Decision::Drop);
                place.pass(&entry);
                self.untold = true;
            }
        }
        match self.write(&lines) {
            Ok(()) => {
                (self.place, self.lost) = (place, 0);
                self.usage.bytes += kept;
                self.usage.lines += lines_kept;
            }
            Err(error) => {
                if self.lost == 0 {
                    let why = format_args!("output was lost: {}: {}", self.path.display(), plain(&error));
                    log::line(Level::Warning, &self.id, why);
                }
                // What told of earlier losses is written again.
                self.place.bytes += place.bytes - before.bytes;
                self.place.entries += place.entries - before.entries;
                self.lost += kept;
                self.usage.lost_bytes += kept;
                self.untold = true;
            }
        }
    }

    /// Writes the place of the log's end, where output was dropped before it.
    fn tell_place(&mut self) {
        if !std::mem::take(&mut self.untold) {
            return;
        }
        let mut line = Vec::new();
        write_place(now(), self.place, Missing::AboveLimits, &mut line);
        if let Err(error) = self.write(&line) {
            let why = format_args!("the end of the log was not written: {}: {}", self.path.display(), plain(&error));
            log::line(Level::Warning, &self.id, why);
        }
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        if self.size > self.header && self.size + lines.len() as u64 > self.size_max {
            self.rotate()?;
        }
        match self.file.write_all(lines) {
            Ok(()) => self.size += lines.len() as u64,
            Err(error) => {
                // Half a line would spoil the next one.
                self.file.set_len(self.size)?;
                io::Seek::seek(&mut self.file, io::SeekFrom::Start(self.size))?;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Begins a new file; the one before is kept as `log.1`. That one goes first, because a full disk needs its room. Where
    /// the new one cannot be made, it is tried again with the next output.
    fn rotate(&mut self) -> io::Result<()> {
        match std::fs::rename(&self.path, self.path.with_extension("1")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut header = Vec::new();
        write_place(now(), self.place, Missing::Lost, &mut header);
        self.file = self.dirs.replacement(&self.path).write(&header)?;
        (self.size, self.header) = (header.len() as u64, header.len() as u64);
        Ok(())
    }
}
