//! A tree with one entry of every kind, and every kind of change that a layer can express.

#![allow(clippy::unwrap_used)] // a test whose tree cannot be created fails

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, lchown, symlink};
use std::path::Path;

fn set(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, rustix::fs::XattrFlags::empty()).unwrap();
}

pub fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn time(path: &Path, seconds: i64, nanoseconds: i64) {
    let at = rustix::fs::Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = rustix::fs::Timestamps { last_access: at, last_modification: at };
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Creates one entry of every kind in a tree.
pub fn furnish(root: &Path) {
    for dir in ["a/b/c", "gone/deep/er", "becomes-link", "becomes-file", "opaque/old", "sticky"] {
        fs::create_dir_all(root.join(dir)).unwrap();
        fs::write(root.join(dir).join("file"), dir).unwrap();
    }
    mode(&root.join("sticky"), 0o1777);
    let set_id = root.join("a/set-id");
    fs::write(&set_id, "x").unwrap();
    lchown(&set_id, Some(65_534), Some(4_000_000_000)).unwrap();
    mode(&set_id, 0o6711);
    let capable = root.join("a/capable");
    fs::write(&capable, "x").unwrap();
    set(
        &capable,
        "security.capability",
        b"\x01\x00\x00\x02\x0a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
    );
    set(&root.join("a/b"), "user.of a directory", b"line\nline=\0");
    rustix::fs::mknodat(rustix::fs::CWD, root.join("a/pipe"), rustix::fs::FileType::Fifo, 0o640.into(), 0).unwrap();
    for name in [" ", "-rf", "new\nline", "\u{e9}\u{4e16}", "back\\slash", "'\"$(x)", &"n".repeat(250), ".hidden", "#"]
    {
        fs::write(root.join("a").join(name), name).unwrap();
    }
    fs::write(root.join("a").join(OsStr::from_bytes(b"\xff\xfe latin")), "x").unwrap();
    fs::create_dir_all(root.join("long-name-of-a-directory/".repeat(20))).unwrap();
    fs::write(root.join("long-name-of-a-directory/".repeat(20)).join("file"), "x").unwrap();
    fs::hard_link(&set_id, root.join("a/b/again")).unwrap();
    fs::hard_link(&set_id, root.join("third")).unwrap();
    symlink("../../nowhere/at/all", root.join("a/dangling")).unwrap();
    symlink("/etc", root.join("a/absolute")).unwrap();
    lchown(root.join("a/absolute"), Some(7), Some(8)).unwrap();
    fs::hard_link(root.join("a/dangling"), root.join("a/dangling-too")).unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(b"data", 1 << 20).unwrap();
    sparse.set_len(3 << 20).unwrap();
    let unreadable = root.join("a/unreadable");
    fs::write(&unreadable, "x").unwrap();
    mode(&unreadable, 0);
    for (path, seconds, nanoseconds) in
        [("a/pipe", -5, 0), ("a/set-id", 1, 123_456_789), ("a/dangling", 4_000_000_000, 0), ("a", 7, 0)]
    {
        time(&root.join(path), seconds, nanoseconds);
    }
}

/// Changes the tree that [`furnish`] created: removes a directory and a file, replaces one directory with a link and
/// another with a file, recreates a directory, and removes access for other users from a directory.
pub fn change(root: &Path) {
    fs::remove_dir_all(root.join("gone")).unwrap();
    fs::remove_file(root.join("third")).unwrap();
    fs::remove_dir_all(root.join("becomes-link")).unwrap();
    symlink("a/b", root.join("becomes-link")).unwrap();
    fs::remove_dir_all(root.join("becomes-file")).unwrap();
    fs::write(root.join("becomes-file"), "now").unwrap();
    mode(&root.join("a/b"), 0o700);
    fs::remove_dir_all(root.join("opaque")).unwrap();
    fs::create_dir(root.join("opaque")).unwrap();
    fs::write(root.join("opaque/new"), "x").unwrap();
}

/// Changes the tree after [`change`]: a file becomes a directory, a file is created at a removed name, the content of a
/// file changes, and another file becomes a hard link to it.
pub fn change_again(root: &Path) {
    fs::remove_file(root.join("becomes-file")).unwrap();
    fs::create_dir(root.join("becomes-file")).unwrap();
    fs::write(root.join("becomes-file/inner"), "x").unwrap();
    fs::write(root.join("gone"), "a file now").unwrap();
    fs::write(root.join("a/b/c/file"), "changed").unwrap();
    fs::remove_file(root.join("a/b/again")).unwrap();
    fs::hard_link(root.join("a/b/c/file"), root.join("a/b/again")).unwrap();
}
