//! Stores the last assigned cursor in a file that survives a kill of the daemon.
//!
//! The ledger writes events in batches, so a kill can lose the newest events. This file is written, without a sync,
//! before each event becomes visible. The file survives as long as the page cache, so its content is valid for one
//! boot. At startup the file is compared with the ledger: if the ledger has the event with the last cursor, no event
//! was lost, and numbering continues without a gap.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Name of the file in the ledger's directory.
const NAME: &str = "last-cursor";
/// Maximum size of the file in bytes.
const SIZE_MAX: usize = 128;

/// Content of the file: the range of one daemon's cursors.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    boot_id: String,
    /// Number of daemons that were started on the ledger, including this one.
    start: u64,
    /// First cursor that the daemon could assign.
    first: u64,
    /// Last cursor that the daemon assigned; `first` minus one if the daemon assigned none.
    last: u64,
}

impl Line {
    /// Returns the line with a fixed length, so that each write overwrites the previous line completely.
    fn encode(&self) -> String {
        let Self { boot_id, start, first, last } = self;
        format!("{boot_id} {start:020} {first:020} {last:020}\n")
    }

    fn decode(text: &str) -> Option<Self> {
        let mut words = text.strip_suffix('\n')?.split(' ');
        let boot_id = words.next()?.to_owned();
        let mut number = || words.next()?.parse().ok();
        let (start, first, last) = (number()?, number()?, number()?);
        words.next().is_none().then_some(Self { boot_id, start, first, last })
    }
}

/// The open file with the last cursor that this daemon assigned.
#[derive(Debug)]
pub(super) struct LastCursor {
    path: PathBuf,
    file: Option<File>,
    line: Line,
}

impl LastCursor {
    /// Opens the file in the ledger's directory. Also returns the first cursor to assign: if the ledger's newest event
    /// shows that no event was lost, the cursor after the last assigned cursor; otherwise `next` or a higher cursor.
    /// `start` is the number of daemons that were started on the ledger, including this one.
    pub(super) fn open(dir: &Path, boot_id: &str, start: u64, newest: Option<u64>, next: u64) -> (Self, u64) {
        let path = dir.join(NAME);
        let before = read(&path).filter(|line| line.boot_id == boot_id && line.start + 1 == start);
        let first = match before {
            Some(Line { first, last, .. }) if last + 1 == first || newest == Some(last) => last + 1,
            Some(Line { last, .. }) => next.max(last + 1),
            None => next,
        }
        .max(newest.map_or(1, |newest| newest + 1));
        let line = Line { boot_id: boot_id.to_owned(), start, first, last: first - 1 };
        let options = || OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&path);
        let mut this = Self { file: None, line, path: path.clone() };
        match options() {
            Ok(file) => this.file = Some(file),
            Err(error) => this.give_up(&error),
        }
        this.write();
        (this, first)
    }

    /// Records a cursor that is about to be assigned.
    pub(super) fn set(&mut self, last: u64) {
        self.line.last = last;
        self.write();
    }

    fn write(&mut self) {
        let Some(file) = &self.file else { return };
        if let Err(error) = file.write_all_at(self.line.encode().as_bytes(), 0) {
            self.give_up(&error);
        }
    }

    /// Removes the file, so that the next daemon assumes that events were lost.
    fn give_up(&mut self, error: &io::Error) {
        tracing::warn!(%error, "cannot write {}: if executord is killed, the numbers of events will have a gap", self.path.display());
        self.file = None;
        let _ = std::fs::remove_file(&self.path);
    }
}

fn read(path: &Path) -> Option<Line> {
    let mut text = [0; SIZE_MAX];
    let size = File::open(path).ok()?.read_at(&mut text, 0).ok()?;
    Line::decode(std::str::from_utf8(&text[..size]).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(dir: &Path, start: u64, newest: Option<u64>) -> (LastCursor, u64) {
        LastCursor::open(dir, "b", start, newest, 10_000)
    }

    /// If no event was lost, numbers continue without a gap. The ledger has reserved the cursors below 10,000.
    #[test]
    fn cursors_continue_if_nothing_was_lost() {
        let dir = tempfile::tempdir().unwrap();
        let (mut file, first) = open(dir.path(), 1, None);
        assert_eq!(first, 10_000, "the file does not exist");
        assert_eq!(open(dir.path(), 2, None).1, 10_000, "no event was sent");
        let _ = LastCursor::open(dir.path(), "b", 1, None, 10_000);
        file.set(10_007);
        assert_eq!(read(&dir.path().join(NAME)).unwrap().last, 10_007);
        for (boot_id, start, newest, expected) in [
            ("b", 2, Some(10_007), 10_008),
            ("b", 2, Some(10_006), 20_000),
            ("b", 2, None, 20_000),
            ("c", 2, Some(10_007), 20_000),
            ("b", 3, Some(10_007), 20_000),
            ("b", 2, Some(20_005), 20_006),
        ] {
            file.write();
            let first = LastCursor::open(dir.path(), boot_id, start, newest, 20_000).1;
            assert_eq!(first, expected, "{boot_id} {start} {newest:?}");
            // The next row of the table starts with the original file.
            std::fs::write(dir.path().join(NAME), file.line.encode()).unwrap();
        }
        std::fs::write(dir.path().join(NAME), "b 1 2\n").unwrap();
        assert_eq!(LastCursor::open(dir.path(), "b", 2, Some(10_007), 20_000).1, 20_000, "malformed");
    }
}
