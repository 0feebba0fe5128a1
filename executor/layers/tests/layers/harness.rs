//! Creates archives, and stores in a directory with other files. Includes an unpacker that trusts its input.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use executor_layers::stream::Compression;
use executor_layers::{DiffId, Limits, Request, Store, UnpackError};
use executor_sys::mount::open_dir;
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};
use tempfile::TempDir;

/// Content of the file outside the store.
const SENTINEL: &str = "this content must not change";

/// An archive that is being built.
pub(crate) struct Layer(Builder<Vec<u8>>);

impl Layer {
    pub(crate) fn new() -> Self {
        Self(Builder::new(Vec::new()))
    }

    /// Adds an entry with unmodified names. Names that do not fit in the header are written in GNU's format.
    pub(crate) fn raw(mut self, kind: EntryType, path: &str, link: &str, mode: u32, content: &[u8]) -> Self {
        for (long, name) in [(b'L', path), (b'K', link)] {
            if name.len() > 100 {
                let mut header = header(EntryType::new(long), 0o644, name.len() as u64 + 1);
                put(&mut header, 0, b"././@LongLink");
                header.set_cksum();
                self.0.append(&header, [name.as_bytes(), b"\0"].concat().as_slice()).unwrap();
            }
        }
        let mut header = header(kind, mode, content.len() as u64);
        put(&mut header, 0, &path.as_bytes()[..path.len().min(100)]);
        put(&mut header, 157, &link.as_bytes()[..link.len().min(100)]);
        header.set_cksum();
        self.0.append(&header, content).unwrap();
        self
    }

    pub(crate) fn file(self, path: &str, content: &str) -> Self {
        self.raw(EntryType::Regular, path, "", 0o644, content.as_bytes())
    }

    pub(crate) fn dir(self, path: &str, mode: u32) -> Self {
        self.raw(EntryType::Directory, path, "", mode, b"")
    }

    pub(crate) fn symlink(self, path: &str, to: &str) -> Self {
        self.raw(EntryType::Symlink, path, to, 0o777, b"")
    }

    pub(crate) fn hard_link(self, path: &str, to: &str) -> Self {
        self.raw(EntryType::Link, path, to, 0o644, b"")
    }

    pub(crate) fn device(mut self, path: &str, major: u32, minor: u32) -> Self {
        let mut header = header(EntryType::Char, 0o666, 0);
        put(&mut header, 0, path.as_bytes());
        header.set_device_major(major).unwrap();
        header.set_device_minor(minor).unwrap();
        header.set_cksum();
        self.0.append(&header, &b""[..]).unwrap();
        self
    }

    /// Adds pax records for the next entry.
    pub(crate) fn records(mut self, records: &[(&str, &[u8])]) -> Self {
        self.0.append_pax_extensions(records.iter().copied()).unwrap();
        self
    }

    /// Adds an entry with an arbitrary header.
    pub(crate) fn header(mut self, header: &Header, content: &[u8]) -> Self {
        self.0.append(header, content).unwrap();
        self
    }

    pub(crate) fn bytes(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

/// Returns a header with a fixed owner, and with a time that differs from the current time.
pub(crate) fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(1234);
    header.set_gid(80);
    header.set_mtime(1_000_000_000);
    header.set_size(size);
    header
}

fn put(header: &mut Header, at: usize, bytes: &[u8]) {
    header.as_mut_bytes()[at..at + bytes.len()].copy_from_slice(bytes);
}

/// A store, and a directory `outside` next to it.
pub(crate) struct Sandbox {
    dir: TempDir,
    pub(crate) store: Store,
    pub(crate) limits: Limits,
    pub(crate) devices: bool,
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, file) in [("outside", "outside/file"), ("jail", "jail/file")] {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(file), SENTINEL).unwrap();
        }
        let store = Store::create(&dir.path().join("layers")).unwrap();
        fs::create_dir(dir.path().join("layers/beside")).unwrap();
        Self { dir, store, limits: Limits::default(), devices: false }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the path of the directory that malicious archives try to access.
    pub(crate) fn outside(&self) -> String {
        self.path().join("outside").display().to_string()
    }

    /// Unpacks an archive on top of the layers below.
    pub(crate) fn unpack(&self, parents: &[DiffId], archive: &[u8]) -> Result<DiffId, UnpackError> {
        self.unpack_blob(parents, diff_id(archive), Compression::None, archive)
    }

    /// Unpacks a blob, and expects this diffID.
    pub(crate) fn unpack_blob(
        &self,
        parents: &[DiffId],
        diff_id: DiffId,
        compression: Compression,
        blob: &[u8],
    ) -> Result<DiffId, UnpackError> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(blob).unwrap();
        self.unpack_file(parents, diff_id, compression, file)
    }

    /// Unpacks an opened blob as `unpack_blob` does, in a temporary mount namespace.
    pub(crate) fn unpack_file(
        &self,
        parents: &[DiffId],
        diff_id: DiffId,
        compression: Compression,
        blob: File,
    ) -> Result<DiffId, UnpackError> {
        let (store, limits, devices, parents) = (self.store.clone(), self.limits, self.devices, parents.to_vec());
        in_mount_namespace(move || {
            let request = Request { diff_id, compression, blob, parents: &parents, limits, devices };
            request.prepare(&store)?.run().map(|()| diff_id)
        })
    }

    /// Lists everything outside the layers' trees. The list must not change.
    pub(crate) fn list_outside(&self) -> BTreeMap<PathBuf, TreeEntry> {
        let mut all = listing(self.path());
        all.retain(|path, _| !path.starts_with("layers/sha256") && !path.starts_with("jail/root"));
        for item in all.values_mut() {
            item.mtime = (0, 0); // the store's own directories are written to
        }
        all
    }

    /// Returns the merged tree that a container would see.
    pub(crate) fn merged(&self, layers: &[DiffId]) -> BTreeMap<PathBuf, TreeEntry> {
        let (store, layers, dir) = (self.store.clone(), layers.to_vec(), self.path().to_owned());
        in_mount_namespace(move || {
            // The kernel requires two layers, so empty directories are added at the bottom.
            let at = tempfile::tempdir().unwrap();
            let below = [tempfile::tempdir_in(&dir).unwrap(), tempfile::tempdir_in(&dir).unwrap()];
            let below = below.each_ref().map(|dir| open_dir(dir.path()).unwrap());
            let opened = store.open(&layers).unwrap();
            let dirs: Vec<_> = below.iter().chain(&opened.dirs).map(AsFd::as_fd).collect();
            executor_sys::overlay::overlay(&dirs, None, open_dir(at.path()).unwrap().as_fd()).unwrap();
            let all = listing(at.path());
            executor_sys::mount::detach(at.path()).unwrap();
            all
        })
    }

    /// Unpacks archives on top of each other without any checks.
    pub(crate) fn unpack_unchecked(&self, archives: &[&[u8]]) {
        let root = self.path().join("jail/root");
        fs::create_dir(&root).unwrap();
        for archive in archives {
            let mut archive = tar::Archive::new(*archive);
            for entry in archive.entries().unwrap() {
                let mut entry = entry.unwrap();
                let path = root.join(entry.path().unwrap());
                let link = entry.link_name().unwrap().map(|link| link.into_owned());
                let name = path.file_name().map(|name| name.to_str().unwrap().to_owned()).unwrap_or_default();
                let _ = match entry.header().entry_type() {
                    _ if name.starts_with(".wh.") => fs::remove_dir_all(path.with_file_name(&name[4..])),
                    EntryType::Directory => fs::create_dir_all(&path),
                    EntryType::Symlink => {
                        let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
                        symlink(link.unwrap(), &path)
                    }
                    EntryType::Link => fs::hard_link(root.join(link.unwrap()), &path),
                    EntryType::Char => {
                        let device = entry.header().device_minor().unwrap().unwrap();
                        let kind = nix::sys::stat::SFlag::S_IFCHR;
                        let mode = nix::sys::stat::Mode::from_bits_truncate(0o666);
                        nix::sys::stat::mknod(&path, kind, mode, nix::libc::makedev(1, device)).map_err(Into::into)
                    }
                    _ => {
                        let _ = fs::create_dir_all(path.parent().unwrap());
                        File::create(&path).and_then(|mut file| std::io::copy(&mut entry, &mut file).map(drop))
                    }
                };
            }
        }
    }
}

pub(crate) fn diff_id(archive: &[u8]) -> DiffId {
    DiffId::from_bytes(Sha256::digest(archive).into())
}

/// Runs `act` in a separate mount namespace.
pub(crate) fn in_mount_namespace<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
            let private = nix::mount::MsFlags::MS_REC | nix::mount::MsFlags::MS_PRIVATE;
            nix::mount::mount(None::<&Path>, "/", None::<&Path>, private, None::<&Path>).unwrap();
            act()
        });
        thread.join().unwrap()
    })
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TreeEntry {
    pub(crate) kind: char,
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) mtime: (i64, i64),
    pub(crate) device: u64,
    pub(crate) link: Option<PathBuf>,
    pub(crate) content: Vec<u8>,
    pub(crate) xattrs: BTreeMap<String, Vec<u8>>,
    /// Alphabetically first path of the inode in the listing. Hard links to one file have the same path here.
    pub(crate) first: PathBuf,
}

/// Lists everything below a directory.
pub(crate) fn listing(root: &Path) -> BTreeMap<PathBuf, TreeEntry> {
    let (mut items, mut inodes) = (BTreeMap::new(), BTreeMap::new());
    let mut left = vec![PathBuf::new()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(root.join(&dir)).unwrap() {
            let path = dir.join(entry.unwrap().file_name());
            let full = root.join(&path);
            // If only one layer has a directory, overlayfs lists its whiteouts, but lookups of them fail.
            let meta = match full.symlink_metadata() {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                meta => meta.unwrap(),
            };
            let kind = match meta.file_type() {
                kind if kind.is_dir() => 'd',
                kind if kind.is_symlink() => 'l',
                kind if kind.is_fifo() => 'p',
                kind if kind.is_char_device() => 'c',
                kind if kind.is_block_device() => 'b',
                _ => 'f',
            };
            let inode: &mut PathBuf = inodes.entry((meta.dev(), meta.ino())).or_insert_with(|| path.clone());
            if path < *inode {
                inode.clone_from(&path);
            }
            let item = TreeEntry {
                kind,
                mode: meta.mode() & 0o7777,
                owner: (meta.uid(), meta.gid()),
                mtime: (meta.mtime(), meta.mtime_nsec()),
                device: meta.rdev(),
                link: (kind == 'l').then(|| fs::read_link(&full).unwrap()),
                content: if kind == 'f' && meta.len() < 1 << 20 { fs::read(&full).unwrap() } else { Vec::new() },
                xattrs: xattrs(&full),
                first: PathBuf::new(),
            };
            items.insert(path.clone(), (item, (meta.dev(), meta.ino())));
            if kind == 'd' {
                left.push(path);
            }
        }
    }
    items.into_iter().map(|(path, (item, inode))| (path, TreeEntry { first: inodes[&inode].clone(), ..item })).collect()
}

fn xattrs(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut buffer = vec![0_u8; 64 << 10];
    let length = rustix::fs::llistxattr(path, &mut buffer).unwrap_or(0);
    let names = String::from_utf8(buffer[..length].to_vec()).unwrap();
    let names = names.split('\0').filter(|name| !name.is_empty());
    names
        .map(|name| {
            let mut value = vec![0_u8; 64 << 10];
            let length = rustix::fs::lgetxattr(path, name, &mut value).unwrap();
            (name.to_owned(), value[..length].to_vec())
        })
        .collect()
}

/// Runs an attack on this crate and on an unpacker that trusts its input. Asserts that this crate changes nothing
/// outside of the layer's tree. Returns the result of this crate and the tree. The control: the unchecked unpacker
/// changes something outside of the tree.
pub(crate) fn attack(
    layers: impl Fn(&Sandbox) -> Vec<Vec<u8>>,
) -> (Result<(), UnpackError>, BTreeMap<PathBuf, TreeEntry>) {
    let sandbox = Sandbox::new();
    let archives = layers(&sandbox);
    let before = sandbox.list_outside();
    let mut unpacked = Vec::new();
    let result = archives.iter().try_for_each(|archive| {
        unpacked.push(sandbox.unpack(&unpacked, archive)?);
        Ok(())
    });
    assert_eq!(sandbox.list_outside(), before, "something outside has changed");
    let tree = sandbox.merged(&unpacked);
    sandbox.unpack_unchecked(&archives.iter().map(Vec::as_slice).collect::<Vec<_>>());
    assert_ne!(sandbox.list_outside(), before, "the control changed nothing: the harness would see no escape");
    (result, tree)
}
