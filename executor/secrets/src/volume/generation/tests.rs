//! These need root: they make file systems.

use std::fs::File;
use std::os::unix::fs::FileExt;

use executor_core::placement::{Content, MountPoint, VolumeSize};
use rustix::fs::{Mode, OFlags, openat};

use super::*;
use crate::volume::tests::hold;

const OWNER: Owner = Owner { uid: 1234, gid: 4321 };
const SIZE: VolumeSize = VolumeSize { bytes: 64 * 4096, inodes: 256 };

/// `0` is a directory with `db/user`, `db/password` and `token`; `1` is a single file.
fn filled() -> (Volume, Vec<MountPoint>) {
    let directory = Content::Directory(vec![(0, "db/user".into()), (1, "db/password".into()), (2, "token".into())]);
    let point = |content| MountPoint { target: "/x".into(), content, in_fresh_mount: false };
    let volume = Volume::create(SIZE).unwrap();
    let mounts = vec![point(directory), point(Content::File(3))];
    volume.fill(&mounts, &[b"user1", b"password1", b"token1", b"one1"], OWNER, &mut hold(&volume)).unwrap();
    (volume, mounts)
}

fn directory(kept: &[&str], new: &[(usize, &str)]) -> Change {
    let kept = kept.iter().map(Into::into).collect();
    Change { mount: 0, next: Next::Directory { kept, new: new.iter().map(|(i, path)| (*i, path.into())).collect() } }
}

/// As the container sees it: a name in mount point 0 leads to the generation in force, if the name is there.
fn open(volume: &Volume, path: &str) -> io::Result<File> {
    let path = match path.strip_prefix("0/") {
        Some(below) => {
            let entry = below.split('/').next().unwrap();
            let link = readlinkat(volume.handle(), format!("0/{entry}"), Vec::new())?;
            assert_eq!(link.to_str().unwrap(), format!("../dev/executor-files/0/..data/{entry}"));
            format!("files/0/..data/{below}")
        }
        None => path.to_owned(),
    };
    Ok(File::from(openat(volume.handle(), path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?))
}

fn read(volume: &Volume, path: &str) -> Option<String> {
    open(volume, path).ok().map(|file| io::read_to_string(file).unwrap())
}

fn names(volume: &Volume, path: &str) -> Vec<String> {
    let entries = Dir::new(open_dir(volume.handle(), path.as_ref()).unwrap()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned());
    let mut names: Vec<String> = names.filter(|name| name != "." && name != "..").collect();
    names.sort();
    names
}

#[test]
fn a_generation_replaces_another_and_the_old_one_is_wiped() {
    let (volume, mounts) = filled();
    let (old_password, old_single, user) =
        ["0/db/password", "1", "0/db/user"].map(|path| open(&volume, path).unwrap()).into();
    let changes =
        [directory(&["db/user"], &[(0, "db/password"), (1, "new/deep/x")]), Change { mount: 1, next: Next::File(2) }];
    let rotation = Rotation::begin(&volume, 2, &mounts, &changes).unwrap();
    rotation.write(&[b"password2", b"new2", b"one2"], OWNER, &mut hold(&volume)).unwrap();
    assert_eq!(read(&volume, "0/db/password").as_deref(), Some("password1"), "nothing is in force yet");
    assert_eq!((read(&volume, "1").as_deref(), read(&volume, "0/new/deep/x")), (Some("one1"), None));
    rotation.swap().unwrap();
    let replaced = rotation.settle().unwrap();

    for (path, content) in
        [("0/db/user", "user1"), ("0/db/password", "password2"), ("0/new/deep/x", "new2"), ("1", "one2")]
    {
        assert_eq!(read(&volume, path).as_deref(), Some(content), "{path}");
        let stat = rustix::fs::fstat(open(&volume, path).unwrap()).unwrap();
        assert_eq!((stat.st_mode & 0o7777, stat.st_uid, stat.st_gid), (0o600, 1234, 4321), "{path}");
    }
    for link in ["0/new", "files/0/..data"] {
        let stat = statat(volume.handle(), link, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        assert_eq!((stat.st_mode & 0o170_000, stat.st_uid, stat.st_gid), (0o120_000, 1234, 4321), "{link}");
    }
    for path in ["files/0/..gen2", "files/0/..gen2/new", "files/0/..gen2/new/deep"] {
        let stat = statat(volume.handle(), path, AtFlags::empty()).unwrap();
        assert_eq!((stat.st_mode & 0o7777, stat.st_uid), (0o700, 1234), "{path}");
    }
    // The old one is there for those who have just looked it up.
    assert_eq!(read(&volume, "files/0/..gen1/db/password").as_deref(), Some("password1"));
    assert_eq!(names(&volume, "0"), ["db", "new"]);
    assert_eq!(names(&volume, "files/0"), ["..data", "..gen1", "..gen2"]);

    let receipt = volume.wipe_replaced(&replaced).unwrap();
    assert_eq!((receipt.files(), receipt.bytes()), (3, 9 + 6 + 4), "what stays is not counted");
    assert_eq!(names(&volume, "0"), ["db", "new"]);
    assert_eq!(names(&volume, "files/0"), ["..data", "..gen2"]);
    assert_eq!(names(&volume, "."), ["0", "1", "files"]);
    let mut left = [1; 4];
    for old in [&old_password, &old_single] {
        old.read_exact_at(&mut left, 0).unwrap();
        assert_eq!(left, [0; 4], "who kept it open sees zeros");
    }
    user.read_exact_at(&mut left, 0).unwrap();
    assert_eq!(left, *b"user", "what is linked into the new generation stays");
    let receipt = volume.wipe().unwrap();
    assert_eq!((receipt.files(), receipt.bytes()), (4, 5 + 9 + 4 + 4));
    user.read_exact_at(&mut left, 0).unwrap();
    assert_eq!(left, [0; 4]);
}

#[test]
fn a_generation_that_is_not_wanted_leaves_no_trace() {
    let (volume, mounts) = filled();
    let changes = [directory(&["token"], &[(0, "db"), (1, "added")]), Change { mount: 1, next: Next::File(2) }];
    let rotation = Rotation::begin(&volume, 2, &mounts, &changes).unwrap();
    rotation.write(&[b"a file now", b"new", b"one2"], OWNER, &mut hold(&volume)).unwrap();
    let written = open(&volume, "files/0/..gen2/added").unwrap();
    rotation.swap().unwrap();
    assert_eq!(read(&volume, "0/db").as_deref(), Some("a file now"));
    rotation.swap_back().unwrap();
    rotation.swap_back().unwrap();
    rotation.discard().unwrap();
    assert_eq!(names(&volume, "0"), ["db", "token"]);
    assert_eq!(names(&volume, "files/0"), ["..data", "..gen1"]);
    assert_eq!(names(&volume, "."), ["0", "1", "files"]);
    for (path, content) in [("0/db/user", "user1"), ("0/token", "token1"), ("1", "one1")] {
        assert_eq!(read(&volume, path).as_deref(), Some(content), "{path}");
    }
    let mut left = [1; 3];
    written.read_exact_at(&mut left, 0).unwrap();
    assert_eq!(left, [0; 3]);
}

/// A mount point in the middle fails: those before it are as they were.
#[test]
fn a_swap_that_fails_is_taken_back_everywhere() {
    let (volume, mounts) = filled();
    let changes = [directory(&[], &[(0, "db/user")]), Change { mount: 1, next: Next::File(1) }];
    let rotation = Rotation::begin(&volume, 2, &mounts, &changes).unwrap();
    rotation.write(&[b"user2", b"one2"], OWNER, &mut hold(&volume)).unwrap();
    unlinkat(volume.handle(), "1..gen2", AtFlags::empty()).unwrap();
    assert_eq!(rotation.swap().unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(read(&volume, "0/db/user").as_deref(), Some("user1"));
    rotation.discard().unwrap();
    assert_eq!(names(&volume, "0"), ["db", "token"]);
    assert_eq!(names(&volume, "files/0"), ["..data", "..gen1"]);
    assert_eq!(
        (read(&volume, "1").as_deref(), read(&volume, "0/db/password").as_deref()),
        (Some("one1"), Some("password1"))
    );
}

#[test]
fn all_files_may_go_and_come_again() {
    let (volume, mounts) = filled();
    for (number, change) in [(2, directory(&[], &[])), (3, directory(&[], &[(0, "a/b")]))] {
        let changes = [change];
        let rotation = Rotation::begin(&volume, number, &mounts, &changes).unwrap();
        rotation.write(&[b"again"], OWNER, &mut hold(&volume)).unwrap();
        rotation.swap().unwrap();
        volume.wipe_replaced(&rotation.settle().unwrap()).unwrap();
        assert_eq!(names(&volume, "0"), if number == 2 { vec![] } else { vec!["a"] });
        assert_eq!(names(&volume, "files/0"), ["..data".to_owned(), format!("..gen{number}")]);
    }
    assert_eq!(read(&volume, "0/a/b").as_deref(), Some("again"));
}

/// What is shared by several generations is overwritten once, and counted once.
#[test]
fn the_end_wipes_every_generation() {
    let (volume, mounts) = filled();
    for number in 2..6 {
        let changes = [directory(&["token"], &[(0, "db/user")])];
        let rotation = Rotation::begin(&volume, number, &mounts, &changes).unwrap();
        rotation.write(&[format!("user{number}").as_bytes()], OWNER, &mut hold(&volume)).unwrap();
        rotation.swap().unwrap();
        let _ = rotation.settle().unwrap(); // nobody gets to wiping it
    }
    assert_eq!((names(&volume, "0").len(), names(&volume, "files/0").len()), (2, 1 + 5));
    let receipt = volume.wipe().unwrap();
    assert_eq!((receipt.files(), receipt.bytes()), (5 + 3, 5 * 5 + 9 + 6 + 4));
    assert!(names(&volume, ".").is_empty());
}

#[test]
fn a_volume_grows() {
    let (volume, mounts) = filled();
    let big = vec![b'x'; SIZE.bytes as usize];
    let changes = [directory(&[], &[(0, "big")])];
    let rotation = Rotation::begin(&volume, 2, &mounts, &changes).unwrap();
    if volume.kind() == VolumeKind::TmpfsNoswap {
        assert_eq!(rotation.write(&[&big], OWNER, &mut hold(&volume)).unwrap_err().kind(), io::ErrorKind::StorageFull);
        rotation.discard().unwrap();
    }
    let before = volume.size().unwrap();
    volume.resize(VolumeSize { bytes: 3 * SIZE.bytes, inodes: 300 }).unwrap();
    if let (Some((old, used)), Some((new, still))) = (before, volume.size().unwrap()) {
        assert_eq!((old, new, still), (SIZE, VolumeSize { bytes: 3 * SIZE.bytes, inodes: 300 }, used));
        assert!(used.bytes >= 4 * 4096 && used.bytes < SIZE.bytes && used.inodes > 8, "{used:?}");
    }
    let rotation = Rotation::begin(&volume, 2, &mounts, &changes).unwrap();
    rotation.write(&[&big], OWNER, &mut hold(&volume)).unwrap();
}
