//! Tests rotations of secret files. The tests need root, because they create file systems.

use std::fs::File;
use std::os::unix::fs::FileExt;

use executor_core::placement::{Content, MountPoint, VolumeSize};
use executor_core::plan::Layout;
use rustix::fs::{Dir, Mode, OFlags, openat};

use super::*;
use crate::volume::tests::hold;

const OWNER: Owner = Owner { uid: 1234, gid: 4321 };
const PRIVATE: [Access; 4] = [Access { mode: 0o600, gid: OWNER.gid }; 4];
const SIZE: VolumeSize = VolumeSize { bytes: 64 * 4096, inodes: 256 };

fn point(content: Content) -> MountPoint {
    MountPoint { target: "/x".into(), content, in_fresh_mount: false }
}

/// Creates a volume: mount point `0` is a directory with `db/user`, `db/password` and `token`; `1` is a single file.
fn filled() -> (Volume, Vec<MountPoint>) {
    let directory = Content::Directory(vec![(0, "db/user".into()), (1, "db/password".into()), (2, "token".into())]);
    let volume = Volume::create(SIZE).unwrap();
    let mounts = vec![point(directory), point(Content::File(3))];
    volume
        .fill(
            &mounts,
            &[b"user1", b"password1", b"token1", b"one1"],
            &PRIVATE,
            OWNER,
            Layout::Generations,
            &mut hold(&volume),
        )
        .unwrap();
    (volume, mounts)
}

fn directory(kept: &[&str], new: &[(usize, &str)]) -> MountChange {
    let kept = kept.iter().map(Into::into).collect();
    MountChange {
        mount: 0,
        next: NextContent::Directory { kept, new: new.iter().map(|(i, path)| (*i, path.into())).collect() },
    }
}

/// Returns the mount points after these changes; mount point `1` remains a file.
fn after(changes: &[MountChange]) -> Vec<MountPoint> {
    let mut files = Vec::new();
    for change in changes {
        if let NextContent::Directory { kept, new } = &change.next {
            files.extend(kept.iter().chain(new.iter().map(|(_, path)| path)).map(|path| (0, path.clone())));
        }
    }
    vec![point(Content::Directory(files)), point(Content::File(0))]
}

/// Opens a path as the container does: a visible link in mount point 0 leads to the file in the current generation.
fn open(volume: &Volume, path: &str) -> io::Result<File> {
    let path = match path.strip_prefix("0/") {
        Some(below) => {
            let link = readlinkat(volume.handle(), path, Vec::new())?;
            let up = "../".repeat(1 + below.matches('/').count());
            assert_eq!(link.to_str().unwrap(), format!("{up}dev/executor-files/0/..data/{below}"));
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
fn new_generation_replaces_and_wipes_old() {
    let (volume, _) = filled();
    let (old_password, old_single, user) =
        ["0/db/password", "1", "0/db/user"].map(|path| open(&volume, path).unwrap()).into();
    let changes = [
        directory(&["db/user"], &[(0, "db/password"), (1, "new/deep/x")]),
        MountChange { mount: 1, next: NextContent::File(2) },
    ];
    let mounts = after(&changes);
    let rotation = Rotation::start(&volume, 2, &mounts, &changes).unwrap();
    rotation.write(&[b"password2", b"new2", b"one2"], &PRIVATE, OWNER, &mut hold(&volume)).unwrap();
    assert_eq!(read(&volume, "0/db/password").as_deref(), Some("password1"), "nothing is in force yet");
    assert_eq!((read(&volume, "1").as_deref(), read(&volume, "0/new/deep/x")), (Some("one1"), None));
    assert_eq!(names(&volume, "0"), ["db", "token"], "no new entry is visible");
    rotation.swap().unwrap();
    assert_eq!(names(&volume, "0"), ["db", "new", "token"], "the entries of both generations");
    let replaced = rotation.finish().unwrap();

    for (path, content) in
        [("0/db/user", "user1"), ("0/db/password", "password2"), ("0/new/deep/x", "new2"), ("1", "one2")]
    {
        assert_eq!(read(&volume, path).as_deref(), Some(content), "{path}");
        let stat = rustix::fs::fstat(open(&volume, path).unwrap()).unwrap();
        assert_eq!((stat.st_mode & 0o7777, stat.st_uid, stat.st_gid), (0o600, 1234, 4321), "{path}");
    }
    for link in ["0/new/deep/x", "files/0/..data"] {
        let stat = statat(volume.handle(), link, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        assert_eq!((stat.st_mode & 0o170_000, stat.st_uid, stat.st_gid), (0o120_000, 1234, 4321), "{link}");
    }
    for path in ["files/0/..gen2", "files/0/..gen2/new", "files/0/..gen2/new/deep", "0/new", "0/new/deep", "0"] {
        let stat = statat(volume.handle(), path, AtFlags::empty()).unwrap();
        assert_eq!((stat.st_mode & 0o7777, stat.st_uid), (0o700, 1234), "{path}");
    }
    // The old generation still exists for processes that have just looked it up.
    assert_eq!(read(&volume, "files/0/..gen1/db/password").as_deref(), Some("password1"));
    assert_eq!(names(&volume, "0"), ["db", "new"]);
    assert_eq!(names(&volume, "files/0"), ["..data", "..gen1", "..gen2"]);

    let receipt = volume.wipe_replaced(&replaced).unwrap();
    assert_eq!((receipt.files(), receipt.bytes()), (3, 9 + 6 + 4), "remaining files are not counted");
    assert_eq!(names(&volume, "0"), ["db", "new"]);
    assert_eq!(names(&volume, "files/0"), ["..data", "..gen2"]);
    assert_eq!(names(&volume, "."), ["0", "1", "files"]);
    let mut left = [1; 4];
    for old in [&old_password, &old_single] {
        old.read_exact_at(&mut left, 0).unwrap();
        assert_eq!(left, [0; 4], "a process that kept the file open sees zeros");
    }
    user.read_exact_at(&mut left, 0).unwrap();
    assert_eq!(left, *b"user", "files that are linked into the new generation stay");
    let receipt = volume.wipe().unwrap();
    assert_eq!((receipt.files(), receipt.bytes()), (4, 5 + 9 + 4 + 4));
    user.read_exact_at(&mut left, 0).unwrap();
    assert_eq!(left, [0; 4]);
}

/// If a program watches a visible directory, it gets an event for each new file, after which it reads the new content.
/// The program never sees temporary names.
#[test]
fn rotation_moves_links_in_visible_directories() {
    use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
    let (volume, _) = filled();
    let watch = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
    for dir in ["0", "0/db"] {
        let opened = open_dir(volume.handle(), dir.as_ref()).unwrap();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&opened));
        add_watch(&watch, path, WatchFlags::ALL_EVENTS - WatchFlags::OPEN - WatchFlags::ACCESS - WatchFlags::CLOSE)
            .unwrap();
    }
    let events = || {
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&watch, &mut buffer);
        let mut events = Vec::new();
        while let Ok(event) = reader.next() {
            if !event.events().contains(ReadFlags::ATTRIB) {
                let name = event.file_name().map(|name| name.to_str().unwrap().to_owned());
                events.push((event.events(), name.unwrap_or_default()));
            }
        }
        events
    };
    let link = |path: &str| statat(volume.handle(), path, AtFlags::SYMLINK_NOFOLLOW).unwrap().st_ino;
    for number in 2..5 {
        let changes = [
            directory(&["db/user"], &[(0, "db/password"), (1, "token")]),
            MountChange { mount: 1, next: NextContent::File(2) },
        ];
        let mounts = after(&changes);
        let before = (link("0/db/password"), link("0/db/user"));
        let rotation = Rotation::start(&volume, number, &mounts, &changes).unwrap();
        let content = format!("password{number}");
        rotation.write(&[content.as_bytes(), b"token", b"one"], &PRIVATE, OWNER, &mut hold(&volume)).unwrap();
        assert_eq!(events(), [], "nothing is in force yet");
        rotation.swap().unwrap();
        let moved = |name: &str| (ReadFlags::MOVED_TO, name.to_owned());
        assert_eq!(events(), [moved("password"), moved("token")]);
        assert_eq!(read(&volume, "0/db/password"), Some(content));
        let (password, user) = (link("0/db/password"), link("0/db/user"));
        assert!(password != before.0 && user == before.1, "readers that compare inodes");
        volume.wipe_replaced(&rotation.finish().unwrap()).unwrap();
        assert_eq!(events(), []);
        assert_eq!(names(&volume, "."), ["0", "1", "files"]);
        assert_eq!(names(&volume, "0"), ["db", "token"]);
    }
}

#[test]
fn discarded_generation_leaves_no_trace() {
    let (volume, _) = filled();
    let changes =
        [directory(&["token"], &[(0, "db"), (1, "added")]), MountChange { mount: 1, next: NextContent::File(2) }];
    let mounts = after(&changes);
    let rotation = Rotation::start(&volume, 2, &mounts, &changes).unwrap();
    rotation.write(&[b"a file now", b"new", b"one2"], &PRIVATE, OWNER, &mut hold(&volume)).unwrap();
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

/// If a mount point in the middle fails, the earlier mount points are restored.
#[test]
fn failed_swap_is_rolled_back() {
    let (volume, _) = filled();
    let changes = [directory(&[], &[(0, "db/user")]), MountChange { mount: 1, next: NextContent::File(1) }];
    let mounts = after(&changes);
    let rotation = Rotation::start(&volume, 2, &mounts, &changes).unwrap();
    rotation.write(&[b"user2", b"one2"], &PRIVATE, OWNER, &mut hold(&volume)).unwrap();
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
fn removed_files_can_be_added_again() {
    let (volume, _) = filled();
    for (number, change) in [(2, directory(&[], &[])), (3, directory(&[], &[(0, "a/b")]))] {
        let changes = [change];
        let mounts = after(&changes);
        let rotation = Rotation::start(&volume, number, &mounts, &changes).unwrap();
        rotation.write(&[b"again"], &PRIVATE, OWNER, &mut hold(&volume)).unwrap();
        rotation.swap().unwrap();
        volume.wipe_replaced(&rotation.finish().unwrap()).unwrap();
        assert_eq!(names(&volume, "0"), if number == 2 { vec![] } else { vec!["a"] });
        assert_eq!(names(&volume, "files/0"), ["..data".to_owned(), format!("..gen{number}")]);
    }
    assert_eq!(read(&volume, "0/a/b").as_deref(), Some("again"));
}

/// Files that several generations share are overwritten and counted once.
#[test]
fn the_end_wipes_every_generation() {
    let (volume, _) = filled();
    for number in 2..6 {
        let changes = [directory(&["token"], &[(0, "db/user")])];
        let mounts = after(&changes);
        let rotation = Rotation::start(&volume, number, &mounts, &changes).unwrap();
        rotation.write(&[format!("user{number}").as_bytes()], &PRIVATE, OWNER, &mut hold(&volume)).unwrap();
        rotation.swap().unwrap();
        let _ = rotation.finish().unwrap(); // not wiped here
    }
    assert_eq!((names(&volume, "0").len(), names(&volume, "files/0").len()), (2, 1 + 5));
    let receipt = volume.wipe().unwrap();
    assert_eq!((receipt.files(), receipt.bytes()), (5 + 3, 5 * 5 + 9 + 6 + 4));
    assert!(names(&volume, ".").is_empty());
}

#[test]
fn a_volume_grows() {
    let (volume, _) = filled();
    let big = vec![b'x'; SIZE.bytes as usize];
    let changes = [directory(&[], &[(0, "big")])];
    let mounts = after(&changes);
    let rotation = Rotation::start(&volume, 2, &mounts, &changes).unwrap();
    if volume.kind() == VolumeKind::TmpfsNoswap {
        assert_eq!(
            rotation.write(&[&big], &PRIVATE, OWNER, &mut hold(&volume)).unwrap_err().kind(),
            io::ErrorKind::StorageFull
        );
        rotation.discard().unwrap();
    }
    let before = volume.size().unwrap();
    volume.resize(VolumeSize { bytes: 3 * SIZE.bytes, inodes: 300 }).unwrap();
    if let (Some((old, used)), Some((new, still))) = (before, volume.size().unwrap()) {
        assert_eq!((old, new, still), (SIZE, VolumeSize { bytes: 3 * SIZE.bytes, inodes: 300 }, used));
        assert!(used.bytes >= 4 * 4096 && used.bytes < SIZE.bytes && used.inodes > 8, "{used:?}");
    }
    let mounts = after(&changes);
    let rotation = Rotation::start(&volume, 2, &mounts, &changes).unwrap();
    rotation.write(&[&big], &PRIVATE, OWNER, &mut hold(&volume)).unwrap();
}

/// Visible directories are real directories. A rotation can replace a file with a directory and a directory with a
/// file.
#[test]
fn directories_are_real_and_change_kind() {
    let (volume, _) = filled();
    let kind = |path: &str| {
        let stat = statat(volume.handle(), path, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        rustix::fs::FileType::from_raw_mode(stat.st_mode)
    };
    use rustix::fs::FileType::{Directory, Symlink};
    let steps: [(MountChange, &[(&str, rustix::fs::FileType)]); 3] = [
        (directory(&["token"], &[(0, "db")]), &[("db", Symlink), ("token", Symlink)]),
        (
            directory(&[], &[(0, "db/a/user"), (1, "token/x")]),
            &[("db", Directory), ("db/a", Directory), ("token", Directory)],
        ),
        (
            directory(&["db/a/user"], &[(0, "db/b/user")]),
            &[("db", Directory), ("db/a", Directory), ("db/b", Directory)],
        ),
    ];
    for (number, (change, expected)) in (2..).zip(steps) {
        let changes = [change];
        let mounts = after(&changes);
        let rotation = Rotation::start(&volume, number, &mounts, &changes).unwrap();
        rotation.write(&[b"one", b"two"], &PRIVATE, OWNER, &mut hold(&volume)).unwrap();
        // Swap and swap back, as after a failed write of the record, then swap for good.
        let before = names(&volume, "0");
        rotation.swap().unwrap();
        rotation.swap_back().unwrap();
        assert_eq!(names(&volume, "0"), before);
        rotation.discard().unwrap();
        let rotation = Rotation::start(&volume, number, &mounts, &changes).unwrap();
        rotation.write(&[b"one", b"two"], &PRIVATE, OWNER, &mut hold(&volume)).unwrap();
        rotation.swap().unwrap();
        volume.wipe_replaced(&rotation.finish().unwrap()).unwrap();
        for (path, expected) in expected {
            assert_eq!(kind(&format!("0/{path}")), *expected, "{path}");
        }
        let mut top: Vec<&str> = expected.iter().map(|(path, _)| path.split('/').next().unwrap()).collect();
        top.dedup();
        assert_eq!(names(&volume, "0"), top, "nothing else is shown");
        assert_eq!(names(&volume, "."), ["0", "1", "files"]);
    }
    assert_eq!(read(&volume, "0/db/b/user").as_deref(), Some("one"));
}

/// A rotation also changes the modes of the visible directories: permissions are added before the swap and removed
/// after the swap.
#[test]
fn directory_modes_follow_their_files() {
    let (volume, _) = filled();
    let mode = |path: &str| {
        let stat = statat(volume.handle(), path, AtFlags::empty()).unwrap();
        (stat.st_mode & 0o7777, stat.st_gid)
    };
    for (number, file, expected) in [(2, Access { mode: 0o640, gid: 77 }, (0o750, 77)), (3, PRIVATE[0], (0o700, 4321))]
    {
        let changes = [directory(&[], &[(0, "db/user")])];
        let mounts = after(&changes);
        let rotation = Rotation::start(&volume, number, &mounts, &changes).unwrap();
        rotation.write(&[b"x"], &[file], OWNER, &mut hold(&volume)).unwrap();
        rotation.swap().unwrap();
        volume.wipe_replaced(&rotation.finish().unwrap()).unwrap();
        for path in ["0", "0/db", "files/0/..data/", "files/0/..data/db"] {
            assert_eq!(mode(path), expected, "{path}");
        }
        assert_eq!(mode("files/0/..data/db/user"), (file.mode, file.gid));
    }
}
