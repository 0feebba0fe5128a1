//! The session of a command: connection, output and style.

use serde::Serialize;

use crate::connect::Client;
use crate::output::Output;
use crate::view::json::to_document;
use crate::view::style::Style;

/// Connection, output and style of a command.
pub struct Session {
    pub client: Client,
    pub output: Output,
    pub style: Style,
    pub json: bool,
}

impl Session {
    /// Prints the JSON document or the text, depending on `--json`.
    pub async fn print(&self, document: &impl Serialize, text: impl FnOnce() -> String) {
        let text = if self.json { to_document(document) } else { text() };
        self.output.text(text).await;
    }
}
