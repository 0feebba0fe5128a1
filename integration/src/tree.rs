//! Trees, told so that two of them can be compared: names, kinds, modes, owners, times, attributes, which names are one
//! file, and contents.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use executor_layers::Store;
use executor_sys::mount::{detach, open_dir};
use executor_sys::overlay::overlay;
use sha2::{Digest, Sha256};

/// A line for everything below a directory.
pub fn listing(root: &Path) -> BTreeMap<PathBuf, String> {
    let (mut found, mut firsts) = (Vec::new(), BTreeMap::new());
    let mut left = vec![PathBuf::new()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(root.join(&dir)).expect("a directory") {
            let path = dir.join(entry.expect("an entry").file_name());
            let meta = root.join(&path).symlink_metadata().expect("it is there");
            if meta.is_dir() {
                left.push(path.clone());
            }
            let first = firsts.entry((meta.dev(), meta.ino())).or_insert_with(|| path.clone());
            if path < *first {
                first.clone_from(&path);
            }
            found.push((path, meta));
        }
    }
    let line = |path: &Path, meta: &fs::Metadata| {
        let full = root.join(path);
        let kind = meta.file_type();
        let what = if kind.is_dir() {
            "directory".to_owned()
        } else if kind.is_symlink() {
            format!("link to {:?}", fs::read_link(&full).expect("a link"))
        } else if kind.is_file() {
            let digest = Sha256::digest(fs::read(&full).expect("a file"));
            format!("file of {} bytes, {}", meta.len(), hex::encode(&digest[..8]))
        } else if kind.is_fifo() {
            "pipe".into()
        } else {
            format!("device {:x}", meta.rdev())
        };
        let first = &firsts[&(meta.dev(), meta.ino())];
        format!(
            "{what}, mode {:o}, owner {}:{}, time {}.{:09}, attributes {:?}, first {first:?}",
            meta.mode(),
            meta.uid(),
            meta.gid(),
            meta.mtime(),
            meta.mtime_nsec(),
            xattrs(&full)
        )
    };
    found.iter().map(|(path, meta)| (path.clone(), line(path, meta))).collect()
}

fn xattrs(path: &Path) -> BTreeMap<String, String> {
    let mut names = vec![0_u8; 64 << 10];
    let length = rustix::fs::llistxattr(path, &mut names).unwrap_or(0);
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0_u8; 64 << 10];
        let length = rustix::fs::lgetxattr(path, name, &mut value).expect("a value");
        hex::encode(&value[..length])
    };
    names.map(|name| (std::ffi::OsStr::from_bytes(name).to_string_lossy().into_owned(), value(name))).collect()
}

/// What a container sees of these layers of a store, bottom first, before it changes anything.
pub fn of_layers(store: &Path, layers: &[String]) -> BTreeMap<PathBuf, String> {
    let layers: Vec<_> = layers.iter().map(|layer| layer.parse().expect("a diffID")).collect();
    let store = Store::at(store);
    // A mount of a thread's own, for the host must not see it.
    let thread = std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).expect("a mount namespace");
        let private = nix::mount::MsFlags::MS_REC | nix::mount::MsFlags::MS_PRIVATE;
        nix::mount::mount(None::<&Path>, "/", None::<&Path>, private, None::<&Path>).expect("private mounts");
        let (at, bottom) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
        let bottom = open_dir(bottom.path()).expect("a directory");
        let opened = store.open(&layers).expect("the layers");
        // The kernel wants two.
        let lower: Vec<_> = std::iter::once(&bottom).chain(&opened.dirs).map(AsFd::as_fd).collect();
        overlay(&lower, None, open_dir(at.path()).expect("a directory").as_fd()).expect("an overlay");
        let all = listing(at.path());
        detach(at.path()).expect("a mount");
        all
    });
    thread.join().expect("a listing")
}

/// Every difference, told.
pub fn differences(ours: &BTreeMap<PathBuf, String>, theirs: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let names: std::collections::BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    let differ = names.into_iter().filter(|name| ours.get(*name) != theirs.get(*name));
    differ.map(|name| format!("{name:?}:\n  ours   {:?}\n  theirs {:?}", ours.get(name), theirs.get(name))).collect()
}
