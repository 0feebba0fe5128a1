//! A Debian image: a tree created by mmdebstrap, and further layers with every kind of entry that a layer can have.

use std::fs;
use std::os::unix::fs::lchown;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::{Image, change, change_again, furnish, mode, tool};

/// Packages that contain set-user-ID and set-group-ID programs, and a separate group (`shadow`).
const PACKAGES: &str =
    "base-files,base-passwd,coreutils,dash,findutils,grep,hostname,libpam-modules,login,mount,passwd,util-linux";
/// Options of mmdebstrap. Packages are unpacked but not configured, because configuration takes long and creates no
/// other kinds of files. Documentation, half of the size, is excluded.
const OPTIONS: [&str; 9] = [
    "--quiet",
    "--mode=root",
    "--format=directory",
    "--variant=extract",
    "--aptopt=Acquire::Languages \"none\"",
    "--dpkgopt=force-unsafe-io",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
];
const SUITE: &str = "bookworm";
const MIRROR: &str = "http://deb.debian.org/debian";

/// Entries that the upper layers change, with the expected content.
pub const CHANGED: [(&str, Option<&str>); 6] = [
    ("usr/bin/factor", None),
    ("usr/share/pam-configs", None),
    ("etc/pam.d/new", Some("file of 3 bytes")),
    ("etc/pam.d/su", None),
    ("etc/security", Some("link to \"/usr/share\"")),
    ("usr/bin/passwd", Some("mode 104755, owner 0:0")),
];

/// Returns Debian's tree, which is created once per checkout.
fn tree() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
        let (made, include) = (target.join("debian-root"), format!("--include={PACKAGES}"));
        let made_from = [&OPTIONS[..], &[&include, SUITE, MIRROR]].concat().join("\n");
        if fs::read_to_string(made.join("made-from")).is_ok_and(|before| before == made_from) {
            return made.join("tree");
        }
        fs::create_dir_all(&target).expect("mkdir");
        let scratch = tempfile::tempdir_in(&target).expect("a directory");
        // apt downloads packages as its own user.
        mode(scratch.path(), 0o755);
        let tree = scratch.path().join("tree");
        tool("mmdebstrap", &[&OPTIONS[..], &[&include, SUITE, &tree.display().to_string(), MIRROR]].concat());
        // Remove device nodes: every container has its own /dev, and Debian images have an empty one.
        fs::remove_dir_all(tree.join("dev")).expect("remove");
        fs::create_dir(tree.join("dev")).expect("mkdir");
        fs::write(scratch.path().join("made-from"), made_from).expect("write");
        let _ = fs::remove_dir_all(&made);
        fs::rename(scratch.keep(), &made).expect("rename");
        made.join("tree")
    })
}

impl Image {
    /// Builds a Debian image with one entry of every kind, two layers of changes made by umoci, and a layer from
    /// another tool with an opaque directory.
    pub fn debian() -> Self {
        let (image, debian) = (Self::new(), tree());
        let root = image.root();
        image.copy(debian);
        furnish(&root);
        // A container's user namespace has 65,536 ids.
        lchown(root.join("a/set-id"), Some(65_534), Some(42)).expect("chown");
        mode(&root.join("a/set-id"), 0o6711);
        image.commit();
        change(&root);
        fs::remove_file(root.join("usr/bin/factor")).expect("remove");
        fs::remove_dir_all(root.join("usr/share/pam-configs")).expect("remove");
        image.commit();
        change_again(&root);
        image.commit();
        image.add(&replacing());
        image
    }
}

/// Returns a layer with an opaque directory, and with a link that replaces another directory.
fn replacing() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut add = |kind: tar::EntryType, path: &str, link: &str, content: &str| {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(0o755);
        header.set_mtime(1_000_000_000);
        header.set_size(content.len() as u64);
        header.set_path(path).expect("a path");
        if !link.is_empty() {
            header.set_link_name(link).expect("a link");
        }
        header.set_cksum();
        archive.append(&header, content.as_bytes()).expect("append");
    };
    add(tar::EntryType::Directory, "etc/pam.d/", "", "");
    add(tar::EntryType::Regular, "etc/pam.d/.wh..wh..opq", "", "");
    add(tar::EntryType::Regular, "etc/pam.d/new", "", "new");
    add(tar::EntryType::Symlink, "etc/security", "/usr/share", "");
    archive.into_inner().expect("an archive")
}
