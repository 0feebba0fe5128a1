//! Starts from images that are already in the store, compared with starts from `dir:` of the same tree.
//!
//! The images are made by umoci and served by Debian's registry. Each is fetched before the runs that count.

use std::path::Path;

use anyhow::Context as _;
use integration::images::{Endpoint as _, Image, Registry};

use crate::Options;
use crate::client::{Client, TRUE};
use crate::host::Host;
use crate::latency::{Contestant, Latency, rounds};
use crate::rootfs::Rootfs;

/// Images with the rootfs's tree, on a registry that runs until this is dropped.
pub(crate) struct Images {
    registry: Registry,
    /// Names, and number of layers of each.
    pushed: [(&'static str, usize); 2],
}

impl Images {
    /// Makes two images: one with a single layer, one with a layer for each directory.
    pub(crate) fn make(rootfs: &Rootfs) -> anyhow::Result<Self> {
        let registry = Registry::start(false);
        let directories = rootfs.path.read_dir()?.map(|entry| entry.map(|entry| entry.path()));
        let directories = directories.collect::<std::io::Result<Vec<_>>>()?;
        let directories: Vec<&Path> = directories.iter().map(AsRef::as_ref).collect();
        let mut pushed = [("one", 0), ("many", 0)];
        for ((name, layers), groups) in pushed.iter_mut().zip([vec![&directories[..]], directories.chunks(1).collect()])
        {
            let image = Image::new();
            for group in &groups {
                for directory in *group {
                    let to = directory.file_name().and_then(|name| name.to_str()).context("a name")?;
                    image.copy_to(directory, to);
                }
                image.commit();
            }
            image.push(&registry, &format!("{name}:1"));
            *layers = groups.len();
        }
        Ok(Self { registry, pushed })
    }
}

/// Measures the starts, interleaved like every latency. The first contestant is `dir:`.
pub(crate) async fn measure(
    options: &Options,
    host: &Host,
    images: &Images,
    client: &Client,
) -> anyhow::Result<Vec<Latency>> {
    let mut clients = vec![("dir:".to_owned(), client.lane().await?)];
    for (name, layers) in images.pushed {
        let reference = format!("docker://{}", images.registry.name(&format!("{name}:1")));
        let plural = if layers == 1 { "" } else { "s" };
        clients.push((format!("image, {layers} layer{plural}"), client.with_rootfs(reference)));
    }
    let contestants: Vec<_> =
        clients.iter().map(|(name, client)| Contestant::Executor { name: name.clone(), client, shape: TRUE }).collect();
    rounds(options, host, "image", &contestants).await
}
