//! Provides the file for the termination message of a container's process, and reads it.
//!
//! The process writes the message to a file on a separate, detached tmpfs. The container sees only this file. The shim
//! keeps the file open and reads it after the last process of the container has exited, so no name is resolved that the
//! container could replace. The message is masked like the log, and the file is overwritten before it is removed.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use executor_core::logline::{self, CHUNK_MAX, Line, Stream};
use executor_core::placement::MountPoint;
use executor_core::plan::TerminationMessage;
use executor_core::record::Exit;
use executor_sys::holes::next_stored;
use executor_sys::mount::{Attributes, attach, clone_tree, detached, open_dir, set_attributes};
use rustix::fs::{Gid, Mode, OFlags, Uid, fchmod, fchown};
use rustix::mount::MountAttrFlags;

/// Source of the tmpfs in /proc/PID/mountinfo.
const SOURCE: &str = "executor-message";
const NAME: &str = "message";
/// Size of the tmpfs in bytes: the maximum that the container's processes can write.
const BYTES_MAX: u64 = 1 << 20;
/// Zeros for overwriting the file piece by piece. The array is static, because the shim's stack stays in memory while
/// the container runs.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
/// Maximum number of bytes of the log that replace an empty message, as in Kubernetes.
const LOG_BYTES_MAX: usize = 2048;
/// Maximum number of lines of the log that replace an empty message, as in Kubernetes.
const LOG_LINES_MAX: usize = 80;
/// Number of bytes that are read from the end of a log file to replace an empty message: a few entries of maximum size.
const LOG_TAIL_BYTES: u64 = 4 * CHUNK_MAX as u64;

/// File for a termination message.
#[derive(Debug)]
pub(crate) struct MessageFile {
    root: OwnedFd,
    file: File,
}

impl MessageFile {
    /// Creates an empty file that every process in the container can write. `noswap` is true if the kernel's tmpfs
    /// supports the option `noswap`.
    ///
    /// # Errors
    /// Returns an error if memory or descriptors run out.
    pub(crate) fn create((uid, gid): (u32, u32), noswap: bool) -> io::Result<Self> {
        let flags =
            MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let size = BYTES_MAX.to_string();
        let options = [("mode", Some("0700")), ("size", Some(&*size)), ("nr_inodes", Some("4")), ("noswap", None)];
        let root = detached("tmpfs", SOURCE, if noswap { &options } else { &options[..3] }, flags)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&root, NAME, flags, Mode::RUSR | Mode::WUSR)?;
        fchown(&file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        fchmod(&file, Mode::from_raw_mode(0o666))?;
        Ok(Self { root, file: file.into() })
    }

    /// Returns a detached mount of the file. `staging` is a directory in the calling process's mount namespace, for
    /// kernels that cannot clone a detached mount.
    ///
    /// # Errors
    /// Returns an error if the process lacks the privilege.
    pub(crate) fn view(&self, staging: &Path) -> io::Result<OwnedFd> {
        let view = match clone_tree(self.root.as_fd(), Path::new(NAME), false) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                attach(self.root.as_fd(), open_dir(staging)?.as_fd())?;
                clone_tree(self.root.as_fd(), Path::new(NAME), false)?
            }
            view => view?,
        };
        let writable = Attributes { read_only: false, no_suid: true, no_dev: true, no_exec: true, recursive: false };
        set_attributes(view.as_fd(), writable)?;
        Ok(view)
    }

    /// Reads the message and overwrites the file. All processes of the container must have exited.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or overwritten.
    pub(crate) fn take(self) -> io::Result<Vec<u8>> {
        // Read only the end, because a sparse file can have any length.
        let length = self.file.metadata()?.len();
        let from = length.saturating_sub(BYTES_MAX);
        let mut content = vec![0; usize::try_from(length - from).map_err(io::Error::other)?];
        self.file.read_exact_at(&mut content, from)?;
        let mut at = 0;
        while let Some(stored) = next_stored(&self.file, at)? {
            at = stored.start;
            while at < stored.end {
                let piece = usize::try_from(stored.end - at).unwrap_or(ZEROS.len()).min(ZEROS.len());
                self.file.write_all_at(&ZEROS[..piece], at)?;
                at += piece as u64;
            }
        }
        Ok(content)
    }
}

/// A termination message file to be mounted into a container.
pub(crate) struct Placing<'a> {
    pub(crate) file: &'a MessageFile,
    pub(crate) point: &'a MountPoint,
}

/// Returns the last bytes of a masked message, at most as many as planned.
pub(crate) fn last_bytes(masked: &[u8], planned: &TerminationMessage) -> String {
    let most = planned.bytes_max as usize;
    let from = masked.len().saturating_sub(most);
    // Do not start within a character.
    let torn = masked[from..].iter().take(3).take_while(|byte| from > 0 && (**byte & 0xc0) == 0x80).count();
    let mut text = String::from_utf8_lossy(&masked[from + torn..]).into_owned();
    // Each invalid byte was replaced with three bytes.
    let surplus = text.len().saturating_sub(most);
    text.drain(..text.ceil_char_boundary(surplus));
    text
}

/// Returns true if the end of the log replaces the message.
pub(crate) fn falls_back(planned: &TerminationMessage, message: &str, exit: Option<Exit>) -> bool {
    planned.fallback_to_logs && message.is_empty() && exit.is_some_and(|exit| exit != Exit::Code(0))
}

/// Reads the end of the process's output from a log.
///
/// # Errors
/// Returns an error if the log cannot be read.
pub(crate) fn end_of_log(path: &Path) -> io::Result<String> {
    let mut written = Vec::new();
    for path in [path.with_extension("1"), path.to_owned()] {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file?,
        };
        let length = file.metadata()?.len();
        let from = length.saturating_sub(LOG_TAIL_BYTES);
        let mut lines = vec![0; usize::try_from(length - from).map_err(io::Error::other)?];
        file.read_exact_at(&mut lines, from)?;
        // Skip the first line: a partial entry could parse as a different one.
        for line in lines.split(|byte| *byte == b'\n').skip(usize::from(from > 0)) {
            if let Some(Line::Entry(entry)) = logline::parse(line)
                && entry.stream != Stream::Executor
            {
                written.extend_from_slice(entry.content);
                written.extend(entry.complete.then_some(b'\n'));
            }
        }
    }
    Ok(last_lines(&written))
}

fn last_lines(written: &[u8]) -> String {
    let mut from = written.len().saturating_sub(LOG_BYTES_MAX);
    let whole = written.strip_suffix(b"\n").unwrap_or(written);
    let newlines = whole.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    from = from.max(newlines.take(LOG_LINES_MAX).nth(LOG_LINES_MAX - 1).unwrap_or(0));
    let torn = written[from..].iter().take(3).take_while(|byte| from > 0 && (**byte & 0xc0) == 0x80).count();
    String::from_utf8_lossy(&written[from + torn..]).into_owned()
}

#[cfg(test)]
mod tests {
    use executor_core::logline::Entry;
    use executor_core::time::Timestamp;

    use super::*;

    fn planned(bytes_max: u32) -> TerminationMessage {
        TerminationMessage { path: "/dev/termination-log".into(), bytes_max, fallback_to_logs: true }
    }

    #[test]
    fn message_tail_has_whole_characters() {
        assert_eq!(last_bytes(b"short", &planned(8)), "short");
        assert_eq!(last_bytes(b"0123456789", &planned(4)), "6789");
        assert_eq!(last_bytes("xxä!".as_bytes(), &planned(2)), "!");
        assert_eq!(last_bytes(b"\xff\xffab", &planned(4)), "ab", "never longer than asked for");
        assert_eq!(last_bytes(b"\x80a", &planned(4)), "\u{fffd}a", "the process's own bytes are replaced");
    }

    #[test]
    fn log_replaces_message_only_after_failure() {
        let table = [
            ("", Some(Exit::Code(1)), true),
            ("", Some(Exit::Signal(9)), true),
            ("", Some(Exit::Code(0)), false),
            ("", None, false),
            ("x", Some(Exit::Code(1)), false),
        ];
        for (message, exit, expected) in table {
            assert_eq!(falls_back(&planned(1), message, exit), expected, "{message:?} {exit:?}");
        }
        let without = TerminationMessage { fallback_to_logs: false, ..planned(1) };
        assert!(!falls_back(&without, "", Some(Exit::Code(1))));
    }

    #[test]
    fn log_tail_contains_last_output() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        assert_eq!(end_of_log(&path).unwrap(), "", "no log");
        let mut lines = Vec::new();
        let mut add = |stream, text: &str, complete| {
            let entry = Entry { time: Timestamp(1), stream, complete, source: "", content: text.as_bytes() };
            logline::write(&entry, &mut lines);
        };
        add(Stream::Stdout, "one", true);
        add(Stream::Executor, "not this", true);
        add(Stream::Stderr, "two ", false);
        add(Stream::Stderr, "parts", false);
        std::fs::write(&path, &lines).unwrap();
        assert_eq!(end_of_log(&path).unwrap(), "one\ntwo parts");
        std::fs::rename(&path, path.with_extension("1")).unwrap();
        std::fs::write(&path, &lines).unwrap();
        assert_eq!(end_of_log(&path).unwrap(), "one\ntwo partsone\ntwo parts", "over a rotation");
        let many: String = (0..100).map(|number| format!("{number}\n")).collect();
        assert_eq!(last_lines(many.as_bytes()).lines().next(), Some("20"));
        assert_eq!(last_lines(many.trim_end().as_bytes()).lines().count(), LOG_LINES_MAX);
        assert_eq!(last_lines(&[b'x'; 5000]).len(), LOG_BYTES_MAX);
    }
}
