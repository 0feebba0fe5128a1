//! Removes images: by name, if unused for a time, or to keep to the size budget.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use executor_core::image::{Digest, ImageReference};

use crate::blocking::blocking;
use crate::error::ImageError;
use crate::images::Images;
use crate::layers::LayerStore;
use crate::record::{ImageRecord, now};

/// Time without writes after which a partial blob is removed.
const PARTIAL_BLOB_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// Rules for removing images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PruneRules {
    /// Remove images that were not used for this long.
    pub unused_for: Option<Duration>,
    /// Remove the least recently used images until the remaining images have at most this many bytes.
    pub bytes_budget: Option<u64>,
    /// True if the images to remove are only reported and nothing is removed.
    pub dry_run: bool,
}

/// Images and layers that were removed, or would be removed in a dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Removed images, least recently used first.
    pub images: Vec<ImageRecord>,
    /// Number of removed layers: layers that only removed images used, and layers that belonged to no image.
    pub layers: u64,
    /// Total size of removed partial downloads, in bytes.
    pub partial_bytes: u64,
    /// Number of selected images that were not removed because they are in use.
    pub in_use: u64,
}

/// Sums the sizes of the images' layers; shared layers count once.
fn bytes_of<'a>(images: impl Iterator<Item = &'a ImageRecord>) -> u64 {
    let mut blobs = BTreeMap::new();
    for image in images {
        for layer in &image.layers {
            blobs.insert(&layer.diff_id, layer.size);
        }
    }
    blobs.values().sum()
}

/// Returns the images to remove, least recently used first, and the number of images that stay because they are in use.
fn select_images(
    mut all: Vec<ImageRecord>,
    rules: &PruneRules,
    now: u64,
    used: impl Fn(&Digest) -> bool,
) -> (Vec<ImageRecord>, u64) {
    all.sort_by_key(|image| image.last_used_at);
    let mut in_use = 0;
    let (mut go, mut stay) = (Vec::new(), Vec::new());
    for image in all {
        let unused_for = Duration::from_nanos(now.saturating_sub(image.last_used_at));
        match rules.unused_for {
            Some(age) if unused_for >= age && used(&image.digest) => {
                in_use += 1;
                stay.push(image);
            }
            Some(age) if unused_for >= age => go.push(image),
            _ => stay.push(image),
        }
    }
    if let Some(budget) = rules.bytes_budget {
        let mut at = 0;
        while at < stay.len() && bytes_of(stay.iter()) > budget {
            if used(&stay[at].digest) {
                at += 1;
            } else {
                go.push(stay.remove(at));
            }
        }
        if bytes_of(stay.iter()) > budget {
            in_use = in_use.max(stay.len() as u64);
        }
    }
    (go, in_use)
}

impl<L: LayerStore> Images<L> {
    /// Removes only the reference `text` if the image has further references and `all_names` is false. Otherwise
    /// removes the image that `text` selects. `used_by` returns the name of a container that uses an image. Returns the
    /// record from before the removal, and true if the image was removed.
    ///
    /// # Errors
    /// Returns an error if there is no such image or a container uses it.
    pub async fn remove(
        self: &Arc<Self>,
        text: &str,
        all_names: bool,
        used_by: impl Fn(&Digest) -> Option<String>,
    ) -> Result<(ImageRecord, bool), ImageError> {
        let _gate = self.intake.gate.lock().await;
        let record = self.find(text)?;
        let reference = ImageReference::parse_short(text).ok().map(|reference| reference.to_string());
        let store = Arc::clone(&self.intake.store);
        if let Some(reference) = reference.filter(|name| record.references.contains_key(name))
            && record.references.len() > 1
            && !all_names
        {
            let digest = record.digest.clone();
            blocking(move || store.untag(&digest, &reference)).await?;
            return Ok((record, false));
        }
        let in_use = |by: String| ImageError::InUse { image: text.chars().take(200).collect(), by };
        if let Some(by) = used_by(&record.digest) {
            return Err(in_use(format!("container {by}")));
        }
        let digest = record.digest.clone();
        if !blocking(move || store.remove_image(&digest)).await? {
            return Err(in_use("a container that is being started".to_owned()));
        }
        self.sweep_layers().await?;
        Ok((record, true))
    }

    /// Removes the images that the rules select, and layers that belong to no image.
    ///
    /// # Errors
    /// Returns an error if the disk or the layer store fails. Earlier removals stay in effect.
    pub async fn prune(
        self: &Arc<Self>,
        rules: PruneRules,
        used_by: impl Fn(&Digest) -> Option<String>,
    ) -> Result<Pruned, ImageError> {
        let _gate = self.intake.gate.lock().await;
        let used = |digest: &Digest| used_by(digest).is_some() || self.intake.store.is_held(digest);
        let (go, mut in_use) = select_images(self.intake.store.all(), &rules, now(), used);
        let store = Arc::clone(&self.intake.store);
        let abandoned = blocking(move || store.ingest.abandoned(PARTIAL_BLOB_LIFETIME, SystemTime::now())).await?;
        let partial_bytes = abandoned.iter().map(|(_, size)| size).sum();
        if rules.dry_run {
            let stay =
                self.intake.store.all().into_iter().filter(|image| !go.iter().any(|gone| gone.digest == image.digest));
            let stay: Vec<Digest> = stay.flat_map(|image| image.layers).map(|layer| layer.diff_id).collect();
            let mut layers: Vec<Digest> =
                go.iter().flat_map(|image| &image.layers).map(|l| l.diff_id.clone()).collect();
            layers.extend(self.intake.store.orphans()?);
            layers.retain(|layer| !stay.contains(layer));
            layers.sort_unstable();
            layers.dedup();
            return Ok(Pruned { images: go, layers: layers.len() as u64, partial_bytes, in_use });
        }
        let mut gone = Vec::new();
        for image in go {
            let (store, digest) = (Arc::clone(&self.intake.store), image.digest.clone());
            if used_by(&image.digest).is_none() && blocking(move || store.remove_image(&digest)).await? {
                gone.push(image);
            } else {
                in_use += 1;
            }
        }
        abandoned.iter().for_each(|(path, _)| crate::store::files::remove(path));
        let layers = self.sweep_layers().await?;
        Ok(Pruned { images: gone, layers, partial_bytes, in_use })
    }

    /// Removes images to keep to the operator's size budget. Call this after an image was added.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::prune`].
    pub async fn keep_to_budget(
        self: &Arc<Self>,
        used_by: impl Fn(&Digest) -> Option<String>,
    ) -> Result<Pruned, ImageError> {
        match self.intake.settings.bytes_budget {
            0 => Ok(Pruned::default()),
            budget if bytes_of(self.intake.store.all().iter()) <= budget => Ok(Pruned::default()),
            budget => self.prune(PruneRules { bytes_budget: Some(budget), ..PruneRules::default() }, used_by).await,
        }
    }

    /// Removes layers that belong to no image, and returns their number. The caller must hold the gate. Layers that a
    /// container still uses are skipped, and are tried again by the next call.
    async fn sweep_layers(&self) -> Result<u64, ImageError> {
        let store = Arc::clone(&self.intake.store);
        let orphans = blocking(move || store.orphans()).await?;
        let mut count = 0;
        // The order of the layers does not matter for correctness.
        for layer in &orphans {
            match self.intake.layers.remove(layer).await {
                Ok(()) => {
                    self.intake.store.remove_layer(layer);
                    count += 1;
                }
                Err(crate::UnpackError::InUse(_)) => {}
                Err(error) => return Err(ImageError::Layers(error)),
            }
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{LayerRecord, VERSION};

    fn digest(n: u8) -> Digest {
        format!("sha256:{}", hex::encode([n; 32])).parse().unwrap()
    }

    fn image(n: u8, last_used_at: u64, layers: &[(u8, u64)]) -> ImageRecord {
        let layers = layers.iter().map(|(n, size)| LayerRecord {
            diff_id: digest(*n),
            digest: digest(*n),
            media_type: String::new(),
            size: *size,
        });
        ImageRecord {
            version: VERSION,
            digest: digest(n),
            index_digest: None,
            config_digest: digest(n),
            fetched: Default::default(),
            imported: false,
            references: BTreeMap::new(),
            platform: String::new(),
            layers: layers.collect(),
            size: 0,
            pulled_at: 0,
            last_used_at,
            warnings: Vec::new(),
        }
    }

    fn gone(rules: PruneRules, used: &[u8]) -> (Vec<u8>, u64) {
        // 1 is the oldest; 1 and 2 share a layer of 100 bytes.
        let all =
            vec![image(3, 30, &[(3, 50)]), image(1, 10, &[(10, 100), (1, 5)]), image(2, 20, &[(10, 100), (2, 7)])];
        let (go, in_use) = select_images(all, &rules, 40, |d| used.iter().any(|n| digest(*n) == *d));
        (go.iter().map(|image| (1..=3).find(|n| digest(*n) == image.digest).unwrap()).collect(), in_use)
    }

    #[test]
    fn prune_by_age_and_budget_spares_used() {
        let age = |nanos| PruneRules { unused_for: Some(Duration::from_nanos(nanos)), ..PruneRules::default() };
        let budget = |bytes| PruneRules { bytes_budget: Some(bytes), ..PruneRules::default() };
        assert_eq!(gone(PruneRules::default(), &[]), (vec![], 0));
        assert_eq!(gone(age(20), &[]), (vec![1, 2], 0));
        assert_eq!(gone(age(20), &[1]), (vec![2], 1));
        assert_eq!(gone(budget(162), &[]), (vec![], 0), "a shared layer counts once");
        assert_eq!(gone(budget(161), &[]), (vec![1], 0));
        assert_eq!(
            gone(budget(156), &[]),
            (vec![1, 2], 0),
            "removal of the image's own 5 bytes is not enough, and 100 bytes are shared"
        );
        assert_eq!(gone(budget(60), &[2]).0, vec![1, 3]);
        assert_eq!(gone(budget(0), &[1, 2, 3]), (vec![], 3));
        let both = PruneRules { unused_for: Some(Duration::from_nanos(30)), bytes_budget: Some(50), dry_run: false };
        assert_eq!(gone(both, &[]), (vec![1, 2], 0));
    }
}
