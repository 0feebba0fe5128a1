//! Packs and unpacks local tar archives for copies into and out of a container.
//!
//! Packing and unpacking run on a separate thread, because they block. A short queue connects the thread to the RPC and
//! provides back-pressure. No archive can write outside the destination ([`executor_cli_kit::destination`]).

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use executor_cli_kit::destination::{Place, Tree, WriteError};
use executor_cli_kit::failure::Failure;
use executor_cli_kit::text::plain;
use executor_tar::{Entry, Kind, Limits, Reader, TarError};
use tar::{Builder, Header};
use tokio::sync::mpsc;

/// Size of a piece of an archive, in bytes.
const PIECE: usize = 32 << 10;

/// Numbers of copied entries and bytes, and the entries that could not be copied.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    /// Path and reason of each entry that could not be copied, one per line. At most [`LEFT_OUT_MAX`] lines.
    pub(crate) left_out: Vec<String>,
    /// Number of further entries that could not be copied.
    pub(crate) more: u64,
}

/// Maximum number of lines of a [`Tally`].
const LEFT_OUT_MAX: usize = 1000;
/// Reason for skipping an entry that is not a file, directory or link.
const NO_FILE: &str = "a device, a pipe or a socket";
/// Reason for skipping a sparse file: holes take no space in the archive, but would fill the local disk.
const SPARSE: &str = "a sparse file";

impl Tally {
    fn leave_out(&mut self, path: &Path, why: impl std::fmt::Display) {
        if self.left_out.len() < LEFT_OUT_MAX {
            self.left_out.push(format!("{}: {why}", plain(&path.display().to_string())));
        } else {
            self.more += 1;
        }
    }
}

/// Reads the pieces of an archive from a queue.
pub(crate) struct Pieces {
    queue: mpsc::Receiver<Vec<u8>>,
    piece: io::Cursor<Vec<u8>>,
}

impl Pieces {
    pub(crate) fn new(queue: mpsc::Receiver<Vec<u8>>) -> Self {
        Self { queue, piece: io::Cursor::default() }
    }
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.piece.read(buffer)? {
                0 if buffer.is_empty() => return Ok(0),
                0 => match self.queue.blocking_recv() {
                    Some(piece) => self.piece = io::Cursor::new(piece),
                    None => return Ok(0),
                },
                length => return Ok(length),
            }
        }
    }
}

/// Writes pieces of an archive to a queue.
struct Queue(mpsc::Sender<Vec<u8>>);

impl Write for Queue {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(PIECE)];
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        self.0.blocking_send(piece.to_vec()).map_err(gone)?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Unpacks an archive. The first component of each entry's path is replaced with the place's name, or removed if the
/// place has no name.
pub(crate) fn unpack(archive: impl Read, place: &Place) -> Result<Tally, Failure> {
    let damaged = |error: TarError| damaged(place, error);
    let tree = Tree::open(place)?;
    // No limit on the total size: only the disk limits the size of the copied tree.
    let mut archive = Reader::new(archive, Limits::default().without_total());
    let (mut tally, mut directories) = (Tally::default(), Vec::new());
    while let Some(entry) = archive.next_entry().map_err(damaged)? {
        let path = local(&entry.path, place)?;
        match unpack_one(&entry, &mut archive, &tree, &path, place) {
            Ok(true) => {
                tally.entries += 1;
                tally.bytes += entry.size;
                if entry.kind == Kind::Directory {
                    directories.push((path, entry.mode, seconds(&entry)));
                }
            }
            Ok(false) => tally.leave_out(&path, if entry.sparse { SPARSE } else { NO_FILE }),
            // A failure that concerns only this entry does not stop the copy.
            Err(failure) => match failure.wrapped::<WriteError>() {
                Some(error) if !error.affects_all_writes() => tally.leave_out(&path, error.why()),
                _ => return Err(failure),
            },
        }
    }
    // Set modes and times after the contents are written and for deep directories first: a directory may be read-only.
    for (path, mode, mtime) in directories.into_iter().rev().filter(|(path, ..)| !path.as_os_str().is_empty()) {
        if let Err(error) = tree.mark(&path, mode, mtime) {
            tally.leave_out(&path, error.why());
        }
    }
    Ok(tally)
}

fn damaged(place: &Place, error: TarError) -> Failure {
    Failure::Archive { path: place.directory.clone(), source: error.into() }
}

/// Returns the modification time in seconds; 0 for a time before the epoch.
fn seconds(entry: &Entry) -> u64 {
    u64::try_from(entry.mtime.seconds).unwrap_or(0)
}

/// Creates the file, directory or link of an entry. Returns false for any other type.
fn unpack_one(
    entry: &Entry,
    archive: &mut Reader<impl Read>,
    tree: &Tree,
    path: &Path,
    place: &Place,
) -> Result<bool, Failure> {
    match entry.kind {
        Kind::Directory => {
            tree.directory(path)?;
        }
        Kind::File if entry.is_plain_file() => {
            let mut partial = tree.file(path, entry.mode & 0o700)?;
            let mut buffer = vec![0; PIECE];
            while let Some((_, length)) = archive.content(&mut buffer).map_err(|error| damaged(place, error))? {
                partial.write(&buffer[..length])?;
            }
            partial.mark(entry.mode, seconds(entry))?;
            partial.finish()?;
        }
        Kind::Symlink => tree.symlink(path, Path::new(OsStr::from_bytes(&entry.link)))?,
        Kind::HardLink => tree.hard_link(path, &local(&entry.link, place)?)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Returns the path of an entry below the destination's directory.
fn local(path: &[u8], place: &Place) -> Result<PathBuf, Failure> {
    let unasked = || Failure::Unasked { path: plain(&String::from_utf8_lossy(path)) };
    let mut components = Path::new(OsStr::from_bytes(path)).components();
    let mut local: PathBuf = place.name.iter().collect();
    match components.next() {
        Some(Component::Normal(_) | Component::CurDir) => {}
        _ => return Err(unasked()),
    }
    for component in components {
        match component {
            Component::Normal(name) if !name.as_bytes().contains(&0) => local.push(name),
            _ => return Err(unasked()),
        }
    }
    Ok(local)
}

/// Packs a file, or a directory recursively. `name` is the name in the archive. Without a name, only the contents of
/// the directory are packed.
pub(crate) fn pack(
    source: &Path,
    follow: bool,
    name: Option<&Path>,
    queue: mpsc::Sender<Vec<u8>>,
) -> Result<Tally, Failure> {
    let out = io::BufWriter::with_capacity(PIECE, Queue(queue));
    let mut packer = Packer { builder: Builder::new(out), tally: Tally::default() };
    let meta = if follow { fs::metadata(source) } else { fs::symlink_metadata(source) };
    let meta = meta.map_err(|error| Failure::Unread { path: source.to_owned(), source: error })?;
    match name {
        Some(name) => packer.entry(source, name, &meta).or_else(ignore_broken_pipe)?,
        None => packer.below(source, Path::new("")).or_else(ignore_broken_pipe)?,
    }
    let Packer { builder, tally } = packer;
    let ended = builder.into_inner().and_then(|mut out| out.flush());
    ended.map_err(Failure::System).or_else(ignore_broken_pipe)?;
    Ok(tally)
}

/// Ignores a broken pipe: the receiver has exited, and its response has the reason.
fn ignore_broken_pipe(failure: Failure) -> Result<(), Failure> {
    match failure {
        Failure::Unread { source, .. } | Failure::System(source) if source.kind() == io::ErrorKind::BrokenPipe => {
            Ok(())
        }
        failure => Err(failure),
    }
}

struct Packer<W: Write> {
    builder: Builder<W>,
    tally: Tally,
}

impl<W: Write> Packer<W> {
    fn entry(&mut self, source: &Path, name: &Path, meta: &Metadata) -> Result<(), Failure> {
        let failed = |error: io::Error| Failure::Unread { path: source.to_owned(), source: error };
        let mut header = Header::new_gnu();
        header.set_metadata(meta);
        let kind = meta.file_type();
        if kind.is_dir() {
            header.set_size(0);
            self.builder.append_data(&mut header, name, io::empty()).map_err(failed)?;
            self.tally.entries += 1;
            return self.below(source, name);
        }
        if kind.is_symlink() {
            header.set_size(0);
            let target = match fs::read_link(source) {
                Ok(target) => target,
                Err(error) => {
                    self.tally.leave_out(source, error);
                    return Ok(());
                }
            };
            self.builder.append_link(&mut header, name, target).map_err(failed)?;
        } else if kind.is_file() {
            let file = match File::open(source) {
                Ok(file) => file,
                Err(error) => {
                    self.tally.leave_out(source, error);
                    return Ok(());
                }
            };
            let size = meta.len();
            // Write exactly this many bytes, even if the file's size has changed.
            let content = file.take(size).chain(io::repeat(0)).take(size);
            self.builder.append_data(&mut header, name, content).map_err(failed)?;
            self.tally.bytes += size;
        } else {
            self.tally.leave_out(source, NO_FILE);
            return Ok(());
        }
        self.tally.entries += 1;
        Ok(())
    }

    fn below(&mut self, directory: &Path, name: &Path) -> Result<(), Failure> {
        let mut names = match fs::read_dir(directory).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
            Ok(names) => names,
            Err(error) => {
                self.tally.leave_out(directory, error);
                return Ok(());
            }
        };
        names.sort_by_key(fs::DirEntry::file_name);
        for entry in names {
            let meta = match entry.metadata() {
                Ok(meta) => meta,
                Err(error) => {
                    self.tally.leave_out(&entry.path(), error);
                    continue;
                }
            };
            self.entry(&entry.path(), &name.join(entry.file_name()), &meta)?;
        }
        Ok(())
    }
}

/// Forwards standard input to the queue.
pub(crate) fn forward(mut from: impl Read, queue: &mpsc::Sender<Vec<u8>>) -> Result<(), Failure> {
    let mut buffer = vec![0; PIECE];
    loop {
        match from.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(Failure::Unread { path: "standard input".into(), source }),
            Ok(0) => return Ok(()),
            Ok(length) if queue.blocking_send(buffer[..length].to_vec()).is_err() => return Ok(()),
            Ok(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use tar::EntryType;

    use super::*;

    fn packed(source: &Path, name: Option<&str>) -> Vec<u8> {
        let (sender, mut receiver) = mpsc::channel(1);
        let source = source.to_owned();
        let name = name.map(PathBuf::from);
        let packing = std::thread::spawn(move || pack(&source, false, name.as_deref(), sender).unwrap());
        let mut all = Vec::new();
        while let Some(piece) = receiver.blocking_recv() {
            all.extend(piece);
        }
        packing.join().unwrap();
        all
    }

    fn place(directory: &Path, name: Option<&str>) -> Place {
        Place { directory: directory.to_owned(), make: true, name: name.map(Into::into) }
    }

    #[test]
    fn packed_directory_is_unpacked_unchanged() {
        let home = tempfile::tempdir().unwrap();
        let (from, to) = (home.path().join("from"), home.path().join("to"));
        let deep = from.join("d".repeat(120)).join("e".repeat(120));
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("file"), vec![b'x'; 100_000]).unwrap();
        fs::set_permissions(deep.join("file"), PermissionsExt::from_mode(0o4666)).unwrap();
        symlink("/etc/passwd", from.join("link")).unwrap();
        let _pipe = std::os::unix::net::UnixListener::bind(from.join("socket")).unwrap();
        fs::set_permissions(&deep, PermissionsExt::from_mode(0o555)).unwrap();
        let tally = unpack(&packed(&from, Some("top"))[..], &place(&to, Some("other"))).unwrap();
        assert_eq!((tally.entries, tally.bytes), (5, 100_000));
        let copied = to.join("other").join(deep.strip_prefix(&from).unwrap());
        assert_eq!(fs::read(copied.join("file")).unwrap().len(), 100_000);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(&copied.join("file")), mode(&copied)), (0o666, 0o555));
        assert_eq!(fs::read_link(to.join("other/link")).unwrap(), Path::new("/etc/passwd"));
        let nameless = unpack(&packed(&from, None)[..], &place(&home.path().join("flat"), None)).unwrap();
        assert_eq!(nameless.left_out, [": has no file name"], "an entry without a name is left out");
        for writable in [&deep, &copied] {
            fs::set_permissions(writable, PermissionsExt::from_mode(0o755)).unwrap();
        }
    }

    /// Paths and links of a hostile archive cannot leave the destination.
    #[test]
    fn no_entry_leads_out_of_the_destination() {
        let home = tempfile::tempdir().unwrap();
        let precious = home.path().join("precious");
        fs::write(&precious, "kept").unwrap();
        let archive = |path: &str, kind: EntryType, link: &str| {
            let mut builder = Builder::new(Vec::new());
            let mut header = Header::new_gnu();
            header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_entry_type(kind);
            header.set_mode(0o644);
            header.set_size(0);
            if !link.is_empty() {
                header.set_link_name_literal(link).unwrap();
            }
            header.set_cksum();
            builder.append(&header, io::empty()).unwrap();
            builder.into_inner().unwrap()
        };
        let to = home.path().join("to");
        for path in ["../precious", "/precious", "top/../../precious", "..", "top/../precious"] {
            assert!(unpack(&archive(path, EntryType::Regular, "")[..], &place(&to, None)).is_err(), "{path}");
        }
        let link = archive("top/x", EntryType::Link, "top/../../precious");
        assert!(unpack(&link[..], &place(&to, None)).is_err());
        // A link that came from an archive is not followed when writing.
        unpack(&archive("top/out", EntryType::Symlink, "..")[..], &place(&to, None)).unwrap();
        let through = unpack(&archive("top/out/precious", EntryType::Regular, "")[..], &place(&to, None)).unwrap();
        assert_eq!((through.entries, through.left_out.len()), (0, 1), "{through:?}");
        assert_eq!(fs::read(&precious).unwrap(), b"kept");
    }
}
