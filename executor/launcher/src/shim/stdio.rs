//! What a container prints, into its log file.
//!
//! The file is bounded: at its limit it becomes `log.1` and a new one begins. A disk that is full loses output and
//! says so in the log when there is room again; it never stops the container.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use executor_core::logline::{CHUNK_MAX, Entry, Stream, split, write};
use executor_core::plan::Plan;
use rustix::fs::{Gid, Mode, OFlags, Uid, fchown};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::dirs::{Dirs, plain};
use crate::finish::now;
use crate::log::{self, Level};

/// The container's output on its way.
pub(super) struct Log {
    id: String,
    dirs: Dirs,
    path: PathBuf,
    file: Option<File>,
    size: u64,
    size_max: u64,
    source: String,
    suppressed: bool,
    pipes: Vec<(Stream, File)>,
    /// Bytes that could not be written.
    lost: u64,
}

impl Log {
    /// Begins a log.
    pub(super) fn create(dirs: &Dirs, plan: &Plan, size_max: u64) -> io::Result<Self> {
        let path = dirs.state.join("log");
        let main = plan.main();
        Ok(Self {
            id: plan.id.to_string(),
            file: Some(dirs.open_new(&path)?),
            dirs: dirs.clone(),
            path,
            size: 0,
            size_max,
            source: main.map(|main| main.log_source.clone()).unwrap_or_default(),
            suppressed: main.is_some_and(|main| main.suppress_log_output),
            pipes: Vec::new(),
            lost: 0,
        })
    }

    /// The container's ends: standard input, output and error. The pipes belong to its user, so that the process
    /// can open /dev/stdout again.
    pub(super) fn ends(&mut self, uid: u32, gid: u32) -> io::Result<(OwnedFd, OwnedFd, OwnedFd)> {
        let null = || rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        if self.suppressed {
            return Ok((null()?, null()?, null()?));
        }
        let mut end = |stream| -> io::Result<OwnedFd> {
            let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
            rustix::io::ioctl_fionbio(&ours, true)?;
            fchown(&theirs, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
            self.pipes.push((stream, File::from(ours)));
            Ok(theirs)
        };
        Ok((null()?, end(Stream::Stdout)?, end(Stream::Stderr)?))
    }

    /// What to wait for.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.pipes.iter().map(|(_, pipe)| pipe.as_fd())
    }

    /// Takes some of what is there, of each stream. Tells whether there may be more.
    pub(super) fn pump(&mut self) -> bool {
        let mut more = false;
        let mut pipes = std::mem::take(&mut self.pipes);
        pipes.retain_mut(|(stream, pipe)| {
            // As much as there is and no more: a shim whose container is silent holds no buffer. One byte sees the end.
            let waiting = rustix::io::ioctl_fionread(&*pipe)
                .map_or(CHUNK_MAX, |bytes| usize::try_from(bytes).unwrap_or(CHUNK_MAX));
            let mut buffer = vec![0; waiting.clamp(1, CHUNK_MAX)];
            match pipe.read(&mut buffer) {
                Ok(0) => false,
                Ok(length) => {
                    self.append(*stream, &buffer[..length]);
                    more = true;
                    true
                }
                Err(error) => matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
            }
        });
        self.pipes = pipes;
        more
    }

    /// Words of the executor's own, on a stream of their own.
    pub(super) fn own_words(&mut self, words: &str) {
        self.append(Stream::Executor, format!("{words}\n").as_bytes());
    }

    fn append(&mut self, stream: Stream, bytes: &[u8]) {
        let mut lines = Vec::with_capacity(bytes.len() + 256);
        for (content, complete) in split(bytes) {
            write(&Entry { time: now(), stream, complete, source: &self.source, content }, &mut lines);
        }
        let told = std::mem::take(&mut self.lost);
        if told > 0 {
            let words = format!("{told} bytes of output were lost: the log could not be written");
            let mut notice = Vec::new();
            let entry =
                Entry { time: now(), stream: Stream::Executor, complete: true, source: "", content: words.as_bytes() };
            write(&entry, &mut notice);
            lines.splice(0..0, notice);
        }
        if let Err(error) = self.write(&lines) {
            if told == 0 {
                log::line(
                    Level::Warning,
                    &self.id,
                    format_args!("output is lost: {}: {}", self.path.display(), plain(&error)),
                );
            }
            self.lost = told + bytes.len() as u64;
        }
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.file.is_none() || (self.size > 0 && self.size + lines.len() as u64 > self.size_max) {
            self.file = None;
            let _ = std::fs::rename(&self.path, self.path.with_extension("1"));
            self.file = Some(self.dirs.open_new(&self.path)?);
            self.size = 0;
        }
        let Some(file) = &mut self.file else { return Err(io::ErrorKind::NotFound.into()) };
        match file.write_all(lines) {
            Ok(()) => self.size += lines.len() as u64,
            Err(error) => {
                // Half a line would spoil the next one.
                file.set_len(self.size)?;
                io::Seek::seek(file, io::SeekFrom::Start(self.size))?;
                return Err(error);
            }
        }
        Ok(())
    }
}
