//! Searches for outputs in a helper process, in the container's mount namespace and as the process's user.
//!
//! The input is the list of declared paths. The output is one message for each file over a socket, with a descriptor
//! for reading the file. The helper walks a tree that the container controlled, after all processes of the container
//! have exited. Every path is opened as if the container's root were `/`, and symbolic links are not followed
//! (openat2).

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use executor_core::limits::PATH_MAX;
use executor_core::outputs::{DEPTH_MAX, ENTRIES_MAX, escaped, tellable};
use executor_core::plan::OutputSource;
use executor_core::users::ResolvedUser;
use executor_sys::mount::{Follow, open_dir, open_in_root};
use executor_sys::privileges;
use executor_sys::process;
use executor_sys::seqpacket::Seqpacket;
use rustix::fs::{Dir, FileType, Mode, OFlags, fstat};
use serde::{Deserialize, Serialize};

use super::Namespaces;
use crate::errors::plain;
use crate::kernel_files::is_of_the_kernel;

/// Maximum size of a message, in bytes: a path in which each byte is escaped with six bytes, and a short string.
pub(super) const MESSAGE_MAX: usize = 6 * PATH_MAX + 1024;
const TOO_MANY: &str = "more than 10000 entries: further entries were skipped";
const _: () = assert!(ENTRIES_MAX == 10_000);

/// A message of the helper.
#[derive(Serialize, Deserialize)]
pub(super) enum OutputMessage {
    /// A file. The message carries its descriptor.
    File {
        path: String,
        /// Permission bits of the file.
        mode: u32,
    },
    /// A path that is not captured.
    Skipped { path: String, reason: String },
    /// The search is complete. No message follows.
    Done,
    /// The search cannot start; holds the error message.
    Failed(String),
}

/// Sends a message. Returns false if the shim has exited or has killed this helper.
pub(super) fn send(socket: &Seqpacket, output: &OutputMessage, file: Option<&OwnedFd>) -> bool {
    let Ok(message) = serde_json::to_vec(output) else { return false };
    let fds: Vec<_> = file.into_iter().map(AsFd::as_fd).collect();
    socket.send(&message, &fds).is_ok()
}

/// The declared outputs and the options of the search.
pub(super) struct OutputSearch<'a> {
    pub(super) outputs: &'a OutputSource,
    pub(super) user: &'a ResolvedUser,
    pub(super) secret_devices: &'a [u64],
}

/// Error if the shim no longer receives messages.
struct SearchRecvError;

/// File or directory at a declared path.
enum Entry {
    File(OwnedFd, u32),
    Directory,
}

impl OutputSearch<'_> {
    /// Runs the search in the helper. Returns an error only if the search cannot start.
    pub(super) fn execute(&self, namespaces: &Namespaces, socket: &Seqpacket, parent: i32) -> io::Result<()> {
        process::be_expendable()?;
        if let Some(user) = &namespaces.user {
            process::become_root_of(user.as_fd())?;
        }
        process::enter_namespaces(namespaces.mount.as_fd(), true, false)?;
        process::close_all_but(&[socket.as_fd()])?;
        process::reset_signals()?;
        privileges::drop_to_reader(self.user.uid, self.user.gid, &self.user.groups)?;
        privileges::set_parent_death_signal(parent)?;
        let mut walker = OutputWalker { walk: self, root: open_dir(Path::new("/"))?, socket, seen: 0 };
        let sent = match self.outputs {
            OutputSource::Files(files) => files.iter().try_for_each(|path| walker.declared_file(path)),
            OutputSource::Directory(directory) => walker.declared_directory(directory),
        };
        if sent.is_ok() {
            let _ = walker.send(&OutputMessage::Done, None);
        }
        Ok(())
    }
}

/// State of the search for outputs.
struct OutputWalker<'a> {
    walk: &'a OutputSearch<'a>,
    root: OwnedFd,
    socket: &'a Seqpacket,
    /// Number of entries found so far below the declared directory.
    seen: usize,
}

impl OutputWalker<'_> {
    fn declared_file(&mut self, path: &Path) -> Result<(), SearchRecvError> {
        match self.inspect(path) {
            Ok(Entry::File(file, mode)) => self.file(path, &file, mode),
            Ok(Entry::Directory) => self.skip(path, "a directory"),
            Err(reason) => self.skip(path, &reason),
        }
    }

    fn declared_directory(&mut self, top: &Path) -> Result<(), SearchRecvError> {
        match self.inspect(top) {
            Ok(Entry::Directory) => {}
            Ok(Entry::File(..)) => return self.skip(top, "not a directory"),
            Err(reason) => return self.skip(top, &reason),
        }
        let mut pending = vec![(top.to_path_buf(), 1)];
        while let Some((directory, depth)) = pending.pop() {
            let names = match self.names(&directory) {
                Ok(names) => names,
                Err(error) => {
                    self.skip(&directory, &reason(&error))?;
                    continue;
                }
            };
            let mut below = Vec::new();
            for name in names {
                if self.seen == ENTRIES_MAX {
                    return self.skip(&directory, TOO_MANY);
                }
                self.seen += 1;
                let path = directory.join(OsStr::from_bytes(&name));
                match self.inspect(&path) {
                    Ok(Entry::File(file, mode)) => self.file(&path, &file, mode)?,
                    Ok(Entry::Directory) if depth == DEPTH_MAX => {
                        self.skip(&path, &format!("more than {DEPTH_MAX} nested directories"))?;
                    }
                    Ok(Entry::Directory) => below.push((path, depth + 1)),
                    Err(reason) => self.skip(&path, &reason)?,
                }
            }
            pending.extend(below.into_iter().rev());
        }
        Ok(())
    }

    /// Returns the sorted names in a directory. Stops reading when the limit on entries is exceeded.
    fn names(&self, directory: &Path) -> io::Result<Vec<Vec<u8>>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let opened = open_in_root(self.root.as_fd(), directory, flags, Mode::empty(), Follow::NoLinks)?;
        let mut names = Vec::new();
        for entry in Dir::new(opened)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if matches!(&name[..], b"." | b"..") {
                continue;
            }
            names.push(name);
            if names.len() > ENTRIES_MAX - self.seen {
                break;
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Returns the entry at a path, or the reason for not capturing it.
    fn inspect(&self, path: &Path) -> Result<Entry, String> {
        if path.as_os_str().len() >= PATH_MAX {
            return Err(format!("the path has more than {} bytes", PATH_MAX - 1));
        }
        let open = |flags| {
            open_in_root(self.root.as_fd(), path, flags | OFlags::NOFOLLOW, Mode::empty(), Follow::NoLinks)
                .map_err(|error| reason(&error))
        };
        let place = open(OFlags::PATH)?;
        let stat = fstat(&place).map_err(|error| reason(&error.into()))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if self.walk.secret_devices.contains(&stat.st_dev) {
            return Err(
                if kind == FileType::Directory { "a directory of secret files" } else { "a secret file" }.into()
            );
        }
        if is_of_the_kernel(place.as_fd()).map_err(|error| reason(&error))? {
            return Err("on a pseudo file system of the kernel".into());
        }
        match kind {
            FileType::RegularFile => {}
            FileType::Directory => return Ok(Entry::Directory),
            FileType::Symlink => return Err("a symbolic link".into()),
            FileType::Fifo => return Err("a named pipe".into()),
            FileType::Socket => return Err("a socket".into()),
            FileType::CharacterDevice | FileType::BlockDevice => return Err("a device".into()),
            FileType::Unknown => return Err("not a regular file".into()),
        }
        let file = open(OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        let opened = fstat(&file).map_err(|error| reason(&error.into()))?;
        if (opened.st_dev, opened.st_ino) != (stat.st_dev, stat.st_ino) {
            return Err("the file was replaced during the capture".into());
        }
        Ok(Entry::File(file, opened.st_mode & 0o7777))
    }

    fn file(&self, path: &Path, file: &OwnedFd, mode: u32) -> Result<(), SearchRecvError> {
        match tellable(path.as_os_str().as_bytes()) {
            Some(path) => self.send(&OutputMessage::File { path: path.to_owned(), mode }, Some(file)),
            None => self.skip(path, "the name is not UTF-8"),
        }
    }

    fn skip(&self, path: &Path, reason: &str) -> Result<(), SearchRecvError> {
        self.send(
            &OutputMessage::Skipped { path: escaped(path.as_os_str().as_bytes()), reason: reason.to_owned() },
            None,
        )
    }

    /// Sends a message and waits until the shim has received it.
    fn send(&self, found: &OutputMessage, file: Option<&OwnedFd>) -> Result<(), SearchRecvError> {
        let received = send(self.socket, found, file) && matches!(self.socket.recv(&mut [0; 1]), Ok(Some(_)));
        if received { Ok(()) } else { Err(SearchRecvError) }
    }
}

fn reason(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => "no such file".into(),
        Some(libc::ELOOP) => "the path contains a symbolic link".into(),
        Some(libc::EACCES | libc::EPERM) => "the process's user may not read the path".into(),
        _ => plain(error),
    }
}
