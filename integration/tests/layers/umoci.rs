//! The same image, unpacked by us and by umoci: the trees are the same, in names, modes, owners, times, attributes and
//! links.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use integration::launcher::Launcher;
use integration::layers::Blob;
use integration::rootfs;
use integration::tree::{differences, listing, of_layers};
use tempfile::TempDir;

/// An image in the making, by umoci.
struct Image {
    dir: TempDir,
    image: String,
}

impl Image {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let layout = dir.path().join("layout").display().to_string();
        let image = Self { image: format!("{layout}:image"), dir };
        image.umoci(&["init", "--layout", &layout]);
        image.umoci(&["new", "--image", &image.image]);
        image.umoci(&["unpack", "--image", &image.image, &image.path("bundle")]);
        image
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn umoci(&self, args: &[&str]) {
        let output = Command::new("umoci").args(args).output().expect("umoci is installed");
        assert!(output.status.success(), "umoci {args:?}: {output:?}");
    }

    /// The tree that the next layer is made of.
    fn rootfs(&self) -> PathBuf {
        self.dir.path().join("bundle/rootfs")
    }

    /// What was changed in the tree becomes a layer.
    fn commit(&self) {
        self.umoci(&["repack", "--refresh-bundle", "--image", &self.image, &self.path("bundle")]);
    }

    /// An archive becomes a layer as it is.
    fn add(&self, archive: &[u8]) {
        let path = self.path("layer.tar");
        fs::write(&path, archive).unwrap();
        self.umoci(&["raw", "add-layer", "--image", &self.image, &path]);
    }

    fn json(&self, digest: &str) -> serde_json::Value {
        let path = self.dir.path().join("layout/blobs").join(digest.replace(':', "/"));
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    /// Its layers as the layout has them.
    fn blobs(&self) -> Vec<Blob> {
        let index: serde_json::Value =
            serde_json::from_slice(&fs::read(self.dir.path().join("layout/index.json")).unwrap()).unwrap();
        let manifest = self.json(index["manifests"][0]["digest"].as_str().unwrap());
        let config = self.json(manifest["config"]["digest"].as_str().unwrap());
        let layers =
            manifest["layers"].as_array().unwrap().iter().zip(config["rootfs"]["diff_ids"].as_array().unwrap());
        let blob = |(layer, diff_id): (&serde_json::Value, &serde_json::Value)| {
            let digest = layer["digest"].as_str().unwrap().replace(':', "/");
            Blob {
                diff_id: diff_id.as_str().unwrap().to_owned(),
                media_type: layer["mediaType"].as_str().unwrap().to_owned(),
                file: File::open(self.dir.path().join("layout/blobs").join(digest)).unwrap(),
            }
        };
        layers.map(blob).collect()
    }

    /// Unpacked by umoci.
    fn theirs(&self) -> BTreeMap<PathBuf, String> {
        self.umoci(&["unpack", "--image", &self.image, &self.path("fresh")]);
        listing(&self.dir.path().join("fresh/rootfs"))
    }

    /// Unpacked by us, and that the two are the same but for the times of what nobody describes.
    fn compare(&self, layers: usize, undescribed: &[&str]) -> BTreeMap<PathBuf, String> {
        let launcher = Launcher::start(&[]);
        let blobs = self.blobs();
        assert_eq!(blobs.len(), layers);
        let image = launcher.unpack_image(&blobs);
        let mut ours = of_layers(&launcher.state_dir().join("layers"), &image.layers);
        let mut theirs = self.theirs();
        for tree in [&mut ours, &mut theirs] {
            for path in undescribed {
                let line = tree.get_mut(Path::new(path)).unwrap();
                let time = line.find(", time ").unwrap();
                let end = line.find(", attributes ").unwrap();
                line.replace_range(time..end, "");
            }
        }
        let differences = differences(&ours, &theirs);
        assert!(differences.is_empty(), "{}", differences.join("\n"));
        ours
    }
}

fn set(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, rustix::fs::XattrFlags::empty()).unwrap();
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn time(path: &Path, seconds: i64, nanoseconds: i64) {
    let at = rustix::fs::Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = rustix::fs::Timestamps { last_access: at, last_modification: at };
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// A tree with one of everything.
fn furnish(root: &Path) {
    let busybox = rootfs::Rootfs::busybox();
    let copied = Command::new("cp").arg("-a").arg(busybox.path().join(".")).arg(root).status().unwrap();
    assert!(copied.success());
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
    fs::write(root.join("a").join(std::ffi::OsStr::from_bytes(b"\xff\xfe latin")), "x").unwrap();
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

use std::os::unix::ffi::OsStrExt;

/// Layers that umoci made of changes of a tree.
#[test]
fn an_image_of_many_layers_is_what_umoci_unpacks() {
    let image = Image::new();
    let root = image.rootfs();
    furnish(&root);
    image.commit();
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
    image.commit();
    fs::remove_file(root.join("becomes-file")).unwrap();
    fs::create_dir(root.join("becomes-file")).unwrap();
    fs::write(root.join("becomes-file/inner"), "x").unwrap();
    fs::write(root.join("gone"), "a file now").unwrap();
    fs::write(root.join("a/b/c/file"), "changed").unwrap();
    fs::remove_file(root.join("a/b/again")).unwrap();
    fs::hard_link(root.join("a/b/c/file"), root.join("a/b/again")).unwrap();
    image.commit();
    let tree = image.compare(3, &[]);
    assert!(tree.len() > 80 && tree[Path::new("a/set-id")].contains("mode 106711"), "the control: {}", tree.len());
    assert!(tree[Path::new("a/capable")].contains("security.capability"), "the control");
    assert!(!tree.contains_key(Path::new("third")) && !tree.contains_key(Path::new("opaque/old")));
}

/// An entry of an archive.
fn entry(kind: u8, path: &str, link: &str) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::new(kind));
    header.set_mode(if kind == b'5' { 0o711 } else { 0o640 });
    header.set_uid(11);
    header.set_gid(12);
    header.set_mtime(1_000_000_000);
    let content = if kind == b'0' { path.as_bytes() } else { b"" };
    header.set_size(content.len() as u64);
    header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
    header.as_mut_bytes()[157..157 + link.len()].copy_from_slice(link.as_bytes());
    header.set_cksum();
    let padding = vec![0; content.len().wrapping_neg() % 512];
    [header.as_bytes(), content, &padding].concat()
}

fn archive(entries: &[(u8, &str, &str)]) -> Vec<u8> {
    let mut bytes: Vec<u8> = entries.iter().flat_map(|(kind, path, link)| entry(*kind, path, link)).collect();
    bytes.extend([0; 1024]);
    bytes
}

/// Archives that no tool makes of a tree, and that are layers all the same: opaque directories, links on the way, what
/// only the layers below describe, names from the root and with dots.
#[test]
fn archives_of_other_tools_are_what_umoci_unpacks() {
    let image = Image::new();
    image.add(&archive(&[
        (b'5', "usr/", ""),
        (b'5', "usr/lib/", ""),
        (b'0', "usr/lib/one", ""),
        (b'0', "usr/lib/two", ""),
        (b'2', "lib", "usr/lib"),
        (b'5', "d/", ""),
        (b'0', "d/a", ""),
        (b'5', "d/sub/", ""),
        (b'0', "d/sub/b", ""),
        (b'5', "kept/", ""),
        (b'0', "kept/x", ""),
        (b'1', "kept/same", "kept/x"),
        (b'2', "up", "../../../../d"),
    ]));
    image.add(&archive(&[
        (b'0', "lib/three", ""),
        (b'0', "/usr/lib/four", ""),
        (b'0', "./usr/../usr/lib/./five", ""),
        (b'1', "link-to-below", "usr/lib/one"),
        (b'1', "link-through", "/lib/two"),
        (b'0', "d/.wh..wh..opq", ""),
        (b'0', "d/new", ""),
        (b'0', "kept/.wh.x", ""),
        (b'0', "up/through", ""),
    ]));
    image.add(&archive(&[
        (b'0', ".wh.lib", ""),
        (b'5', "lib/", ""),
        (b'0', "lib/real", ""),
        (b'0', "d/.wh.new", ""),
        (b'2', "d/new", "through"),
        (b'6', "usr/pipe", ""),
        (b'0', ".wh.link-through", ""),
        (b'0', "not/described/file", ""),
    ]));
    let tree = image.compare(3, &["not", "not/described"]);
    assert!(tree.contains_key(Path::new("usr/lib/three")) && tree.contains_key(Path::new("d/through")), "{tree:?}");
    assert!(!tree.contains_key(Path::new("d/a")) && !tree.contains_key(Path::new("kept/x")));
}
