//! Tests writable files, and other entries that a process may create before the wipe.

use std::os::unix::fs::FileExt as _;

use executor_core::limits::WRITABLE_ENTRIES;
use executor_sys::mount::set_writable;
use rustix::fs::{FileType, IFlags, ioctl_getflags, ioctl_setflags, linkat, mkdirat, mknodat, symlinkat, unlinkat};

use super::*;

const CONTENTS: [&[u8]; 4] = [b"user", b"password", b"token", b"one"];
const PAGE: u64 = 4096;

/// Creates a volume of writable files to which a process may add `more` bytes. `kept` holds contents that are also
/// stored as originals.
fn writable_and_kept(more: u64, kept: &[&[u8]]) -> Volume {
    let files = CONTENTS.iter().map(|content| PlannedFile::private("/etc/x/y", content.len() as u64, ""));
    let volume = Volume::create(volume_size(&files.collect::<Vec<_>>(), PAGE)).unwrap();
    assert_eq!(volume.kind(), VolumeKind::TmpfsNoswap, "without noswap, such a container is refused");
    volume.fill(&mounts(), &CONTENTS, &PRIVATE, OWNER, Layout::Writable, &mut hold(&volume)).unwrap();
    if !kept.is_empty() {
        volume.keep_inputs(&[b"pw"], kept).unwrap();
    }
    volume.leave_room(VolumeSize { bytes: more, inodes: WRITABLE_ENTRIES }).unwrap();
    volume
}

fn writable(more: u64) -> Volume {
    writable_and_kept(more, &[])
}

fn made(volume: &Volume, path: &str, content: &[u8]) -> File {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(volume.handle(), path, flags, FILE).unwrap());
    file.write_all_at(content, 0).unwrap();
    file
}

fn names(volume: &Volume) -> Vec<String> {
    let dir = rustix::fs::Dir::read_from(open_dir(volume.handle(), ".".as_ref()).unwrap()).unwrap();
    let names = dir.map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned());
    names.filter(|name| name != "." && name != "..").collect()
}

/// Asserts that a file that was kept open contains only zeros.
fn is_zero(file: &File) {
    let mut left = vec![1; 64];
    let read = file.read_at(&mut left, 0).unwrap();
    assert!(left[..read].iter().all(|byte| *byte == 0), "{:?}", String::from_utf8_lossy(&left[..read]));
}

#[test]
fn files_lie_where_the_process_sees_them() {
    let volume = writable(PAGE);
    for (path, second, content) in
        [("0/db/user", "files/0", "user"), ("0/db/password", "files/1", "password"), ("1", "files/3", "one")]
    {
        for path in [path, second] {
            assert_eq!(stat_of(&volume, path), (0o100_600, 1234, 4321), "{path}");
            assert_eq!(io::read_to_string(open(&volume, path)).unwrap(), content);
        }
    }
    for (path, expected) in [
        ("0", (0o40_700, 1234, 4321)),
        ("0/db", (0o40_700, 1234, 4321)),
        ("files", (0o40_700, 0, 0)), // the process cannot remove a second name
    ] {
        assert_eq!(stat_of(&volume, path), expected, "{path}");
    }
    let views = volume.views(&mounts(), Layout::Writable).unwrap();
    assert!(!views.iter().any(executor_sys::mount::is_read_only));
    let names = volume.generations_view(&mounts(), Layout::Writable).unwrap().unwrap();
    assert!(executor_sys::mount::is_read_only(&names));
}

#[test]
fn wipe_covers_process_files_only_inside_volume() {
    let outside = tempfile::tempdir().unwrap();
    let host = outside.path().join("file");
    std::fs::write(&host, "of the host").unwrap();
    let volume = writable(1 << 20);
    let at = volume.handle();

    let changed = open(&volume, "0/db/user");
    changed.write_all_at(b"another user", 0).unwrap();
    let beside = made(&volume, "0/db/new", b"a new secret");
    linkat(at, "0/db/new", at, "0/other", AtFlags::empty()).unwrap();
    let deleted = open(&volume, "0/db/password");
    unlinkat(at, "0/db/password", AtFlags::empty()).unwrap();
    let renamed = open(&volume, "0/token");
    rustix::fs::renameat(at, "0/token", at, "0/db/user").unwrap();
    let closed = made(&volume, "0/closed", b"unreadable");
    rustix::fs::fchmod(&closed, Mode::empty()).unwrap();
    let sparse = made(&volume, "0/sparse", b"begins");
    sparse.write_all_at(b"ends", (1 << 62) - 4).unwrap();
    symlinkat(&host, at, "0/link").unwrap();
    symlinkat(outside.path(), at, "0/way-out").unwrap();
    for (name, kind) in [("pipe", FileType::Fifo), ("socket", FileType::Socket), ("device", FileType::CharacterDevice)]
    {
        mknodat(at, format!("0/{name}"), kind, Mode::RWXU, rustix::fs::makedev(1, 3)).unwrap();
    }
    mkdirat(at, "0/fixed", Mode::RWXU).unwrap();
    let fixed = made(&volume, "0/fixed/file", b"immutable");
    let inside = open_dir(at, "0/fixed".as_ref()).unwrap();
    for (file, flag) in [(fixed.as_fd(), IFlags::IMMUTABLE), (inside.as_fd(), IFlags::APPEND)] {
        ioctl_setflags(file, ioctl_getflags(file).unwrap() | flag).unwrap();
    }
    assert!(unlinkat(at, "0/fixed/file", AtFlags::empty()).is_err(), "control failed");

    let receipt = volume.wipe().unwrap();
    // The request has four files, of which one was deleted and one was replaced by a rename. The program has created
    // four files: new, closed, sparse and fixed.
    assert_eq!(receipt.files(), 8);
    let sparse_pages = 2 * PAGE;
    assert_eq!(receipt.bytes(), 12 + 8 + 5 + 3 + 12 + 10 + sparse_pages + 9);
    for file in [&changed, &beside, &deleted, &renamed, &closed, &sparse, &fixed] {
        is_zero(file);
    }
    let mut end = [1; 4];
    sparse.read_exact_at(&mut end, (1 << 62) - 4).unwrap();
    assert_eq!(end, [0; 4]);
    assert_eq!(names(&volume), [""; 0]);
    assert_eq!(std::fs::read_to_string(&host).unwrap(), "of the host");
}

/// A wipe of deeply nested directories needs little stack and few descriptors, however the directories were nested.
#[test]
fn deep_or_wide_trees_are_wiped() {
    let volume = writable(1 << 24);
    let mut dir = open_dir(volume.handle(), "0".as_ref()).unwrap();
    // This is the name that a wipe gives to the first directory that it moves up.
    mkdirat(volume.handle(), "..moved1", Mode::RWXU).unwrap();
    let mut kept = Vec::new();
    for depth in 0..5000 {
        mkdirat(&dir, "d", Mode::RWXU).unwrap();
        dir = open_dir(dir.as_fd(), "d".as_ref()).unwrap();
        if depth % 1000 == 999 {
            kept.push(write_file(dir.as_fd(), "f".as_ref(), b"deep", 0, PRIVATE[0]).unwrap());
        }
    }
    for number in 0..3000 {
        drop(made(&volume, &format!("0/wide{number}"), b"wide"));
    }
    let (soft, hard) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    let open_now = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, open_now + 100, hard).unwrap();
    let wiped = volume.wipe();
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    assert_eq!(wiped.unwrap().files(), 4 + 5 + 3000);
    assert_eq!(names(&volume), [""; 0]);
    let path = |file: &File| format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
    kept.iter().for_each(|file| is_zero(&File::open(path(file)).unwrap()));
}

/// Bytes that a process wrote beyond the end of a file, through a mapping of its last page, are wiped in place.
#[test]
fn data_beyond_end_of_file_is_wiped() {
    let volume = writable(PAGE);
    let file = made(&volume, "0/file", b"x");
    let at = map_with(&file, PAGE as usize, nix::sys::mman::ProtFlags::PROT_WRITE) as *mut [u8; 6];
    #[allow(unsafe_code)]
    // SAFETY: the page is mapped and writable until the process exits; nothing else accesses these 106 bytes of it.
    let look = |write: bool| unsafe {
        let behind = at.byte_add(100);
        if write {
            behind.write_volatile(*b"behind");
        }
        behind.read_volatile()
    };
    assert_eq!(&look(true), b"behind");
    let before = frames_at(at as usize, 1);
    wipe::wipe_behind(&file, 1).unwrap();
    assert_eq!((look(false), frames_at(at as usize, 1)), ([0; 6], before), "in place");
    assert_eq!(io::read_to_string(open(&volume, "0/file")).unwrap(), "x", "the file has no other content");
    let receipt = volume.wipe().unwrap();
    assert_eq!((receipt.files(), receipt.bytes()), (5, 4 + 8 + 5 + 3 + 1));
    assert_eq!(file.metadata().unwrap().len(), 1, "the visible size does not change");
}

/// The size of the file system limits writes: beyond it they fail, and use no memory elsewhere.
#[test]
fn writable_files_are_limited_in_size_number() {
    let volume = writable_and_kept(16 * PAGE, &CONTENTS);
    let file = made(&volume, "0/large", b"");
    let page = [7; PAGE as usize];
    let written = (0..).take_while(|number| file.write_all_at(&page, number * PAGE).is_ok()).count();
    assert_eq!(written, 16);
    let error = file.write_all_at(&page, 1 << 20).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    let mut count = 0;
    while mkdirat(volume.handle(), format!("0/{count}"), Mode::RWXU).is_ok() {
        count += 1;
    }
    assert_eq!(count, WRITABLE_ENTRIES - 1, "the existing file is counted, too");
    assert_eq!(volume.wipe().unwrap().files(), 4 + 4 + 1 + 1);
}

/// If a launcher has only the container's mounts, a wipe through them reaches every file and counts each once.
#[test]
fn wipe_through_mounts_counts_files_once() {
    let volume = writable(PAGE);
    let deleted = open(&volume, "0/db/user");
    unlinkat(volume.handle(), "0/db/user", AtFlags::empty()).unwrap();
    let mut views = volume.views(&mounts(), Layout::Writable).unwrap();
    views.extend(volume.generations_view(&mounts(), Layout::Writable).unwrap());
    let mut receipt = Receipt::default();
    for view in views {
        set_writable(view.as_fd()).unwrap();
        Volume::from_handle(view, volume.kind()).wipe_onto(&mut receipt).unwrap();
    }
    assert_eq!((receipt.files(), receipt.bytes()), (4, 4 + 8 + 5 + 3));
    is_zero(&deleted);
}

/// The token holder gets the content from the request, even if the file has changed.
#[test]
fn original_content_is_kept_after_write() {
    let volume = writable_and_kept(16 * PAGE, &CONTENTS[..3]);
    open(&volume, "0/db/password").write_all_at(b"changed", 0).unwrap();
    let read = |stored: Stored| {
        let mut read = vec![0; stored.len()];
        stored.read_into(&mut read).unwrap();
        read
    };
    assert_eq!(read(volume.kept_file(1).unwrap()), b"password");
    assert_eq!(read(volume.current(&mounts(), 2, Layout::Writable).unwrap()), b"token");
    assert!(volume.kept_file(3).is_err());
    assert_eq!(stat_of(&volume, "inputs/1"), (0o100_600, 0, 0));
    assert_eq!(volume.wipe().unwrap().files(), 4 + 3 + 1);
}
