//! Sanitizes untrusted text for a terminal.

use executor_core::text::printable;

/// Returns untrusted text of any length as one line without harmful characters.
pub fn plain(text: &str) -> String {
    printable(text, usize::MAX)
}
