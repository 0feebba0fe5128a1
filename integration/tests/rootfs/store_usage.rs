//! Size of the image store, and removal of all names in one call (CRI rules G14 and C40 of docs/guides/cri-rules.md).

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use executor_client::v1::ImageStoreUsageResponse;
use integration::cli::run;
use integration::daemon::Daemon;
use integration::images::{Endpoint as _, Image, Registry};

/// Returns the bytes of a directory, as du counts them, and adds its inodes to `inodes`.
fn counted(dir: &Path, inodes: &mut HashSet<u64>) -> u64 {
    let meta = fs::symlink_metadata(dir).unwrap();
    let own = if inodes.insert(meta.ino()) { meta.blocks() * 512 } else { 0 };
    let entries = if meta.is_dir() { fs::read_dir(dir).unwrap().collect() } else { Vec::new() };
    own + entries.into_iter().map(|entry| counted(&entry.unwrap().path(), inodes)).sum::<u64>()
}

fn pull(daemon: &Daemon, name: &str) {
    let pulled = run(&daemon.socket(), &["image", "pull", name]);
    assert_eq!(pulled.status, 0, "{pulled:?}");
}

fn usage(daemon: &Daemon) -> ImageStoreUsageResponse {
    daemon.api.block_on(daemon.api.client().images().store_usage()).unwrap()
}

#[test]
fn store_usage_follows_layers() {
    let (image, registry, mut daemon) = (Image::build(), Registry::start(false), Daemon::start());
    let empty = usage(&daemon);
    image.push(&registry, "team/app:1");
    pull(&daemon, &registry.name("team/app:1"));
    let full = usage(&daemon);
    let state = daemon.setup().state_dir();
    assert_eq!(full.directory, state.join("layers").display().to_string());
    let mut inodes = HashSet::new();
    let layers = fs::read_dir(state.join("layers/sha256")).unwrap();
    let bytes: u64 = layers.map(|layer| counted(&layer.unwrap().path(), &mut inodes)).sum();
    let bytes = bytes + counted(&state.join("images"), &mut inodes);
    assert_eq!((full.used_bytes, full.used_inodes), (bytes, inodes.len() as u64));
    assert!(full.used_bytes > empty.used_bytes && full.used_inodes > empty.used_inodes + 2, "{empty:?} {full:?}");
    daemon.kill();
    daemon.start_again();
    assert_eq!(usage(&daemon).used_inodes, full.used_inodes, "after a restart");
    daemon.api.block_on(daemon.api.client().images().remove_with_names(&registry.name("team/app:1"))).unwrap();
    assert_eq!(usage(&daemon).used_inodes, empty.used_inodes);
}

#[test]
fn all_names_are_removed_at_once() {
    let (image, registry, daemon) = (Image::build(), Registry::start(false), Daemon::start());
    let names = ["team/app:1", "team/app:2", "team/app:3"].map(|name| {
        image.push(&registry, name);
        pull(&daemon, &registry.name(name));
        registry.name(name)
    });
    let images = daemon.api.client().images();
    let references =
        || daemon.api.block_on(images.list()).unwrap().iter().map(|image| image.references.len()).collect();
    let references: &dyn Fn() -> Vec<usize> = &references;
    assert_eq!(references(), [3]);
    assert!(!daemon.api.block_on(images.remove(&names[0])).unwrap());
    assert_eq!(references(), [2], "control: one name");
    daemon.api.block_on(images.remove_with_names(&names[1])).unwrap();
    assert_eq!(references(), [0; 0]);
}
