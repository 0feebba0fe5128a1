//! Stores complete layers and layers that are being unpacked.
//!
//! ```text
//! layers/                      0700 root
//!    sha256/HEX/               a layer: HEX is its diffID
//!    sha256/HEX.HEX/           a layer's tree for one list of layers below it; the second HEX is the list's digest
//!       fs/                    the tree, in overlayfs format
//!       layer.json             properties that overlayfs cannot represent
//!    ingest/RANDOM/            being unpacked or removed: never read, and cleared when the launcher starts
//!    view/                     mount point of the layers below, in the unpacker's own mount namespace
//! ```
//!
//! Every layer below `sha256` is complete, synced to disk, and never written to. A layer is moved there by a rename,
//! after its content was synced and its digest verified.
//!
//! Most layers have the same tree on top of any other layers. A layer's tree depends on the layers below if only the
//! layers below describe a parent directory of an entry, a link in the path of an entry, or the target of a hard link.
//! Such a layer is stored once for each list of layers that it was unpacked on.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use executor_sys::mount::open_dir;
use executor_sys::tree;
use executor_sys::tree_size::{self, TreeSize};
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, fsync, mkdirat, openat, renameat_with, syncfs};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::error::Context;
use crate::tree::{LayerProperties, Parents};
use crate::{DiffId, UnpackError};

const LAYERS: &str = "sha256";
const INGEST: &str = "ingest";
const VIEW: &str = "view";
const TREE: &str = "fs";
const ABOUT: &str = "layer.json";
/// Format version of [`About`].
const VERSION: u32 = 1;
/// Maximum size of an [`ABOUT`] file that is read, in bytes.
const ABOUT_MAX: u64 = 4096;

/// Properties of a layer that overlayfs cannot represent.
#[derive(Serialize, Deserialize)]
struct About {
    version: u32,
    /// True if the layer describes the root directory.
    root: bool,
    /// True if the layer hides all layers below it.
    opaque: bool,
    /// Warning about skipped entries, for users of the layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    warning: Option<String>,
}

/// The layer store in a state directory.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
}

/// Opened layers of an image.
#[derive(Debug)]
pub struct OpenedLayers {
    /// Trees of the layers, bottom first and each once. Omits trees that an opaque root hides, and the lower
    /// occurrences of a repeated tree.
    pub dirs: Vec<OwnedFd>,
    /// Attributes of the root directory, from the uppermost layer that describes it. `None` if no layer describes it.
    pub root: Option<fs::Metadata>,
    /// Warnings of the layers about skipped entries, bottom first.
    pub warnings: Vec<String>,
}

impl Store {
    /// Opens the store in a directory and creates it if needed.
    ///
    /// # Errors
    /// Returns an error if an I/O operation fails.
    pub fn create(root: &Path) -> io::Result<Self> {
        let store = Self { root: root.to_owned() };
        for dir in [store.root.clone(), store.path(LAYERS), store.path(INGEST), store.path(VIEW)] {
            match fs::DirBuilder::new().mode(0o700).create(&dir) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made?,
            }
        }
        Ok(store)
    }

    /// Returns the store in a directory, which must exist.
    pub fn at(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Returns true if a layer is present for use on top of these layers, bottom first.
    pub fn has(&self, layer: &DiffId, parents: &[DiffId]) -> bool {
        self.find(layer, parents).is_some()
    }

    /// Returns the warning about a stored layer, as in [`OpenedLayers::warnings`]; `None` if the layer is missing or
    /// has no warning.
    pub fn warning(&self, layer: &DiffId, parents: &[DiffId]) -> Option<String> {
        let about = about(&self.find(layer, parents)?.join(ABOUT)).ok()?;
        about.warning.map(|warning| format!("layer {layer}: {warning}"))
    }

    fn find(&self, layer: &DiffId, parents: &[DiffId]) -> Option<PathBuf> {
        let names = [layer.hex(), dependent(layer, &list_digest(parents))];
        names.into_iter().map(|name| self.path(LAYERS).join(name)).find(|path| path.is_dir())
    }

    /// Opens the layers of an image, bottom first.
    ///
    /// An image may list a layer twice, for example from two build steps that change nothing. overlayfs returns `ELOOP`
    /// for a tree that is listed twice, so only the uppermost occurrence is used. The merged tree is the same. If the
    /// upper occurrence has a file, a whiteout or an opaque directory at a path, the lookup ends there and never
    /// reaches the lower occurrence. Otherwise both occurrences have a directory with the same entries and attributes.
    /// If a layer depends on the layers below it, its two occurrences can have different trees, and both are used.
    ///
    /// # Errors
    /// Returns an error if a layer is missing, or if an I/O operation fails.
    pub fn open(&self, layers: &[DiffId]) -> Result<OpenedLayers, UnpackError> {
        let mut opened = OpenedLayers { dirs: Vec::new(), root: None, warnings: Vec::new() };
        let mut paths: Vec<PathBuf> = Vec::new(); // one for each of `opened.dirs`
        for (index, layer) in layers.iter().enumerate() {
            let failed = || format!("cannot open layer {layer}");
            let path = self.find(layer, &layers[..index]).ok_or(UnpackError::Parent(*layer))?;
            let about = about(&path.join(ABOUT)).context(failed)?;
            let dir = open_dir(&path.join(TREE)).context(failed)?;
            if about.opaque {
                opened.dirs.clear();
                paths.clear();
            }
            if let Some(repeated) = paths.iter().position(|other| *other == path) {
                opened.dirs.remove(repeated);
                paths.remove(repeated);
            }
            let warning = about.warning.map(|warning| format!("layer {layer}: {warning}"));
            opened.warnings.extend(warning.filter(|warning| !opened.warnings.contains(warning)));
            if about.root {
                opened.root = Some(fs::metadata(path.join(TREE)).context(failed)?);
            }
            opened.dirs.push(dir);
            paths.push(path);
        }
        Ok(opened)
    }

    /// Mounts the layers below a layer as one tree.
    pub(crate) fn view(&self, layers: &[BorrowedFd<'_>]) -> Result<Parents, UnpackError> {
        let root = open_dir(&self.root).context(|| "cannot open the layer store".to_owned())?;
        Parents::new(layers, (root.as_fd(), VIEW))
    }

    pub(crate) fn start(&self) -> Result<Ingest, UnpackError> {
        let start = || -> io::Result<Ingest> {
            let (ingest, layers) = (open_to_sync(&self.path(INGEST))?, open_to_sync(&self.path(LAYERS))?);
            let name = random_name()?;
            mkdirat(&ingest, &name, Mode::RWXU)?;
            let dir = open_to_sync(&self.path(INGEST).join(&name))?;
            mkdirat(&dir, TREE, Mode::RWXU)?;
            let root = open_dir(&self.path(INGEST).join(&name).join(TREE))?;
            Ok(Ingest { ingest, layers, name, dir, root })
        };
        start().context(|| "cannot create a directory in the layer store".to_owned())
    }

    /// Removes all stored trees of a layer from the index of the store, each by an atomic rename. Returns the new names
    /// of the directories, for [`Store::clear`]. Returns no names if the layer is not present.
    ///
    /// # Errors
    /// Returns an error if an I/O operation fails.
    pub fn take_out(&self, layer: &DiffId) -> io::Result<Vec<String>> {
        let (layers, ingest) = (open_dir(&self.path(LAYERS))?, open_dir(&self.path(INGEST))?);
        let forms = names(&self.path(LAYERS))?;
        let hex = layer.hex();
        let mut taken = Vec::new();
        for form in forms.iter().filter(|name| name.split('.').next() == Some(&hex)) {
            let name = random_name()?;
            renameat_with(&layers, form, &ingest, &name, RenameFlags::NOREPLACE)?;
            taken.push(name);
        }
        Ok(taken)
    }

    /// Lists the stored trees. A stored tree never changes, so its size can be cached.
    ///
    /// # Errors
    /// Returns an error if an I/O operation fails.
    pub fn trees(&self) -> io::Result<Vec<String>> {
        names(&self.path(LAYERS))
    }

    /// Returns the layer that a tree of [`Self::trees`] belongs to, in hexadecimal.
    pub fn layer_of(tree: &str) -> &str {
        tree.split('.').next().unwrap_or_default()
    }

    /// Measures trees of [`Self::trees`]. The size of a tree that no longer exists is 0.
    ///
    /// # Errors
    /// Returns an error if an I/O operation fails.
    pub fn measure(&self, trees: &[String]) -> io::Result<Vec<TreeSize>> {
        let size = |tree: &String| match open_to_sync(&self.path(LAYERS).join(tree)) {
            Ok(dir) => tree_size::measure(dir),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(TreeSize::default()),
            Err(error) => Err(error),
        };
        trees.iter().map(size).collect()
    }

    /// Lists the directories of processes that exited while they were unpacking or removing a layer.
    ///
    /// # Errors
    /// Returns an error if an I/O operation fails.
    pub fn left_over(&self) -> io::Result<Vec<String>> {
        names(&self.path(INGEST))
    }

    /// Deletes directories. No process may be unpacking or removing these layers.
    ///
    /// # Errors
    /// Returns an error if an I/O operation fails.
    pub fn clear(&self, names: &[String]) -> io::Result<()> {
        // The removal from the index must be durable before the directory is partially deleted.
        fsync(open_to_sync(&self.path(LAYERS))?)?;
        let ingest = open_to_sync(&self.path(INGEST))?;
        names.iter().try_for_each(|name| tree::remove(ingest.as_fd(), OsStr::new(name)))
    }
}

/// A layer that is being unpacked.
pub(crate) struct Ingest {
    ingest: OwnedFd,
    layers: OwnedFd,
    name: String,
    dir: OwnedFd,
    root: OwnedFd,
}

impl Ingest {
    /// Returns the root of the layer's tree.
    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Syncs the layer, then renames it into the store. If another process has stored the same layer, the existing
    /// layer is kept.
    pub(crate) fn commit(
        self,
        layer: &DiffId,
        parents: &DiffId,
        properties: LayerProperties,
        warning: Option<String>,
    ) -> Result<(), UnpackError> {
        let name = if properties.depends { dependent(layer, parents) } else { layer.hex() };
        let commit = || -> io::Result<()> {
            let about = About { version: VERSION, root: properties.root, opaque: properties.opaque, warning };
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = openat(&self.dir, ABOUT, flags, Mode::RUSR | Mode::WUSR)?;
            io::Write::write_all(&mut fs::File::from(file), &serde_json::to_vec(&about)?)?;
            syncfs(&self.dir)?;
            match renameat_with(&self.ingest, &self.name, &self.layers, &name, RenameFlags::NOREPLACE) {
                Err(Errno::EXIST) => tree::remove(self.ingest.as_fd(), OsStr::new(&self.name))?,
                renamed => renamed?,
            }
            Ok(fsync(&self.layers)?)
        };
        let committed = commit().context(|| format!("cannot store layer {layer}"));
        if committed.is_err() {
            self.discard();
        }
        committed
    }

    /// Deletes the directory. If the deletion fails, the launcher deletes the directory at its next start.
    pub(crate) fn discard(self) {
        let _ = tree::remove(self.ingest.as_fd(), OsStr::new(&self.name));
    }
}

/// Returns the digest of an ordered list of layers.
pub(crate) fn list_digest(layers: &[DiffId]) -> DiffId {
    let mut hasher = Sha256::new();
    for layer in layers {
        hasher.update(layer.as_bytes());
    }
    DiffId::from_bytes(hasher.finalize().into())
}

fn dependent(layer: &DiffId, parents: &DiffId) -> String {
    format!("{}.{}", layer.hex(), parents.hex())
}

fn about(path: &Path) -> io::Result<About> {
    let meta = fs::symlink_metadata(path)?;
    if !meta.is_file() || meta.size() > ABOUT_MAX {
        return Err(io::Error::other(format!("{} is not a file of the store", path.display())));
    }
    let about: About = serde_json::from_slice(&fs::read(path)?)?;
    if about.version != VERSION {
        return Err(io::Error::other(format!("{} has version {}; expected {VERSION}", path.display(), about.version)));
    }
    Ok(about)
}

fn names(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        // The directory was not created yet, because the disk was full.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?.collect::<io::Result<Vec<_>>>()?,
    };
    Ok(entries.iter().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

fn open_to_sync(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // The unpacker's seccomp filter denies open(2), so this uses openat.
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

fn random_name() -> io::Result<String> {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(hex::encode(bytes))
}
