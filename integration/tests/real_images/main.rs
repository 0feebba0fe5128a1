//! Images that are none of ours: Debian, by mmdebstrap, umoci, skopeo and Debian's registry.

#![allow(clippy::unwrap_used)] // where a test cannot go on, it fails

mod shared;
mod trees;
