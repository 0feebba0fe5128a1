//! Formats results: JSON for programs, aligned text for people.
//!
//! All code here is pure: it converts values to text. Strings chosen by a container or a caller (labels, paths,
//! messages) are untrusted and reach a terminal only through [`crate::text::plain`].

pub mod json;
pub mod quantity;
pub mod style;
pub mod table;
