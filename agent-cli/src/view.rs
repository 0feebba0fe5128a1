//! Formats results: JSON for programs, aligned text for people.
//!
//! All code here is pure: it converts API messages to text. Strings chosen by a container or a caller (labels, paths,
//! messages) are untrusted and reach a terminal only through [`executor_cli_kit::text::plain`].

pub(crate) mod disk;
pub(crate) mod format;
pub(crate) mod human;
pub(crate) mod images;
pub(crate) mod inspect;
pub(crate) mod json;
pub(crate) mod networks;
pub(crate) mod pods;
pub(crate) mod stats;
pub(crate) mod steps;
