//! Image layers and the real launcher: unpacking, use, removal, and what is left after a kill or on a full disk.

#![allow(clippy::unwrap_used)] // a test that cannot go on fails; its helpers do not count as tests to the lint

mod life;
mod trouble;
mod umoci;
