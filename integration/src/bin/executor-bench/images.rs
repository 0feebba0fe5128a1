//! Starts from images that are already in the store, compared with starts from `dir:` of the same tree.
//!
//! The images are made by umoci and served by Debian's registry. Each is fetched before the runs that count.

use std::path::Path;

use anyhow::Context as _;
use integration::images::{Endpoint as _, Image, Registry};
use integration::network::Network;

use crate::Options;
use crate::client::TRUE;
use crate::latency::{Contestant, Latencies, rounds};
use crate::peer::program;
use crate::rootfs::Rootfs;
use crate::stage::{Executor, Ours, Stage};

/// Images with the rootfs's tree, on a registry that runs until this is dropped.
pub(crate) struct Images {
    registry: Registry,
    /// Names, and number of layers of each.
    pushed: [(&'static str, usize); 2],
}

impl Images {
    /// Makes two images: one with a single layer, one with a layer for each directory. The registry is on the host that
    /// the daemons are on. Says so and makes none where a program is missing.
    pub(crate) fn make(rootfs: &Rootfs, network: Option<&Network>) -> anyhow::Result<Option<Self>> {
        if ["umoci", "skopeo", "docker-registry"].iter().any(|name| program(name).is_none()) {
            eprintln!(
                "executor-bench: nothing starts from an image: umoci, skopeo and docker-registry are needed for it"
            );
            return Ok(None);
        }
        let made = || Self::made(rootfs);
        network.map_or_else(made, |network| network.enter(made)).map(Some)
    }

    /// Reference of the image with a single layer.
    pub(crate) fn one_layer(&self) -> String {
        self.reference(self.pushed[0].0)
    }

    fn reference(&self, name: &str) -> String {
        format!("docker://{}", self.registry.name(&format!("{name}:1")))
    }

    fn made(rootfs: &Rootfs) -> anyhow::Result<Self> {
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

/// Measures a daemon's starts, interleaved like every latency. The first contestant is `dir:`.
pub(crate) async fn measure(
    options: &Options,
    stage: &Stage<'_>,
    images: &Images,
    executor: &Executor,
) -> anyhow::Result<Latencies> {
    let mut clients = vec![("dir:".to_owned(), executor.client.lane().await?)];
    for (name, layers) in images.pushed {
        let plural = if layers == 1 { "" } else { "s" };
        clients.push((format!("image, {layers} layer{plural}"), executor.client.with_rootfs(images.reference(name))));
    }
    let ours = |(name, client)| Ours { name, daemon: &executor.daemon, client, shape: TRUE };
    let contestants: Vec<_> = clients.into_iter().map(ours).map(Contestant::Executor).collect();
    rounds(options, stage.host, "image", &contestants).await
}
