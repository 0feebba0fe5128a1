//! Copies the container's masked output into its log file.
//!
//! Secrets are masked before output leaves this process (see [`super::redaction`]). Output that may be the start of a
//! secret is held back until further output shows whether it is a secret, or until no output has arrived for a short
//! time.
//!
//! The size of the file is limited. At the limit, the file is renamed to `log.1`, and a new file starts with a record
//! of the position of its first byte. A file gets its name only after its owner and mode are set, because executord may
//! open it at any time. If the disk is full, output is lost, and the log reports that when there is space again. The
//! container is never stopped because of a full disk. Output to attached clients does not pass through the file (see
//! [`super::attach`]).

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use executor_core::loglimit::{Decision, LogLimiter};
use executor_core::logline::{
    CHUNK_MAX, Entry, LogPosition, Missing, Stream, split, whole_characters, write, write_place,
};
use executor_core::plan::{Plan, PlannedProcess};
use executor_core::protocol::{Attach, Reason, Refused};
use executor_core::usage::LogUsage;
use executor_secrets::redact;
use executor_sys::events::Events;
use rustix::fs::{Gid, Mode, OFlags, Uid, fchown};
use rustix::pipe::{PipeFlags, pipe_with};

use super::attach::{Attached, Sink};
use super::log_file::LogFile;
use super::redaction::Masking;
use crate::dirs::Dirs;
use crate::errors::plain;
use crate::finish::now;
use crate::host::Host;
use crate::log::{self, Level};

/// Time without further output after which held-back output is written. The time is long enough for a program that
/// writes a line in parts, and short enough for a client that follows the log.
const FLUSH_DELAY: Duration = Duration::from_millis(200);
/// Time without further output after which held-back output of at least [`LIKELY_VALUE`] bytes is written. On a busy
/// machine, a program may pause within a value.
const LIKELY_VALUE_DELAY: Duration = Duration::from_secs(5);
/// Minimum length of held-back output that is probably the start of a value and not a coincidence, in bytes.
const LIKELY_VALUE: usize = 32;

/// Output pipes and log file of a container.
pub(crate) struct Log {
    id: String,
    dirs: Dirs,
    path: PathBuf,
    file: File,
    /// Size of the file in bytes. `header` is the size of the record at its start.
    size: u64,
    header: u64,
    size_max: u64,
    /// Log file of the request, on the host, which also receives the output. `None` if the request has none.
    copy: Option<LogFile>,
    /// Position of the end of the log in the whole output.
    place: LogPosition,
    source: Rc<LogSource>,
    pipes: Vec<Pipe>,
    attached: Attached,
    terminal: bool,
    stdin: bool,
    masking: Masking,
    /// Number of bytes that could not be written and that the log does not report yet.
    lost: u64,
    usage: LogUsage,
    /// Rate limits of the log, if any.
    limiter: Option<LogLimiter>,
    begun: Instant,
    /// True if output was dropped and no later line reports the position yet.
    unreported: bool,
}

/// Log source of output, and whether the output is logged.
#[derive(Default)]
struct LogSource {
    name: String,
    /// True if the output is not logged.
    suppressed: bool,
}

/// An output pipe of the container.
struct Pipe {
    stream: Stream,
    source: Rc<LogSource>,
    /// Index of the process in a tree of actions.
    process: Option<usize>,
    file: File,
    masked: redact::Stream,
    /// Incomplete character at the end of the last read. Clients have already received these bytes.
    torn: Vec<u8>,
    /// Time at which held-back output is written if no more output arrives.
    flush_at: Option<Instant>,
    /// True after end of file. The pipe is dropped in the same iteration of the loop.
    ended: bool,
}

impl LogSource {
    fn from_process(process: &PlannedProcess) -> Rc<Self> {
        Rc::new(Self { name: process.log_source.clone(), suppressed: process.suppress_log_output })
    }
}

impl Pipe {
    fn new(stream: Stream, source: &Rc<LogSource>, process: Option<usize>, file: File) -> Self {
        let (source, masked) = (Rc::clone(source), redact::Stream::default());
        Self { stream, source, process, file, masked, torn: Vec::new(), flush_at: None, ended: false }
    }

    /// Reads the available output. The buffer has the size of the available output and exists only during this read.
    /// Shims therefore hold no buffers while their containers write nothing. Returns `None` at end of file.
    fn read(&mut self) -> Option<Vec<u8>> {
        let waiting = rustix::io::ioctl_fionread(&self.file)
            .map_or(CHUNK_MAX, |bytes| usize::try_from(bytes).unwrap_or(CHUNK_MAX));
        let mut buffer = vec![0; waiting.clamp(1, CHUNK_MAX)]; // one byte detects end of file
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
    /// Starts a log in an existing empty file or in a new file.
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
            copy: None,
            place: LogPosition::default(),
            source: main.map(LogSource::from_process).unwrap_or_default(),
            pipes: Vec::new(),
            attached: Attached::default(),
            terminal: plan.terminal,
            stdin: plan.stdin,
            masking: Masking::none(),
            lost: 0,
            usage: LogUsage::default(),
            limiter: LogLimiter::new(plan.logging.limits),
            begun: Instant::now(),
            unreported: false,
        })
    }

    /// Opens the log file of the request, if there is one.
    pub(crate) fn open_file(&mut self, host: &Host, plan: &Plan) -> Result<(), Refused> {
        self.copy = LogFile::open(host, plan)?;
        Ok(())
    }

    /// Opens the log file of the request again, after it was renamed.
    pub(crate) fn reopen_file(&mut self, host: &Host) -> Result<(), Refused> {
        match &mut self.copy {
            Some(copy) => copy.reopen(host),
            None => {
                let why = format!("container {} has no log file: it was not run with `log_file`", self.id);
                Err(Refused::new(Reason::Precondition, why))
            }
        }
    }

    /// Returns the container's standard input, output and error. The pipes belong to the container user, so that the
    /// process can reopen /dev/stdout. Pipes are used even if output is not logged: attached clients receive the
    /// output, and libcontainer would reopen a /dev/null read-only.
    pub(crate) fn stdio(&mut self, uid: u32, gid: u32) -> io::Result<[OwnedFd; 3]> {
        let null = || rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        if self.terminal {
            return Ok([null()?, null()?, null()?]); // used until the process has opened its terminal
        }
        let stdin = if self.stdin { self.input(uid, gid)? } else { null()? };
        let source = Rc::clone(&self.source);
        let stdout = self.output_pipe(Stream::Stdout, &source, None, (uid, gid))?;
        Ok([stdin, stdout, self.output_pipe(Stream::Stderr, &source, None, (uid, gid))?])
    }

    /// Returns standard input, output and error for a process of a tree of actions.
    pub(crate) fn step_stdio(
        &mut self,
        process: usize,
        plan: &PlannedProcess,
        owner: (u32, u32),
    ) -> io::Result<[OwnedFd; 3]> {
        let stdin = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let source = LogSource::from_process(plan);
        let stdout = self.output_pipe(Stream::Stdout, &source, Some(process), owner)?;
        Ok([stdin, stdout, self.output_pipe(Stream::Stderr, &source, Some(process), owner)?])
    }

    /// Creates a pipe that the shim reads, and returns the write end for the process.
    fn output_pipe(
        &mut self,
        stream: Stream,
        source: &Rc<LogSource>,
        process: Option<usize>,
        (uid, gid): (u32, u32),
    ) -> io::Result<OwnedFd> {
        let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        fchown(&theirs, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        self.pipes.push(Pipe::new(stream, source, process, File::from(ours)));
        Ok(theirs)
    }

    /// Returns the process's end of a pipe to which attached clients write.
    fn input(&mut self, uid: u32, gid: u32) -> io::Result<OwnedFd> {
        let (theirs, ours) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        fchown(&theirs, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        self.attached.expect(Sink::Pipe(ours));
        Ok(theirs)
    }

    /// Keeps the terminal that the process has opened, for reading output and writing input.
    pub(crate) fn keep_terminal(&mut self, terminal: OwnedFd) {
        match terminal.try_clone() {
            Ok(sink) => self.attached.expect(Sink::Terminal(sink)),
            Err(error) => log::line(Level::Error, &self.id, format_args!("the terminal accepts no input: {error}")),
        }
        self.pipes.push(Pipe::new(Stream::Stdout, &self.source, None, File::from(terminal)));
    }

    /// Accepts a client that reads the process's output or sends its input.
    pub(crate) fn take_client(&mut self, request: &Attach, fds: Vec<OwnedFd>) -> Result<(), Refused> {
        if request.input && !self.stdin {
            return Err(Refused::new(
                Reason::Precondition,
                "the process accepts no input: it was not run with `stdin`",
            ));
        }
        self.attached.take(request, fds)
    }

    /// Sends queued output to clients and reads their input.
    pub(crate) fn poll_clients(&mut self) {
        self.attached.poll_clients();
    }

    /// Returns the next deadline of a client.
    pub(crate) fn clients_due(&self) -> Option<Instant> {
        self.attached.due()
    }

    /// Registers the clients for one iteration of a loop.
    pub(crate) fn register_clients<'fd, T: Copy>(&'fd self, events: &mut Events<'fd, T>, token: T) {
        self.attached.register(events, token);
    }

    /// Registers the process's output for one iteration of a loop, unless a client blocks the output.
    pub(crate) fn register_output<'fd, T: Copy>(&'fd self, events: &mut Events<'fd, T>, token: T) {
        let pipes = if self.attached.blocks_output() { &[] } else { &self.pipes[..] };
        pipes.iter().for_each(|pipe| events.read(pipe.file.as_fd(), token));
    }

    /// Reads some of the available output of each stream, unless a client blocks the output.
    pub(crate) fn pump(&mut self) {
        if !self.attached.blocks_output() {
            self.read_some(|_| true);
        }
    }

    /// Reads all output that a process of a tree of actions has written, unless a client blocks the output.
    pub(crate) fn drain(&mut self, process: usize) {
        while !self.attached.blocks_output() && self.read_some(|of| of == Some(process)) {}
    }

    /// Reads all remaining output, even if a client blocks the output. Called when no more output will be written.
    pub(crate) fn pump_rest(&mut self) {
        while self.read_some(|_| true) {}
    }

    /// Reads some output of each stream of the processes for which `meant` returns true. Returns true if output was
    /// read, so there may be more.
    fn read_some(&mut self, meant: impl Fn(Option<usize>) -> bool) -> bool {
        let mut more = false;
        let mut pipes = std::mem::take(&mut self.pipes);
        for of_one in pipes.chunk_by_mut(|one, next| one.process == next.process) {
            if !meant(of_one[0].process) {
                continue;
            }
            // Read standard error first, but log it last, so that output that was printed before an error is logged
            // before the error.
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

    /// Replaces the values to be masked. Output that is held back is checked for the new values, too.
    pub(crate) fn mask(&mut self, masking: Masking) {
        self.masking = masking;
    }

    /// Returns warnings about masking that were not returned before.
    pub(crate) fn new_masking_warnings(&mut self) -> Vec<String> {
        self.masking.new_warnings()
    }

    /// Masks a message that is not written to the log.
    pub(crate) fn masked(&self, words: &str) -> String {
        self.masking.redactor().text(words)
    }

    /// Masks bytes that are not written to the log.
    pub(crate) fn masked_bytes(&self, bytes: &[u8]) -> Vec<u8> {
        self.masking.redactor().masked(bytes)
    }

    /// Returns the path of the log's newest file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the time at which held-back output must be written.
    pub(crate) fn flush_at(&self) -> Option<Instant> {
        self.pipes.iter().filter_map(|pipe| pipe.flush_at).min()
    }

    /// Writes held-back output whose delay has passed.
    pub(crate) fn flush_idle(&mut self) {
        let mut pipes = std::mem::take(&mut self.pipes);
        let now = Instant::now();
        for pipe in pipes.iter_mut().filter(|pipe| pipe.flush_at.is_some_and(|at| at <= now)) {
            self.flush(pipe);
        }
        self.pipes = pipes;
    }

    /// Marks the start of the process. If the plan awaits a reader, all output is kept for the reader from now on.
    pub(crate) fn start(&mut self, plan: &Plan) {
        if plan.await_reader {
            self.attached.await_reader();
        }
    }

    /// Writes held-back output after all output was read. Returns the clients, which may not have received all output
    /// yet, and the counters.
    pub(crate) fn finish(mut self) -> (Attached, LogUsage) {
        for mut pipe in std::mem::take(&mut self.pipes) {
            self.flush(&mut pipe);
        }
        self.report_place();
        self.copy.iter_mut().for_each(LogFile::finish);
        self.write_copy();
        self.attached.finish();
        (self.attached, self.usage)
    }

    /// Returns counters of kept and dropped output.
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
        let held = pipe.masked.held();
        let delay = if held >= LIKELY_VALUE { LIKELY_VALUE_DELAY } else { FLUSH_DELAY };
        pipe.flush_at = (held > 0 || !pipe.torn.is_empty()).then(|| Instant::now() + delay);
    }

    /// Sends output to clients and the log. For the log, an incomplete character at the end is held back, so that no
    /// log entry ends within a character.
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

    /// Logs a message of the executor, on the executor's stream.
    pub(crate) fn executor_message(&mut self, words: &str) {
        let source = Rc::clone(&self.source);
        self.write_message(Stream::Executor, &source.name, words);
    }

    /// Logs a message with a log source. A message of the request is logged like output of a process.
    pub(crate) fn write_message(&mut self, stream: Stream, source: &str, words: &str) {
        let words = format!("{}\n", self.masked(words));
        self.attached.output(stream, words.as_bytes());
        let source = LogSource { name: source.to_owned(), suppressed: false };
        self.log(stream, &source, words.as_bytes());
    }

    /// Logs the exit of a process with a log source, if the plan requests it.
    pub(crate) fn log_exit(&mut self, plan: &Plan, process: &PlannedProcess, line: &str) {
        if plan.logs_exits() && !process.log_source.is_empty() && !process.suppress_log_output {
            self.write_message(Stream::Executor, &process.log_source, line);
        }
    }

    /// Writes output to the log and to the log file of the request, within the log's limits.
    fn log(&mut self, stream: Stream, source: &LogSource, bytes: &[u8]) {
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
            place.advance(&notice);
            write_place(time, place, Missing::Lost, &mut lines);
            self.unreported = false;
        }
        let (before, mut kept, mut lines_kept) = (place, 0, 0);
        let since = self.begun.elapsed();
        let copy = &mut self.copy;
        let mut put = |entry: &Entry<'_>, place: &mut LogPosition, unreported: &mut bool, lines: &mut Vec<u8>| {
            if std::mem::take(unreported) {
                write_place(time, *place, Missing::AboveLimits, lines);
            }
            write(entry, lines);
            place.advance(entry);
            if let Some(copy) = copy.as_mut() {
                copy.append(entry);
            }
        };
        for (content, complete) in split(bytes) {
            let entry = Entry { time, stream, complete, source: &source.name, content };
            let decision = self.limiter.as_mut().map_or(Decision::Keep, |limiter| limiter.decide(since, &entry));
            if let Decision::DropAndReport(words) = &decision {
                let content = words.as_bytes();
                let notice = Entry { time, stream: Stream::Executor, complete: true, source: "", content };
                put(&notice, &mut place, &mut self.unreported, &mut lines);
            }
            if decision == Decision::Keep {
                put(&entry, &mut place, &mut self.unreported, &mut lines);
                kept += entry.output_bytes();
                lines_kept += u64::from(stream != Stream::Executor);
            } else {
                self.usage.limited_bytes += entry.output_bytes();
                self.usage.overages += u64::from(decision != Decision::Drop);
                place.advance(&entry);
                self.unreported = true;
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
                // Lines that report earlier losses are written again later.
                self.place.bytes += place.bytes - before.bytes;
                self.place.entries += place.entries - before.entries;
                self.lost += kept;
                self.usage.lost_bytes += kept;
                self.unreported = true;
            }
        }
        self.write_copy();
    }

    /// Writes to the log file of the request.
    fn write_copy(&mut self) {
        let Some(copy) = &mut self.copy else { return };
        let Err((bytes, error)) = copy.write() else { return };
        self.usage.file_lost_bytes += bytes;
        if let Some(error) = error {
            let why = format!("output is missing in the log file {}: {}", copy.path().display(), plain(&error));
            log::line(Level::Warning, &self.id, &why);
            self.executor_message(&why); // does not recurse further: the next failure has no error to report
        }
    }

    /// Writes the position of the end of the log if output was dropped before it.
    fn report_place(&mut self) {
        if !std::mem::take(&mut self.unreported) {
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
                // A partial line would corrupt the next line.
                self.file.set_len(self.size)?;
                io::Seek::seek(&mut self.file, io::SeekFrom::Start(self.size))?;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Starts a new file and keeps the previous file as `log.1`. The old `log.1` is replaced first, because on a full
    /// disk the new file needs its space. If the new file cannot be created, the next write tries again.
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
