//! Writes /etc/hostname, /etc/hosts and /etc/resolv.conf into a writable layer before it is mounted.
//!
//! After the mount, each file costs a copy of /etc's attributes, a whiteout and a file in the layer. Before the mount,
//! each file costs one write. Files are written before the mount only if the result is the same. Each /etc in a lower
//! layer must be a directory without extended attributes, and without a directory that has the name of one of the
//! files. The owner of the topmost /etc must be mapped in the container.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::Path;

use executor_core::idmap::IdMap;
use executor_sys::mount::{Follow, open_in_root};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, statat};

use crate::files::remove_tree;

pub(crate) const NAMES: [&str; 3] = ["hostname", "hosts", "resolv.conf"];
/// Contents of the files, in the order of [`NAMES`].
pub(crate) type Contents = [String; 3];
const ETC: &str = "etc";
const FILE: u32 = 0o644;
const DIRECTORY: u32 = 0o755;

/// Mode and owner, as host ids.
#[derive(Clone, Copy)]
struct Owned {
    mode: u32,
    uid: u32,
    gid: u32,
}

/// Creates /etc with empty files in the upper layer. The files belong to the host user and group `root`.
///
/// # Errors
/// Returns an error if the disk is full.
pub(crate) fn make_ahead(upper: &Path, root: u32) -> io::Result<()> {
    let owned = |mode| Owned { mode, uid: root, gid: root };
    let dir = upper.join(ETC);
    make(&dir, owned(DIRECTORY))?;
    NAMES.iter().try_for_each(|name| open(&dir.join(name), owned(FILE)).map(drop))
}

/// Writes the files into the upper layer. `lower` contains the lower layers, bottom first. If the result would differ
/// from writing after the mount, writes nothing and returns false.
///
/// # Errors
/// Returns an error if the disk is full.
pub(super) fn write(
    lower: &[BorrowedFd<'_>],
    upper: &Path,
    contents: Option<&Contents>,
    ids: IdMap,
) -> io::Result<bool> {
    let etc = if contents.is_some() { lower_etc_owner(lower, ids)? } else { None };
    let Some((contents, etc)) = contents.zip(etc) else {
        return remove_tree(&upper.join(ETC)).map(|()| false);
    };
    let dir = upper.join(ETC);
    make(&dir, etc)?;
    for (name, content) in NAMES.iter().zip(contents) {
        // The file gets the owner of the directory.
        open(&dir.join(name), Owned { mode: FILE, ..etc })?.write_all(content.as_bytes())?;
    }
    Ok(true)
}

/// Returns the mode and owner of /etc in the layers. Returns `None` if the files cannot be written before the mount.
fn lower_etc_owner(lower: &[BorrowedFd<'_>], ids: IdMap) -> io::Result<Option<Owned>> {
    let mut topmost = None;
    for layer in lower.iter().rev() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
        let etc = match open_in_root(*layer, Path::new(ETC), flags, Mode::empty(), Follow::NoLinks) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTDIR | libc::ELOOP)) => return Ok(None),
            etc => etc?,
        };
        if is_marked(&etc)? || has_directory(&etc) {
            return Ok(None);
        }
        if topmost.is_none() {
            let stat = fstat(&etc)?;
            if stat.st_uid.max(stat.st_gid) > ids.highest() {
                return Ok(None);
            }
            topmost = Some(Owned {
                mode: stat.st_mode & 0o7777,
                uid: ids.to_host(stat.st_uid),
                gid: ids.to_host(stat.st_gid),
            });
        }
    }
    Ok(Some(topmost.unwrap_or(Owned { mode: DIRECTORY, uid: ids.to_host(0), gid: ids.to_host(0) })))
}

/// Returns true if a directory has extended attributes.
fn is_marked(dir: &OwnedFd) -> io::Result<bool> {
    match rustix::fs::flistxattr_query(dir) {
        Err(rustix::io::Errno::NOTSUP) => Ok(false),
        length => Ok(length? > 0),
    }
}

fn has_directory(etc: &OwnedFd) -> bool {
    NAMES.iter().any(|name| {
        let found = statat(etc.as_fd(), *name, AtFlags::SYMLINK_NOFOLLOW);
        found.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    })
}

/// Creates a directory, or uses the directory that `make_ahead` has created, and sets its mode and owner.
fn make(path: &Path, owned: Owned) -> io::Result<()> {
    match fs::DirBuilder::new().mode(DIRECTORY).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    own(&File::open(path)?, owned)
}

/// Opens an empty file, and sets its mode and owner. `make_ahead` may have created the file.
fn open(path: &Path, owned: Owned) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file =
        options.write(true).create(true).truncate(false).mode(owned.mode).custom_flags(libc::O_NOFOLLOW).open(path)?;
    own(&file, owned)?;
    Ok(file)
}

/// Sets the mode and owner only if they differ, because each change is a write to the file system.
fn own(file: &File, owned: Owned) -> io::Result<()> {
    let found = file.metadata()?;
    if (found.uid(), found.gid()) != (owned.uid, owned.gid) {
        fchown(file, Some(owned.uid), Some(owned.gid))?;
    }
    if found.mode() & 0o7777 != owned.mode || found.uid() != owned.uid {
        file.set_permissions(fs::Permissions::from_mode(owned.mode))?; // chown clears mode bits
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{lchown, symlink};
    use std::path::PathBuf;

    use executor_sys::mount::open_dir;

    use super::*;

    const START: u32 = 1 << 20;

    /// Lower layers, bottom first, and an upper layer.
    struct Layers {
        home: tempfile::TempDir,
        lower: Vec<PathBuf>,
    }

    impl Layers {
        fn new(number: usize) -> Self {
            let home = tempfile::tempdir().unwrap();
            let lower: Vec<PathBuf> = (0..number).map(|index| home.path().join(format!("layer{index}"))).collect();
            lower.iter().chain([&home.path().join("upper")]).for_each(|dir| fs::create_dir(dir).unwrap());
            Self { home, lower }
        }

        fn upper(&self) -> PathBuf {
            self.home.path().join("upper")
        }

        /// Writes the files. Returns the function's result, and the mode, owner and content of each resulting entry.
        fn write(&self) -> (bool, Vec<String>) {
            let opened: Vec<OwnedFd> = self.lower.iter().map(|dir| open_dir(dir).unwrap()).collect();
            let lower: Vec<_> = opened.iter().map(AsFd::as_fd).collect();
            let contents = ["n\n".to_owned(), "h\n".to_owned(), String::new()];
            let written = write(&lower, &self.upper(), Some(&contents), IdMap::from_start(Some(START))).unwrap();
            let describe = |path: &Path| {
                let found = fs::symlink_metadata(path).unwrap();
                let content = fs::read_to_string(path).unwrap_or_default();
                let name = path.file_name().unwrap().to_string_lossy();
                format!(
                    "{name} {:o} {}:{} {content:?}",
                    found.mode() & 0o7777,
                    found.uid() - START,
                    found.gid() - START
                )
            };
            let etc = self.upper().join(ETC);
            let all = [etc.clone()].into_iter().chain(NAMES.iter().map(|name| etc.join(name)));
            (written, all.filter(|path| path.exists()).map(|path| describe(&path)).collect())
        }
    }

    fn expected(mode: &str, owner: &str) -> Vec<String> {
        let files = [("hostname", "n\\n"), ("hosts", "h\\n"), ("resolv.conf", "")];
        let files = files.map(|(name, content)| format!("{name} 644 {owner} \"{content}\""));
        [format!("etc {mode} {owner} \"\"")].into_iter().chain(files).collect()
    }

    #[test]
    #[ignore = "needs root"]
    fn the_topmost_directory_gives_mode_and_owner() {
        for ahead in [false, true] {
            let layers = Layers::new(3);
            if ahead {
                make_ahead(&layers.upper(), START).unwrap();
            }
            for (layer, mode, owner) in [(0, 0o700, 7), (1, 0o2750, 5)] {
                let etc = layers.lower[layer].join(ETC);
                fs::create_dir(&etc).unwrap();
                lchown(&etc, Some(owner), Some(owner)).unwrap();
                fs::set_permissions(&etc, fs::Permissions::from_mode(mode)).unwrap();
                fs::write(etc.join("hosts"), "the image's").unwrap();
                symlink("/elsewhere", etc.join("resolv.conf")).unwrap();
            }
            assert_eq!(layers.write(), (true, expected("2750", "5:5")), "{ahead}");
        }
    }

    #[test]
    #[ignore = "needs root"]
    fn missing_etc_directory_is_owned_by_root() {
        for ahead in [false, true] {
            let layers = Layers::new(2);
            if ahead {
                make_ahead(&layers.upper(), START).unwrap();
            }
            assert_eq!(layers.write(), (true, expected("755", "0:0")), "{ahead}");
        }
    }

    #[test]
    #[ignore = "needs root"]
    fn unusual_etc_is_left_to_mounted_root() {
        type Make = fn(&Path);
        let kinds: [(&str, Make); 5] = [
            ("a link", |layer| symlink("/other", layer.join(ETC)).unwrap()),
            ("a file, as a whiteout is", |layer| fs::write(layer.join(ETC), "").unwrap()),
            ("a directory in the place of a file", |layer| fs::create_dir_all(layer.join("etc/hosts")).unwrap()),
            ("an extended attribute", |layer| {
                let etc = layer.join(ETC);
                fs::create_dir(&etc).unwrap();
                let flags = rustix::fs::XattrFlags::empty();
                rustix::fs::setxattr(&etc, "trusted.overlay.opaque", b"y", flags).unwrap();
            }),
            ("an owner whom the container does not have", |layer| {
                let etc = layer.join(ETC);
                fs::create_dir(&etc).unwrap();
                lchown(&etc, Some(70_000), None).unwrap();
            }),
        ];
        for (what, make) in kinds {
            for ahead in [false, true] {
                let layers = Layers::new(2);
                if ahead {
                    make_ahead(&layers.upper(), START).unwrap();
                }
                make(&layers.lower[1]);
                assert_eq!(layers.write(), (false, Vec::new()), "{what} {ahead}");
            }
        }
    }
}
