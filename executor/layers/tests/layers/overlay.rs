//! Tests stacked layers: hidden entries, entries of the layers below, and attributes.

use std::path::Path;

use executor_layers::{DiffId, UnpackError};
use executor_tar::TarError;
use tar::EntryType;

use crate::harness::{Layer, Sandbox, TreeEntry, header};

fn stack(sandbox: &Sandbox, archives: Vec<Layer>) -> Vec<DiffId> {
    archives.into_iter().fold(Vec::new(), |mut layers, archive| {
        layers.push(sandbox.unpack(&layers, &archive.bytes()).unwrap());
        layers
    })
}

/// Returns the names and contents of the merged layers.
fn seen(archives: Vec<Layer>) -> Vec<(String, String)> {
    let sandbox = Sandbox::new();
    let layers = stack(&sandbox, archives);
    let merged = sandbox.merged(&layers);
    let shown = |(path, item): (std::path::PathBuf, TreeEntry)| {
        (path.display().to_string(), String::from_utf8(item.content).unwrap())
    };
    merged.into_iter().map(shown).collect()
}

fn base() -> Layer {
    Layer::new().dir("d/", 0o750).file("d/a", "a").file("d/b", "b").dir("d/sub/", 0o700).file("d/sub/c", "c")
}

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(path, content)| ((*path).to_owned(), (*content).to_owned())).collect()
}

#[test]
fn whiteouts_hide_only_lower_layers() {
    let d = ("d", "");
    let all = [d, ("d/a", "a"), ("d/b", "b"), ("d/sub", ""), ("d/sub/c", "c")];
    assert_eq!(seen(vec![base()]), pairs(&all));
    let one = vec![base(), Layer::new().dir("d/", 0o750).file("d/.wh.a", "")];
    assert_eq!(seen(one), pairs(&all[..1].iter().chain(&all[2..]).copied().collect::<Vec<_>>()));
    // A directory is removed with its content. If it is created again, the content does not reappear.
    let again = vec![base(), Layer::new().file(".wh.d", "").dir("d/", 0o755).file("d/new", "n")];
    assert_eq!(seen(again), pairs(&[d, ("d/new", "n")]));
    let implied = vec![base(), Layer::new().file("d/.wh.sub", "").file("d/sub/new", "n")];
    assert_eq!(seen(implied), pairs(&[d, all[1], all[2], all[3], ("d/sub/new", "n")]));
    // Entries of the layer itself are present, in any order of entries and whiteouts.
    for layer in [
        Layer::new().dir("d/", 0o755).file("d/new", "n").file("d/.wh..wh..opq", ""),
        Layer::new().dir("d/", 0o755).file("d/.wh..wh..opq", "").file("d/new", "n"),
        Layer::new().file("d/new", "n").file(".wh.d", ""),
        Layer::new().file("d/.wh.a", "").file("d/.wh..wh..opq", "").file("d/.wh.b", "").file("d/new", "n"),
        Layer::new().file("d/.wh..wh..opq", "").file("d/sub/.wh.c", "").file("d/new", "n").file("d/.wh.sub", ""),
    ] {
        let left: Vec<_> = seen(vec![base(), layer]).into_iter().filter(|(path, _)| path != "d/sub").collect();
        assert_eq!(left, pairs(&[d, ("d/new", "n")]));
    }
    let own = vec![base(), Layer::new().file("d/a", "new").file("d/.wh.a", "")];
    assert_eq!(seen(own)[1], ("d/a".to_owned(), "new".to_owned()));
    // These layers have an opaque root, or entries that are hidden by a file.
    let root = vec![base(), Layer::new().file(".wh..wh..opq", "").file("new", "n"), Layer::new().file("top", "t")];
    assert_eq!(seen(root), pairs(&[("new", "n"), ("top", "t")]));
    let file = vec![base(), Layer::new().file("d", "file"), Layer::new().dir("d/", 0o755).file("d/x", "x")];
    assert_eq!(seen(file), pairs(&[d, ("d/x", "x")]));
    let same = vec![base(), Layer::new().file("d", "file").dir("d/", 0o755).file("d/x", "x")];
    assert_eq!(seen(same), pairs(&[d, ("d/x", "x")]));
    let deep = vec![base(), Layer::new().file("d/a/b/c", "deep")];
    assert_eq!(seen(deep)[1..4], pairs(&[("d/a", ""), ("d/a/b", ""), ("d/a/b/c", "deep")]));
    // A whiteout of a missing entry is not visible, and neither is an internal name of aufs.
    let nothing = vec![base(), Layer::new().file("e/.wh.x", "").file("f/g/.wh.y", "").file(".wh..wh.plnk/1.2", "x")];
    assert_eq!(seen(nothing), pairs(&all));
}

/// A repeated layer has the same merged tree as if the archives were applied one after the other, even with whiteouts
/// and opaque directories in the layer and between its occurrences. The expected trees come from stacks in which each
/// occurrence is a separate tree.
#[test]
fn repeated_layer_shows_the_sequential_tree() {
    let repeated: [fn() -> Layer; 7] = [
        Layer::new,
        || Layer::new().file("f", "x"),
        || Layer::new().dir("d/", 0o711).file("d/a", "again"),
        || Layer::new().dir("d/", 0o755).file("d/.wh.a", "").file("d/n", "n"),
        || Layer::new().dir("d/", 0o755).file("d/.wh..wh..opq", "").file("d/n", "n"),
        || Layer::new().file(".wh.d", ""),
        || Layer::new().file(".wh..wh..opq", "").file("n", "n"),
    ];
    let between: [fn() -> Layer; 7] = [
        || Layer::new().file("m", "m"),
        || Layer::new().file("f", "other").dir("d/", 0o700).file("d/n", "other"),
        || Layer::new().file(".wh.f", "").dir("d/", 0o755).file("d/.wh.n", "").file("d/.wh.a", ""),
        || Layer::new().dir("d/", 0o755).file("d/.wh..wh..opq", "").file("d/b", "only"),
        || Layer::new().file(".wh.d", "").file(".wh.n", ""),
        || Layer::new().file("d", "no directory").dir("f/", 0o755).file("f/g", "g"),
        || Layer::new().file(".wh..wh..opq", "").file("m", "m"),
    ];
    for (r, repeated) in repeated.iter().enumerate() {
        for (b, between) in between.iter().enumerate() {
            // An entry that no other layer has makes the archive unique and has no other effect.
            let marked = |layer: Layer, mark: &str| layer.file(&format!("mark{mark}"), "");
            let same = vec![base(), repeated(), between(), repeated(), between(), repeated()];
            let distinct = [base(), repeated(), between(), repeated(), between(), repeated()];
            let distinct = distinct.into_iter().enumerate().map(|(at, layer)| marked(layer, &at.to_string())).collect();
            let mut expected = seen(distinct);
            expected.retain(|(path, _)| !path.starts_with("mark"));
            assert_eq!(seen(same), expected, "repeated layer {r} around layer {b}");
        }
    }
}

/// If a layer depends on the layers below, and these differ between its occurrences, both of its trees are mounted.
#[test]
fn repeated_dependent_layer_keeps_both_trees() {
    let sandbox = Sandbox::new();
    let again = || Layer::new().file("usr/bin/tool", "t");
    let lower = Layer::new().dir("usr/", 0o751);
    let layers = stack(&sandbox, vec![lower, again(), Layer::new().dir("usr/", 0o700), again(), again()]);
    assert_eq!(sandbox.store.open(&layers[..4]).unwrap().dirs.len(), 4);
    let merged = sandbox.merged(&layers);
    assert_eq!((merged[Path::new("usr")].mode, &*merged[Path::new("usr/bin/tool")].content), (0o700, &b"t"[..]));
}

/// If a layer adds files below a directory without an entry for the directory itself, the directory keeps the
/// attributes from the lower layers, even if it is reached through a symbolic link.
#[test]
fn undescribed_directories_inherit_lower_attributes() {
    let sandbox = Sandbox::new();
    let xattr = [("SCHILY.xattr.user.mark", &b"below"[..])];
    let lower = Layer::new().records(&xattr).dir("usr/", 0o751).dir("usr/lib/", 0o711).symlink("lib", "usr/lib");
    let upper = Layer::new().file("usr/bin/tool", "t").file("lib/library", "l");
    let layers = stack(&sandbox, vec![lower, upper]);
    let merged = sandbox.merged(&layers);
    let usr = &merged[Path::new("usr")];
    assert_eq!((usr.mode, usr.owner, usr.mtime), (0o751, (1234, 80), (1_000_000_000, 0)));
    assert_eq!(usr.xattrs["user.mark"], b"below");
    assert_eq!(merged[Path::new("usr/lib")].mode, 0o711);
    assert_eq!(merged[Path::new("usr/lib/library")].content, b"l");
    assert_eq!(merged[Path::new("lib")].kind, 'l');
    let bin = &merged[Path::new("usr/bin")];
    assert_eq!((bin.mode, bin.owner), (0o755, (0, 0)), "no layer describes it");

    // On top of another layer the same layer has another tree, and both trees are stored.
    let other = sandbox.unpack(&[], &Layer::new().dir("usr/", 0o700).bytes()).unwrap();
    let upper = Layer::new().file("usr/bin/tool", "t").file("lib/library", "l").bytes();
    assert!(sandbox.store.has(&layers[1], &layers[..1]) && !sandbox.store.has(&layers[1], &[other]));
    let again = [other, sandbox.unpack(&[other], &upper).unwrap()];
    let merged = sandbox.merged(&again);
    assert_eq!((merged[Path::new("usr")].mode, merged[Path::new("lib")].kind), (0o700, 'd'));
    assert_eq!(sandbox.merged(&layers)[Path::new("usr")].mode, 0o751);
    assert_eq!(sandbox.store.take_out(&layers[1]).unwrap().len(), 2, "both trees are removed");
}

#[test]
fn hard_links_work_within_and_across_layers() {
    let sandbox = Sandbox::new();
    let xattr = [("SCHILY.xattr.user.mark", &b"kept"[..])];
    let lower =
        Layer::new().records(&xattr).raw(EntryType::Regular, "d/file", "", 0o4755, b"content").symlink("l", "d");
    let lower = lower.file("d/other", "o").hard_link("same", "d/file").hard_link("l2", "l");
    let upper = Layer::new().hard_link("again", "/l/file").hard_link("d/link", "l");
    let layers = stack(&sandbox, vec![lower, upper]);
    let one = sandbox.merged(&layers[..1]);
    let first = |path: &str| one[Path::new(path)].first.clone();
    assert!(first("d/file") == first("same") && first("l2") == first("l") && first("d/other") != first("same"));
    let two = sandbox.merged(&layers);
    let (again, file) = (&two[Path::new("again")], &two[Path::new("d/file")]);
    assert_eq!(again, file);
    assert_eq!((again.mode, again.mtime, &*again.content), (0o4755, (1_000_000_000, 0), &b"content"[..]));
    assert_eq!(again.xattrs["user.mark"], b"kept");
    assert_eq!(two[Path::new("d/link")].kind, 'l');
    // A hidden entry cannot be the target of a hard link.
    for gone in [
        Layer::new().file("d/.wh.file", "").hard_link("x", "d/file"),
        Layer::new().file("d/.wh..wh..opq", "").hard_link("x", "d/file"),
        Layer::new().file(".wh.d", "").hard_link("x", "d/file"),
        Layer::new().file("d", "x").hard_link("x", "d/file"),
    ] {
        let refused = sandbox.unpack(&layers, &gone.bytes());
        assert!(matches!(refused, Err(UnpackError::Archive(TarError::Entry { .. }))), "{refused:?}");
    }
}

#[test]
fn entry_attributes_come_from_archive() {
    let sandbox = Sandbox::new();
    let capability = b"\x01\x00\x00\x02\x0a\x0a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00";
    let records: [(&str, &[u8]); 4] = [
        ("SCHILY.xattr.security.capability", capability),
        ("SCHILY.xattr.user.lines", b"a\nb=c\n"),
        ("SCHILY.xattr.security.selinux", b"of a host"),
        ("mtime", b"-1.25"),
    ];
    let mut layer = Layer::new().dir("d/", 0o1777).records(&records);
    layer = layer.raw(EntryType::Regular, "d/set", "", 0o6755, b"x");
    layer = layer.records(&[("SCHILY.xattr.user.of-a-pipe", b"x")]).raw(EntryType::Fifo, "d/pipe", "", 0o620, b"");
    layer =
        layer.records(&[("path", "d/\u{e9}\n\\".as_bytes()), ("uid", b"70000"), ("gid", b"4000000000")]).file("x", "");
    let mut at_the_root = header(EntryType::Directory, 0o711, 0);
    at_the_root.set_mtime(77);
    at_the_root.as_mut_bytes()[0] = b'/';
    at_the_root.set_cksum();
    let layers = stack(&sandbox, vec![layer.symlink("link", "/nowhere").header(&at_the_root, b"")]);
    let merged = sandbox.merged(&layers);
    let of = |path: &str| &merged[Path::new(path)];
    assert_eq!((of("d").mode, of("d").mtime), (0o1777, (1_000_000_000, 0)), "creating entries in it did not change it");
    let set = of("d/set");
    assert_eq!((set.mode, set.owner, set.mtime), (0o6755, (1234, 80), (-2, 750_000_000)));
    assert_eq!(set.xattrs.keys().collect::<Vec<_>>(), ["security.capability", "user.lines"]);
    assert_eq!((&*set.xattrs["security.capability"], &*set.xattrs["user.lines"]), (&capability[..], &b"a\nb=c\n"[..]));
    assert_eq!((of("d/pipe").kind, of("d/pipe").mode), ('p', 0o620));
    assert_eq!((of("link").owner, of("link").mtime), ((1234, 80), (1_000_000_000, 0)));
    assert_eq!(of("d/\u{e9}\n\\").owner, (70_000, 4_000_000_000));
    let root = sandbox.store.open(&layers).unwrap().root.unwrap();
    use std::os::unix::fs::MetadataExt;
    assert_eq!((root.mode() & 0o7777, root.uid(), root.mtime()), (0o711, 1234, 77));
}

/// If an archive describes a directory twice, the last description is used.
#[test]
fn the_last_description_counts() {
    let sandbox = Sandbox::new();
    let layer = Layer::new().records(&[("SCHILY.xattr.user.first", b"1")]).dir("d", 0o700).file("d/x", "x");
    let layers = stack(&sandbox, vec![layer.records(&[("SCHILY.xattr.user.last", b"2")]).dir("./d//", 0o755)]);
    let merged = sandbox.merged(&layers);
    let dir = &merged[Path::new("d")];
    assert_eq!((dir.mode, dir.xattrs.len()), (0o755, 1));
    assert!(dir.xattrs.contains_key("user.last"));
    assert!(merged.contains_key(Path::new("d/x")));
}

#[test]
fn overlay_attributes_in_archives_are_refused() {
    for name in ["trusted.overlay.opaque", "trusted.overlay.redirect", "trusted.overlay.metacopy", "trusted.overlay.x"]
    {
        for kind in [EntryType::Directory, EntryType::Regular, EntryType::Symlink] {
            let record = format!("SCHILY.xattr.{name}");
            let layer = Layer::new().records(&[(&record, b"y")]).raw(kind, "x", "y", 0o644, b"").bytes();
            let refused = Sandbox::new().unpack(&[], &layer).unwrap_err();
            assert!(refused.to_string().contains("reserved for overlayfs"), "{refused}");
        }
    }
    // The control: other attributes are set in the tree.
    let sandbox = Sandbox::new();
    let layer = Layer::new().records(&[("SCHILY.xattr.trusted.other", b"y")]).dir("x", 0o755);
    let layers = stack(&sandbox, vec![layer]);
    assert_eq!(sandbox.merged(&layers)[Path::new("x")].xattrs["trusted.other"], b"y");
}
