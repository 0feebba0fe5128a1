//! Listings of trees for comparison: names, kinds, modes, owners, times, attributes, hard links, and contents.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use executor_layers::Store;
use executor_sys::mount::{detach, open_dir};
use executor_sys::overlay::overlay;
use sha2::{Digest, Sha256};

/// Description of an entry on which another file system is mounted.
const MOUNTED: &str = "mounted";

/// Describes each entry below a directory in one line.
pub fn listing(root: &Path) -> BTreeMap<PathBuf, String> {
    listing_without_mounts(root, &BTreeSet::new())
}

/// Describes each entry below a directory. For a mount point, only the name is listed.
pub fn listing_without_mounts(root: &Path, mounts: &BTreeSet<PathBuf>) -> BTreeMap<PathBuf, String> {
    let (mut found, mut firsts) = (Vec::new(), BTreeMap::new());
    let mut left = vec![PathBuf::new()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(root.join(&dir)).expect("a directory") {
            let path = dir.join(entry.expect("an entry").file_name());
            if mounts.contains(&path) {
                continue;
            }
            let meta = root.join(&path).symlink_metadata().expect("metadata");
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
    let lines = found.iter().map(|(path, meta)| (path.clone(), line(path, meta)));
    lines.chain(mounts.iter().map(|path| (path.clone(), MOUNTED.to_owned()))).collect()
}

/// Marks the entries at `mounts` as mount points and removes the entries below them.
pub fn mount_on(tree: &mut BTreeMap<PathBuf, String>, mounts: &[&str]) {
    tree.retain(|path, _| !mounts.iter().any(|mount| path.starts_with(mount) && path != Path::new(mount)));
    for mount in mounts {
        if let Some(line) = tree.get_mut(Path::new(mount)) {
            MOUNTED.clone_into(line);
        }
    }
}

/// Removes the time from the line of `path`.
pub fn remove_time(tree: &mut BTreeMap<PathBuf, String>, path: &str) {
    let line = tree.get_mut(Path::new(path)).expect("the path is in the listing");
    let (time, end) = (line.find(", time ").expect("a time"), line.find(", attributes ").expect("attributes"));
    line.replace_range(time..end, "");
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
    names.map(|name| (OsStr::from_bytes(name).to_string_lossy().into_owned(), value(name))).collect()
}

/// Returns the initial tree of a container with these layers of a store. The bottom layer is first.
pub fn of_layers(store: &Path, layers: &[String]) -> BTreeMap<PathBuf, String> {
    let layers: Vec<_> = layers.iter().map(|layer| layer.parse().expect("a diffID")).collect();
    let store = Store::at(store);
    // The mount is made in the mount namespace of a separate thread, because the host must not see it.
    let thread = std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).expect("a mount namespace");
        let private = nix::mount::MsFlags::MS_REC | nix::mount::MsFlags::MS_PRIVATE;
        nix::mount::mount(None::<&Path>, "/", None::<&Path>, private, None::<&Path>).expect("private mounts");
        let (at, bottom) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
        let bottom = open_dir(bottom.path()).expect("a directory");
        let opened = store.open(&layers).expect("the layers");
        // Without an upper directory, overlayfs needs at least two lower directories.
        let lower: Vec<_> = std::iter::once(&bottom).chain(&opened.dirs).map(AsFd::as_fd).collect();
        overlay(&lower, None, open_dir(at.path()).expect("a directory").as_fd()).expect("an overlay");
        let all = listing(at.path());
        detach(at.path()).expect("a mount");
        all
    });
    thread.join().expect("a listing")
}

/// Returns the paths whose lines differ, and the paths that only one of the trees has.
pub fn differing_paths<'a>(
    ours: &'a BTreeMap<PathBuf, String>,
    theirs: &'a BTreeMap<PathBuf, String>,
) -> BTreeSet<&'a PathBuf> {
    ours.keys().chain(theirs.keys()).filter(|name| ours.get(*name) != theirs.get(*name)).collect()
}

/// Describes every difference.
pub fn differences(ours: &BTreeMap<PathBuf, String>, theirs: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let line = |name: &PathBuf| format!("{name:?}:\n  ours   {:?}\n  theirs {:?}", ours.get(name), theirs.get(name));
    differing_paths(ours, theirs).into_iter().map(line).collect()
}

/// Returns the tree of a running container as seen by its root. `lister` is the program of
/// `integration/src/bin/container-tree.rs`, which enters the container's user and mount namespaces.
pub fn of_container(lister: &str, pid: i32) -> BTreeMap<PathBuf, String> {
    let output =
        Command::new(lister).arg(pid.to_string()).stdin(Stdio::null()).output().expect("container-tree starts");
    assert!(output.status.success(), "{output:?}");
    let fields: Vec<&[u8]> = output.stdout.split(|byte| *byte == 0).collect();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    fields.chunks_exact(2).map(|pair| (OsStr::from_bytes(pair[0]).into(), text(pair[1]))).collect()
}
