//! Images: the table of `image ls`, `image inspect`, and the progress of a pull.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

use executor_client::v1::pull_progress::Stage;
use executor_client::v1::{Image, ImageConfig, PruneImagesResponse, PullProgress};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use super::human::{age, bytes, time};
use super::style::{Role, Style};
use super::table::Table;
use crate::text::plain;

/// Number of digest digits that are shown.
const SHORT: usize = 12;
/// Redraw interval of an idle progress bar.
const TICK: Duration = Duration::from_millis(120);

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

fn short(digest: &str) -> String {
    digest.split(':').next_back().unwrap_or(digest).chars().take(SHORT).collect()
}

/// Returns a reference without `docker://`.
fn name(reference: &str) -> &str {
    reference.strip_prefix("docker://").unwrap_or(reference)
}

/// Formats `image ls`, one row per name.
pub(crate) fn table(images: &[Image], now: SystemTime, style: Style) -> String {
    let mut table = Table::with_heading(0, &["NAME", "DIGEST", "SIZE", "LAYERS", "PULLED", "USED"]);
    for image in images {
        let none = [String::new()];
        let names = if image.references.is_empty() { &none[..] } else { &image.references[..] };
        for reference in names {
            let shown = if reference.is_empty() { "-" } else { name(reference) };
            table.row([
                (shown.to_owned(), Role::Plain),
                (short(&image.digest), Role::Plain),
                (bytes(image.size), Role::Plain),
                (image.layers.len().to_string(), Role::Plain),
                (age(image.pulled_at.as_ref(), now), Role::Plain),
                (age(image.last_used_at.as_ref(), now), Role::Plain),
            ]);
        }
    }
    table.render(style)
}

/// Formats `image inspect`.
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

/// Formats `image prune`.
pub(crate) fn pruned(pruned: &PruneImagesResponse, dry_run: bool) -> String {
    let mut text = String::new();
    for image in &pruned.images {
        let names = image.references.iter().map(|reference| name(reference)).collect::<Vec<_>>().join(" ");
        text.push_str(&format!("{} {}\n", short(&image.digest), plain(&names)));
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

/// Progress of a pull: bars on a terminal, otherwise one line per change.
pub(crate) struct Bars {
    bars: Option<MultiProgress>,
    layers: HashMap<String, (Option<ProgressBar>, i32)>,
}

impl Bars {
    pub(crate) fn new(terminal: bool) -> Self {
        let bars = terminal.then(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(10)));
        Self { bars, layers: HashMap::new() }
    }

    /// Shows changes of the progress. Returns the lines to print if there is no terminal.
    pub(crate) fn show(&mut self, progress: &PullProgress) -> Vec<String> {
        let mut lines = Vec::new();
        let mut shown = HashSet::new();
        // A layer that occurs several times is fetched once; its lowest occurrence shows the progress.
        for layer in progress.layers.iter().filter(|layer| shown.insert(&layer.digest)) {
            let id = plain(&short(&layer.digest));
            let bars = self.bars.as_ref();
            let (bar, before) = self
                .layers
                .entry(layer.digest.clone())
                .or_insert_with(|| (bars.map(|bars| bars.add(new_bar(&id, layer.size))), Stage::Waiting.into()));
            if let Some(bar) = bar {
                bar.set_position(layer.done.min(layer.size));
            }
            if *before == layer.stage {
                continue;
            }
            *before = layer.stage;
            let word = word(layer.stage());
            match bar {
                Some(bar) if matches!(layer.stage(), Stage::Done | Stage::Present) => bar.finish_with_message(word),
                Some(bar) => bar.set_message(word),
                None => lines.push(format!("{id}: {word} ({})", bytes(layer.size))),
            }
        }
        lines
    }
}

fn new_bar(id: &str, size: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix} {bar:28} {bytes:>10}/{total_bytes:<10} {msg}");
    let bar = ProgressBar::new(size).with_prefix(id.to_owned()).with_message(word(Stage::Waiting));
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸ "));
    bar.enable_steady_tick(TICK);
    bar
}

fn word(stage: Stage) -> &'static str {
    match stage {
        Stage::Unspecified | Stage::Waiting => "waiting",
        Stage::Fetching => "fetching",
        Stage::Fetched => "fetched",
        Stage::Unpacking => "unpacking",
        Stage::Done => "done",
        Stage::Present => "already there",
    }
}

#[cfg(test)]
mod tests {
    use executor_client::v1::pull_progress::Layer;

    use super::*;

    #[test]
    fn without_a_terminal_each_change_is_a_line() {
        let at = |stage: Stage, done| PullProgress {
            digest: String::new(),
            layers: vec![Layer { digest: "sha256:0123456789abcdef".into(), size: 2048, done, stage: stage.into() }],
        };
        let mut bars = Bars::new(false);
        assert_eq!(bars.show(&at(Stage::Waiting, 0)), Vec::<String>::new());
        assert_eq!(bars.show(&at(Stage::Fetching, 5)), ["0123456789ab: fetching (2 KiB)"]);
        assert_eq!(bars.show(&at(Stage::Fetching, 50)), Vec::<String>::new());
        assert_eq!(bars.show(&at(Stage::Done, 2048)), ["0123456789ab: done (2 KiB)"]);
    }

    #[test]
    fn repeated_layer_has_one_line_per_stage() {
        let layer =
            |stage: Stage| Layer { digest: "sha256:0123456789abcdef".into(), size: 1, done: 0, stage: stage.into() };
        let layers = vec![layer(Stage::Fetching), layer(Stage::Waiting)];
        let progress = PullProgress { digest: String::new(), layers };
        let mut bars = Bars::new(false);
        assert_eq!(bars.show(&progress), ["0123456789ab: fetching (1 byte)"]);
        assert_eq!(bars.show(&progress), Vec::<String>::new());
    }

    #[test]
    fn every_name_has_a_row_and_none_upsets_the_terminal() {
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
