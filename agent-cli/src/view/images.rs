//! Formats images for `image ls` and `image inspect`, and the results of removals.

use std::time::SystemTime;

use executor_cli_kit::images::short_digest;
use executor_cli_kit::text::plain;
use executor_cli_kit::view::quantity::{age, bytes, time};
use executor_cli_kit::view::style::{Role, Style};
use executor_cli_kit::view::table::Table;
use executor_client::v1::{Image, ImageConfig, PruneImagesResponse};
use serde::Serialize;

/// An image as JSON.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Document {
    digest: String,
    index_digest: Option<String>,
    config_digest: String,
    references: Vec<String>,
    platform: String,
    size: u64,
    layers: Vec<Layer>,
    pulled_at: Option<String>,
    last_used_at: Option<String>,
    /// Entries of the layers that were skipped when unpacking.
    warnings: Vec<String>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Layer {
    diff_id: String,
    digest: String,
    size: u64,
    media_type: String,
}

impl From<&Image> for Document {
    fn from(image: &Image) -> Self {
        let layers = image.layers.iter().map(|layer| Layer {
            diff_id: layer.diff_id.clone(),
            digest: layer.digest.clone(),
            size: layer.size,
            media_type: layer.media_type.clone(),
        });
        Self {
            digest: image.digest.clone(),
            index_digest: Some(image.index_digest.clone()).filter(|digest| !digest.is_empty()),
            config_digest: image.config_digest.clone(),
            references: image.references.clone(),
            platform: image.platform.clone(),
            size: image.size,
            layers: layers.collect(),
            pulled_at: image.pulled_at.as_ref().map(|at| time(Some(at))),
            last_used_at: image.last_used_at.as_ref().map(|at| time(Some(at))),
            warnings: image.warnings.clone(),
        }
    }
}

/// The document of `image inspect`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Inspected {
    #[serde(flatten)]
    image: Document,
    entrypoint: Vec<String>,
    cmd: Vec<String>,
    env: Vec<String>,
    working_dir: String,
    user: String,
    stop_signal: Option<u32>,
    labels: std::collections::BTreeMap<String, String>,
    volumes: Vec<String>,
    /// The image's configuration, unchanged.
    config: Option<serde_json::Value>,
}

impl Inspected {
    pub(crate) fn new(image: &Image, config: &ImageConfig, json: &str) -> Self {
        Self {
            image: image.into(),
            entrypoint: config.entrypoint.clone(),
            cmd: config.cmd.clone(),
            env: config.env.clone(),
            working_dir: config.working_dir.clone(),
            user: config.user.clone(),
            stop_signal: Some(config.stop_signal).filter(|signal| *signal > 0),
            labels: config.labels.clone().into_iter().collect(),
            volumes: config.volumes.clone(),
            config: serde_json::from_str(json).ok(),
        }
    }
}

/// Result of removing an image.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Removed {
    pub(crate) image: String,
    /// False if only a name of the image was removed.
    pub(crate) removed: Option<bool>,
    pub(crate) error: Option<String>,
}

/// Images and layers that `image prune` removed.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Pruned {
    images: Vec<Document>,
    layers: u64,
    partial_bytes: u64,
    in_use: u64,
}

impl From<&PruneImagesResponse> for Pruned {
    fn from(pruned: &PruneImagesResponse) -> Self {
        Self {
            images: pruned.images.iter().map(Document::from).collect(),
            layers: pruned.layers,
            partial_bytes: pruned.partial_bytes,
            in_use: pruned.in_use,
        }
    }
}

/// Returns a reference without `docker://`.
fn name(reference: &str) -> &str {
    reference.strip_prefix("docker://").unwrap_or(reference)
}

/// Formats the table of `image ls`, one row per name.
pub(crate) fn table(images: &[Image], now: SystemTime, style: Style) -> String {
    let mut table = Table::with_heading(0, &["NAME", "DIGEST", "SIZE", "LAYERS", "PULLED", "USED"]);
    for image in images {
        let none = [String::new()];
        let names = if image.references.is_empty() { &none[..] } else { &image.references[..] };
        for reference in names {
            let shown = if reference.is_empty() { "-" } else { name(reference) };
            table.row([
                (shown.to_owned(), Role::Plain),
                (short_digest(&image.digest), Role::Plain),
                (bytes(image.size), Role::Plain),
                (image.layers.len().to_string(), Role::Plain),
                (age(image.pulled_at.as_ref(), now), Role::Plain),
                (age(image.last_used_at.as_ref(), now), Role::Plain),
            ]);
        }
    }
    table.render(style)
}

/// Formats the output of `image inspect`.
pub(crate) fn inspected(image: &Image, config: &ImageConfig, style: Style) -> String {
    let mut table = Table::bare(0);
    table.pair("digest", &image.digest);
    if !image.index_digest.is_empty() {
        table.pair("index", &image.index_digest);
    }
    for reference in &image.references {
        table.pair("name", name(reference));
    }
    table.pair("platform", &image.platform);
    table.pair("size", format!("{} in {} layers", bytes(image.size), image.layers.len()));
    table.pair("pulled", time(image.pulled_at.as_ref()));
    table.pair("used", time(image.last_used_at.as_ref()));
    image.warnings.iter().for_each(|warning| table.pair("warning", warning));
    let words = |list: &[String]| list.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(" ");
    let lists = [("entrypoint", words(&config.entrypoint)), ("cmd", words(&config.cmd))];
    let texts = [("working dir", config.working_dir.clone()), ("user", config.user.clone())];
    for (name, text) in lists.into_iter().chain(texts).filter(|(_, text)| !text.is_empty()) {
        table.pair(name, text);
    }
    if config.stop_signal > 0 {
        table.pair("stop signal", config.stop_signal.to_string());
    }
    config.env.iter().for_each(|variable| table.pair("env", variable));
    config.volumes.iter().for_each(|volume| table.pair("volume", volume));
    let mut labels: Vec<String> = config.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    labels.sort_unstable();
    labels.iter().for_each(|label| table.pair("label", label));
    image.layers.iter().for_each(|layer| table.pair("layer", format!("{} {}", layer.diff_id, bytes(layer.size))));
    table.render(style)
}

/// Formats the output of `image prune`.
pub(crate) fn pruned(pruned: &PruneImagesResponse, dry_run: bool) -> String {
    let mut text = String::new();
    for image in &pruned.images {
        let names = image.references.iter().map(|reference| name(reference)).collect::<Vec<_>>().join(" ");
        text.push_str(&format!("{} {}\n", short_digest(&image.digest), plain(&names)));
    }
    let verb = if dry_run { "would be removed" } else { "removed" };
    let partial = match pruned.partial_bytes {
        0 => String::new(),
        left => format!(", {} of incomplete pulls", bytes(left)),
    };
    let in_use = match pruned.in_use {
        0 => String::new(),
        count => format!("; {count} in use are kept"),
    };
    text.push_str(&format!("{verb}: {} images, {} layers{partial}{in_use}\n", pruned.images.len(), pruned.layers));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_image_name_has_escaped_row() {
        let image = |references: &[&str]| Image {
            digest: "sha256:0123456789abcdef".into(),
            references: references.iter().map(|name| (*name).to_owned()).collect(),
            size: 1 << 20,
            ..Image::default()
        };
        let images = [image(&["docker://r.example/a:1", "oci:/x\u{1b}[2J"]), image(&[])];
        let text = table(&images, SystemTime::UNIX_EPOCH, Style::PLAIN);
        assert_eq!(text.lines().count(), 4);
        assert!(text.contains("r.example/a:1 ") && text.contains("\\u{1b}") && text.contains("\n-  "), "{text}");
        let config = ImageConfig { entrypoint: vec!["/e x".into()], ..ImageConfig::default() };
        assert!(inspected(&images[0], &config, Style::PLAIN).contains("\"/e x\""));
    }
}
