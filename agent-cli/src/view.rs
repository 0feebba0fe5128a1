//! Presentation of results: JSON for programs, aligned text for people.
//!
//! Everything here is pure: messages of the interface go in, text comes out. What a container or a caller
//! chose (labels, paths, messages) is untrusted: it reaches a terminal only through [`crate::text::plain`].

pub(crate) mod disk;
pub(crate) mod format;
pub(crate) mod human;
pub(crate) mod images;
pub(crate) mod inspect;
pub mod json;
pub(crate) mod pods;
pub(crate) mod stats;
pub(crate) mod steps;
pub mod style;
pub mod table;
