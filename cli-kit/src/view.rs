//! Formats results: JSON for programs, aligned text for people.
//!
//! All code here is pure: values go in, text comes out. Text chosen by a container or a caller (labels, paths,
//! messages) is untrusted and reaches a terminal only through [`crate::text::plain`].

pub mod json;
pub mod quantity;
pub mod style;
pub mod table;
