//! The launcher and umoci unpack the same images. Both trees have the same names, modes, owners, times, attributes and
//! links.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use integration::images::{Image, change, change_again, furnish};
use integration::launcher::Launcher;
use integration::rootfs::Rootfs;
use integration::tree::{differences, listing, of_layers, remove_time};

/// Unpacks the image and compares it with umoci's tree. Ignores the times of entries that no layer describes.
fn compare(image: &Image, layers: usize, undescribed: &[&str]) -> BTreeMap<PathBuf, String> {
    let launcher = Launcher::start(&[]);
    let blobs = image.blobs();
    assert_eq!(blobs.len(), layers);
    let planned = launcher.unpack_image(&blobs);
    let mut ours = of_layers(&launcher.state_dir().join("layers"), &planned.layers);
    let mut theirs = listing(&image.unpacked());
    for tree in [&mut ours, &mut theirs] {
        undescribed.iter().for_each(|path| remove_time(tree, path));
    }
    let differences = differences(&ours, &theirs);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    ours
}

/// The launcher unpacks an image with several layers like umoci. umoci made the layers from changes to a tree.
#[test]
fn multi_layer_image_matches_umoci() {
    let image = Image::new();
    let root = image.root();
    image.copy(Rootfs::busybox().path());
    furnish(&root);
    image.commit();
    change(&root);
    image.commit();
    change_again(&root);
    image.commit();
    let tree = compare(&image, 3, &[]);
    assert!(
        tree.len() > 80 && tree[Path::new("a/set-id")].contains("mode 106711"),
        "control failed: {} entries, or no set-ID bit",
        tree.len()
    );
    assert!(tree[Path::new("a/capable")].contains("security.capability"), "control failed: no capability");
    assert!(!tree.contains_key(Path::new("third")) && !tree.contains_key(Path::new("opaque/old")));
}

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

/// Archives that are valid layers, but that no tool makes from a tree, are unpacked as by umoci: opaque directories,
/// links in paths, directories without an entry in the layer, absolute names, and names with dots.
#[test]
fn unusual_archives_match_umoci() {
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
    let tree = compare(&image, 3, &["not", "not/described"]);
    assert!(tree.contains_key(Path::new("usr/lib/three")) && tree.contains_key(Path::new("d/through")), "{tree:?}");
    assert!(!tree.contains_key(Path::new("d/a")) && !tree.contains_key(Path::new("kept/x")));
}
