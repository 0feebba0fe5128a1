//! `system df`: computes and formats disk usage.

use std::collections::{HashMap, HashSet};

use executor_cli_kit::view::quantity::bytes;
use executor_cli_kit::view::style::{Role, Style};
use executor_cli_kit::view::table::Table;
use executor_client::v1::{Container, Image, ImageStoreUsageResponse, InfoResponse, State};
use serde::Serialize;

/// Disk usage, as JSON.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct DiskOverview {
    images: DiskRow,
    containers: DiskRow,
    /// Size of the state directory's file system.
    total_bytes: Option<u64>,
    available_bytes: Option<u64>,
    image_store: StoreUsage,
}

/// Disk usage of the image store.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct StoreUsage {
    directory: String,
    used_bytes: u64,
    used_inodes: u64,
}

/// Disk usage of a kind of objects.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct DiskRow {
    total: usize,
    /// Number of images used by a container, or of containers that are not completed.
    active: usize,
    bytes: u64,
    /// Size of the inactive objects, in bytes.
    reclaimable_bytes: u64,
}

impl DiskOverview {
    pub(crate) fn new(
        images: &[Image],
        containers: &[Container],
        info: &InfoResponse,
        store: &ImageStoreUsageResponse,
    ) -> Self {
        let used = containers.iter().flat_map(|container| container.image.iter().chain(&container.volume_images));
        let used: HashSet<&str> = used.map(|image| &*image.digest).collect();
        let (active, unused): (Vec<_>, Vec<_>) = images.iter().partition(|image| used.contains(&*image.digest));
        // Images can share layers; count each layer once.
        let layers = |images: &[&Image]| -> HashMap<String, u64> {
            images.iter().flat_map(|image| &image.layers).map(|layer| (layer.diff_id.clone(), layer.size)).collect()
        };
        let (kept, mut free) = (layers(&active), layers(&unused));
        free.retain(|layer, _| !kept.contains_key(layer));
        let reclaimable_bytes = free.values().sum();
        let disk = info.disk_usage.as_ref();
        let completed_bytes = disk.map_or(0, |disk| disk.completed_bytes);
        let live = containers.iter().filter(|container| container.state() != State::Completed);
        Self {
            images: DiskRow {
                total: images.len(),
                active: active.len(),
                bytes: kept.values().sum::<u64>() + reclaimable_bytes,
                reclaimable_bytes,
            },
            containers: DiskRow {
                total: containers.len(),
                active: live.count(),
                bytes: completed_bytes,
                reclaimable_bytes: completed_bytes,
            },
            total_bytes: disk.map(|disk| disk.total_bytes),
            available_bytes: disk.map(|disk| disk.available_bytes),
            image_store: StoreUsage {
                directory: store.directory.clone(),
                used_bytes: store.used_bytes,
                used_inodes: store.used_inodes,
            },
        }
    }

    pub(crate) fn table(&self, style: Style) -> String {
        let mut table = Table::with_heading(0, &["TYPE", "TOTAL", "ACTIVE", "SIZE", "RECLAIMABLE"]);
        for (name, row) in [("images", &self.images), ("containers", &self.containers)] {
            let cells = [
                name.to_owned(),
                row.total.to_string(),
                row.active.to_string(),
                bytes(row.bytes),
                bytes(row.reclaimable_bytes),
            ];
            table.row(cells.map(|text| (text, Role::Plain)));
        }
        let mut text = table.render(style);
        let StoreUsage { used_bytes, used_inodes, .. } = self.image_store;
        text.push_str(&format!("\nthe image store uses {} and {used_inodes} inodes\n", bytes(used_bytes)));
        if let (Some(total), Some(available)) = (self.total_bytes, self.available_bytes) {
            text.push_str(&format!(
                "{} of {} are free on the disk of the state directory\n",
                bytes(available),
                bytes(total)
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use executor_client::v1::{DiskUsage, ImageInUse, ImageLayer};

    use super::*;

    #[test]
    fn shared_layers_count_once() {
        let image = |digest: &str, layers: &[(&str, u64)]| Image {
            digest: digest.into(),
            layers: layers
                .iter()
                .map(|(name, size)| ImageLayer { diff_id: (*name).into(), size: *size, ..ImageLayer::default() })
                .collect(),
            ..Image::default()
        };
        let images = [image("a", &[("base", 1000), ("x", 10)]), image("b", &[("base", 1000), ("y", 5)])];
        let container = |state: State, digest: &str| Container {
            state: state.into(),
            image: Some(ImageInUse { digest: digest.into(), ..ImageInUse::default() }),
            ..Container::default()
        };
        let containers = [container(State::Running, "a"), container(State::Completed, "a")];
        let disk_usage = Some(DiskUsage { total_bytes: 1 << 30, available_bytes: 1 << 20, completed_bytes: 77 });
        let store = ImageStoreUsageResponse { used_bytes: 1 << 20, used_inodes: 9, ..Default::default() };
        let info = InfoResponse { disk_usage, ..InfoResponse::default() };
        let usage = DiskOverview::new(&images, &containers, &info, &store);
        let of = |row: &DiskRow| (row.total, row.active, row.bytes, row.reclaimable_bytes);
        assert_eq!((of(&usage.images), of(&usage.containers)), ((2, 1, 1015, 5), (2, 1, 77, 77)));
        assert!(usage.table(Style::PLAIN).contains("the image store uses 1 MiB and 9 inodes"));
        assert!(usage.table(Style::PLAIN).ends_with("1 MiB of 1 GiB are free on the disk of the state directory\n"));
    }
}
