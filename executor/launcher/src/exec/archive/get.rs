//! Copies files out of a container: sends the file type of a path, and then the path with everything below it as a GNU
//! tar archive.
//!
//! The tree may change during the copy. A file that became shorter is padded with zeros, a file that grew is truncated,
//! and entries that no longer exist are skipped. Symbolic links are sent as links, and further names of a file as hard
//! links.

use std::collections::HashMap;
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, BufWriter, Read as _, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use executor_core::outputs::DEPTH_MAX;
use executor_core::protocol::ArchiveStat;
use executor_sys::mount::{Follow, open_in_root};
use prost::Message as _;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use rustix::io::Errno;

use super::{ArchiveFailure, ArchiveRequest, SkippedEntries, own};
use crate::kernel_files::is_of_the_kernel;

/// Block size of an archive in bytes.
const BLOCK: usize = 512;
/// Maximum number of files with several names that are remembered. Further names of other files are sent as separate
/// files.
const LINKS_MAX: usize = 100_000;
/// Archive name for a path without a file name.
const NAMELESS: &[u8] = b".";

/// Error message for a secret file.
const SECRET: &str = "files on the volume of secret files are not copied";

pub(super) struct ArchiveSource<'a> {
    found: InspectedEntry,
    /// `O_PATH` descriptor, if no content is read.
    place: Option<OwnedFd>,
    name: Vec<u8>,
    path: PathBuf,
    secret_devices: &'a [u64],
}

impl<'a> ArchiveSource<'a> {
    /// Opens the requested path.
    ///
    /// # Errors
    /// Returns an error if the path does not exist or must not be read.
    pub(super) fn open(root: BorrowedFd<'_>, request: &ArchiveRequest, secret_devices: &'a [u64]) -> io::Result<Self> {
        let at_end = if request.follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        let open =
            |flags: OFlags| open_in_root(root, &request.path, flags | at_end, Mode::empty(), Follow::LinksWithinRoot);
        let place = open(OFlags::PATH)?;
        let stat = fstat(&place)?;
        if secret_devices.contains(&stat.st_dev) {
            return Err(io::Error::other(SECRET));
        }
        let kind = FileType::from_raw_mode(stat.st_mode);
        if !request.stat && is_of_the_kernel(place.as_fd())? {
            return Err(io::Error::other("files on a pseudo file system of the kernel are not copied"));
        }
        let readable = match kind {
            FileType::Directory => Some(OFlags::RDONLY | OFlags::DIRECTORY),
            FileType::RegularFile => Some(OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY),
            FileType::Socket if !request.stat => return Err(io::Error::other("a tar archive cannot contain a socket")),
            _ => None,
        };
        let content = readable.filter(|_| !request.stat).map(open).transpose()?;
        if let Some(content) = &content {
            let now = fstat(content)?;
            if (now.st_dev, now.st_ino) != (stat.st_dev, stat.st_ino) {
                return Err(io::Error::other("the file changed while it was opened"));
            }
        }
        let link = match kind {
            FileType::Symlink => readlinkat(&place, c"", Vec::new())?.into_bytes(),
            _ => Vec::new(),
        };
        let name = request.path.file_name().map_or(NAMELESS, |name| name.as_encoded_bytes()).to_vec();
        let place = content.is_none().then_some(place);
        Ok(Self {
            found: InspectedEntry { content, stat, link },
            place,
            name,
            path: request.path.clone(),
            secret_devices,
        })
    }

    /// Returns the descriptor that must stay open.
    pub(super) fn kept(&self) -> Option<BorrowedFd<'_>> {
        self.found.content.as_ref().or(self.place.as_ref()).map(AsFd::as_fd)
    }

    /// Sends the file type of the path. Unless only the file type is requested, also sends the archive.
    pub(super) fn send(self, stat_only: bool) -> Result<(), ArchiveFailure> {
        let failed = |error: io::Error| ArchiveFailure::new(&self.path, error);
        let stdout = own(rustix::stdio::stdout()).map_err(failed)?;
        let mut archive = Archive::new(stdout, self.secret_devices);
        let InspectedEntry { stat, link, .. } = &self.found;
        let reported = ArchiveStat {
            size: u64::try_from(stat.st_size).unwrap_or(0),
            mode: stat.st_mode,
            link: link.clone(),
            mtime: stat.st_mtime,
        };
        let reported = reported.encode_to_vec();
        let head = (reported.len() as u32).to_le_bytes();
        archive.out.write_all(&head).and_then(|()| archive.out.write_all(&reported)).map_err(failed)?;
        if !stat_only {
            archive.entry(&self.found, &self.name, &self.path, 0)?;
            archive.write_trailer().map_err(failed)?;
        }
        archive.out.flush().map_err(failed)?;
        archive.skipped.into_result()
    }
}

/// An archive being sent.
struct Archive<'a> {
    out: BufWriter<File>,
    secret_devices: &'a [u64],
    /// First name that was sent for each file with several names, by device and inode.
    known: HashMap<(u64, u64), Vec<u8>>,
    skipped: SkippedEntries,
}

impl<'a> Archive<'a> {
    fn new(out: File, secret_devices: &'a [u64]) -> Self {
        let out = BufWriter::with_capacity(64 << 10, out);
        Self { out, secret_devices, known: HashMap::new(), skipped: SkippedEntries::default() }
    }

    /// Sends an entry and everything below it.
    fn entry(&mut self, found: &InspectedEntry, name: &[u8], path: &Path, depth: usize) -> Result<(), ArchiveFailure> {
        let InspectedEntry { content, stat, link } = found;
        let failed = |error: io::Error| ArchiveFailure::new(path, error);
        let (kind, size) = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => (b'0', u64::try_from(stat.st_size).unwrap_or(0)),
            FileType::Directory => (b'5', 0),
            FileType::Symlink => (b'2', 0),
            FileType::Fifo => (b'6', 0),
            FileType::CharacterDevice => (b'3', 0),
            FileType::BlockDevice => (b'4', 0),
            FileType::Socket | FileType::Unknown => return Ok(()), // not representable in an archive
        };
        if kind == b'0' && stat.st_nlink > 1 {
            let file = (stat.st_dev, stat.st_ino);
            if let Some(first) = self.known.get(&file).cloned() {
                return self.header(name, &first, b'1', 0, stat).map_err(failed);
            }
            if self.known.len() < LINKS_MAX {
                self.known.insert(file, name.to_vec());
            }
        }
        let slash = if kind == b'5' { [name, b"/"].concat() } else { name.to_vec() };
        self.header(&slash, link, kind, size, stat).map_err(failed)?;
        match (kind, content) {
            (b'0', Some(file)) => self.content(file, size).map_err(failed),
            (b'5', Some(directory)) if depth < DEPTH_MAX => self.below(directory, name, path, depth),
            (b'5', Some(_)) => {
                let why = format!("there are more than {DEPTH_MAX} nested directories");
                self.skipped.add(path, io::Error::other(why));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Sends the entries of a directory.
    fn below(&mut self, directory: &OwnedFd, name: &[u8], path: &Path, depth: usize) -> Result<(), ArchiveFailure> {
        let failed = |error: io::Error| ArchiveFailure::new(path, error);
        if is_of_the_kernel(directory.as_fd()).map_err(failed)? {
            return Ok(());
        }
        for entry in Dir::read_from(directory).map_err(|error| failed(error.into()))? {
            let entry = entry.map_err(|error| failed(error.into()))?;
            let own = entry.file_name();
            if matches!(own.to_bytes(), b"." | b"..") {
                continue;
            }
            let path = path.join(std::ffi::OsStr::new(&*String::from_utf8_lossy(own.to_bytes())));
            let name = [name, b"/", own.to_bytes()].concat();
            match inspect(directory, own, self.secret_devices) {
                Ok(Some(found)) => self.entry(&found, &name, &path, depth + 1)?,
                Ok(None) => {}
                Err(error) => self.skipped.add(&path, error),
            }
        }
        Ok(())
    }

    /// Sends exactly `size` bytes, even if the file's size has changed.
    fn content(&mut self, file: &OwnedFd, size: u64) -> io::Result<()> {
        let file = File::from(file.try_clone()?);
        io::copy(&mut file.take(size).chain(io::repeat(0)).take(size), &mut self.out)?;
        self.fill(size)
    }

    /// Pads the last block of a file's content with zeros.
    fn fill(&mut self, size: u64) -> io::Result<()> {
        self.out.write_all(&[0; BLOCK][..(size.wrapping_neg() % BLOCK as u64) as usize])
    }

    /// Sends a header. Names and links that are too long for a header are sent in entries before this header.
    fn header(&mut self, name: &[u8], link: &[u8], kind: u8, size: u64, stat: &Stat) -> io::Result<()> {
        for (long, kind) in [(link, b'K'), (name, b'L')] {
            if long.len() > 100 {
                let header = Header { name: b"././@LongLink", link: b"", kind, size: long.len() as u64 + 1, of: None };
                self.out.write_all(&header.block())?;
                self.out.write_all(long)?;
                self.out.write_all(&[0])?;
                self.fill(long.len() as u64 + 1)?;
            }
        }
        let cut = |bytes: &'_ [u8]| bytes[..bytes.len().min(100)].to_vec();
        self.out.write_all(&Header { name: &cut(name), link: &cut(link), kind, size, of: Some(stat) }.block())
    }

    fn write_trailer(&mut self) -> io::Result<()> {
        self.out.write_all(&[0; 2 * BLOCK])
    }
}

/// A file, directory, link or device that is to be sent.
struct InspectedEntry {
    /// Open descriptor of a file or directory.
    content: Option<OwnedFd>,
    stat: Stat,
    link: Vec<u8>,
}

/// Inspects an entry of a directory. Returns `None` if the entry was removed or replaced meanwhile.
fn inspect(directory: &OwnedFd, name: &CStr, secret_devices: &[u64]) -> io::Result<Option<InspectedEntry>> {
    let mut stat = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(None),
        stat => stat?,
    };
    let flags = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => OFlags::DIRECTORY,
        FileType::RegularFile => OFlags::NONBLOCK | OFlags::NOCTTY,
        FileType::Symlink => {
            return match readlinkat(directory, name, Vec::new()) {
                Err(Errno::NOENT | Errno::INVAL) => Ok(None), // removed or replaced meanwhile
                link => Ok(Some(InspectedEntry { content: None, stat, link: link?.into_bytes() })),
            };
        }
        _ => return Ok(Some(InspectedEntry { content: None, stat, link: Vec::new() })),
    };
    if secret_devices.contains(&stat.st_dev) {
        return Err(io::Error::other(SECRET));
    }
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let content = match openat(directory, name, flags, Mode::empty()) {
        Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::NXIO) => return Ok(None),
        content => content?,
    };
    let now = fstat(&content)?;
    if FileType::from_raw_mode(now.st_mode) != FileType::from_raw_mode(stat.st_mode)
        || secret_devices.contains(&now.st_dev)
    {
        return Ok(None);
    }
    stat = now;
    Ok(Some(InspectedEntry { content: Some(content), stat, link: Vec::new() }))
}

/// An archive header block.
struct Header<'a> {
    name: &'a [u8],
    link: &'a [u8],
    kind: u8,
    size: u64,
    of: Option<&'a Stat>,
}

impl Header<'_> {
    fn block(&self) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        block[..self.name.len()].copy_from_slice(self.name);
        let (mode, uid, gid, mtime, device) = self.of.map_or((0o644, 0, 0, 0, 0), |stat| {
            (stat.st_mode & 0o7777, stat.st_uid, stat.st_gid, stat.st_mtime.max(0).cast_unsigned(), stat.st_rdev)
        });
        number(&mut block[100..108], mode.into());
        number(&mut block[108..116], uid.into());
        number(&mut block[116..124], gid.into());
        number(&mut block[124..136], self.size);
        number(&mut block[136..148], mtime);
        block[156] = self.kind;
        block[157..157 + self.link.len()].copy_from_slice(self.link);
        block[257..265].copy_from_slice(b"ustar  \0");
        if matches!(self.kind, b'3' | b'4') {
            number(&mut block[329..337], rustix::fs::major(device).into());
            number(&mut block[337..345], rustix::fs::minor(device).into());
        }
        block[148..156].fill(b' ');
        let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
        block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        block
    }
}

/// Writes a number as octal digits and a zero byte, or in GNU's binary encoding if the number has too many digits.
fn number(field: &mut [u8], value: u64) {
    let digits = field.len() - 1;
    let text = format!("{value:0digits$o}");
    if text.len() == digits {
        field[..digits].copy_from_slice(text.as_bytes());
        return;
    }
    let bytes = value.to_be_bytes();
    let length = bytes.len().min(field.len());
    let at = field.len() - length;
    field[at..].copy_from_slice(&bytes[bytes.len() - length..]);
    field[0] |= 0x80;
}

#[cfg(test)]
mod tests {
    use super::*;
    use executor_tar::{Kind, Limits, Reader};

    /// A strict reader can read the written archives.
    #[test]
    fn entries_of_any_length_are_read_again() {
        let home = tempfile::tempdir().unwrap();
        let (long, deep) = ("n".repeat(200), home.path().join("top").join("d".repeat(90)));
        std::fs::create_dir_all(&deep).unwrap();
        std::fs::write(deep.join(&long), vec![b'x'; 1000]).unwrap();
        std::fs::hard_link(deep.join(&long), deep.join("same")).unwrap();
        std::os::unix::fs::symlink("l".repeat(300), deep.join("link")).unwrap();
        let out = tempfile::tempfile().unwrap();
        let mut archive = Archive::new(out.try_clone().unwrap(), &[]);
        let top = OwnedFd::from(File::open(home.path().join("top")).unwrap());
        let stat = fstat(&top).unwrap();
        let path = Path::new("/top");
        let found = InspectedEntry { content: Some(top), stat, link: Vec::new() };
        archive.entry(&found, b"top", path, 0).ok().unwrap();
        archive.write_trailer().unwrap();
        archive.out.flush().unwrap();
        let mut bytes = Vec::new();
        io::Seek::rewind(&mut &out).unwrap();
        (&out).read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len() % BLOCK, 0);
        let mut reader = Reader::new(&bytes[..], Limits::default());
        let mut kinds = Vec::new();
        while let Some(entry) = reader.next_entry().unwrap() {
            assert!(entry.kind != Kind::Symlink || entry.link == "l".repeat(300).into_bytes());
            assert!(entry.kind != Kind::File || entry.size == 1000);
            kinds.push(entry.kind);
        }
        kinds.sort_by_key(|kind| format!("{kind:?}"));
        assert_eq!(kinds, [Kind::Directory, Kind::Directory, Kind::File, Kind::HardLink, Kind::Symlink]);
    }

    #[test]
    fn numbers_that_do_not_fit_are_binary() {
        let of = |value| {
            let mut field = [0; 12];
            number(&mut field, value);
            field
        };
        assert_eq!(&of(8), b"00000000010\0");
        assert_eq!(of(1 << 40), [0x80, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]);
    }
}
