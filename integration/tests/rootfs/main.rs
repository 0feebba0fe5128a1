//! Images, registries and layers.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails; its helpers do not count as tests to the lint

mod images;
mod layers;
mod odd_images;
mod real_images;
mod store_usage;
