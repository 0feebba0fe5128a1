//! Images with the content of the root file system. umoci creates the images, and Debian's registry serves them.

use std::path::Path;

use anyhow::Context as _;
use integration::images::{Endpoint as _, Image, Registry};
use integration::network::Network;

use crate::rootfs::Rootfs;
use crate::run::program;

/// Images with the content of the rootfs, on a registry that runs until this value is dropped.
pub(crate) struct Images {
    registry: Registry,
    /// Name and number of layers of each image.
    pushed: [(&'static str, usize); 2],
}

impl Images {
    /// Creates two images: one with a single layer, and one with a layer for each directory. The registry runs in the
    /// network namespace of the daemons. Prints a message and returns `None` if a program is missing.
    pub(crate) fn make(rootfs: &Rootfs, network: Option<&Network>) -> anyhow::Result<Option<Self>> {
        if ["umoci", "skopeo", "docker-registry"].iter().any(|name| program(name).is_none()) {
            eprintln!("executor-bench: skipping images, which require umoci, skopeo and docker-registry");
            return Ok(None);
        }
        let made = || Self::made(rootfs);
        network.map_or_else(made, |network| network.enter(made)).map(Some)
    }

    /// Returns the reference of the image with a single layer.
    pub(crate) fn one_layer(&self) -> String {
        self.reference(self.pushed[0].0)
    }

    /// Returns the references of all images, each with its number of layers.
    pub(crate) fn references(&self) -> [(String, usize); 2] {
        self.pushed.map(|(name, layers)| (self.reference(name), layers))
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
                    let to = directory
                        .file_name()
                        .and_then(|name| name.to_str())
                        .with_context(|| format!("{} has no name in UTF-8", directory.display()))?;
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
