//! Reads a container's log from its beginning, across rotations: `log.1`, then `log`, then the files that replace
//! `log`.
//!
//! A shim rotates by renaming `log` to `log.1` and creating a new `log`. An open file is read to its end first, under
//! either name; the next file is found by comparing inodes. Lines are returned when they are complete; lines truncated
//! by a crash, and lines in another format, are skipped.
//!
//! The reader counts the output that it returns. Each file starts with its position in the whole output: if this
//! position is beyond the reader's position, some output was rotated away before it was read, and the reader reports a
//! gap.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use executor_core::logline::{self, CHUNK_MAX, Entry, Line, LogPosition, Missing};

/// Read size, in bytes.
const CHUNK: usize = 64 << 10;
/// Maximum length of a log line, in bytes: time, stream, tag and source take less than 256 bytes.
const LINE_MAX: usize = CHUNK_MAX + 256;
/// Maximum length of the line with the start position of a file, in bytes.
const FIRST_LINE_MAX: usize = 128;

/// Reader of a container's log.
#[derive(Debug)]
pub struct LogReader {
    directory: PathBuf,
    /// True if no further files are opened, because the directory may belong to another container by now.
    detached: bool,
    /// Files to be read, oldest first; empty before the first lookup, and while there is no log.
    files: VecDeque<OpenFile>,
    /// Incomplete last line of the first file.
    carry: Vec<u8>,
    /// True while the rest of an overlong line is skipped.
    skipping: bool,
    /// Position up to which the log was read.
    place: LogPosition,
}

#[derive(Debug, PartialEq, Eq)]
pub enum LogItem<'a> {
    /// An entry, and the position before it.
    Entry(Entry<'a>, LogPosition),
    /// Missing output between two positions, and the reason.
    Gap(LogPosition, LogPosition, Missing),
}

/// Files of a log, oldest first.
#[derive(Debug, Default)]
pub struct LogFiles(VecDeque<OpenFile>);

#[derive(Debug)]
struct OpenFile {
    file: File,
    identity: (u64, u64),
    /// Position in the whole output at which the file starts, if recorded in the file.
    begins: Option<LogPosition>,
}

impl LogReader {
    /// Creates the reader of the log in a container's directory.
    pub fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            detached: false,
            files: VecDeque::new(),
            carry: Vec::new(),
            skipping: false,
            place: LogPosition::default(),
        }
    }

    /// Returns the position up to which the log was read.
    pub fn place(&self) -> LogPosition {
        self.place
    }

    /// Returns the container's directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Opens the log files in this directory, so that they can be read after their deletion.
    ///
    /// # Errors
    /// Returns an error if the log files cannot be opened. Missing files are not an error.
    pub fn files(directory: &Path) -> io::Result<LogFiles> {
        open_logs(directory).map(LogFiles)
    }

    /// Continues with `files` after the file that is being read, and opens no other files. The log must not grow
    /// any more. Only the first call has an effect.
    pub fn detach(&mut self, files: LogFiles) {
        if std::mem::replace(&mut self.detached, true) {
            return;
        }
        let last = self.files.back().map(|file| file.identity);
        let known = files.0.iter().position(|file| Some(file.identity) == last);
        self.files.extend(files.0.into_iter().skip(known.map_or(0, |at| at + 1)));
    }

    /// Returns the number of unread bytes in the open files.
    pub fn remaining(&self) -> u64 {
        let left = |file: &OpenFile| {
            let read = io::Seek::stream_position(&mut &file.file).unwrap_or(0);
            file.file.metadata().map_or(0, |metadata| metadata.len().saturating_sub(read))
        };
        self.files.iter().map(left).sum()
    }

    /// Reads some entries and gaps; returns true if more may be available immediately.
    ///
    /// # Errors
    /// Returns an error if the files cannot be read. Missing files are not an error.
    pub fn read(&mut self, mut item: impl FnMut(LogItem<'_>)) -> io::Result<bool> {
        if self.files.is_empty() {
            self.files = self.open_logs()?;
        }
        let Some(first) = self.files.front_mut() else { return Ok(false) };
        let mut chunk = std::mem::take(&mut self.carry);
        let carried = chunk.len();
        chunk.reserve_exact(CHUNK);
        let read = (&first.file).take(CHUNK as u64).read_to_end(&mut chunk)?;
        if read == 0 {
            self.carry = chunk;
            return self.next_file();
        }
        let mut lines = chunk.split_inclusive(|byte| *byte == b'\n');
        let mut tail = &[][..];
        for line in &mut lines {
            match line.strip_suffix(b"\n") {
                Some(_) if std::mem::take(&mut self.skipping) => {}
                Some(line) => match logline::parse(line) {
                    Some(Line::Entry(entry)) => {
                        let before = self.place;
                        self.place.advance(&entry);
                        item(LogItem::Entry(entry, before));
                    }
                    Some(Line::Place(_, place, missing)) => {
                        if place.bytes > self.place.bytes || place.entries > self.place.entries {
                            item(LogItem::Gap(self.place, place, missing));
                        }
                        self.place = place;
                    }
                    None => {}
                },
                None => tail = line,
            }
        }
        if self.skipping || tail.len() > LINE_MAX {
            self.skipping = true;
            tail = &[];
        }
        self.carry = tail.to_vec();
        debug_assert!(carried <= LINE_MAX);
        Ok(true)
    }

    /// Continues with the next file at the end of a file. Returns true if there may be more to read.
    fn next_file(&mut self) -> io::Result<bool> {
        if self.files.len() > 1 {
            self.drop_first();
            return Ok(true);
        }
        let Some(current) = self.files.front() else { return Ok(false) };
        let newer = self.open_logs()?;
        let known = newer.iter().position(|file| file.identity == current.identity);
        if known.is_some_and(|at| at + 1 == newer.len()) {
            return Ok(false);
        }
        if newer.is_empty() {
            return Ok(false); // the new file does not exist yet, or the log was deleted
        }
        // The file may have grown between the last read and the rename.
        let grown = current.file.metadata()?.len() > io::Seek::stream_position(&mut &current.file)?;
        if grown {
            return Ok(true);
        }
        self.files.extend(newer.into_iter().skip(known.map_or(0, |at| at + 1)));
        self.drop_first();
        Ok(true)
    }

    fn drop_first(&mut self) {
        self.files.pop_front();
        self.carry.clear();
        self.skipping = false;
    }

    /// Opens the log's current files, oldest first; empty if the reader is detached.
    fn open_logs(&self) -> io::Result<VecDeque<OpenFile>> {
        if self.detached { Ok(VecDeque::new()) } else { open_logs(&self.directory) }
    }
}

/// Opens the current log files in a directory, oldest first.
fn open_logs(directory: &Path) -> io::Result<VecDeque<OpenFile>> {
    loop {
        // With this order, a rotation between the two opens yields the same file twice.
        let current = open(&directory.join("log"))?;
        let older = open(&directory.join("log.1"))?;
        match (older, current) {
            (Some(older), Some(current)) if older.identity == current.identity => {}
            // After two rotations between the opens, `log.1` is newer than the file that was opened as `log`.
            (Some(older), Some(current)) if older.begins.is_some() && older.begins > current.begins => {
                return Ok(VecDeque::from([current, older]));
            }
            (older, current) => return Ok(older.into_iter().chain(current).collect()),
        }
    }
}

fn open(path: &Path) -> io::Result<Option<OpenFile>> {
    let file = match File::open(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound) => return Ok(None),
        other => other?,
    };
    let metadata = file.metadata()?;
    let mut first = [0; FIRST_LINE_MAX];
    let length = file.read_at(&mut first, 0)?;
    let line = first[..length].split(|byte| *byte == b'\n').next().and_then(logline::parse);
    let begins = if let Some(Line::Place(_, place, _)) = line { Some(place) } else { None };
    Ok(Some(OpenFile { file, identity: (metadata.dev(), metadata.ino()), begins }))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use executor_core::logline::Stream;
    use executor_core::time::Timestamp;

    use super::*;

    fn line(text: &str) -> Vec<u8> {
        let mut out = Vec::new();
        let entry =
            Entry { time: Timestamp(1), stream: Stream::Stdout, complete: true, source: "", content: text.as_bytes() };
        logline::write(&entry, &mut out);
        out
    }

    fn all(reader: &mut LogReader) -> Vec<String> {
        let mut texts = Vec::new();
        let mut take = |item: LogItem<'_>| match item {
            LogItem::Entry(entry, _) => texts.push(String::from_utf8_lossy(entry.content).into_owned()),
            LogItem::Gap(from, to, _) => {
                texts.push(format!("-{} -{}", to.bytes - from.bytes, to.entries - from.entries));
            }
        };
        while reader.read(&mut take).unwrap() {}
        texts
    }

    struct TestWriter(tempfile::TempDir, Option<File>);

    impl TestWriter {
        fn write(&mut self, bytes: &[u8]) {
            let path = self.0.path().join("log");
            let file = self.1.get_or_insert_with(|| File::options().append(true).create(true).open(path).unwrap());
            file.write_all(bytes).unwrap();
        }

        fn rotate(&mut self) {
            std::fs::rename(self.0.path().join("log"), self.0.path().join("log.1")).unwrap();
            self.1 = None;
        }

        fn reader(&self) -> LogReader {
            LogReader::new(self.0.path().to_owned())
        }
    }

    fn writer() -> TestWriter {
        TestWriter(tempfile::tempdir().unwrap(), None)
    }

    #[test]
    fn reader_returns_only_complete_lines() {
        let mut log = writer();
        let mut reader = log.reader();
        assert!(all(&mut reader).is_empty(), "the log file does not exist yet");
        let b = line("b");
        log.write(&[&line("a")[..], &b[..7]].concat());
        assert_eq!(all(&mut reader), ["a"]);
        log.write(&b[7..]);
        assert_eq!(all(&mut reader), ["b"]);
        log.write(b"a line in another format\n");
        log.write(&line(&"c".repeat(CHUNK_MAX)));
        assert_eq!(all(&mut reader)[0].len(), CHUNK_MAX);
    }

    #[test]
    fn a_rotation_loses_nothing_and_repeats_nothing() {
        let mut log = writer();
        log.write(&line("1"));
        let mut reader = log.reader();
        assert_eq!(all(&mut reader), ["1"]);
        log.write(&line("2"));
        log.rotate();
        assert_eq!(all(&mut reader), ["2"], "the rest of the old file, while there is no new file");
        log.write(&line("3"));
        log.rotate();
        log.write(&line("4"));
        assert_eq!(all(&mut reader), ["3", "4"], "the log was rotated twice between the reads");
        assert_eq!(all(&mut log.reader()), ["3", "4"], "a new reader begins with the oldest kept entry");
        log.rotate();
        log.write(&line("5"));
        assert_eq!(all(&mut reader), ["5"]);
        assert!(all(&mut reader).is_empty());
    }

    /// If a reader falls behind, entries and gaps together still cover the whole output.
    #[test]
    fn slow_reader_receives_gaps_for_missed_output() {
        let mut log = writer();
        let (mut reader, mut place) = (log.reader(), LogPosition::default());
        let mut write = |log: &mut TestWriter, text: &str| {
            let line = line(text);
            let Some(Line::Entry(entry)) = logline::parse(&line[..line.len() - 1]) else { panic!("{text}") };
            log.write(&line);
            place.advance(&entry);
            place
        };
        let rotate = |log: &mut TestWriter, place: LogPosition| {
            log.rotate();
            let mut begins = Vec::new();
            logline::write_place(Timestamp(1), place, Missing::Lost, &mut begins);
            log.write(&begins);
        };
        write(&mut log, "1");
        assert_eq!(all(&mut reader), ["1"]);
        for round in 0..3 {
            let at = write(&mut log, &format!("round {round}"));
            rotate(&mut log, at);
        }
        // The first line is in the file that is still open.
        let end = write(&mut log, "4");
        assert_eq!(all(&mut reader), ["round 0", "-8 -1", "round 2", "4"]);
        assert_eq!((reader.place(), reader.place().entries), (end, 5));
        assert_eq!(all(&mut log.reader()), ["-18 -3", "round 2", "4"], "a new reader has missed the beginning");
        log.write(b"2026-11-21T10:00:00.0Z executor @ 1000 9\n");
        assert_eq!(
            all(&mut reader),
            [format!("-{} -4", 1000 - end.bytes)],
            "the gap holds the output that could not be written"
        );
    }

    #[test]
    fn too_long_lines_are_skipped() {
        let mut log = writer();
        log.write(&vec![b'x'; 3 * LINE_MAX]);
        let mut reader = log.reader();
        assert!(all(&mut reader).is_empty());
        log.write(b"yyy\n");
        log.write(&line("after"));
        assert_eq!(all(&mut reader), ["after"]);
    }
}
