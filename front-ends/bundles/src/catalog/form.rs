//! Detects and reads the two encodings of objects, JSON and YAML.

use executor_yaml::lenient;
use serde::de::DeserializeOwned;
use serde_saphyr::DuplicateKeyPolicy;

use super::events::{self, DEPTH_MAX, NODES_MAX};

/// Maximum size of a document, in bytes.
pub const DOCUMENT_MAX: usize = 64 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Json,
    /// YAML, which includes JSON.
    Yaml,
}

impl Form {
    /// Detects the encoding from the first character.
    pub fn from_text(text: &str) -> Self {
        if text.trim_start().starts_with('{') { Self::Json } else { Self::Yaml }
    }

    /// Reads one object. The number of anchors is limited. If a key occurs twice, its last value is used. Error
    /// messages have one line.
    pub fn read<T: DeserializeOwned>(self, text: &str) -> Result<T, String> {
        match self {
            Self::Json => serde_json::from_str(text).map_err(|error| error.to_string()),
            Self::Yaml => events::read(text).map_or_else(|| whole(text), Ok),
        }
    }
}

/// Reads one YAML document with the full reader.
pub(super) fn whole<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: DEPTH_MAX,
            max_nodes: NODES_MAX,
            max_events: 2 * NODES_MAX,
            max_total_scalar_bytes: DOCUMENT_MAX,
            max_aliases: 10_000,
            max_anchors: 10_000,
            max_documents: 1,
        },
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        legacy_octal_numbers: true,
        no_schema: true,
        with_snippet: false,
    };
    let read = |text: &str| serde_saphyr::from_str_with_options(text, options.clone());
    lenient(text, read).map_err(|error: serde_saphyr::Error| {
        let whole = error.to_string();
        let line = whole.lines().next().unwrap_or("cannot be read").to_owned();
        line.chars().take(300).collect()
    })
}
