use std::io::Write;

use super::*;

#[test]
fn nothing_leads_out_of_a_root() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("etc")).unwrap();
    std::fs::write(dir.path().join("etc/passwd"), "inside").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", dir.path().join("absolute")).unwrap();
    std::os::unix::fs::symlink("../../../../etc", dir.path().join("up")).unwrap();
    let fd = open_dir(dir.path()).unwrap();
    let read = |path: &str, follow| {
        let fd = open_in_root(fd.as_fd(), Path::new(path), OFlags::RDONLY, Mode::empty(), follow)?;
        io::read_to_string(std::fs::File::from(fd))
    };
    for path in ["/etc/passwd", "absolute", "up/passwd", "/../../etc/passwd"] {
        for follow in [Follow::LinksWithinRoot, Follow::LinksWithinMount] {
            assert_eq!(read(path, follow).unwrap(), "inside", "{path}");
        }
    }
    let root = open_dir(Path::new("/")).unwrap();
    let proc = |follow| open_in_root(root.as_fd(), Path::new("/proc/stat"), OFlags::PATH, Mode::empty(), follow);
    assert!(proc(Follow::LinksWithinRoot).is_ok());
    assert_eq!(proc(Follow::LinksWithinMount).unwrap_err().raw_os_error(), Some(libc::EXDEV));
    for path in ["absolute", "up/passwd"] {
        assert_eq!(read(path, Follow::NoLinks).unwrap_err().raw_os_error(), Some(libc::ELOOP), "{path}");
    }
}

#[test]
fn nothing_leads_out_of_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    for (name, target) in [("out", "/etc"), ("up", ".."), ("in", "a")] {
        std::os::unix::fs::symlink(target, dir.path().join(name)).unwrap();
    }
    let fd = open_dir(dir.path()).unwrap();
    let reported =
        |path: &str| open_dir_beneath(fd.as_fd(), Path::new(path)).map(drop).map_err(|e| e.raw_os_error().unwrap());
    for (path, error) in [
        ("out", libc::ELOOP),
        ("up", libc::ELOOP),
        ("in", libc::ELOOP),
        ("in/b", libc::ELOOP),
        ("..", libc::EXDEV),
        ("a/../..", libc::EXDEV),
        ("/etc", libc::EXDEV),
        ("file", libc::ENOTDIR),
        ("none", libc::ENOENT),
    ] {
        assert_eq!(reported(path), Err(error), "{path}");
    }
    let root = open_dir(Path::new("/")).unwrap();
    let other_mount = open_dir_beneath(root.as_fd(), Path::new("proc/self")).unwrap_err();
    assert_eq!(other_mount.raw_os_error(), Some(libc::EXDEV));
    for path in ["", "a", "a/b"] {
        assert_eq!(reported(path), Ok(()), "{path}");
    }
}

/// A detached file system can be filled before it is visible, and a read-only view of it is a separate mount.
#[test]
#[ignore = "needs root"]
fn detached_file_system_has_read_only_view() {
    let fs = detached("tmpfs", "test", &[("size", Some("64k"))], MountAttrFlags::empty()).unwrap();
    let view = match clone_tree(fs.as_fd(), Path::new(""), false) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => return, // kernel before 6.15
        view => view.unwrap(),
    };
    set_attributes(view.as_fd(), Attributes { read_only: true, ..Attributes::default() }).unwrap();
    let create = |fd: &OwnedFd| {
        rustix::fs::openat(fd, "x", OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)
    };
    assert_eq!(create(&view).unwrap_err(), rustix::io::Errno::ROFS);
    std::fs::File::from(create(&fs).unwrap()).write_all(b"content").unwrap();
    assert!(is_read_only(&view) && !is_read_only(&fs));
    assert!(!std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(" test "));
    set_writable(view.as_fd()).unwrap();
    create(&view).unwrap();
}

#[test]
#[ignore = "needs root"]
fn an_unknown_option_is_reported() {
    let error = detached("tmpfs", "test", &[("bogus", None)], MountAttrFlags::empty()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

/// If a file system grows, it keeps its content and options, including `noswap`. Control: the kernel accepts
/// `noswap` again only if the file system already has it.
#[test]
#[ignore = "needs root"]
fn grown_file_system_keeps_content_and_options() {
    let small = |noswap: bool| {
        let options = [("size", Some("64k")), ("noswap", None)];
        detached("tmpfs", "test", &options[..1 + usize::from(noswap)], MountAttrFlags::empty())
    };
    let fs = match small(true) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => return, // kernel before 6.4
        fs => fs.unwrap(),
    };
    let file = rustix::fs::openat(&fs, "x", OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR).unwrap();
    let mut file = std::fs::File::from(file);
    let page = [7; 4096];
    while file.write_all(&page).is_ok() {}
    assert_eq!(file.metadata().unwrap().len(), 64 << 10);
    reconfigure(fs.as_fd(), &[("size", Some("128k")), ("nr_inodes", Some("100"))]).unwrap();
    file.write_all(&page).unwrap();
    assert_eq!(rustix::fs::fstatvfs(&fs).unwrap().f_files, 100);
    reconfigure(fs.as_fd(), &[("noswap", None)]).unwrap();
    assert!(reconfigure(small(false).unwrap().as_fd(), &[("noswap", None)]).is_err(), "the control");
    assert!(reconfigure(fs.as_fd(), &[("size", Some("4k"))]).is_err(), "it does not shrink below its content");
}
