//! Tests volumes of read-only files. The tests need root, because they create file systems.

use std::os::unix::fs::MetadataExt;

use executor_core::placement::volume_size;
use executor_core::plan::PlannedFile;

use super::*;

mod writable;

const OWNER: Owner = Owner { uid: 1234, gid: 4321 };
const PRIVATE: [Access; 4] = [Access { mode: 0o600, gid: OWNER.gid }; 4];

fn mounts() -> Vec<MountPoint> {
    let directory = Content::Directory(vec![(0, "db/user".into()), (1, "db/password".into()), (2, "token".into())]);
    vec![
        MountPoint { target: "/etc/x".into(), content: directory, in_fresh_mount: false },
        MountPoint { target: "/single".into(), content: Content::File(3), in_fresh_mount: false },
    ]
}

fn filled(contents: &[&[u8]]) -> Volume {
    with_access(contents, PRIVATE)
}

fn with_access(contents: &[&[u8]], access: [Access; 4]) -> Volume {
    let files: Vec<_> =
        contents.iter().map(|content| PlannedFile::private("/etc/x/y/z", content.len() as u64, "")).collect();
    let volume = Volume::create(volume_size(&files, 4096)).unwrap();
    volume.fill(&mounts(), contents, &access, OWNER, Layout::Generations, &mut hold(&volume)).unwrap();
    volume
}

/// Returns a function that holds written files open, as the shim does with files that its helper passes.
pub(super) fn hold(volume: &Volume) -> impl FnMut(OwnedFd) -> io::Result<()> {
    |file| {
        volume.hold(file);
        Ok(())
    }
}

/// Opens a file through the volume's descriptor, because the volume has no path.
fn open(volume: &Volume, path: &str) -> File {
    File::from(rustix::fs::openat(volume.handle(), path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap())
}

use std::fs::File;

#[test]
fn files_are_private_and_linked_through_generation() {
    let volume = filled(&[b"u", b"p", b"", b"one"]);
    for (path, content) in [
        ("files/0/..data/db/user", "u"),
        ("files/0/..data/db/password", "p"),
        ("files/0/..gen1/token", ""),
        ("1", "one"),
    ] {
        let file = open(&volume, path);
        let meta = file.metadata().unwrap();
        assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid()), (0o600, 1234, 4321), "{path}");
        assert_eq!(io::read_to_string(file).unwrap(), content);
    }
    let shown = |entry: &str| rustix::fs::readlinkat(volume.handle(), format!("0/{entry}"), Vec::new()).unwrap();
    assert_eq!(shown("db/user").to_str(), Ok("../../../dev/executor-files/0/..data/db/user"));
    assert_eq!(shown("token").to_str(), Ok("../../dev/executor-files/0/..data/token"));
    // The two pass-through directories can be searched, but not listed.
    let private = ["0", "0/db", "files/0/..gen1", "files/0/..gen1/db"].map(|path| (path, 0o40_700));
    for (path, mode) in private.into_iter().chain([("files", 0o40_711), ("files/0", 0o40_711)]) {
        assert_eq!(stat_of(&volume, path), (mode, 1234, 4321), "{path}");
    }
    for link in ["0/db/user", "0/db/password", "0/token", "files/0/..data"] {
        assert_eq!(stat_of(&volume, link), (0o120_777, 1234, 4321), "{link}");
    }
}

/// Returns the type, mode, owner and group. Does not follow links.
fn stat_of(volume: &Volume, path: &str) -> (u32, u32, u32) {
    let meta = rustix::fs::statat(volume.handle(), path, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    (meta.st_mode, meta.st_uid, meta.st_gid)
}

/// A directory gets no more permissions than access to the files below it requires.
#[test]
fn shared_file_opens_only_its_directories() {
    let group = |gid| Access { mode: 0o640, gid };
    type Shown = [(&'static str, (u32, u32)); 3];
    let table: [([Access; 4], Shown); 3] = [
        (
            [PRIVATE[0], group(77), PRIVATE[0], group(88)],
            [("", (0o750, 77)), ("db", (0o750, 77)), ("db/user", (0o600, 4321))],
        ),
        (
            [group(77), group(88), PRIVATE[0], PRIVATE[0]],
            [("", (0o755, 4321)), ("db", (0o755, 4321)), ("db/password", (0o640, 88))],
        ),
        (
            [PRIVATE[0], PRIVATE[0], Access { mode: 0o444, gid: 4321 }, PRIVATE[0]],
            [("", (0o755, 4321)), ("db", (0o700, 4321)), ("token", (0o444, 4321))],
        ),
    ];
    for (access, expected) in table {
        let volume = with_access(&[b"u", b"p", b"t", b"one"], access);
        for (path, (mode, gid)) in expected {
            let of = |root: &str| {
                let (found, uid, group) = stat_of(&volume, &format!("{root}/{path}"));
                (found & 0o7777, uid, group)
            };
            assert_eq!(of("files/0/..gen1"), (mode, 1234, gid), "{path} for {access:?}");
            if !["db/user", "db/password", "token"].contains(&path) {
                assert_eq!(of("0"), (mode, 1234, gid), "{path} as it is shown for {access:?}");
            }
        }
        assert_eq!(stat_of(&volume, "1"), (0o100_000 | access[3].mode, 1234, access[3].gid));
    }
}

/// A wipe writes zeros to the same page frames, so a reader that has the file open or mapped sees zeros. The control
/// truncates and rewrites a file, so that its frames change.
#[test]
fn a_wipe_overwrites_in_place() {
    let secret = b"S3CR3T--".repeat(2000);
    let volume = filled(&[&secret, b"p", b"t", b"one"]);
    let kept = open(&volume, "files/0/..data/db/user");
    let frames = |file: &File| frames_at(map(file, secret.len()), secret.len() / 4096);
    let before = frames(&kept);
    assert!(before.iter().all(|frame| *frame != 0), "the frames are not shown: is this root?");

    // As a control, a file that is truncated and rewritten gets other frames, and the old frames keep the secret.
    let control = open(&volume, "files/0/..data/db/password");
    std::os::unix::fs::FileExt::write_all_at(&control, &secret, 0).unwrap();
    let old = frames(&control);
    control.set_len(0).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&control, &vec![0; secret.len()], 0).unwrap();
    assert_ne!(frames(&control), old);

    std::os::unix::fs::FileExt::write_all_at(&kept, &vec![0; secret.len()], 0).unwrap();
    assert_eq!(frames(&kept), before, "zeros went to other frames");
    std::os::unix::fs::FileExt::write_all_at(&kept, &secret, 0).unwrap();

    let receipt = volume.wipe().unwrap();
    assert_eq!(receipt.files(), 4);
    assert_eq!(receipt.bytes(), 2 * secret.len() as u64 + 1 + 3);
    let mut left = vec![1; secret.len()];
    std::os::unix::fs::FileExt::read_exact_at(&kept, &mut left, 0).unwrap();
    assert!(left.iter().all(|b| *b == 0), "a reader that kept the file open sees old bytes");
    assert_eq!(
        rustix::fs::Dir::read_from(open_dir(volume.handle(), ".".as_ref()).unwrap()).unwrap().count(),
        2,
        "only . and .."
    );
    assert_eq!(volume.wipe().unwrap().files(), 0);
}

/// Returns the page frames of a mapping whose pages were touched. The frames are zeros if the test does not run as
/// root.
fn frames_at(at: usize, pages: usize) -> Vec<u64> {
    let pagemap = File::open("/proc/self/pagemap").unwrap();
    let frame = |page: usize| {
        let mut entry = [0; 8];
        std::os::unix::fs::FileExt::read_exact_at(&pagemap, &mut entry, ((at + page * 4096) / 4096 * 8) as u64)
            .unwrap();
        u64::from_ne_bytes(entry) & ((1 << 55) - 1)
    };
    (0..pages).map(frame).collect()
}

/// Creates a shared mapping of a file and touches each page. The mapping remains until the test process exits.
fn map(file: &File, length: usize) -> usize {
    map_with(file, length, nix::sys::mman::ProtFlags::empty())
}

/// Creates a mapping like `map`, with additional protection flags.
fn map_with(file: &File, length: usize, also: nix::sys::mman::ProtFlags) -> usize {
    use nix::sys::mman::{MapFlags, ProtFlags, mmap};
    let length = std::num::NonZeroUsize::new(length).unwrap();
    #[allow(unsafe_code)]
    // SAFETY: a new mapping at an address that the kernel chooses; only `read_volatile` accesses it.
    unsafe {
        let at = mmap(None, length, ProtFlags::PROT_READ | also, MapFlags::MAP_SHARED, file, 0).unwrap();
        for offset in (0..length.get()).step_by(4096) {
            std::ptr::read_volatile(at.as_ptr().cast::<u8>().add(offset));
        }
        at.as_ptr() as usize
    }
}

#[test]
fn view_is_read_only_and_detached() {
    let volume = filled(&[b"u", b"p", b"t", b"one"]);
    let mut views = match volume.views(&mounts(), Layout::Generations) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => return, // kernel before 6.15: see integration
        views => views.unwrap(),
    };
    views.extend(volume.generations_view(&mounts(), Layout::Generations).unwrap());
    assert_eq!(views.len(), 3);
    assert!(views.iter().all(executor_sys::mount::is_read_only));
    assert!(!std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(SOURCE));
    let error = rustix::fs::openat(&views[0], "new", OFlags::CREATE | OFlags::WRONLY, FILE).unwrap_err();
    assert_eq!(error, rustix::io::Errno::ROFS);
}

#[test]
fn volume_size_fits_two_generations() {
    let volume = Volume::create(VolumeSize { bytes: 16 * 4096, inodes: 64 }).unwrap();
    if volume.kind() == VolumeKind::TmpfsNoswap {
        let mounts = [MountPoint { target: "/x".into(), content: Content::File(0), in_fresh_mount: false }];
        let error = volume
            .fill(&mounts, &[&vec![1; 17 * 4096]], &PRIVATE, OWNER, Layout::Generations, &mut hold(&volume))
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}

/// Inputs for the token holder are outside every view of the container, and are wiped with the volume.
#[test]
fn inputs_are_root_only_and_round_trip() {
    let volume = filled(&[b"u", b"p", b"", b"one"]);
    volume.keep_inputs(&[b"pw", b"", b"key=1"], &[]).unwrap();
    for (path, mode) in [("inputs", 0o700), ("inputs/values", 0o600)] {
        let meta = rustix::fs::statat(volume.handle(), path, AtFlags::empty()).unwrap();
        assert_eq!((meta.st_mode & 0o777, meta.st_uid, meta.st_gid), (mode, 0, 0), "{path}");
    }
    let stored = volume.inputs().unwrap();
    let mut read = vec![0; stored.len()];
    stored.read_into(&mut read).unwrap();
    assert_eq!(read, b"\x02\0\0\0pw\0\0\0\0\x05\0\0\0key=1");
    for (index, content) in [&b"u"[..], b"p", b"", b"one"].into_iter().enumerate() {
        let stored = volume.current(&mounts(), index, Layout::Generations).unwrap();
        let mut read = vec![0; stored.len()];
        stored.read_into(&mut read).unwrap();
        assert_eq!(read, content, "file {index}");
    }
    assert!(volume.current(&mounts(), 4, Layout::Generations).is_err());
    assert_eq!(volume.wipe().unwrap().files(), 5);
    assert!(volume.inputs().is_err());
}

/// A process's lease on a file, which blocks or refuses opens by other processes.
struct Lease(File);

impl Lease {
    /// Takes a lease, as the owner of the file may do.
    fn take(volume: &Volume, path: &str) -> io::Result<Self> {
        let file = File::from(rustix::fs::openat(volume.handle(), path, OFlags::RDONLY, Mode::empty())?);
        fcntl(&file, nix::libc::F_SETLEASE, nix::libc::F_RDLCK)?;
        fcntl(&file, nix::libc::F_SETOWN, 0)?; // no signal when the lease is broken
        Ok(Self(file))
    }

    fn give_back(&self) {
        fcntl(&self.0, nix::libc::F_SETLEASE, nix::libc::F_UNLCK).unwrap();
    }
}

fn fcntl(file: &File, command: i32, argument: i32) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    #[allow(unsafe_code)]
    // SAFETY: these commands take a number as argument and change no memory of this process.
    let result = unsafe { nix::libc::fcntl(file.as_raw_fd(), command, argument) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[test]
fn held_file_cannot_be_leased() {
    let volume = filled(&[b"u", b"p", b"t", b"one"]);
    for path in ["files/0/..data/db/user", "files/0/..gen1/token", "1"] {
        assert_eq!(Lease::take(&volume, path).err().and_then(|error| error.raw_os_error()), Some(11), "{path}");
    }
    // As a control, files that are not held open can be leased.
    volume.held.borrow_mut().clear();
    Lease::take(&volume, "1").unwrap();
}

/// A wipe does not block on a leased file: all other files are wiped, and a wipe after the lease wipes the leased file.
#[test]
fn wipe_does_not_wait_for_lease() {
    let volume = filled(&[b"user", b"p", b"t", b"one"]);
    volume.held.borrow_mut().clear();
    let lease = Lease::take(&volume, "files/0/..gen1/db/user").unwrap();
    let kept = open(&volume, "1");
    let begun = std::time::Instant::now();
    let mut receipt = Receipt::default();
    for _ in 0..2 {
        assert_eq!(volume.wipe_onto(&mut receipt).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!((receipt.files(), receipt.bytes()), (3, 1 + 1 + 3));
    }
    assert!(begun.elapsed() < std::time::Duration::from_secs(10), "it waited {:?}", begun.elapsed());
    assert_eq!(io::read_to_string(kept).unwrap(), "\0\0\0");
    assert_eq!(io::read_to_string(&lease.0).unwrap(), "user");
    lease.give_back();
    volume.wipe_onto(&mut receipt).unwrap();
    assert_eq!((receipt.files(), receipt.bytes()), (4, 4 + 1 + 1 + 3));
}

#[test]
fn a_hole_costs_a_wipe_nothing() {
    let volume = filled(&[b"user", b"p", b"t", b"one"]);
    open(&volume, "1").set_len(1 << 50).unwrap();
    assert_eq!(volume.wipe().unwrap().bytes(), 4 + 1 + 1 + 4096);
}
