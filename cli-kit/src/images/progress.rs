//! Shows the progress of an image pull.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use executor_client::v1::PullProgress;
use executor_client::v1::pull_progress::Stage;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::text::plain;
use crate::view::quantity::bytes;

/// Number of digest digits that are shown.
const SHORT: usize = 12;
/// Redraw interval of an idle progress bar.
const TICK_INTERVAL: Duration = Duration::from_millis(120);

/// Returns the first digits of a digest.
pub fn short_digest(digest: &str) -> String {
    digest.split(':').next_back().unwrap_or(digest).chars().take(SHORT).collect()
}

/// Progress of a pull: bars on a terminal, otherwise one line per change.
pub(super) struct Bars {
    bars: Option<MultiProgress>,
    layers: HashMap<String, (Option<ProgressBar>, i32)>,
}

impl Bars {
    pub(super) fn new(terminal: bool) -> Self {
        let bars = terminal.then(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(10)));
        Self { bars, layers: HashMap::new() }
    }

    /// Shows changes of the progress. Returns the lines to print if there is no terminal.
    pub(super) fn show(&mut self, progress: &PullProgress) -> Vec<String> {
        let mut lines = Vec::new();
        let mut shown = HashSet::new();
        // A layer that occurs several times is fetched once; its lowest occurrence shows the progress.
        for layer in progress.layers.iter().filter(|layer| shown.insert(&layer.digest)) {
            let id = plain(&short_digest(&layer.digest));
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
    bar.enable_steady_tick(TICK_INTERVAL);
    bar
}

fn word(stage: Stage) -> &'static str {
    match stage {
        Stage::Unspecified | Stage::Waiting => "waiting",
        Stage::Fetching => "fetching",
        Stage::Fetched => "fetched",
        Stage::Unpacking => "unpacking",
        Stage::Done => "done",
        Stage::Present => "already present",
    }
}

#[cfg(test)]
mod tests {
    use executor_client::v1::pull_progress::Layer;

    use super::*;

    #[test]
    fn without_terminal_each_change_prints_line() {
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
}
