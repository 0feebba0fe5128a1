//! Images of other makers: Debian, made by mmdebstrap, umoci and skopeo, and served by Debian's registry.

#![allow(clippy::unwrap_used)] // where a test cannot go on, it fails

mod shared;
mod trees;
