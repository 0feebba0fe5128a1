//! Reads the objects of a repository, and verifies the hash of each object.
//!
//! For each name on standard input, `git cat-file --batch` prints `NAME TYPE SIZE`, the content and a line feed. The
//! name of an object is the hash of `TYPE SIZE`, a zero byte and the content. The walk from the commit to the blobs
//! counts every entry of every visited tree, because a few small trees that contain each other many times have billions
//! of paths.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::rc::Rc;

use sha1_checked::Digest as _;

use super::process::{Limits, Running, git};
use super::{Repository, name_within};
use crate::source::{FILES_MAX, NAME_MAX, Sink, SourceError};

/// Maximum size of a commit, in bytes.
const COMMIT_MAX: u64 = 1 << 20;
/// Maximum size of a tree, in bytes; enough for [`FILES_MAX`] entries with names of ordinary length.
const TREE_MAX: u64 = 16 << 20;

/// Hash function of an object.
enum Hasher {
    /// SHA-1 with detection of the known collision attacks (SHAttered, SHA-1 is a Shambles).
    Sha1(Box<sha1_checked::Sha1>),
    Sha256(Box<sha2::Sha256>),
}

impl Hasher {
    fn new(digits: usize) -> Self {
        if digits == 64 { Self::Sha256(Box::default()) } else { Self::Sha1(Box::default()) }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha1(hasher) => hasher.update(bytes),
            Self::Sha256(hasher) => hasher.update(bytes),
        }
    }

    /// Returns the hash; `None` if the content is part of a collision attack.
    fn finish(self) -> Option<String> {
        match self {
            Self::Sha1(hasher) => {
                let result = hasher.try_finalize();
                (!result.has_collision()).then(|| hex::encode(result.hash()))
            }
            Self::Sha256(hasher) => Some(hex::encode(hasher.finalize())),
        }
    }
}

/// Content of an object, hashed while it is read.
struct Hashed<'a> {
    from: io::Take<&'a mut BufReader<ChildStdout>>,
    hasher: Hasher,
}

impl Read for Hashed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        Ok(count)
    }
}

struct Entry {
    name: String,
    object: String,
    is_tree: bool,
}

/// Reader of a repository's objects.
pub(super) struct Objects {
    process: Running,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// Number of hexadecimal digits of a name: 40 or 64.
    digits: usize,
}

impl Objects {
    pub(super) fn new(repository: &Repository, digits: usize) -> Result<Self, SourceError> {
        let mut command = git(repository.own.path(), &Limits::READ);
        if let Some(objects) = &repository.objects {
            command.env("GIT_OBJECT_DIRECTORY", objects);
        }
        command.args(["cat-file", "--batch"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = Running::spawn(command, &Limits::READ)?;
        let (Some(to), Some(from)) = (process.child.stdin.take(), process.child.stdout.take()) else {
            return Err(SourceError::Git("git cat-file was started without pipes".to_owned()));
        };
        Ok(Self { process, to, from: BufReader::new(from), digits })
    }

    /// Reads the files below a directory of a commit.
    pub(super) fn read(mut self, commit: &str, directory: &str, sink: &mut Sink) -> Result<(), SourceError> {
        let result = self.files(commit, directory, sink);
        let Self { process, to, from, .. } = self;
        drop((to, from));
        match result {
            // The output was truncated: git's own message contains the reason.
            Err(SourceError::Git(why)) => match process.finish("read the objects") {
                Err(error) => Err(SourceError::Git(format!("{why} ({error})"))),
                Ok(()) => Err(SourceError::Git(why)),
            },
            Err(other) => Err(other),
            Ok(()) => process.finish("read the objects"),
        }
    }

    fn files(&mut self, commit: &str, directory: &str, sink: &mut Sink) -> Result<(), SourceError> {
        let content = self.whole(commit, "commit", COMMIT_MAX)?;
        let root = content.strip_prefix(b"tree ").and_then(|rest| rest.get(..self.digits));
        let root = root.and_then(|root| std::str::from_utf8(root).ok()).filter(|root| super::is_commit(root));
        let mut root = root.ok_or_else(|| SourceError::Git(format!("the commit {commit} has no tree")))?.to_owned();
        for part in directory.split('/').filter(|part| !part.is_empty()) {
            let found = self.tree(&root)?.into_iter().find(|entry| entry.is_tree && entry.name == part);
            root = found
                .ok_or_else(|| SourceError::Entry(directory.to_owned(), "is not a directory of the commit"))?
                .object;
        }
        for (object, name) in self.walk(root, sink)? {
            self.blob(&object, &name, sink)?;
        }
        Ok(())
    }

    /// Returns the name and the path of every blob below a tree. A tree that occurs at several paths is read only once.
    fn walk(&mut self, root: String, sink: &Sink) -> Result<Vec<(String, String)>, SourceError> {
        let (mut waiting, mut seen, mut blobs) = (vec![(root, String::new())], 0, Vec::new());
        let mut trees: BTreeMap<String, Rc<[Entry]>> = BTreeMap::new();
        while let Some((tree, prefix)) = waiting.pop() {
            let entries = match trees.get(&tree) {
                Some(entries) => Rc::clone(entries),
                None => {
                    let entries: Rc<[Entry]> = self.tree(&tree)?.into();
                    trees.insert(tree, Rc::clone(&entries));
                    entries
                }
            };
            seen += entries.len();
            if seen > FILES_MAX {
                return Err(SourceError::TooLarge(sink.bytes_max()));
            }
            for entry in &*entries {
                let name = name_within(format!("{prefix}{}", entry.name).as_bytes())?;
                if entry.is_tree {
                    waiting.push((entry.object.clone(), format!("{name}/")));
                } else {
                    blobs.push((entry.object.clone(), name));
                }
            }
        }
        Ok(blobs)
    }

    /// Requests an object, checks its type, and returns its size.
    fn ask(&mut self, object: &str, kind: &str) -> Result<u64, SourceError> {
        let failed = |error: io::Error| SourceError::Git(format!("the object {object} cannot be read: {error}"));
        writeln!(self.to, "{object}").map_err(failed)?;
        let mut header = String::new();
        (&mut self.from).take(200).read_line(&mut header).map_err(failed)?;
        let mut words = header.trim_end().split(' ');
        match (words.next() == Some(object), words.next(), words.next().and_then(|size| size.parse().ok())) {
            (true, Some(found), Some(size)) if found == kind => Ok(size),
            (true, Some(found), Some(_)) => {
                let found: String = found.chars().take(20).collect();
                Err(SourceError::Git(format!("the object {object} is a {found}; it must be a {kind}")))
            }
            _ => Err(SourceError::Git(format!("the repository has no {kind} {object}"))),
        }
    }

    /// Reads the content of an object with `read`, and checks that the hash of the object equals its name.
    fn content<T>(
        &mut self,
        object: &str,
        kind: &str,
        size: u64,
        read: impl FnOnce(&mut dyn Read) -> Result<T, SourceError>,
    ) -> Result<T, SourceError> {
        let mut hasher = Hasher::new(self.digits);
        hasher.update(format!("{kind} {size}\0").as_bytes());
        let mut hashed = Hashed { from: (&mut self.from).take(size), hasher };
        let read = read(&mut hashed)?;
        if hashed.from.limit() > 0 {
            return Err(SourceError::Git(format!("the object {object} is truncated; its size is {size} bytes")));
        }
        match hashed.hasher.finish() {
            Some(hash) if hash == object => {}
            Some(hash) => {
                let why = format!(
                    "the content of the {kind} {object} has the hash {hash}: the repository is damaged or was tampered with"
                );
                return Err(SourceError::Git(why));
            }
            None => {
                return Err(SourceError::Git(format!("the {kind} {object} matches a SHA-1 collision attack")));
            }
        }
        let ended = |error| SourceError::Git(format!("the object {object} cannot be read: {error}"));
        self.from.read_exact(&mut [0]).map_err(ended)?;
        Ok(read)
    }

    /// Reads a commit or a tree into memory.
    fn whole(&mut self, object: &str, kind: &'static str, most: u64) -> Result<Vec<u8>, SourceError> {
        let size = self.ask(object, kind)?;
        if size > most {
            return Err(SourceError::Git(format!("the {kind} {object} is {size} bytes; the maximum is {most}")));
        }
        let failed = |error| SourceError::Git(format!("the object {object} cannot be read: {error}"));
        self.content(object, kind, size, |content| {
            let mut whole = Vec::new();
            content.read_to_end(&mut whole).map_err(failed)?;
            Ok(whole)
        })
    }

    fn blob(&mut self, object: &str, name: &str, sink: &mut Sink) -> Result<(), SourceError> {
        let size = self.ask(object, "blob")?;
        if size > sink.room() {
            return Err(SourceError::TooLarge(sink.bytes_max()));
        }
        self.content(object, "blob", size, |content| sink.file(name, content))
    }

    /// Reads a tree. Each entry is `MODE NAME`, a zero byte and the binary hash of an object.
    fn tree(&mut self, object: &str) -> Result<Vec<Entry>, SourceError> {
        let content = self.whole(object, "tree", TREE_MAX)?;
        let broken = || SourceError::Git(format!("the tree {object} is malformed"));
        let (mut rest, mut entries) = (&content[..], Vec::new());
        while !rest.is_empty() {
            let end = rest.iter().position(|byte| *byte == 0).ok_or_else(broken)?;
            let (line, hash) = (&rest[..end], rest.get(end + 1..end + 1 + self.digits / 2).ok_or_else(broken)?);
            rest = &rest[end + 1 + self.digits / 2..];
            let space = line.iter().position(|byte| *byte == b' ').ok_or_else(broken)?;
            let (mode, name) = (&line[..space], entry_name(&line[space + 1..])?);
            let is_tree = matches!(mode, b"40000" | b"040000");
            if !is_tree && !mode.starts_with(b"100") {
                return Err(SourceError::Entry(name, "is neither a file nor a directory"));
            }
            if entries.len() >= FILES_MAX {
                return Err(SourceError::Git(format!("the tree {object} has more than {FILES_MAX} entries")));
            }
            entries.push(Entry { name, object: hex::encode(hash), is_tree });
        }
        Ok(entries)
    }
}

/// Checks the name of an entry, which git checks only when it writes a working tree.
fn entry_name(name: &[u8]) -> Result<String, SourceError> {
    let refused = |why| SourceError::Entry(String::from_utf8_lossy(name).chars().take(200).collect(), why);
    let text = std::str::from_utf8(name).map_err(|_| refused("is not UTF-8"))?;
    if text.is_empty() || text.len() > NAME_MAX || text.contains('/') || matches!(text, "." | "..") {
        return Err(refused("is not a valid file name: use 1 to 1024 bytes without `/`, and neither `.` nor `..`"));
    }
    if text.eq_ignore_ascii_case(".git") {
        return Err(refused("is git's own directory, which is not allowed in a commit"));
    }
    Ok(text.to_owned())
}
