//! Bindings as JSON: the documents of `bindings show` and `bindings check`.

use executor_bindings::{BYTES_MAX, BindingFile, Bindings, Layout, Refused};
use executor_cli_kit::view::json::encoded;
use serde::Serialize;

/// Document of `bindings show --json`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ShownBindings<'a> {
    /// Layout: `directories` or `one_file`.
    layout: &'static str,
    /// The variable that names the bindings' location to a process.
    variable: &'static str,
    bytes: u64,
    bytes_max: u64,
    files: Vec<ShownFile<'a>>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ShownFile<'a> {
    path: &'a str,
    binding: Option<&'a str>,
    entry: Option<&'a str>,
    size: u64,
    public: bool,
    /// Encoding: `utf-8` or `base64`; null without --reveal.
    encoding: Option<&'static str>,
    content: Option<String>,
}

impl<'a> ShownBindings<'a> {
    pub(crate) fn new(bindings: &'a Bindings, reveal: bool) -> Self {
        let file = |file: &'a BindingFile| {
            let split = file.path.split_once('/');
            let value = reveal.then(|| encoded(file.content.to_vec()));
            ShownFile {
                path: &file.path,
                binding: split.map(|(binding, _)| binding),
                entry: split.map(|(_, entry)| entry),
                size: file.content.len() as u64,
                public: file.public,
                encoding: value.as_ref().map(|(encoding, _)| *encoding),
                content: value.map(|(_, content)| content),
            }
        };
        Self {
            layout: match bindings.layout() {
                Layout::Directories => "directories",
                Layout::OneFile => "one_file",
            },
            variable: bindings.layout().variable(),
            bytes: bindings.bytes(),
            bytes_max: BYTES_MAX,
            files: bindings.files().iter().map(file).collect(),
        }
    }
}

/// Document of `bindings check --json`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct CheckedBindings {
    ok: bool,
    violations: Vec<String>,
    bindings: Option<usize>,
    files: Option<usize>,
    bytes: Option<u64>,
    bytes_max: u64,
}

impl CheckedBindings {
    pub(crate) fn fine(bindings: &Bindings) -> Self {
        Self {
            ok: true,
            violations: Vec::new(),
            bindings: Some(bindings.bindings().len()),
            files: Some(bindings.files().len()),
            bytes: Some(bindings.bytes()),
            bytes_max: BYTES_MAX,
        }
    }

    pub(crate) fn bad(refused: &Refused) -> Self {
        let violations = refused.lines().collect();
        Self { ok: false, violations, bindings: None, files: None, bytes: None, bytes_max: BYTES_MAX }
    }
}
