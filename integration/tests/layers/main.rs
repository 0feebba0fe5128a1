//! Layers of images, by the real launcher: unpacked, used, removed, and what is left when somebody is killed or the disk
//! is full.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails; its helpers do not count as tests to the lint

mod life;
mod trouble;
mod umoci;
