//! Sanitizes untrusted text for a terminal.

use executor_core::text::printable;

/// Returns untrusted text as one line without harmful characters, of any length.
pub fn plain(text: &str) -> String {
    printable(text, usize::MAX)
}
