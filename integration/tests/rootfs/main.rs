//! Tests images, registries and layers.

#![allow(clippy::unwrap_used)] // a test that cannot continue fails; the lint does not count its helpers as tests

mod images;
mod layers;
mod odd_images;
mod real_images;
mod store_usage;
